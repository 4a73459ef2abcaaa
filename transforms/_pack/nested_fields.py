"""Fields of objects within rows, named by paths: `patient.address.zip`.

Rows are made flat before anything looks at their values. A column whose own name has dots is taken before a path is
followed. What is within an object leaves only under a path of its own: an object that is named as a whole is refused,
because it may hold fields that nobody declared.
"""

from __future__ import annotations

import json
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
    "PLAIN",
    "WHOLE_OBJECT",
    "as_it_came",
    "colliding",
    "column_of",
    "flat",
    "flat_rows",
    "flattened",
    "holds_objects",
    "is_or_has_object",
    "is_path",
    "marked",
    "names_of",
    "plain_name",
    "struct_field",
]

#: Reasons to reject a row whose objects do not fit a path.
A_LIST = "path through a list"
NOT_AN_OBJECT = "path through a value that is no object"
WHOLE_OBJECT = "an object (name its fields)"

#: Arrow has one type for all rows. So a value that is no object, in a column of objects, is kept in one of two fields:
#: a plain value as it is, and a list with objects in it as text, which must never be published.
PLAIN = "crenel: plain value"
ODD = "crenel: no object"

#: An object of the input may have a field of the name `PLAIN`. Only the field that crenel makes has this metadata.
_OURS = {b"crenel": b"plain values"}

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


# -- columns of objects and plain values -------------------------------------------------------------


def marked(value: Any) -> dict[str, Any] | None:
    """Make an object of a value that is to be in a column of objects."""
    if value is None or (isinstance(value, dict) and not {PLAIN, ODD} & value.keys()):
        return value
    return {ODD: json.dumps(value, ensure_ascii=False)} if is_or_has_object(value) else {PLAIN: value}


def struct_field(name: str, kind: pa.DataType) -> pa.Field:
    """Declare a field of a column whose values are `marked`."""
    return pa.field(name, kind, metadata=_OURS if name == PLAIN else None)


def as_it_came(value: Any) -> Any:
    """Undo `marked`, in a value and in the objects within it."""
    if not isinstance(value, dict):
        return value
    if value.get(PLAIN) is not None:
        return value[PLAIN]
    if value.get(ODD) is not None:
        return _parsed(value[ODD])
    # Beside plain values, a field that is null is mostly one that only objects of other rows have.
    kept = {name: inner for name, inner in value.items() if inner is not None} if PLAIN in value else value
    return {name: as_it_came(inner) for name, inner in kept.items()}


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _plain_place(kind: pa.DataType) -> int:
    """Find the field of a struct that holds plain values; -1 if there is none."""
    place = kind.get_field_index(PLAIN) if pa.types.is_struct(kind) else -1
    return place if place >= 0 and kind.field(place).metadata == _OURS else -1


def _plain_values(column: Any) -> Any:
    """Return the plain values of a column, null where there are objects; None if it cannot have any."""
    place = _plain_place(column.type)
    return None if place < 0 else pc.struct_field(column, place)


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
            wrong += _rejections(column.is_valid(), path, why)
            return pa.nulls(len(column))
        no_objects = [at for at in (_plain_place(column.type), column.type.get_field_index(ODD)) if at >= 0]
        for at in no_objects:
            wrong += _no_objects(pc.struct_field(column, at), path)
        place = column.type.get_field_index(part)
        if place < 0:
            return pa.nulls(len(column)) if no_objects else None
        column = pc.struct_field(column, place)
    return column


def _without_objects(column: Any, name: str, wrong: list[Rejection]) -> Any:
    """Take the plain values of a column; also tell the rows that have an object in it."""
    if not holds_objects(column.type):
        return column
    plain = _plain_values(column)
    if plain is None:
        wrong += _rejections(column.is_valid(), name, WHOLE_OBJECT)
        return pa.nulls(len(column))
    wrong += _rejections(pc.and_(column.is_valid(), plain.is_null()), name, WHOLE_OBJECT)
    return plain


def _rejections(is_wrong: Any, name: str, reason: str) -> Iterator[Rejection]:
    for place in pc.indices_nonzero(is_wrong).to_pylist():
        yield Rejection(place, name, reason)


def _no_objects(values: Any, path: str) -> Iterator[Rejection]:
    for place, value in enumerate(values.to_pylist()):
        if value is not None:
            yield Rejection(place, path, A_LIST if str(value).startswith("[") else NOT_AN_OBJECT)


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
    """List the columns that a policy can name: instead of an object, the paths of its fields.

    A column of objects and plain values is listed, too.
    """
    return list(dict.fromkeys(name for field in schema for name in _paths(field, field.name)))


def _paths(field: pa.Field, path: str) -> Iterator[str]:
    if not pa.types.is_struct(field.type):
        yield path
        return
    plain = _plain_place(field.type)
    if plain >= 0:
        yield path
    for place, inner in enumerate(field.type):
        if inner.name != ODD and place != plain:
            yield from _paths(inner, f"{path}{_DOT}{inner.name}")


def flattened(table: pa.Table) -> pa.Table:
    """Make all columns of a table flat, each under its path."""
    if not any(pa.types.is_struct(field.type) for field in table.schema):
        return table
    columns = {}
    for name in names_of(table.schema):
        there = table.schema.get_field_index(name) >= 0
        column = table.column(name) if there else _reached(table, name, [])
        if column is not None:
            columns[name] = column
    for name in [name for name, column in columns.items() if _plain_place(column.type) >= 0]:
        _keep_what_prevails(columns, name, table.schema.names)
    return pa.table(columns)


def _keep_what_prevails(columns: dict[str, Any], name: str, whole: Sequence[str]) -> None:
    """Choose between the plain values of a column and the paths into its objects: the fewer ones are mistakes.

    The keys of an object that is there by mistake are data, and no names of columns.
    """
    if name not in columns:
        return
    column, plain = columns[name], _plain_values(columns[name])
    values, objects = len(plain) - plain.null_count, plain.null_count - column.null_count
    columns[name] = plain
    if objects > values:
        del columns[name]
    if values > objects:
        for path in [path for path in columns if path.startswith(f"{name}{_DOT}") and path not in whole]:
            del columns[path]
