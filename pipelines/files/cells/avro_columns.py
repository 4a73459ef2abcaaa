"""Records of Avro as Arrow columns. A record within a record is a struct, so that paths lead into it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from crenel.transforms._pack.nested_fields import ODD

__all__ = ["batch_of", "schema_of"]

#: The types of values that a column of text takes as they are.
_TEXTS = frozenset({str, type(None)})
#: Objects that are no records, or that are in lists: as text, in the field of a struct, and never published as text.
_OBJECTS = pa.struct([(ODD, pa.string())])
_AVRO_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_AVRO_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_PLAIN = frozenset({*_AVRO_TYPES, "null", "enum", "fixed"})


def schema_of(writer_schema: Any) -> pa.Schema:
    """Find Arrow's types for the fields of a record."""
    return pa.schema(_fields(_expanded(writer_schema)))


def batch_of(records: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Turn records into columns."""
    arrays = []
    for field in schema:
        values = list(map(itemgetter(field.name), records))
        is_text = pa.types.is_string(field.type) and not _TEXTS.issuperset(set(map(type, values)))
        if is_text or pa.types.is_struct(field.type):
            values = [_cell(value, field.type) for value in values]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _expanded(schema: Any) -> Any:
    """Put types in the places of their names; those that hold themselves stay names."""
    from fastavro.schema import expand_schema

    try:
        return expand_schema(schema)
    except Exception:  # fastavro raises all kinds of errors for a schema that holds itself
        return schema


def _fields(record: Any) -> list[tuple[str, pa.DataType]]:
    return [(field["name"], _type(field["type"])) for field in record["fields"]]


def _type(kind: Any) -> pa.DataType:
    """Find Arrow's type for one of Avro. Lists, and values of several types, become JSON text."""
    if isinstance(kind, list):
        return _union([one for one in kind if one != "null"])
    if not isinstance(kind, dict):
        return _AVRO_TYPES.get(kind, pa.string() if kind in _PLAIN else _OBJECTS)
    if kind.get("logicalType") in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[kind["logicalType"]]
    if kind.get("logicalType") == "decimal":
        return pa.decimal128(min(int(kind["precision"]), 38), int(kind.get("scale", 0)))
    if kind["type"] == "record":
        # Arrow has no use for a struct without fields.
        return pa.struct(_fields(kind)) if kind["fields"] else _OBJECTS
    if _holds_objects(kind):
        return _OBJECTS
    if kind.get("logicalType") is not None:
        return pa.string()
    return _type(kind["type"]) if kind["type"] not in ("array", "enum", "fixed") else pa.string()


def _union(kinds: list[Any]) -> pa.DataType:
    found = [_type(one) for one in kinds]
    if all(map(pa.types.is_integer, found)) and found:
        return pa.int64()
    if all(pa.types.is_integer(one) or pa.types.is_floating(one) for one in found) and found:
        return pa.float64()
    if len(found) == 1:
        return found[0]
    return _OBJECTS if any(map(_holds_objects, kinds)) else pa.string()


def _holds_objects(kind: Any) -> bool:
    """Whether values are records or maps, or lists with such in them."""
    if isinstance(kind, list):
        return any(map(_holds_objects, kind))
    if not isinstance(kind, dict):
        return kind not in _PLAIN
    if kind["type"] == "array":
        return _holds_objects(kind["items"])
    return kind["type"] in ("record", "map") or _holds_objects(kind["type"])


def _cell(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if kind.equals(_OBJECTS):
        return {ODD: json.dumps(value, default=str)}
    if pa.types.is_struct(kind):
        return {field.name: _cell(value[field.name], field.type) for field in kind}
    if pa.types.is_string(kind) and not isinstance(value, str):
        return json.dumps(value, default=str)
    return value
