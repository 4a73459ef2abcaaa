"""Tables of Arrow: joined under one schema, and cut off from the memory of what they were part of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["alone", "concat", "conformed", "own", "unified"]


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables under one schema: files of one input need not agree on their types.

    Integers and floats become floats; types that have nothing in common become text. A column that a table lacks is
    null there.
    """
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables(tables)
    schema = unified([table.schema for table in tables])
    return pa.concat_tables([conformed(table, schema) for table in tables])


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Unify schemas; columns are in the order in which they first appear."""
    types: dict[str, pa.DataType] = {}
    for schema in dict.fromkeys(schema.remove_metadata() for schema in schemas):
        for field in schema:
            types[field.name] = _wider(types.get(field.name, pa.null()), _plain(field.type))
    return pa.schema(list(types.items()))


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to a schema that `unified` made."""
    there = set(table.schema.names)
    columns = [
        _cast(table.column(field.name), field.type) if field.name in there else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Replace dictionaries in a type by their values, inside lists and structs too."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except pa.ArrowNotImplementedError:  # nested values as text
        return pa.chunked_array([[None if value is None else str(value) for value in column.to_pylist()]], kind)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one.equals(other):
        return one
    pair = [pa.schema([("", kind)]) for kind in (one, other)]
    try:
        return pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()


def alone(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch into memory of its own: a slice would take the rows beside it along."""
    copied = batch.take(pa.array(np.arange(batch.num_rows)))
    return pa.RecordBatch.from_arrays([own(column) for column in copied.columns], schema=copied.schema)


def own(column: pa.Array) -> pa.Array:
    """Reduce every dictionary of a column, nested ones too, to the values that its rows have.

    Arrow keeps a dictionary whole when it chooses rows, and would publish values of other rows with it. The values are
    put in the order in which rows have them; those of an ordered dictionary, whose order means something, stay in it.
    """
    kind = column.type
    if not _has_dictionary(kind):
        return column
    if pa.types.is_dictionary(kind):
        return _own_dictionary(column)
    if pa.types.is_struct(kind):
        inner = [own(field) for field in column.flatten()]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.asarray(pc.fill_null(column.value_lengths(), 0))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32() if pa.types.is_list(kind) else None)
        made = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
        return made.from_arrays(offsets, own(column.flatten()), type=kind, mask=column.is_null())
    # Rarer types, one value at a time.
    return pa.array(column.to_pylist(), kind)


def _own_dictionary(column: pa.DictionaryArray) -> pa.DictionaryArray:
    used = column.indices.unique().drop_null()
    if column.type.ordered:
        used = used.take(pc.sort_indices(used))
    places = pc.index_in(column.indices, value_set=used).cast(column.type.index_type)
    return pa.DictionaryArray.from_arrays(places, own(column.dictionary.take(used)), ordered=column.type.ordered)


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return bool(pa.types.is_dictionary(kind)) or any(map(_has_dictionary, inner))
