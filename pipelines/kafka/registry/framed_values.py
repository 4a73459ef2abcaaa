"""Values in Confluent's framing: a zero, the id of the schema in four bytes, and what was written by that schema.

    0 | id | [places of the message, Protobuf alone] | Avro, JSON or Protobuf

A record is read by the schema of its own id, which a worker fetches when it first sees the id, and keeps. Before a row
is read by a schema, the schema must have all columns that the policy names, each of the kind that it had when the run
began. Only these columns are read.
"""

from __future__ import annotations

import logging
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from crenel.pipelines.debezium import Envelopes
from crenel.pipelines.kafka.messages.envelope_values import RefusedEnvelope
from crenel.pipelines.kafka.messages.values import AvroValues, JsonValues, NoRow, Unavailable, Unreadable, Values
from crenel.pipelines.kafka.registry.avro_envelope import AvroEnvelope
from crenel.pipelines.kafka.registry.avro_schemas import AvroSchema
from crenel.pipelines.kafka.registry.column_kinds import Kind, RefusedSchema, check
from crenel.pipelines.kafka.registry.json_schemas import JsonSchema
from crenel.pipelines.kafka.registry.protobuf_schemas import Message, ProtobufSchema
from crenel.pipelines.kafka.registry.published_protobuf import ProtobufValues
from crenel.pipelines.kafka.registry.registry_client import (
    RegistryRefused,
    RegistrySilent,
    Schema,
    UnknownSchema,
    shared_client,
)
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed
from crenel.transforms._pack.nested_fields import flat_rows, is_path

__all__ = ["FramedReader", "FramedWriter", "RowSchema", "row_schemas"]

HEAD = struct.Struct(">BI")
#: The place of the first message of a file.
_FIRST = b"\0"
#: Seconds after which a registry that did not answer, or did not know an id, is asked again.
_AGAIN, _KNOWN_BY_THEN = 1.0, 60.0
#: The largest id, and the most ids that are remembered as unknown.
_LARGEST, _MOST_UNKNOWN = (1 << 31) - 1, 1_000
_NO_SUCH_SCHEMA = "of a schema that is not in the registry"
#: Seconds between two warnings that a registry does not answer.
_WARN = 60.0
_LOGGER = logging.getLogger(__name__)


class RowSchema(Protocol):
    """A schema of rows, of any format."""

    def kind(self, column: str) -> Kind | None:
        """What a column holds; None if there is none of this name."""

    def row(self, payload: bytes) -> Mapping[str, Any]:
        """Read a row."""


def row_schemas(schema: Schema, envelopes: Envelopes | None = None) -> list[RowSchema]:
    """The schemas of rows that a registry's schema holds: a file of Protobuf may have several.

    Args:
        schema: The schema.
        envelopes: What opens its values, if they are envelopes around rows.

    Raises:
        RefusedSchema: it cannot be used.
    """
    if envelopes is not None:
        return [AvroEnvelope(schema, envelopes)]
    if schema.form == "PROTOBUF":
        return list(ProtobufSchema(schema).messages())
    return [AvroSchema(schema) if schema.form == "AVRO" else _json(schema)]


def _json(schema: Schema) -> JsonSchema:
    if schema.form != "JSON":
        msg = f"is of the type {schema.form}, which is not known"
        raise RefusedSchema(msg)
    return JsonSchema(schema)


#: Reads what follows the id.
_Decode = Callable[[bytes], dict[str, Any]]


