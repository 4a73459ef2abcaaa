"""The whole of a small file as one Arrow table: what `crenel init` and `crenel check` look at.

The rows are those that `crenel run` reads, and `read_for` types the columns as a run does. `read` is for `init`, which
has no policy yet: in a format without types, it gives each column the narrowest type that fits all of its values.
"""

from __future__ import annotations

import os
from os import PathLike

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crenel.pipelines.files.formats import FORMATS, USUAL, Dialect, TableError
from crenel.pipelines.files.readers import Source, open_file
from crenel.policy import Policy, columns
from crenel.transforms._pack.arrow_tables import concat
from crenel.transforms._pack.text_columns import TextColumns, numbers

__all__ = ["read", "read_for"]

#: Bytes of the largest file that is held in memory.
_MOST_BYTES = 2 * 10**9


def read(path: str | PathLike[str], dialect: Dialect = USUAL) -> pa.Table:
    """Read a whole file of at least one row.

    In a format without types (CSV, TSV), a column becomes integers, floats or moments if all of its values are such; a
    column whose numbers have leading zeros stays text.

    Raises:
        TableError: the file cannot be read; the message says why, and where.
    """
    source = open_file(path, dialect)
    table = _whole(source)
    if not FORMATS[source.extension].untyped:
        return table
    return pa.table({name: _narrowest(table[name].combine_chunks()) for name in table.column_names})


def read_for(policy: Policy, path: str | PathLike[str], dialect: Dialect = USUAL) -> pa.Table:
    """Read a whole file of at least one row; its columns have the types that `crenel run` gives them.

    Raises:
        TableError: the file cannot be read; the message says why, and where.
    """
    table, text = _whole(open_file(path, dialect)), TextColumns(policy)
    return pa.table({name: text.array(name, table[name]) for name in table.column_names})


def _whole(source: Source) -> pa.Table:
    if not os.path.getsize(source.path):
        msg = f"{source.name} is empty."
        raise TableError(msg)
    source.columns()  # refuses a column that is there twice
    batches, size = [], os.path.getsize(source.path)
    _check_size(source, size)
    for batch in source.batches():
        batches.append(batch)
        if source.compression:
            size += batch.nbytes
            _check_size(source, size)
    if not batches or not batches[0].num_columns:
        msg = f"{source.name} has no rows."
        raise TableError(msg)
    return concat([pa.Table.from_batches([batch]) for batch in batches])


def _check_size(source: Source, size: int) -> None:
    if size > _MOST_BYTES:
        msg = f"{source.name} is larger than 2 GB: take a part of it as the sample."
        raise TableError(msg)


def _narrowest(column: pa.Array) -> pa.Array:
    """Turn a column of text into integers, floats or moments, if all of it is."""
    found = numbers(column)
    if found.null_count == len(found):
        return column
    if pc.all(pc.is_finite(found.cast(pa.float64()))).as_py():
        # Where a number is missing, the text may be NA. Without it, whole numbers are read as integers.
        return numbers(pc.if_else(found.is_valid(), column, pa.scalar(None, pa.string())))
    moments, reasons = columns.moments(column.drop_null())
    if reasons is not None:
        return column
    places = np.cumsum(column.is_valid().to_numpy(zero_copy_only=False)) - 1
    there = pa.array(places, mask=column.is_null().to_numpy(zero_copy_only=False))
    return pa.array(moments.astype(np.int64)).cast(pa.timestamp("us")).take(there)
