"""Tables of other libraries, to Arrow and back. What comes as a DataFrame leaves as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["Frame", "SharedRows", "frame_of"]


@dataclass(frozen=True, repr=False)
class Frame:
    """A table of any library."""

    #: The names of its columns.
    names: Sequence[str]
    #: Makes an Arrow table of some of its columns. It raises a ValueError if a column holds what Arrow cannot.
    to_arrow: Callable[[Sequence[str]], pa.Table]
    #: Makes the same kind of table of an Arrow table.
    from_arrow: Callable[[pa.Table], Any]
    #: Makes the same of rows that share values.
    from_shared: Callable[[SharedRows], Any]


@dataclass(frozen=True, repr=False)
class SharedRows:
    """Rows of which many have the same values in some columns: those of their boxes."""

    #: The values of such columns, each once.
    shared: Mapping[str, pa.Array]
    #: For each row, the place of its values there.
    place: pa.Array
    #: The other columns, row by row.
    others: Mapping[str, pa.ChunkedArray]

    def table(self) -> pa.Table:
        """Copy the values to each row."""
        return pa.table({**{name: values.take(self.place) for name, values in self.shared.items()}, **self.others})


def frame_of(table: Any) -> Frame:
    """Return a table as a frame.

    Args:
        table: A pyarrow Table or RecordBatch, or a pandas or polars DataFrame.

    Raises:
        TypeError: The table is of another kind.
    """
    kind = (type(table).__module__.partition(".")[0], type(table).__name__)
    if kind == ("pandas", "DataFrame"):
        return Frame(list(table.columns), lambda names: _of_pandas(table, names), _to_pandas, _shared_to_pandas)
    if kind == ("polars", "DataFrame"):
        return _frame(table.columns, lambda names: _of_polars(table, names), _to_polars)
    if isinstance(table, pa.RecordBatch):
        return _frame(table.schema.names, pa.Table.from_batches([table]).select, _to_batch)
    if isinstance(table, pa.Table):
        return _frame(table.schema.names, table.select, lambda made: made)
    lazy = " Collect it first." if kind == ("polars", "LazyFrame") else ""
    msg = (
        "anonymize: table must be a pyarrow Table or RecordBatch, or a pandas or polars DataFrame, not "
        f"{type(table).__module__}.{type(table).__name__}.{lazy}"
    )
    raise TypeError(msg)


def _frame(names: Sequence[str], to_arrow: Callable[..., pa.Table], from_arrow: Callable[[pa.Table], Any]) -> Frame:
    return Frame(names, to_arrow, from_arrow, lambda rows: from_arrow(rows.table()))


def _of_pandas(table: Any, columns: Sequence[str]) -> pa.Table:
    return pa.table({name: _series(name, table[name]) for name in columns})


def _series(name: str, column: Any) -> pa.Array:
    if type(column.dtype).__name__ == "SparseDtype":
        column = column.sparse.to_dense()
    try:
        made = pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
        # Its message quotes a value.
        msg = f"anonymize: the column {name!r} holds values of several types; give it one (astype)."
        raise ValueError(msg) from None
    if pa.types.is_dictionary(made.type) and isinstance(made.type.value_type, pa.BaseExtensionType):
        # Such as the intervals of `pandas.cut`. They would come back as what Arrow stores them as.
        kind = column.cat.categories.dtype
        msg = f"anonymize: the column {name!r} holds categories of type {kind}; make them text (astype(str))."
        raise ValueError(msg)
    return made


def _of_polars(table: Any, columns: Sequence[str]) -> pa.Table:
    return pa.table({name: _polars_column(name, table.select(name)) for name in columns})


def _polars_column(name: str, column: Any) -> pa.ChunkedArray:
    kind = str(column.dtypes[0])
    if kind != "Object":  # of an object, Arrow would get the address in memory
        try:
            return column.to_arrow().column(0)
        except pa.ArrowException:
            pass
    msg = f"anonymize: the column {name!r} has the type {kind}, which Arrow does not have; cast it to another."
    raise ValueError(msg)


def _to_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _to_polars(table: pa.Table) -> Any:
    import polars

    return polars.from_arrow(table)


def _to_pandas(table: pa.Table) -> Any:
    import pandas

    return pandas.DataFrame({name: table.column(name).to_pandas() for name in table.schema.names})


def _shared_to_pandas(rows: SharedRows) -> Any:
    """Make a DataFrame. Ranges of numbers are intervals that include both ends."""
    import pandas

    place = rows.place.to_numpy(zero_copy_only=False)
    made = {}
    for name, values in rows.shared.items():
        # pandas checks each interval that is made of two ends, but none that it takes.
        made[name] = _intervals(values).take(place) if _is_range(values.type) else _column(values.take(rows.place))
    made |= {name: _column(column) for name, column in rows.others.items()}
    return pandas.DataFrame(made, copy=False)


def _column(column: pa.Array | pa.ChunkedArray) -> Any:
    """Make a column that can be written to: some of pandas share Arrow's memory."""
    return column.to_pandas().copy()


def _is_range(kind: pa.DataType) -> bool:
    is_range = pa.types.is_struct(kind) and [end.name for end in kind] == ["lo", "hi"]
    return is_range and all(pa.types.is_floating(end.type) for end in kind)


def _intervals(ranges: pa.StructArray) -> Any:
    import pandas

    missing = ranges.is_null().to_numpy(zero_copy_only=False)
    # An end that is null is infinite; a range that is null is missing.
    lo = np.where(missing, np.nan, _filled(ranges, "lo", -np.inf))
    hi = np.where(missing, np.nan, _filled(ranges, "hi", np.inf))
    return pandas.arrays.IntervalArray.from_arrays(lo, hi, closed="both")


def _filled(ranges: pa.StructArray, end: str, infinity: float) -> Any:
    return ranges.field(end).fill_null(infinity).to_numpy(zero_copy_only=False)