class FramedReader(Values):
    """Reads rows, each by the schema of its writer.

    Args:
        topic: The topic, with its registry and its columns.
        clock: Tells seconds that never go back.
    """

    def __init__(self, topic: Topic, clock: Callable[[], float] = time.monotonic) -> None:
        self._topic = topic
        self._names = tuple(name for name, _ in topic.columns)
        self._clock = clock
        self._lock = threading.Lock()
        self._decoders: dict[int, _Decode] = {}
        #: When ids are asked for again that the registry does not know.
        self._unknown: dict[int, float] = {}
        self._silent_until = self._warned = -_WARN

    def read(self, value: bytes) -> dict[str, Any]:
        """Read a row.

        Raises:
            Unreadable: the value is no row, or its schema is refused.
            Unavailable: the registry does not answer.
            JobFailed: the registry refuses the login.
        """
        if len(value) < HEAD.size or value[0] != 0:
            msg = "no schema id"
            raise Unreadable(msg)
        _, number = HEAD.unpack_from(value)
        decode = self._decoders.get(number) or self._new(number)
        try:
            return decode(value[HEAD.size :])
        except (NoRow, RefusedEnvelope):
            raise
        except Unreadable as why:
            msg = f"{why} of schema {number}"
            raise Unreadable(msg) from None
        except RefusedSchema as why:
            msg = f"schema {number} {why}"
            raise Unreadable(msg) from None

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Not for the input."""
        raise NotImplementedError

    def _new(self, number: int) -> _Decode:
        with self._lock:
            if number not in self._decoders:
                self._decoders[number] = self._decoder(number)
            return self._decoders[number]

    def _fetched(self, number: int) -> Schema:
        now = self._clock()
        if number > _LARGEST or now < self._unknown.get(number, now):
            raise Unreadable(self._not_there(number))
        if now < self._silent_until:
            raise Unavailable
        try:
            return shared_client(self._topic).schema(number)
        except UnknownSchema:
            if len(self._unknown) < _MOST_UNKNOWN:
                self._unknown[number] = now + _KNOWN_BY_THEN
            raise Unreadable(self._not_there(number)) from None
        except RegistryRefused as why:
            msg = f"{self._topic!r}: {why}"
            raise JobFailed(msg) from None
        except RegistrySilent as why:
            self._silent_until = now + _AGAIN
            if now >= self._warned + _WARN:
                self._warned = now
                place = f"{self._topic!r}: the schema registry {self._topic.registry}"
                _tell(f"{place} does not give schema {number}: {why}. Rows wait until it does.")
            raise Unavailable from None

    def _not_there(self, number: int) -> str:
        """Say that there is no such schema, with its id only if that is remembered as unknown.

        Rejected rows are counted by their reasons, so there must be a limit to the number of reasons.
        """
        return f"schema {number} is not in the registry" if number in self._unknown else _NO_SUCH_SCHEMA

    def _decoder(self, number: int) -> _Decode:
        try:
            schema = self._fetched(number)
            if schema.form == "PROTOBUF" and self._topic.envelopes is None:
                return _Messages(ProtobufSchema(schema), lambda message: self._rows(number, message)).decode
            return self._rows(number, row_schemas(schema, self._topic.envelopes)[0])
        except RefusedSchema as why:
            return self._refusing(number, str(why))

    def _rows(self, number: int, schema: RowSchema) -> _Decode:
        """Read the columns by a schema, if it has them."""
        try:
            check(self._topic.columns, schema.kind)
        except RefusedSchema as why:
            return self._refusing(number, str(why))
        names, row_of = self._names, schema.row
        has_paths = any(map(is_path, names))

        def decode(payload: bytes) -> dict[str, Any]:
            row = row_of(payload)
            return flat_rows([row], names)[0] if has_paths else {name: row[name] for name in names}

        return decode

    def _refusing(self, number: int, why: str) -> _Decode:
        """Refuse each row, and tell the operator once."""
        _tell(f"{self._topic!r}: schema {number} {why}. Its rows are rejected.")

        def decode(payload: bytes) -> dict[str, Any]:
            raise RefusedSchema(why)

        return decode


def _tell(what: str) -> None:
    """Tell the operator: in a worker's log, or on standard error where a run on this machine has silenced that."""
    if _LOGGER.isEnabledFor(logging.WARNING):
        _LOGGER.warning("%s", what)
    else:
        print(f"crenel: {what}", file=sys.stderr, flush=True)


class _Messages:
    """Reads the messages of a file of Protobuf. Each record says which of them it is."""

    def __init__(self, schema: ProtobufSchema, rows: Callable[[Message], _Decode]) -> None:
        self._schema = schema
        self._rows = rows
        self._decoders: dict[tuple[int, ...], _Decode] = {}

    def decode(self, payload: bytes) -> dict[str, Any]:
        path, start = _path(payload)
        if path not in self._decoders:
            self._decoders[path] = self._rows(self._schema.message(path))
        return self._decoders[path](payload[start:])


def _path(payload: bytes) -> tuple[tuple[int, ...], int]:
    """The places of a record's message in its file, and where the message begins."""
    count, start = _varint(payload, 0)
    if count == 0:  # short for the first message
        return (0,), start
    path = []
    for _ in range(count):
        place, start = _varint(payload, start)
        path.append(place)
    return tuple(path), start


#: Deeper than any file.
_DEEPEST = 1 << 10


def _varint(payload: bytes, start: int) -> tuple[int, int]:
    """A number in Protobuf's signed form, and where it ends."""
    found = shift = 0
    for place in range(start, min(start + 5, len(payload))):
        found |= (payload[place] & 0x7F) << shift
        shift += 7
        if payload[place] < 0x80:
            if found & 1 or found > _DEEPEST:
                break
            return found >> 1, place + 1
    msg = "not Protobuf"
    raise Unreadable(msg)


class FramedWriter(Values):
    """Writes published rows by the schema that was registered for them.

    Args:
        topic: The topic, with its format, schema and id.
    """

    def __init__(self, topic: Topic) -> None:
        self._texts = topic.text_columns
        head = HEAD.pack(0, topic.schema_id or 0)
        self._head = head + _FIRST if topic.format == "protobuf" else head
        self._rows = _encoder(topic)

    def read(self, value: bytes) -> dict[str, Any]:
        """Not for the output."""
        raise NotImplementedError

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Encode a row.

        Raises:
            Unfit: it does not fit the schema.
        """
        return self._head + self._rows.write(self._plain(row))

    def misfits(self, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[int, str]:
        """Tell which rows have one of these columns that could not be written: by place, the first such column."""
        return self._rows.misfits([self._plain(row) for row in rows], names)

    def _plain(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with its dates, decimals and the like as text."""
        if not self._texts:
            return row
        return {name: _text(value) if name in self._texts else value for name, value in row.items()}


def _encoder(topic: Topic) -> Values:
    if topic.format == "avro":
        return AvroValues(topic)
    return ProtobufValues(topic.schema_text or "") if topic.format == "protobuf" else JsonValues()


def _text(value: Any) -> str | None:
    return None if value is None else str(value.isoformat() if hasattr(value, "isoformat") else value)
