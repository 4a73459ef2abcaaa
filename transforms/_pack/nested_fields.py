"""Fields of objects within rows, named by paths: `patient.address.zip`.

Rows are made flat before anything looks at their values. A column whose own name has dots is taken before a path is
followed. What is within an object leaves only under a path of its own: an object that is named as a whole is refused,
because it may hold fields that nobody declared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from crenel.encoding.encoder import Rejection

__all__ = [
    "A_LIST",
    "NOT_AN_OBJECT",
    "ODD",
    "WHOLE_OBJECT",
    "colliding",
    "column_of",
    "flat",
    "flat_rows",
    "flattened",
    "holds_objects",
    "is_or_has_object",
    "is_path",
    "names_of",
    "plain_name",
]

#: Why a row is rejected whose objects are not as a path says.
A_LIST = "path through a list"
NOT_AN_OBJECT = "path through a value that is no object"
WHOLE_OBJECT = "an object (name its fields)"

#: The field of a struct that holds, as text, what is no object in a column of objects. Arrow has one type for all rows.
ODD = "crenel: no object"

_DOT = "."
_LISTS = (list, tuple, set, frozenset)
_ABSENT = object()


def is_path(name: str) -> bool:
    """Whether a column may lie within an object."""
    return _DOT in name


def plain_name(name: str) -> str:
    """Name a column where names cannot have dots: in Avro, and in rows of Beam."""
    return name.replace(_DOT, "_")


def colliding(names: Iterable[str]) -> str | None:
    """Say which two of these columns would have one name where names cannot have dots; None if none would."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(plain_name(name), name)
        if other != name:
            return f"{other!r} and {name!r} would both be called {plain_name(name)!r}"
    return None


# -- rows as objects ---------------------------------------------------------------------------------


def column_of(rows: Sequence[Any], path: str) -> tuple[list[Any], list[Rejection]]:
    """Take the values that a path leads to out of rows; also tell the rows in which it leads nowhere."""
    first, *others = path.split(_DOT)
    values, wrong = [], []
    for place, row in enumerate(rows):
        value = _field(row, path)
        if value is _ABSENT:
            value, reason = _followed(_field(row, first), others)
            if reason is not None:
                wrong.append(Rejection(place, path, reason))
        values.append(value)
    return values, wrong


def flat_rows(rows: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Make rows that have these columns alone; None where a row has none."""
    columns = [column_of(rows, name)[0] for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _followed(value: Any, path: Iterable[str]) -> tuple[Any, str | None]:
    for part in path:
        if value is _ABSENT or value is None or (isinstance(value, float) and math.isnan(value)):
            return None, None
        if not _is_object(value):
            return None, A_LIST if isinstance(value, _LISTS) else NOT_AN_OBJECT
        value = _field(value, part)
    return (None if value is _ABSENT else value), None


def _field(row: Any, name: str) -> Any:
    if isinstance(row, Mapping):
        return row.get(name, _ABSENT)
    # Not by `getattr` where it can be helped: a tuple has methods, which are no fields.
    return row._asdict().get(name, _ABSENT) if hasattr(row, "_asdict") else getattr(row, name, _ABSENT)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "_asdict")


def is_or_has_object(value: Any) -> bool:
    """Whether a value is an object, or a list with one in it."""
    if _is_object(value):
        return True
    return isinstance(value, _LISTS) and any(map(is_or_has_object, value))


# -- Arrow -------------------------------------------------------------------------------------------


def flat(batch: pa.RecordBatch | pa.Table, names: Sequence[str]) -> tuple[Any, list[Rejection]]:
    """Make the named columns of a batch flat; also tell the rows in which a path leads nowhere, or to an object.

    A batch with plain columns is returned as it is. Otherwise it is a table of the named columns that are there.
    """
    schema = batch.schema
    there = {name for name in names if schema.get_field_index(name) >= 0}
    whole = {name for name in there if holds_objects(schema.field(name).type)}
    if not whole and all(name in there or _DOT not in name for name in names):
        return batch, []
    columns: dict[str, Any] = {}
    wrong: list[Rejection] = []
    for name in names:
        column = batch.column(name) if name in there else _reached(batch, name, wrong)
        if column is not None:
            columns[name] = _without_objects(column, name, wrong)
    if not columns:
        return batch, wrong
    return type(batch).from_arrays(list(columns.values()), names=list(columns)), wrong


def _reached(batch: pa.RecordBatch | pa.Table, path: str, wrong: list[Rejection]) -> Any:
    """Follow a path; None if the schema has no such field."""
    first, *others = path.split(_DOT)
    if batch.schema.get_field_index(first) < 0:
        return None
    column = batch.column(first)
    for part in others:
        if not pa.types.is_struct(column.type):
            why = A_LIST if _is_list(column.type) else NOT_AN_OBJECT
            wrong += _rejections(column, path, why)
            return pa.nulls(len(column))
        odd = column.type.get_field_index(ODD)
        if odd >= 0:
            wrong += _odd(pc.struct_field(column, odd), path)
        place = column.type.get_field_index(part)
        if place < 0:
            return None if odd < 0 else pa.nulls(len(column))
        column = pc.struct_field(column, place)
    return column


def _without_objects(column: Any, name: str, wrong: list[Rejection]) -> Any:
    if not holds_objects(column.type):
        return column
    wrong += _rejections(column, name, WHOLE_OBJECT)
    return pa.nulls(len(column))


def _rejections(column: Any, name: str, reason: str) -> Iterator[Rejection]:
    for place in pc.indices_nonzero(column.is_valid()).to_pylist():
        yield Rejection(place, name, reason)


def _odd(texts: Any, path: str) -> Iterator[Rejection]:
    for place, text in enumerate(texts.to_pylist()):
        if text is not None:
            yield Rejection(place, path, A_LIST if str(text).startswith("[") else NOT_AN_OBJECT)


def holds_objects(kind: pa.DataType) -> bool:
    """Whether values of a type are objects, or lists with objects in them."""
    if pa.types.is_dictionary(kind):
        return holds_objects(kind.value_type)
    if _is_list(kind) and not pa.types.is_map(kind):
        return holds_objects(kind.value_type)
    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_union(kind))


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)
    return any(test(kind) for test in tests)


def names_of(schema: Iterable[pa.Field]) -> list[str]:
    """List the columns that a policy can name: instead of an object, the paths of its fields."""
    return list(dict.fromkeys(name for field in schema for name in _paths(field, field.name)))


def _paths(field: pa.Field, path: str) -> Iterator[str]:
    if not pa.types.is_struct(field.type):
        yield path
        return
    for inner in field.type:
        if inner.name != ODD:
            yield from _paths(inner, f"{path}{_DOT}{inner.name}")


def flattened(table: pa.Table) -> pa.Table:
    """Make all columns of a table flat, each under its path."""
    if not any(pa.types.is_struct(field.type) for field in table.schema):
        return table
    names = names_of(table.schema)
    columns = {}
    for name in names:
        there = table.schema.get_field_index(name) >= 0
        columns[name] = table.column(name) if there else _reached(table, name, [])
    return pa.table({name: column for name, column in columns.items() if column is not None})
