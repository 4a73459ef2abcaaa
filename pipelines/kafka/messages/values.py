"""The values of messages: rows as JSON or Avro."""

from __future__ import annotations

import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from itertools import chain, pairwise, repeat
from typing import Any

import pyarrow as pa

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files import writers
from crenel.pipelines.kafka.messages.owner_text import value_as_text
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.transforms._pack.nested_fields import is_path, plain_name
from crenel.transforms._pack.text_columns import named_columns
from crenel.transforms._publish.grouped_rows import GroupedRows
from crenel.transforms._publish.publisher import Publisher
from crenel.transforms._publish.range_form import RangeForm, Ranges

__all__ = [
    "UNFIT",
    "AvroValues",
    "JsonValues",
    "NoRow",
    "Unavailable",
    "Unfit",
    "Unreadable",
    "Values",
    "derived",
    "whole_numbers",
]

#: The start of single objects; the schema's fingerprint follows.
_SINGLE = b"\xc3\x01"
#: Reasons why a value is no row.
_NOT_JSON, _NO_OBJECT, _NO_VALUE = "not JSON", "not a JSON object", "no value"
_NOT_OF_THIS_SCHEMA = "not Avro of this schema"
#: Avro's plain types, and those of their values.
_PLAIN_KINDS = {"null": type(None), "boolean": bool, "int": int, "long": int, "double": float, "string": str}
#: Types of Avro's values that JSON lacks.
_TEXTS = frozenset({bytes, date, datetime, time_of_day, Decimal})
#: The reason why a row cannot be written.
UNFIT = "does not fit the schema of the output"


class Unreadable(Exception):
    """A value is no row. The message is a short constant."""

    def shown(self, value: bytes | None) -> str:
        """The owner's text of the value."""
        return value_as_text(value)


class NoRow(Unreadable):
    """A value has no row, and nobody asked for it: it is only counted."""


class Unavailable(Exception):
    """Values cannot be read for now: what is needed for it does not answer. They are to be tried again."""


class Unfit(Exception):
    """A row does not fit the schema of the topic that it is for. The field is empty if it is not known."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason


class Values(ABC):
    """Reads and writes rows.

    Topics are read and written many rows at a time (`read_many`, `write_many`, `misfits`). A format that has no faster
    way needs to say only what becomes of one.
    """

    @abstractmethod
    def read(self, value: bytes) -> dict[str, Any]:
        """Read a row.

        Raises:
            Unreadable: the value is no row.
            Unavailable: it cannot be read for now.
        """

    def read_many(self, values: Iterable[bytes]) -> list[dict[str, Any] | Unreadable]:
        """Read rows: for each value its row, or why it is none.

        Raises:
            Unavailable: they cannot be read for now.
        """
        found: list[dict[str, Any] | Unreadable] = []
        for value in values:
            try:
                found.append(self.read(value))
            except Unreadable as why:
                found.append(why)
        return found

    @abstractmethod
    def write(self, row: Mapping[str, Any]) -> bytes:
        """Encode a row.

        Raises:
            Unfit: it does not fit the schema.
        """

    def of_nothing(self) -> Unreadable:
        """What a record without a value is."""
        return Unreadable(_NO_VALUE)

    def write_many(self, rows: Iterable[Mapping[str, Any]]) -> list[bytes | Unfit]:
        """Encode rows: for each its value, or why it does not fit the schema."""
        made: list[bytes | Unfit] = []
        for row in rows:
            try:
                made.append(self.write(row))
            except Unfit as why:
                made.append(why)
        return made

    def misfits(self, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[int, str]:
        """Tell which rows have one of these columns that could not be written: by place, the first such column."""
        return {}


def _refused(constant: str) -> Any:
    raise ValueError(constant)


def _as_text(value: Any) -> str:
    """Write a value of one of Avro's types that JSON lacks as text; `json` decides on all others."""
    if type(value) in _TEXTS:
        return str(writers._plain(value))
    raise TypeError


