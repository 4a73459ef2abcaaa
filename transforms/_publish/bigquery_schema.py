"""The schema of published rows in the words of BigQuery, as `WriteToBigQuery` takes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from crenel.policy import Policy
from crenel.transforms._publish.range_form import Ranges, published_schema

__all__ = ["bigquery_schema"]

_KINDS: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_integer, "INTEGER"),
    (pa.types.is_floating, "FLOAT"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "TIMESTAMP"),
    (pa.types.is_timestamp, "DATETIME"),
    (lambda kind: pa.types.is_decimal(kind) and kind.scale <= 9 and kind.precision - kind.scale <= 29, "NUMERIC"),
    (pa.types.is_decimal, "BIGNUMERIC"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind), "STRING"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "BYTES"),
]
#: What columns of an input in BigQuery are in Arrow.
_ARROW: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "INTEGER": pa.int64(),
    "FLOAT": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "DATETIME": pa.timestamp("us"),
    "NUMERIC": pa.decimal128(38, 9),
    "BIGNUMERIC": pa.decimal256(76, 38),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
}
#: BigQuery's other names of the same.
_ALSO = {"BOOL": "BOOLEAN", "INT64": "INTEGER", "FLOAT64": "FLOAT"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}", re.ASCII)


def bigquery_schema(
    policy: Policy, given: pa.Schema | Mapping[str, Any], ranges: Ranges | str = Ranges.COLUMNS
) -> dict[str, Any]:
    """Tell the schema of published rows, for `WriteToBigQuery(schema=...)`.

    Rows are dicts, as `ReadFromBigQuery` makes them. Every field is nullable. Moments in columns of their own are
    `TIMESTAMP` or `DATE`; in a struct they are text.

    Args:
        policy: The policy.
        given: The schema of the input: of Arrow, or of BigQuery (`{"fields": [{"name": "age", "type": "INTEGER"}]}`).
        ranges: As for `Anonymize`.

    Raises:
        ValueError: a column is not there, or has a name or a type that BigQuery does not have.
    """
    arrow = given if isinstance(given, pa.Schema) else pa.schema([_arrow(field) for field in given.get("fields", ())])
    absent = [name for name in (*policy.sensitive, *policy.publish) if name not in arrow.names]
    if absent:
        msg = f"bigquery_schema: the input's schema has no column {absent[0]!r}, which the policy publishes."
        raise ValueError(msg)
    return {"fields": [_field(field) for field in published_schema(policy, arrow, ranges)]}


def _arrow(field: Mapping[str, Any]) -> pa.Field:
    """A field of BigQuery, in Arrow."""
    name = str(field["type"]).upper()
    kind = _ARROW.get(_ALSO.get(name, name))
    if name in ("RECORD", "STRUCT"):
        kind = pa.struct([_arrow(inner) for inner in field["fields"]])
    if kind is None:
        kind = pa.string()  # a type that is written as text, such as GEOGRAPHY or JSON
    return pa.field(field["name"], pa.list_(kind) if field.get("mode") == "REPEATED" else kind)


def _field(field: pa.Field) -> dict[str, Any]:
    """A field of Arrow, in BigQuery."""
    if not _NAME.fullmatch(field.name):
        msg = (
            f"bigquery_schema: {field.name!r} is no name of a column in BigQuery, which has letters, digits and "
            "underscores. Rename the column before Anonymize."
        )
        raise ValueError(msg)
    kind, mode = field.type, "NULLABLE"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind, mode = kind.value_type, "REPEATED"
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        return {"name": field.name, "type": "RECORD", "mode": mode, "fields": [_field(inner) for inner in kind]}
    found = next((name for is_kind, name in _KINDS if is_kind(kind)), None)
    if found is None:
        msg = f"bigquery_schema: BigQuery has no type for the column {field.name!r}, which holds {kind}."
        raise ValueError(msg)
    return {"name": field.name, "type": found, "mode": mode}
