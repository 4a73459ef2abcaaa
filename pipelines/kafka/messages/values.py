"""The values of messages: rows as JSON or Avro."""

from __future__ import annotations

import io
import json
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files import writers
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.transforms._publish.publisher import Publisher

__all__ = ["UNFIT", "JsonValues", "Unfit", "Unreadable", "Values", "derived", "values"]

#: The start of Confluent's values: a byte, and the schema's id.
_CONFLUENT = struct.Struct(">BI")
#: The start of single objects; the schema's fingerprint follows.
_SINGLE = b"\xc3\x01"
#: Reasons why a value is no row.
_NOT_OF_THIS_SCHEMA, _OF_ANOTHER_ID = "not Avro of this schema", "Avro of another schema id"
#: The reason why a row cannot be written.
UNFIT = "does not fit the Avro schema of the output"


class Unreadable(Exception):
    """A value is no row. The message is a short constant."""


class Unfit(Exception):
    """A row does not fit the schema of the topic that it is for. The field is empty if it is not known."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason


class Values(ABC):
    """Reads and writes rows."""

    @abstractmethod
    def read(self, value: bytes) -> dict[str, Any]:
        """Read a row.

        Raises:
            Unreadable: the value is no row.
        """

    @abstractmethod
    def write(self, row: Mapping[str, Any]) -> bytes:
        """Encode a row.

        Raises:
            Unfit: it does not fit the schema.
        """

    def misfit(self, row: Mapping[str, Any], names: Sequence[str]) -> str | None:
        """Tell which of these columns could not be written; None if all could."""
        return None


def values(topic: Topic) -> Values:
    """The format of a topic's values.

    Raises:
        CommandError: its schema is broken.
    """
    return JsonValues() if topic.format == "json" else _AvroValues(topic)


def _refused(constant: str) -> Any:
    raise ValueError(constant)


class JsonValues(Values):
    """Rows as JSON objects."""

    # Made once: `json.loads` and `json.dumps` would make one for each row, which costs as much as their work.
    _decode = json.JSONDecoder(parse_constant=_refused).decode
    _encode = json.JSONEncoder(default=writers._plain, ensure_ascii=False, allow_nan=False).encode

    def read(self, value: bytes) -> dict[str, Any]:
        """Read a JSON object."""
        try:
            row = self._decode(value.decode(json.detect_encoding(value), "surrogatepass"))
        except (ValueError, RecursionError):
            msg = "not JSON"
            raise Unreadable(msg) from None
        if type(row) is not dict:
            msg = "not a JSON object"
            raise Unreadable(msg)
        return row

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Write a JSON object on one line."""
        try:
            text = self._encode(row)
        except ValueError:  # NaN, which is not JSON
            text = self._encode(_finite(row))
        return text.encode("utf-8", "backslashreplace")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _AvroValues(Values):
    def __init__(self, topic: Topic) -> None:
        import fastavro

        self._schema = _load(topic)
        self._read, self._write = fastavro.schemaless_reader, fastavro.schemaless_writer
        self._validate = fastavro.validate
        self._head = _head(topic, self._schema)
        #: A schema for each field alone.
        self._fields = _fields(self._schema)
        #: The schemas that values may have been written with, by id; None if values have no id.
        self._by_id = _by_id(topic, self._schema) if topic.encoding == "confluent" else None

    def read(self, value: bytes) -> dict[str, Any]:
        written_with = self._written_with(value)
        stream = io.BytesIO(value[len(self._head) :])
        try:
            # If the schemas differ, fields are matched by name.
            row = self._read(stream, written_with, None if written_with is self._schema else self._schema)
        except Exception:  # fastavro raises all kinds of errors for broken bytes
            raise Unreadable(_NOT_OF_THIS_SCHEMA) from None
        if stream.read(1):
            raise Unreadable(_NOT_OF_THIS_SCHEMA)
        return dict(row)

    def _written_with(self, value: bytes) -> Any:
        """The schema that a value was written with. It is never guessed."""
        if self._by_id is None:
            if not value.startswith(self._head):
                raise Unreadable(_NOT_OF_THIS_SCHEMA)
            return self._schema
        if len(value) < _CONFLUENT.size or value[0] != 0:
            raise Unreadable(_NOT_OF_THIS_SCHEMA)
        _, number = _CONFLUENT.unpack_from(value)
        if number not in self._by_id:
            raise Unreadable(_OF_ANOTHER_ID)
        return self._by_id[number]

    def write(self, row: Mapping[str, Any]) -> bytes:
        stream = io.BytesIO()
        stream.write(self._head)
        try:
            self._write(stream, self._schema, row)
        except Exception:  # its message contains values of the row
            raise Unfit(self.misfit(row, list(self._fields)) or "", UNFIT) from None
        return stream.getvalue()

    def misfit(self, row: Mapping[str, Any], names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self._fields and not self._fits(row, name)), None)

    def _fits(self, row: Mapping[str, Any], name: str) -> bool:
        """Whether a column can be written, and be read by others: fastavro writes an `int` of any size."""
        try:
            return bool(self._validate({name: row.get(name)}, self._fields[name], raise_errors=False))
        except Exception:  # a value of a kind that fastavro does not know
            return False


def _load(topic: Topic) -> Any:
    """The parsed schema of a topic's values."""
    return _parsed(topic, str(topic.schema), topic.schema_text or "")


def _fields(schema: Any) -> dict[str, Any]:
    """The schemas of a record's fields, each as a record of its own."""
    import fastavro

    whole = fastavro.schema.expand_schema(schema)
    return {
        field["name"]: fastavro.parse_schema({"type": "record", "name": schema["name"], "fields": [field]})
        for field in whole["fields"]
    }


def _parsed(topic: Topic, path: str, text: str) -> Any:
    import fastavro

    try:
        schema: Any = fastavro.parse_schema(json.loads(text))
    except Exception:  # fastavro raises all kinds of errors for a broken schema
        schema = None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        msg = f"{topic!r}: {path} must hold the Avro schema of a record."
        raise CommandError(msg)
    return schema


def _by_id(topic: Topic, schema: Any) -> dict[int, Any]:
    """The schemas that values were written with, by id."""
    found = {} if topic.schema_id is None else {topic.schema_id: schema}
    for number, text in topic.schema_texts:
        path = os.path.join(str(topic.schemas), f"{number}.avsc")
        found[number] = _parsed(topic, path, text)
        _check_resolved(topic, path, found[number], schema)
    return found


def _check_resolved(topic: Topic, path: str, written: Any, wanted: Any) -> None:
    """Refuse a schema, before anything is read, that would make every value unreadable."""
    names = {"written": written["name"].rpartition(".")[2], "wanted": wanted["name"].rpartition(".")[2]}
    known = {names["wanted"], *(alias.rpartition(".")[2] for alias in wanted.get("aliases", ()))}
    if names["written"] not in known:
        msg = f"{topic!r}: {path} is of a record {names['written']!r}, not {names['wanted']!r} as {topic.schema}."
        raise CommandError(msg)
    there = {field["name"] for field in written["fields"]}
    for field in wanted["fields"]:
        if "default" not in field and there.isdisjoint([field["name"], *field.get("aliases", ())]):
            msg = f"{topic!r}: {path} has no field {field['name']!r}, which {topic.schema} has without a default."
            raise CommandError(msg)


def derived(policy: Policy, source: Topic) -> str:
    """The Avro schema of published rows, for rows that are Avro. Columns published unchanged keep their types."""
    fields = [
        {"name": name, "type": ["null", writers._avro_type(name, kind)]} for name, kind in Publisher(policy).fields()
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