class JsonValues(Values):
    """Rows as JSON objects.

    Two libraries do the work, each where it does the same as Python's `json`. msgspec reads: it knows integers of any
    size, of which orjson makes floats. orjson writes: it leaves bytes and moments to `_as_text`. What either refuses is
    left to `json`, which decides: text with half of a surrogate pair, UTF-16, a number beyond the largest float.
    """

    # Made once: `json.loads` and `json.dumps` would make one for each row, which costs as much as their work.
    _decode = json.JSONDecoder(parse_constant=_refused).decode
    _encode = json.JSONEncoder(default=writers._plain, ensure_ascii=False, allow_nan=False).encode

    def __init__(self) -> None:
        import msgspec
        import orjson

        self._decode_fast = msgspec.json.Decoder(dict).decode
        self._encode_fast = orjson.dumps
        #: Types that orjson would write in a way of its own.
        self._left = (
            orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
        )

    def read(self, value: bytes) -> dict[str, Any]:
        """Read a JSON object."""
        try:
            return self._decode_fast(value)
        except (ValueError, RecursionError):  # msgspec's own errors and UnicodeDecodeError are ValueErrors
            return self._read_slowly(value)

    def read_many(self, values: Iterable[bytes]) -> list[dict[str, Any] | Unreadable]:
        """Read JSON objects."""
        values = list(values)
        try:
            return list(map(self._decode_fast, values))
        except (ValueError, RecursionError):  # one of them; the others are read again, which is rare enough
            return super().read_many(values)

    def _read_slowly(self, value: bytes) -> dict[str, Any]:
        try:
            row = self._decode(value.decode(json.detect_encoding(value), "surrogatepass"))
        except (ValueError, RecursionError):
            raise Unreadable(_NOT_JSON) from None
        if type(row) is not dict:
            raise Unreadable(_NO_OBJECT)
        return row

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Write a JSON object on one line."""
        try:
            return self._encode_fast(row, _as_text, self._left)
        except TypeError:  # also orjson's own errors
            return self._write_slowly(row)

    def write_many(self, rows: Iterable[Mapping[str, Any]]) -> list[bytes | Unfit]:
        """Write JSON objects, each on one line."""
        try:
            if isinstance(rows, GroupedRows) and rows.boxes and all(rows.boxes):
                return self._write_groups(rows)
            rows = list(rows)
            return list(map(self._encode_fast, rows, repeat(_as_text), repeat(self._left)))
        except TypeError:  # one of them
            return list(map(self.write, rows))

    def _write_groups(self, rows: GroupedRows) -> list[bytes | Unfit]:
        """Write what the rows of a release share once, and the other columns value by value.

        Joining these parts costs a third of writing each row as an object, and spares making the object.

        Raises:
            TypeError: one of the values needs to be written slowly.
        """
        heads = (self.write(box)[:-1] for box in rows.boxes)
        parts: list[Iterable[bytes]] = [chain.from_iterable(map(repeat, heads, rows.sizes))]
        for name, column in rows.columns.items():
            parts += [repeat(b"," + self.write({name: 0})[1:-2]), self._written(column)]
        return list(map(b"".join, zip(*parts, repeat(b"}"))))

    def _written(self, column: Sequence[Any]) -> Iterable[bytes]:
        """Write the values of a column."""
        return map(self._encode_fast, column, repeat(_as_text), repeat(self._left))

    def _write_slowly(self, row: Mapping[str, Any]) -> bytes:
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


class AvroValues(Values):
    """Rows as records of Avro, all of one schema.

    Args:
        topic: The topic, with its schema.

    Raises:
        CommandError: the schema is broken.
    """

    def __init__(self, topic: Topic) -> None:
        import fastavro

        self._schema = _load(topic)
        self._read, self._write = fastavro.schemaless_reader, fastavro.schemaless_writer
        self._validate = fastavro.validate
        self._head = _head(topic, self._schema)
        #: A schema for each field alone.
        self._fields = _fields(self._schema)
        #: The types of values that each field surely takes, and the limit of its integers.
        self._kinds = {name: _kinds(record["fields"][0]["type"]) for name, record in self._fields.items()}
        #: The schemas of the two halves of records, by the columns of the second.
        self._halves_of: dict[tuple[str, ...], tuple[Any, Any] | None] = {}

    def read(self, value: bytes) -> dict[str, Any]:
        """Read a record."""
        if not value.startswith(self._head):
            raise Unreadable(_NOT_OF_THIS_SCHEMA)
        stream = io.BytesIO(value[len(self._head) :])
        try:
            row = self._read(stream, self._schema, None)
        except Exception:  # fastavro raises all kinds of errors for broken bytes
            raise Unreadable(_NOT_OF_THIS_SCHEMA) from None
        if stream.read(1):
            raise Unreadable(_NOT_OF_THIS_SCHEMA)
        return dict(row)

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Write a record. Its names cannot have dots."""
        if is_path("".join(row)):
            row = {plain_name(name): value for name, value in row.items()}
        stream = io.BytesIO()
        stream.write(self._head)
        try:
            self._write(stream, self._schema, row)
        except Exception:  # its message contains values of the row
            raise Unfit(self._misfit(row, self._fields) or "", UNFIT) from None
        return stream.getvalue()

    def write_many(self, rows: Iterable[Mapping[str, Any]]) -> list[bytes | Unfit]:
        """Write records; what the rows of a release share, once."""
        if isinstance(rows, GroupedRows) and rows.boxes:
            halves = self._halves(tuple(map(plain_name, rows.columns)))
            if halves is not None:
                try:
                    return self._write_groups(rows, *halves)
                except Exception:  # one of them does not fit
                    pass
        return super().write_many(rows)

    def _write_groups(self, rows: GroupedRows, shared: Any, own: Any) -> list[bytes | Unfit]:
        """Write the two halves of each record: fields of Avro follow each other without anything between them."""
        boxes = ({plain_name(name): value for name, value in box.items()} for box in rows.boxes)
        heads = chain.from_iterable(map(repeat, self._encoded(shared, boxes, self._head), rows.sizes))
        names = tuple(map(plain_name, rows.columns))
        columns = zip(*rows.columns.values(), strict=True)
        return list(
            map(bytes.__add__, heads, self._encoded(own, (dict(zip(names, of, strict=True)) for of in columns)))
        )

    def _encoded(self, schema: Any, records: Iterable[Mapping[str, Any]], head: bytes = b"") -> Iterator[bytes]:
        """Write records into one stream: to make a stream costs as much as to write a field."""
        stream, ends = io.BytesIO(), [0]
        for record in records:
            stream.write(head)
            self._write(stream, schema, record)
            ends.append(stream.tell())
        data = stream.getvalue()
        return (data[start:end] for start, end in pairwise(ends))

    def _halves(self, own: tuple[str, ...]) -> tuple[Any, Any] | None:
        """The schemas of a record's first fields, which the rows of a release share, and of its last ones.

        None if the fields that they do not share are not the last, or cannot be told apart from the first.
        """
        if own not in self._halves_of:
            self._halves_of[own] = _halves(self._schema, own)
        return self._halves_of[own]

    def misfits(self, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[int, str]:
        """Tell which rows have one of these columns that could not be written: by place, the first such column."""
        plain = {plain_name(name): name for name in names}
        if any(map(is_path, names)):
            rows = [{plain_name(name): value for name, value in row.items()} for row in rows]
        doubtful = [name for name in plain if name in self._fields and not self._surely_fit(rows, name)]
        if not doubtful:
            return {}
        found = ((place, self._misfit(row, doubtful)) for place, row in enumerate(rows))
        return {place: plain[name] for place, name in found if name is not None}

    def _surely_fit(self, rows: Sequence[Mapping[str, Any]], name: str) -> bool:
        """Whether a column of plain values can be written, as far as their types tell: to ask fastavro costs more."""
        kinds, limit = self._kinds[name]
        column = [row.get(name) for row in rows]
        if not set(map(type, column)) <= kinds:
            return False
        numbers = [value for value in column if type(value) is int]
        return not numbers or (-limit <= min(numbers) and max(numbers) < limit)

    def _misfit(self, row: Mapping[str, Any], names: Iterable[str]) -> str | None:
        """Tell which of these columns could not be written; None if all could."""
        return next((name for name in names if name in self._fields and not self._fits(row, name)), None)

    def _fits(self, row: Mapping[str, Any], name: str) -> bool:
        """Whether a column can be written, and be read by others: fastavro writes an `int` of any size."""
        try:
            return bool(self._validate({name: row.get(name)}, self._fields[name], raise_errors=False))
        except Exception:  # a value of a kind that fastavro does not know
            return False


def _load(topic: Topic) -> Any:
    """The parsed schema of a topic's values."""
    import fastavro

    try:
        schema: Any = fastavro.parse_schema(json.loads(topic.schema_text or ""))
    except Exception:  # fastavro raises all kinds of errors for a broken schema
        schema = None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        msg = f"{topic!r}: {topic.schema} must hold the Avro schema of a record."
        raise CommandError(msg)
    return schema


def _fields(schema: Any) -> dict[str, Any]:
    """The schemas of a record's fields, each as a record of its own."""
    import fastavro

    whole = fastavro.schema.expand_schema(schema)
    return {
        field["name"]: fastavro.parse_schema({"type": "record", "name": schema["name"], "fields": [field]})
        for field in whole["fields"]
    }


def _halves(schema: Any, own: Collection[str]) -> tuple[Any, Any] | None:
    """The schemas of a record's first fields and of its last ones, which are its `own`.

    None if they are not last, or if a field holds records like the whole one, which neither half describes.
    """
    import fastavro

    whole = fastavro.schema.expand_schema(schema)
    place = next((i for i, field in enumerate(schema["fields"]) if field["name"] in own), 0)
    if not place or not all(field["name"] in own for field in schema["fields"][place:]):
        return None
    # A type that the first fields name may be written out in the last ones, but not twice in either.
    halves = {"first": schema["fields"][:place], "last": whole["fields"][place:]}
    try:
        first, last = (
            fastavro.parse_schema({"type": "record", "name": f"{schema['name']}_{half}", "fields": fields})
            for half, fields in halves.items()
        )
    except Exception:  # fastavro raises all kinds of errors for a broken schema
        return None
    return first, last


def _kinds(field: Any) -> tuple[frozenset[type], int]:
    """The types of values that a field surely takes, and the limit of its integers."""
    types = [kind for kind in (field if isinstance(field, list) else [field]) if isinstance(kind, str)]
    limit = 1 << 63 if "long" in types else 1 << 31
    return frozenset(_PLAIN_KINDS[kind] for kind in types if kind in _PLAIN_KINDS), limit


def derived(policy: Policy, source: Topic, ranges: Ranges = Ranges.STRUCT) -> str:
    """The Avro schema of published rows, for rows that are Avro. Columns published unchanged keep their types."""
    from fastavro.schema import expand_schema

    generalized = pa.schema(Publisher(policy).fields())
    if ranges is not Ranges.STRUCT:
        generalized = RangeForm(policy, ranges, whole_numbers(source)).schema(generalized)
    fields = [{"name": plain_name(f.name), "type": ["null", writers._avro_type(f.name, f.type)]} for f in generalized]
    schema = _load(source)
    # The types of records within records are written out: what names one may be out of reach.
    within = source.envelope is not None or any(map(is_path, named_columns(policy)))
    whole = expand_schema(schema) if within else schema
    known = dict(_paths(_row_fields(source, whole)))
    kept = [name for name in known if name in (*policy.sensitive, *policy.publish)]
    fields += [{"name": plain_name(name), "type": known[name]} for name in kept]
    schema = {"type": "record", "name": "Published", "namespace": "crenel", "fields": fields}
    return json.dumps(schema, indent=2) + "\n"


def _paths(fields: Iterable[Any], path: str = "", *, optional: bool = False) -> Iterator[tuple[str, Any]]:
    """The types of a record's fields; instead of a record within it, those of that one's fields."""
    for field in fields:
        name, kind = f"{path}{field['name']}", field["type"]
        kinds = kind if isinstance(kind, list) else [kind]
        records = [one for one in kinds if isinstance(one, dict) and one.get("type") == "record"]
        others = [one for one in kinds if one != "null"]
        if records and len(others) == 1:
            yield from _paths(records[0]["fields"], f"{name}.", optional=optional or len(kinds) > 1)
        else:
            yield name, ["null", *others] if optional else kind


def _row_fields(topic: Topic, whole: Any) -> Any:
    """The fields of a topic's rows: of its records, or of the rows in their envelopes.

    Raises:
        CommandError: the records are no envelopes.
    """
    if topic.envelope is None:
        return whole["fields"]
    kinds = next((field["type"] for field in whole["fields"] if field["name"] == "after"), None)
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if isinstance(kind, dict) and kind.get("type") == "record":
            return kind["fields"]
    msg = f"{topic!r}: {topic.schema} must have a record `after` for envelope={topic.envelope}."
    raise CommandError(msg)


def whole_numbers(source: Topic) -> set[str]:
    """The columns of a topic that hold whole numbers, as far as a schema of its own says so."""
    if source.schema_text is None or source.registry is not None:
        return set()
    from fastavro.schema import expand_schema

    known = _paths(_row_fields(source, expand_schema(_load(source))))
    types = {name: kind if isinstance(kind, list) else [kind] for name, kind in known}
    return {
        name for name, kinds in types.items() if all(isinstance(k, str) and k in ("null", "int", "long") for k in kinds)
    }


def _head(topic: Topic, schema: Any) -> bytes:
    if topic.encoding == "single":
        from fastavro.schema import fingerprint, to_parsing_canonical_form

        said = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
        return _SINGLE + bytes.fromhex(said)
    return b""
