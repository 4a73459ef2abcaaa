"""Rows in an order that only the secret knows.

Each row gets a keyed hash of its shard and of its arrival there, and rows are sorted by that hash. So
the order tells nothing of event times, shards, arrivals or releases, and it depends on the rows and
the secret alone, not on workers or files.

Rows that do not fit into memory are first dealt out, by the hash, to scratch files, which are then
sorted one by one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel.encoding.keyed_hash import siphash

__all__ = ["ORDER", "Shuffle", "shuffled"]

#: The column of the rows' hashes in scratch files. It is in no output.
ORDER = "crenel: order"

#: Bytes of rows that are sorted at once, and that are gathered before they are dealt out.
_BYTES = 64 << 20
#: Scratch files that are open at once; where rows are more than these hold, each holds more.
_FILES = 256
#: A row's number in its shard has so many bits, and its shard the others.
_NUMBER_BITS = 44


class Shuffle:
    """Gives rows their places in the order.

    Args:
        secret: What the order is drawn from.
    """

    def __init__(self, secret: bytes) -> None:
        digest = blake2b(secret, digest_size=16, person=b"crenel.order").digest()
        self._key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def place(self, batch: pa.RecordBatch, shard: int, number: NDArray[np.int64]) -> pa.RecordBatch:
        """The batch with the column that its rows are sorted by.

        Args:
            batch: Some rows of a shard.
            shard: Which.
            number: Their arrivals there: no two rows of a shard share one.
        """
        words = np.asarray(number, dtype=np.int64) | np.int64(shard << _NUMBER_BITS)
        return batch.append_column(ORDER, pa.array(siphash(words, self._key).view(np.uint64)))


def shuffled(parts: Sequence[str], folder: str, read: Callable[[str], Iterable[pa.Table]]) -> Iterator[pa.Table]:
    """The rows of all parts in their order, without the column that says it.

    Args:
        parts: Files of rows; they are removed once they were read.
        folder: Where scratch files may be.
        read: Reads a part: tables of one schema, that of all parts, with the column `ORDER`.
    """
    count = min(-(-sum(map(os.path.getsize, parts)) // _BYTES), _FILES)
    if count <= 1:
        yield from _sorted([table for part in parts for table in read(part)])
        return
    for path in _dealt(parts, folder, read, count):
        if os.path.exists(path):
            with pa.OSFile(path) as file, pa.ipc.open_stream(file) as reading:
                table = reading.read_all()
            os.unlink(path)
            yield from _sorted([table])


def _dealt(parts: Sequence[str], folder: str, read: Callable[[str], Iterable[pa.Table]], count: int) -> list[str]:
    """Scratch files, of which each has the rows whose hashes are between those of the one before and the one after."""
    scratch = tempfile.mkdtemp(dir=folder, prefix="shuffle-")
    paths = [os.path.join(scratch, str(number)) for number in range(count)]
    with ExitStack() as opened:
        writers: dict[int, Any] = {}
        for table in _gathered(parts, read):
            order = _hashes(table)
            rank = np.argsort(order, kind="stable")
            # Equal parts of the hashes' range; its upper half is enough to tell them apart.
            of = (order[rank] >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)
            moved = table.take(pa.array(rank))
            starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
            for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(of)], strict=True):
                number = int(of[start])
                if number not in writers:
                    file = opened.enter_context(pa.OSFile(paths[number], "wb"))
                    writers[number] = opened.enter_context(pa.ipc.new_stream(file, moved.schema))
                writers[number].write_table(moved.slice(start, stop - start))
    return paths


def _gathered(parts: Sequence[str], read: Callable[[str], Iterable[pa.Table]]) -> Iterator[pa.Table]:
    """The rows in tables that are worth dealing out."""
    waiting: list[pa.Table] = []
    size = 0
    for part in parts:
        for table in read(part):
            waiting.append(table)
            size += table.nbytes
            if size >= _BYTES:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting, size = [], 0
        os.unlink(part)
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _sorted(tables: list[pa.Table]) -> Iterator[pa.Table]:
    if tables:
        table = pa.concat_tables(tables).combine_chunks()
        rank = np.argsort(_hashes(table), kind="stable")
        yield table.drop_columns([ORDER]).take(pa.array(rank))


def _hashes(table: pa.Table) -> NDArray[np.uint64]:
    return np.asarray(table.column(ORDER).to_numpy(), dtype=np.uint64)
