"""Payloads: the columns of rows that are published unchanged, opaque to the engine.

Rows that came as Arrow stay Arrow and are never touched one by one; all others are Python objects, so that a Decimal
is published as a Decimal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel.transforms._pack import carried_values
from crenel.transforms._pack.arrow_tables import concat
from crenel.transforms._pack.carried_values import PLAIN

#: The size of the sample that tells whether a column has few different values.
_SAMPLE = 100
#: The most different values that the numbers of a byte can name.
_BYTE = 256


class Form(Enum):
    """The form in which rows came, and in which they are published."""

    DICT = "dict"
    ROW = "row"
    ARROW = "arrow"
    TABLE = "table"
    #: Dicts, many in one element.
    BATCH = "batch"

    @property
    def is_arrow(self) -> bool:
        """Whether rows came in Arrow, in batches or in tables."""
        return self in (Form.ARROW, Form.TABLE)


class Payload(ABC):
    """The columns of some rows that are published unchanged."""

    @abstractmethod
    def __len__(self) -> int:
        """Count the rows."""

    @abstractmethod
    def take(self, indices: NDArray[np.int64]) -> Payload:
        """Choose rows, in this order."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> Payload:
        """Slice rows."""

    @abstractmethod
    def join(self, others: Sequence[Payload]) -> Payload:
        """Append the rows of others of the same form."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """Return a column."""

    @abstractmethod
    def with_column(self, name: str, values: Any) -> Payload:
        """Replace the values of a column."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Write the rows for a pack or a snapshot."""

    @property
    @abstractmethod
    def can_be_kept(self) -> bool:
        """Whether the rows can be held without a copy: nobody can change them, and they keep nothing else alive."""

    def __repr__(self) -> str:
        """Show sizes, never values."""
        return f"{type(self).__name__}({len(self)} rows)"


@dataclass(frozen=True, eq=False, repr=False)
class Objects(Payload):
    """Columns of Python objects. A tuple for each row would cost Python's garbage collector time for each."""

    columns: tuple[Sequence[Any], ...]
    #: The names of the columns. State may be older than the policy: a value is never published under another's name.
    names: tuple[str, ...]
    count: int

    def __len__(self) -> int:
        """Count the rows."""
        return self.count

    def take(self, indices: NDArray[np.int64]) -> Objects:
        """Choose rows, in this order."""
        chosen = indices.tolist()
        return Objects(tuple(list(map(c.__getitem__, chosen)) for c in self.columns), self.names, len(chosen))

    def slice(self, start: int, stop: int) -> Objects:
        """Slice rows."""
        there = range(self.count)[start:stop]
        return Objects(tuple(column[start:stop] for column in self.columns), self.names, len(there))

    def join(self, others: Sequence[Payload]) -> Objects:
        """Append the rows of others."""
        every = [self]
        for other in others:
            if not isinstance(other, Objects):
                message = "rows of different forms cannot be joined."
                raise TypeError(message)
            every.append(other)
        names = tuple(dict.fromkeys(name for part in every for name in part.names))
        parts = zip(*(part.under(names).columns for part in every), strict=True)
        joined = tuple(list(chain.from_iterable(columns)) for columns in parts)
        return Objects(joined, names, sum(map(len, every)))

    def under(self, names: tuple[str, ...]) -> Objects:
        """Select columns, in this order; None where the rows have no such column."""
        if names == self.names:
            return self
        known = dict(zip(self.names, self.columns, strict=True))
        columns = tuple(known[name] if name in known else [None] * self.count for name in names)
        return Objects(columns, names, self.count)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows."""
        return zip(*self.columns, strict=True) if self.columns else repeat((), self.count)

    def column(self, name: str) -> Sequence[Any]:
        """Return a column."""
        return self.columns[self.names.index(name)]

    def with_column(self, name: str, values: Any) -> Objects:
        """Replace the values of a column."""
        place = self.names.index(name)
        return Objects((*self.columns[:place], values, *self.columns[place + 1 :]), self.names, self.count)

    def to_bytes(self) -> bytes:
        """Write the columns as values, and a column of few different texts as numbers of these."""
        return carried_values.pack([list(self.names), self.count, list(map(_written, self.columns, self._kinds))])

    @classmethod
    def from_bytes(cls, data: bytes) -> Objects:
        """Read what `to_bytes` wrote."""
        names, count, columns = carried_values.unpack(data)
        return cls(tuple(map(_read, columns)), tuple(names), count)

    @property
    def can_be_kept(self) -> bool:
        """Whether all values are immutable."""
        return all(kinds <= PLAIN for kinds in self._kinds)

    @cached_property
    def _kinds(self) -> list[set[type]]:
        """The types of each column's values."""
        return [set(map(type, column)) for column in self.columns]


