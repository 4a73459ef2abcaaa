"""Published ranges, of which many rows have the same: each distinct one is formatted once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

__all__ = ["each_once", "is_range"]


def is_range(kind: pa.DataType) -> bool:
    """Whether a type is that of published ranges."""
    return bool(pa.types.is_struct(kind)) and [field.name for field in kind] == ["lo", "hi"]


def each_once(column: pa.Array, write: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Apply `write` to a column; if it holds ranges, to each distinct one once."""
    if not is_range(column.type) or not len(column):
        return write(column)
    # A range without ends is not a missing range.
    key = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    for ends in column.flatten():
        encoded = ends.dictionary_encode(null_encoding="encode")
        key = key * len(encoded.dictionary) + encoded.indices.to_numpy()
    codes = pa.array(key).dictionary_encode().indices.to_numpy()
    places = np.empty(int(codes.max()) + 1, dtype=np.int64)
    places[codes] = np.arange(len(codes))
    return write(column.take(pa.array(places))).take(pa.array(codes))
