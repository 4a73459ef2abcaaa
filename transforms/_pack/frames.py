"""Tables of other libraries, to Arrow and back. What comes as a DataFrame leaves as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["Frame", "frame_of"]


@dataclass(frozen=True, repr=False)
class Frame:
    """A table of any library."""

    #: The names of its columns.
    names: Sequence[str]
    #: Makes an Arrow table of some of its columns. It raises a ValueError if a column holds what Arrow cannot.
    to_arrow: Callable[[Sequence[str]], pa.Table]
    #: Makes the same kind of table of an Arrow table.
    from_arrow: Callable[[pa.Table], Any]


def frame_of(table: Any) -> Frame:
    """Return a table as a frame.

    Args:
        table: A pyarrow Table or RecordBatch, or a pandas or polars DataFrame.

    Raises:
        TypeError: The table is of another kind.
    """
    kind = (type(table).__module__.partition(".")[0], type(table).__name__)
    if kind == ("pandas", "DataFrame"):
        return Frame(list(table.columns), lambda names: _of_pandas(table, names), _to_pandas)
    if kind == ("polars", "DataFrame"):
        return Frame(table.columns, lambda names: table.select(names).to_arrow(), _to_polars)
    if isinstance(table, pa.RecordBatch):
        return Frame(table.schema.names, pa.Table.from_batches([table]).select, _to_batch)
    if isinstance(table, pa.Table):
        return Frame(table.schema.names, table.select, lambda made: made)
    lazy = " Collect it first." if kind == ("polars", "LazyFrame") else ""
    msg = (
        "anonymize: table must be a pyarrow Table or RecordBatch, or a pandas or polars DataFrame, not "
        f"{type(table).__module__}.{type(table).__name__}.{lazy}"
    )
    raise TypeError(msg)


def _of_pandas(table: Any, columns: Sequence[str]) -> pa.Table:
    return pa.table({name: _series(name, table[name]) for name in columns})


def _series(name: str, column: Any) -> pa.Array:
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
        # Its message quotes a value.
        msg = f"anonymize: the column {name!r} holds values of several types; give it one (astype)."
        raise ValueError(msg) from None


def _to_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _to_polars(table: pa.Table) -> Any:
    import polars

    return polars.from_arrow(table)


def _to_pandas(table: pa.Table) -> Any:
    """Make a DataFrame. Ranges of numbers are intervals that include both ends."""
    import pandas

    made = {name: _column(pandas, table.column(name)) for name in table.schema.names}
    return pandas.DataFrame(made, columns=table.schema.names)


def _column(pandas: Any, column: pa.ChunkedArray) -> Any:
    if not pa.types.is_struct(column.type) or [end.name for end in column.type] != ["lo", "hi"]:
        return column.to_pandas()
    ranges = column.combine_chunks()
    if not all(pa.types.is_floating(end.type) for end in ranges.type):
        return column.to_pandas()
    missing = ranges.is_null().to_numpy(zero_copy_only=False)
    # An end that is null is infinite; a range that is null is missing.
    lo = np.where(missing, np.nan, _filled(ranges, "lo", -np.inf))
    hi = np.where(missing, np.nan, _filled(ranges, "hi", np.inf))
    return pandas.arrays.IntervalArray.from_arrays(lo, hi, closed="both")


def _filled(ranges: pa.StructArray, end: str, infinity: float) -> Any:
    return ranges.field(end).fill_null(infinity).to_numpy(zero_copy_only=False)
