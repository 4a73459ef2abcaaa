"""Arrow columns in Avro's binary encoding, a column at a time.

A row of Avro is its fields one after the other, so rows are the columns' cells joined. To encode each row by itself
costs ten times as much. Every value is of a union of null and one type, which comes second.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crenel.pipelines.files.cells.distinct_ranges import each_once

__all__ = ["cells", "joined"]

#: The place of a value's type in its union.
_NULL, _VALUE = pa.scalar(b"\x00", pa.binary()), pa.scalar(b"\x02", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_BOOLEANS = pa.array([b"\x00", b"\x01"], pa.binary())


def cells(column: pa.Array) -> pa.Array:
    """Encode each value of a column. Its type must be one that Avro has, or a struct of such types."""
    return each_once(column, _cells)


def joined(columns: list[pa.Array]) -> pa.Array:
    """Join the cells of each row."""
    return pc.binary_join_element_wise(*columns, _NOTHING)


def _cells(column: pa.Array) -> pa.Array:
    return pc.fill_null(joined([_VALUE, _values(column)]), _NULL)


def _values(column: pa.Array) -> pa.Array:
    """Encode each value without its place in the union; null stays null."""
    kind = column.type
    if pa.types.is_struct(kind):
        inner = joined([cells(field) for field in column.flatten()])
        return pc.if_else(column.is_valid(), inner, None)
    if pa.types.is_boolean(kind):
        return _BOOLEANS.take(column.cast(pa.int8()))
    if pa.types.is_floating(kind):
        return _doubles(column.cast(pa.float64()))
    if pa.types.is_timestamp(kind):
        return _longs(column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()))
    if pa.types.is_date(kind):
        return _longs(column.cast(pa.date32()).cast(pa.int32()))
    if pa.types.is_integer(kind):
        return _longs(column.cast(pa.int64()))
    data = column.cast(pa.binary())
    return joined([_longs(pc.binary_length(data)), data])


def _doubles(column: pa.Array) -> pa.Array:
    numbers = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype("<f8")
    data = pa.Array.from_buffers(pa.binary(8), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
    return pc.if_else(column.is_valid(), data.cast(pa.binary()), None)


def _longs(column: pa.Array) -> pa.Array:
    distinct = column.dictionary_encode()
    return pa.array([_long(number) for number in distinct.dictionary.to_pylist()], pa.binary()).take(distinct.indices)


def _long(number: int) -> bytes:
    """Encode an integer: numbers near 0 take few bytes, 7 bits each, the lowest first."""
    rest = number << 1 if number >= 0 else ~(number << 1)
    data = bytearray()
    while rest > 0x7F:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    data.append(rest)
    return bytes(data)
