"""Tells, when a row is read, whether it can be written to the output topic later.

A row that turns out not to fit after its release would be missing from its crowd. So what is published as it is, the
sensitive and the other columns, is checked before the row enters the engine. Generalizations are not: all rows of a
release share one, so either all of them fit or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crenel.pipelines.kafka.messages.value_formats import writing
from crenel.pipelines.kafka.messages.values import UNFIT, JsonValues
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.transforms._pack.nested_fields import flat_rows, is_path

__all__ = ["OutputFit"]

#: The size of the largest record that a client sends by default (`message.max.bytes`).
_LARGEST = 1_000_000
#: A value may be written with more bytes than it was read with, but with fewer than this many times as many.
_GROWS = 8
_TOO_LARGE = "too large for the output topic"


class OutputFit:
    """Checks rows for the topic that they are published to.

    Args:
        policy: Names the columns that are published as they are.
        topic: The topic.
    """

    def __init__(self, policy: Policy, topic: Topic) -> None:
        self._names = (*policy.sensitive, *policy.publish)
        self._values = writing(topic)
        self._json = JsonValues()
        largest = int(dict(topic.settings).get("message.max.bytes", _LARGEST))
        #: The rest is for the generalized columns, the key and the header.
        self._most = largest - largest // 10

    def problems(self, rows: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Find the rows that do not fit: by place, the column that does not, and why.

        Args:
            rows: The rows.
            sizes: The bytes that each was read from.
        """
        if any(map(is_path, self._names)):
            rows = flat_rows(rows, self._names)
        found = {place: (name, UNFIT) for place, name in self._values.misfits(rows, self._names).items()}
        for place, size in enumerate(sizes):
            if size * _GROWS > self._most:
                name = self._too_large(rows[place])
                found |= {} if name is None else {place: (name, _TOO_LARGE)}
        return found

    def _too_large(self, row: Mapping[str, Any]) -> str | None:
        """The largest column, if all that are published would be larger than a record may be."""
        lengths = {name: len(self._json.write({name: row.get(name)})) for name in self._names}
        return max(lengths, key=lambda name: lengths[name]) if sum(lengths.values()) > self._most else None
