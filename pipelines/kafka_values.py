"""What records of Kafka hold: rows as JSON or Avro."""

from __future__ import annotations

import io
import json
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from crenel.pipelines import sinks
from crenel.pipelines.errors import CommandError
from crenel.pipelines.kafka_topics import Topic
from crenel.policy import Policy
from crenel.transforms.published import Publisher

__all__ = ["Unreadable", "Values", "derived", "values"]

#: The byte that Confluent's values begin with; the schema's id follows.
_CONFLUENT = struct.Struct(">BI")
#: What single objects begin with; the schema's fingerprint follows.
_SINGLE = b"\xc3\x01"


class Unreadable(Exception):
    """A value that is no row. The message is a short constant."""


class Values(ABC):
    """Reads rows, and writes them."""

    @abstractmethod
    def read(self, value: bytes) -> dict[str, Any]:
        """The row.

        Raises:
            Unreadable: there is none.
        """

    @abstractmethod
    def write(self, row: Mapping[str, Any]) -> bytes:
        """The row's bytes."""


def values(topic: Topic) -> Values:
    """How a topic's values are read and written.

    Raises:
        CommandError: its schema is broken.
    """
    return _Json() if topic.format == "json" else _Avro(topic)


class _Json(Values):
    def read(self, value: bytes) -> dict[str, Any]:
        try:
            row = json.loads(value, parse_constant=_refused)
        except (ValueError, RecursionError):
            msg = "not JSON"
            raise Unreadable(msg) from None
        if type(row) is not dict:
            msg = "not a JSON object"
            raise Unreadable(msg)
        return row

    def write(self, row: Mapping[str, Any]) -> bytes:
        try:
            text = json.dumps(row, default=sinks._plain, ensure_ascii=False, allow_nan=False)
        except ValueError:  # NaN, for which JSON has no word
            text = json.dumps(_finite(row), default=sinks._plain, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace")


def _refused(constant: str) -> Any:
    raise ValueError(constant)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Avro(Values):
    def __init__(self, topic: Topic) -> None:
        import fastavro

        self._schema = _load(topic)
        self._read, self._write = fastavro.schemaless_reader, fastavro.schemaless_writer
        self._head = _head(topic, self._schema)
        self._name = repr(topic)
        self._any_id = topic.encoding == "confluent" and topic.schema_id is None

    def read(self, value: bytes) -> dict[str, Any]:
        size = len(self._head)
        known = value[:1] == self._head[:1] if self._any_id else value[:size] == self._head
        if not known or len(value) < size:
            msg = "not Avro of this schema"
            raise Unreadable(msg)
        stream = io.BytesIO(value[size:])
        try:
            row = self._read(stream, self._schema, None)
        except Exception:  # fastavro lets through whatever broken bytes lead to
            msg = "not Avro of this schema"
            raise Unreadable(msg) from None
        if stream.read(1):
            msg = "not Avro of this schema"
            raise Unreadable(msg)
        return dict(row)

    def write(self, row: Mapping[str, Any]) -> bytes:
        stream = io.BytesIO()
        stream.write(self._head)
        try:
            self._write(stream, self._schema, row)
        except Exception:  # what it says holds the row's values
            msg = f"a row does not fit the Avro schema of {self._name}."
            raise RuntimeError(msg) from None
        return stream.getvalue()


def _load(topic: Topic) -> Any:
    """The schema of a topic's values, understood."""
    import fastavro

    try:
        schema: Any = fastavro.parse_schema(json.loads(topic.schema_text or ""))
    except Exception:  # fastavro has many words for it
        schema = None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        msg = f"{topic!r}: {topic.schema} must hold the Avro schema of a record."
        raise CommandError(msg)
    return schema


def derived(policy: Policy, source: Topic) -> str:
    """The Avro schema of published rows, where those that come are Avro: what leaves as it is, leaves so."""
    fields = [
        {"name": name, "type": ["null", sinks._avro_type(name, kind)]} for name, kind in Publisher(policy).fields()
    ]
    kept = (*policy.sensitive, *policy.publish)
    fields += [{"name": f["name"], "type": f["type"]} for f in _load(source)["fields"] if f["name"] in kept]
    schema = {"type": "record", "name": "Published", "namespace": "crenel", "fields": fields}
    return json.dumps(schema, indent=2) + "\n"


def _head(topic: Topic, schema: Any) -> bytes:
    if topic.encoding == "confluent":
        return _CONFLUENT.pack(0, topic.schema_id or 0)
    if topic.encoding == "single":
        from fastavro.schema import fingerprint, to_parsing_canonical_form

        said = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
        return _SINGLE + bytes.fromhex(said)
    return b""