@dataclass(frozen=True, eq=False, repr=False)
class Batch(Payload):
    """Rows as an Arrow table."""

    table: pa.Table

    def __len__(self) -> int:
        """Count the rows."""
        return int(self.table.num_rows)

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """Choose rows, in this order."""
        if self._is_empty and len(indices) <= len(self):
            return self.slice(0, len(indices))
        return Batch(self.table.take(pa.array(indices)))

    def slice(self, start: int, stop: int) -> Batch:
        """Slice rows; they share memory with these."""
        return Batch(self.table.slice(start, stop - start))

    def join(self, others: Sequence[Payload]) -> Batch:
        """Append the rows of others."""
        tables = [self.table, *(other.table for other in others if isinstance(other, Batch))]
        if len(tables) != len(others) + 1:
            message = "rows of different forms cannot be joined."
            raise TypeError(message)
        return Batch(concat(tables).combine_chunks())

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column."""
        return self.table.column(name)

    def with_column(self, name: str, values: Any) -> Batch:
        """Replace the values of a column."""
        return Batch(self.table.set_column(self.table.schema.get_field_index(name), name, values))

    def to_bytes(self) -> bytes:
        """Write an Arrow IPC stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table)
        return bytes(sink.getvalue())

    @property
    def _is_empty(self) -> bool:
        """Whether rows have nothing to tell them apart: no column is published unchanged."""
        return bool(self.table.num_columns == 1 and pa.types.is_null(self.table.schema.field(0).type))

    @property
    def can_be_kept(self) -> bool:
        """Never: a slice keeps the whole batch alive, and reading one back costs nothing for each row."""
        return False


def _written(column: Sequence[Any], kinds: set[type]) -> list[Any]:
    """A column as it is written: its values; or its different texts, and the number of each row's text."""
    if _has_few_texts(column, kinds):
        # Mostly all texts are among the first ones, and the rest need not be searched.
        for some in (column[: 10 * _SAMPLE], column):
            texts = dict.fromkeys(some)
            if len(texts) > _BYTE:
                break
            numbers = dict(zip(texts, range(_BYTE), strict=False))
            try:
                return [list(texts), bytes(map(numbers.__getitem__, column))]
            except KeyError:
                continue
    return [list(column)]


def _read(written: list[Any]) -> list[Any]:
    values, *numbers = written
    return list(map(values.__getitem__, *numbers)) if numbers else values


def shared(column: Sequence[Any], kinds: set[type]) -> Sequence[Any]:
    """Use one object for all equal texts of a column, if it seems to have few different ones.

    Choosing, copying and writing rows touches their values, and few values stay in the processor's cache.
    """
    if not _has_few_texts(column, kinds):
        return column
    known: dict[str, str] = {}
    return list(map(known.setdefault, column, column))


def _has_few_texts(column: Sequence[Any], kinds: set[type]) -> bool:
    """Whether a column of these types has nothing but texts, and a sample of it few different ones."""
    sample = column[:_SAMPLE]
    return kinds == {str} and 2 * len(set(sample)) <= len(sample)


def from_bytes(form: Form, data: bytes) -> Payload:
    """Read what `to_bytes` wrote."""
    if form.is_arrow:
        return Batch(pa.ipc.open_stream(data).read_all())
    return Objects.from_bytes(data)
