"""Beam transforms: the engines of `crenel.engine`, inside a pipeline.

The guarantee, the unit of privacy (a person) and the limits of protection are those of the package `crenel`. This layer
adds what a stream needs around an engine: encoding of rows, sharding by key, state and event-time timers. It decides
nothing about privacy on its own.

    read -> PACK (encode, shard, pack) -> HOLD (one engine per shard) -> PUBLISH (decode, mix) -> write

Labels of steps are part of the interface: savepoints and `--update` find their state by them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crenel.encoding.text_format import TextFormat
    from crenel.transforms._publish.bigquery_schema import bigquery_schema
    from crenel.transforms._publish.counts import Counts
    from crenel.transforms._publish.range_form import published_schema
    from crenel.transforms.anonymize import Anonymize, Anonymized
    from crenel.transforms.bounded import AnonymizeBounded
    from crenel.transforms.durable import Durable
    from crenel.transforms.tables import AnonymizedTable

__all__ = [
    "Anonymize",
    "AnonymizeBounded",
    "Anonymized",
    "AnonymizedTable",
    "Counts",
    "Durable",
    "TextFormat",
    "bigquery_schema",
    "published_schema",
]

#: Where each name comes from. Beam takes a second and a half to import, and commands that only parse columns need none.
_HOME = {
    "Anonymize": "crenel.transforms.anonymize",
    "AnonymizeBounded": "crenel.transforms.bounded",
    "Anonymized": "crenel.transforms.anonymize",
    "AnonymizedTable": "crenel.transforms.tables",
    "Counts": "crenel.transforms._publish.counts",
    "Durable": "crenel.transforms.durable",
    "TextFormat": "crenel.encoding.text_format",
    "bigquery_schema": "crenel.transforms._publish.bigquery_schema",
    "published_schema": "crenel.transforms._publish.range_form",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
