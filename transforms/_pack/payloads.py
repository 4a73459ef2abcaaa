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
import pyarrow.compute as pc
from numpy.typing import NDArray

from crenel.transforms._pack import carried_values
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


def from_bytes(form: Form, data: bytes) -> Payload:
    """Read what `to_bytes` wrote."""
    if form is Form.ARROW:
        return Batch(pa.ipc.open_stream(data).read_all())
    return Objects.from_bytes(data)
