"""What leaves as it is: the sensitive and the published columns of rows, opaque to the engine.

Rows that came as Arrow stay Arrow and are never touched one by one; all others are Python objects, so that a Decimal
leaves as a Decimal.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

#: Types whose values nobody can change.
_FROZEN = frozenset({type(None), bool, int, float, str, bytes})


#: Values by which a column is judged to have few different ones.
_SAMPLE = 100


class Form(Enum):
    """What rows came as, and leave as."""

    DICT = "dict"
    ROW = "row"
    ARROW = "arrow"


class Payload(ABC):
    """The columns of some rows that leave as they are."""

    @abstractmethod
    def __len__(self) -> int:
        """Count the rows."""

    @abstractmethod
    def take(self, indices: NDArray[np.int64]) -> Payload:
        """Choose rows, in this order."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> Payload:
        """The rows from `start` up to, not including, `stop`."""

    @abstractmethod
    def join(self, others: Sequence[Payload]) -> Payload:
        """Put the rows of others of the same form behind these."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """One of the columns."""

    @abstractmethod
    def with_column(self, name: str, values: Any) -> Payload:
        """The same rows with other values in a column that they have."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Write them for a pack or a snapshot."""

    @property
    @abstractmethod
    def can_be_kept(self) -> bool:
        """Whether they can be held as they came: nobody can change them, and they keep nothing else alive."""

    def __repr__(self) -> str:
        """Say how much, never what."""
        return f"{type(self).__name__}({len(self)} rows)"


@dataclass(frozen=True, eq=False, repr=False)
class Objects(Payload):
    """Columns of Python objects. Were there a tuple for each row, Python's garbage collector would count them all."""

    columns: tuple[Sequence[Any], ...]
    #: What the columns are. State may be older than the policy: a value never leaves under another's name.
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
        """The rows from `start` up to, not including, `stop`."""
        there = range(self.count)[start:stop]
        return Objects(tuple(column[start:stop] for column in self.columns), self.names, len(there))

    def join(self, others: Sequence[Payload]) -> Objects:
        """Put the rows of others behind these."""
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
        """The rows with these columns, in this order; None where they have no such column."""
        if names == self.names:
            return self
        known = dict(zip(self.names, self.columns, strict=True))
        columns = tuple(known[name] if name in known else [None] * self.count for name in names)
        return Objects(columns, names, self.count)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows one by one."""
        return zip(*self.columns, strict=True) if self.columns else repeat((), self.count)

    def column(self, name: str) -> Sequence[Any]:
        """One of the columns."""
        return self.columns[self.names.index(name)]

    def with_column(self, name: str, values: Any) -> Objects:
        """The same rows with other values in a column that they have."""
        place = self.names.index(name)
        return Objects((*self.columns[:place], values, *self.columns[place + 1 :]), self.names, self.count)

    def to_bytes(self) -> bytes:
        """Pickle them."""
        return pickle.dumps((self.names, self.columns, self.count), protocol=5)

    @classmethod
    def from_bytes(cls, data: bytes) -> Objects:
        """Read what `to_bytes` wrote."""
        names, columns, count = pickle.loads(data)
        return cls(columns, names, count)

    @property
    def can_be_kept(self) -> bool:
        """Whether all values are of types whose values stay as they are."""
        return all(_FROZEN.issuperset(set(map(type, column))) for column in self.columns)


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
        """The rows from `start` up to, not including, `stop`; they share memory with these."""
        return Batch(self.table.slice(start, stop - start))

    def join(self, others: Sequence[Payload]) -> Batch:
        """Put the rows of others behind these."""
        tables = [self.table, *(other.table for other in others if isinstance(other, Batch))]
        if len(tables) != len(others) + 1:
            message = "rows of different forms cannot be joined."
            raise TypeError(message)
        return Batch(concat(tables).combine_chunks())

    def column(self, name: str) -> pa.ChunkedArray:
        """One of the columns."""
        return self.table.column(name)

    def with_column(self, name: str, values: Any) -> Batch:
        """The same rows with other values in a column that they have."""
        return Batch(self.table.set_column(self.table.schema.get_field_index(name), name, values))

    def to_bytes(self) -> bytes:
        """Write an Arrow IPC stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table)
        return bytes(sink.getvalue())

    @property
    def can_be_kept(self) -> bool:
        """Not so: a slice keeps the whole. And what was written is read without a step for each row."""
        return False


def shared(column: Sequence[Any]) -> Sequence[Any]:
    """The column with one object for all texts that are equal, if it looks as if there were few of them.

    To choose, copy and write rows is to touch their values, and few are always in the processor's cache.
    """
    sample = column[:_SAMPLE]
    if set(map(type, column)) != {str} or 2 * len(set(sample)) > len(sample):
        return column
    known: dict[str, str] = {}
    return list(map(known.setdefault, column, column))


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables under one schema: files of one stream need not agree on their types.

    Where one has integers, another floats, all are floats; where their types have nothing in common, all are text. What
    a table has no column for is null there.
    """
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables(tables)
    schema = unified([table.schema for table in tables])
    return pa.concat_tables([conformed(table, schema) for table in tables])


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for all; the columns are in the order in which they first appear."""
    types: dict[str, pa.DataType] = {}
    for schema in dict.fromkeys(schema.remove_metadata() for schema in schemas):
        for field in schema:
            types[field.name] = _wider(types.get(field.name, pa.null()), _plain(field.type))
    return pa.schema(list(types.items()))


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table under a schema that `unified` made."""
    there = set(table.schema.names)
    columns = [
        _cast(table.column(field.name), field.type) if field.name in there else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries, as far as it is made of lists and structs."""
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
    """The batch with memory of its own: what lies beyond it, if it is a slice, does not leave with it."""
    copied = batch.take(pa.array(np.arange(batch.num_rows)))
    return pa.RecordBatch.from_arrays([own(column) for column in copied.columns], schema=copied.schema)


def own(column: pa.Array) -> pa.Array:
    """The column with dictionaries of the values that its rows have, wherever in its type there is one.

    Arrow keeps a dictionary whole when it chooses rows. The values are in the order in which the rows have them; those
    of an ordered dictionary, whose order means something, stay in that.
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
    # Rarer ones one by one.
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
