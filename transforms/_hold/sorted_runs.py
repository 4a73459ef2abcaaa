"""Rows of bounded shards, sorted on disk where they outgrow memory: an external merge sort. Independent of Beam.

Packs that take more memory than allowed are sorted and written to a file, each shard's as a run of its own. When the
shard is held, its runs are merged, a block of each at a time. The order is that of `event_order.in_order`, and so are
the packs: nothing tells whether there were runs.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, TypeVar

import numpy as np
import pyarrow as pa

from crenel.encoding.rows import Rows
from crenel.seal import Seal
from crenel.transforms._hold.event_order import cut, in_order
from crenel.transforms._pack.arrow_tables import conformed, unified
from crenel.transforms._pack.payloads import Batch
from crenel.transforms._pack.row_pack import KIND, RowPack, opened

__all__ = ["Sealed", "SortSpace", "rows_in_order", "spill"]

#: The most runs that are merged at once.
_MERGED = 64

#: An element that begins with this refers to a run. All others are packs.
_REFERENCE = b"run "
#: What a reference is, for its seal.
_RUN_KIND = "crenel.run"
_LENGTH = struct.Struct("<Q")

_Shard = TypeVar("_Shard", bound=Hashable)


@dataclass(frozen=True)
class SortSpace:
    """Where rows are sorted that do not fit into memory."""

    #: A folder that only its owner can read, and that all workers see. Whoever made it removes it.
    folder: str
    #: Bytes of packs that may be in memory. To sort them takes about five times as much.
    memory: int

    def file(self) -> IO[bytes]:
        """Begin a file that only its owner can read."""
        return tempfile.NamedTemporaryFile(dir=self.folder, prefix="rows-", delete=False)

    @property
    def block(self) -> int:
        """Bytes of a block: when runs are merged, one of each is in memory."""
        return max(self.memory // _MERGED, 1)


@dataclass(frozen=True)
class Sealed:
    """Opens and closes what belongs to one shard and window. Nobody without the secret can change it on its way."""

    seal: Seal
    #: The shard and the window.
    place: bytes

    def open_pack(self, data: bytes) -> RowPack:
        """Read a pack."""
        return opened(data, self.seal, self.place)

    def close_pack(self, pack: RowPack) -> bytes:
        """Write a pack."""
        return self.seal.close(KIND, pack.to_bytes(), self.place)


@dataclass(frozen=True)
class _Run:
    """Sorted rows in a file: blocks from one place to another."""

    sealed: Sealed
    path: str
    start: int
    stop: int

    def reference(self) -> bytes:
        """An element that stands for the rows of the run."""
        told = json.dumps([self.path, self.start, self.stop]).encode()
        return _REFERENCE + self.sealed.seal.close(_RUN_KIND, told, self.sealed.place)

    @classmethod
    def of(cls, reference: bytes, sealed: Sealed) -> _Run:
        told = sealed.seal.open(_RUN_KIND, reference[len(_REFERENCE) :], sealed.place)
        return cls(sealed, *json.loads(told))

    def pack(self, at: int) -> tuple[RowPack, int]:
        """Read the block at a place; return the place of the next one, too."""
        # A file is opened for each block: there may be more runs than a process may open files.
        with open(self.path, "rb") as file:
            file.seek(at)
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            return self.sealed.open_pack(file.read(length)), at + _LENGTH.size + length


def rows_in_order(
    elements: Iterable[bytes], sealed: Sealed, row_number: str | None = None, space: SortSpace | None = None
) -> Iterator[RowPack]:
    """Cut all rows of a shard into packs that are in the order of event times.

    Args:
        elements: All rows of the shard: packs, and references to runs that `spill` wrote.
        sealed: Opens them.
        row_number: The column, if the packs carry one, that orders rows which are equal in everything else.
        space: Where to sort rows that do not fit into memory. There must be one if there are runs.
    """
    runs: list[_Run] = []
    waiting: list[bytes] = []
    size = 0
    for data in elements:
        if data.startswith(_REFERENCE):
            runs.append(_Run.of(data, sealed))
            continue
        waiting.append(data)
        size += len(data)
        if space is not None and size > space.memory:
            runs += _spilled(space, waiting, sealed, row_number)
            waiting, size = [], 0
    if not runs:
        return in_order([sealed.open_pack(data) for data in waiting], row_number)
    if space is None:
        message = "rows_in_order: there must be a space to merge runs in, not None."
        raise ValueError(message)
    if waiting:
        runs += _spilled(space, waiting, sealed, row_number)
    return cut(_merged_in_passes(space, runs, row_number))


def spill(
    space: SortSpace, shards: Mapping[tuple[_Shard, Sealed], Sequence[bytes]], row_number: str | None
) -> list[tuple[_Shard, bytes]]:
    """Sort the packs of each shard into a file; return references to the runs, which stand for the packs."""
    runs = []
    with space.file() as file:
        for (shard, sealed), packs in shards.items():
            for alike in _of_one_kind(packs, sealed):
                run = _written(file, in_order(alike, row_number), sealed, space.block)
                runs.append((shard, run.reference()))
    return runs


def _spilled(space: SortSpace, packs: Sequence[bytes], sealed: Sealed, row_number: str | None) -> list[_Run]:
    return [_Run.of(reference, sealed) for _, reference in spill(space, {(0, sealed): packs}, row_number)]


def _of_one_kind(packs: Sequence[bytes], sealed: Sealed) -> list[list[RowPack]]:
    """Group packs by form and types: to join others would change values before all types are known."""
    groups: dict[Any, list[RowPack]] = {}
    for data in packs:
        pack = sealed.open_pack(data)
        groups.setdefault((pack.form, _schema(pack)), []).append(pack)
    return list(groups.values())


def _schema(pack: RowPack) -> pa.Schema | None:
    return pack.payload.table.schema if isinstance(pack.payload, Batch) else None


def _written(file: IO[bytes], packs: Iterable[RowPack], sealed: Sealed, block: int) -> _Run:
    start = file.tell()
    for pack in packs:
        for data in _blocks(pack, sealed, block):
            file.write(_LENGTH.pack(len(data)))
            file.write(data)
    return _Run(sealed, str(file.name), start, file.tell())


def _blocks(pack: RowPack, sealed: Sealed, most: int) -> list[bytes]:
    """Write a pack as blocks of at most about `most` bytes."""
    data, rows = sealed.close_pack(pack), len(pack.rows)
    count = min(-(-len(data) // most), rows)
    if count <= 1:
        return [data]
    size = -(-rows // count)
    return [sealed.close_pack(pack.slice(start, min(start + size, rows))) for start in range(0, rows, size)]


def _merged_in_passes(space: SortSpace, runs: list[_Run], row_number: str | None) -> Iterator[RowPack]:
    """Merge runs, however many there are."""
    schemas = [_schema(run.pack(run.start)[0]) for run in runs]
    schema = unified([schema for schema in schemas if schema is not None])
    while len(runs) > _MERGED:
        with space.file() as file:
            parts = [runs[start : start + _MERGED] for start in range(0, len(runs), _MERGED)]
            sealed = runs[0].sealed
            runs = [_written(file, _merged(part, schema, row_number), sealed, space.block) for part in parts]
    return _merged(runs, schema, row_number)


def _merged(runs: Sequence[_Run], schema: pa.Schema, row_number: str | None) -> Iterator[RowPack]:
    """Merge runs, all of whose rows then have the given schema, if they came as Arrow."""
    cursors = [_Cursor(run, schema) for run in runs]
    while cursors:
        # Every run was read at least up to `until`, so no row that is still on disk comes before the rows taken here.
        unread = [cursor for cursor in cursors if cursor.has_more]
        until = min((cursor.last for cursor in unread), default=None)
        yield from in_order([part for cursor in cursors for part in cursor.take(until)], row_number)
        for cursor in unread:
            if cursor.last == until:
                cursor.load()
        cursors = [cursor for cursor in cursors if cursor.packs]


class _Cursor:
    """The rows of a run that were read and not yet taken."""

    def __init__(self, run: _Run, schema: pa.Schema) -> None:
        self._run = run
        self._schema = schema
        self._at = run.start
        self.packs: list[RowPack] = []
        self.load()

    @property
    def has_more(self) -> bool:
        """Whether the file has rows that were not read."""
        return self._at < self._run.stop

    @property
    def last(self) -> tuple[int, int]:
        """The time and person of the last row that was read."""
        rows = self.packs[-1].rows
        return int(rows.time[-1]), int(rows.person[-1])

    def load(self) -> None:
        """Read another block."""
        pack, self._at = self._run.pack(self._at)
        if isinstance(pack.payload, Batch):
            pack = replace(pack, payload=Batch(conformed(pack.payload.table, self._schema)))
        self.packs.append(pack)

    def take(self, until: tuple[int, int] | None) -> list[RowPack]:
        """Take the rows before this time and person, or all."""
        taken, kept = [], []
        for pack in self.packs:
            count = len(pack.rows)
            place = count if until is None else _place(pack.rows, until)
            if 0 < place < count:
                taken.append(pack.slice(0, place))
                kept.append(pack.slice(place, count))
            else:
                (taken if place else kept).append(pack)
        self.packs = kept
        return taken


def _place(rows: Rows, key: tuple[int, int]) -> int:
    """Count the sorted rows before a time and person. Rows of one time and person are never torn apart."""
    time, person = key
    start, stop = np.searchsorted(rows.time, time, "left"), np.searchsorted(rows.time, time, "right")
    return int(start + np.searchsorted(rows.person[start:stop], person, "left"))
