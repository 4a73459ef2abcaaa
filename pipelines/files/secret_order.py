"""Rows sorted by the hashes that `Anonymize` gives them, so that only the secret knows their order.

Rows that do not fit into memory are first dealt out, by their hashes, to scratch files, which are then sorted one by
one; a file that is still too large is dealt out again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["ORDER", "shuffled"]

#: The column of the rows' hashes in scratch files. No output has it.
ORDER = "crenel: order"

#: How often rows are in memory at most while they are dealt out or sorted.
_COPIES = 8
#: The most scratch files that are open at once.
_FILES = 256
#: The number of all hashes.
_HASHES = 1 << 64

_Read = Callable[[str], Iterable[pa.Table]]


def shuffled(
    parts: Sequence[str], folder: str, read: _Read, memory: int, lowest: int = 0, width: int = _HASHES
) -> Iterator[pa.Table]:
    """Sort the rows of all parts by their hashes, and remove these.

    Args:
        parts: Files of rows; they are removed after they were dealt out.
        folder: The folder for scratch files.
        read: Reads a part: tables of one schema, that of all parts, with the column `ORDER`.
        memory: Bytes that sorting may take.
        lowest: The least hash that the rows have.
        width: How many hashes they may have, from the least on.
    """
    share = max(memory // _COPIES, 1)
    size = sum(map(os.path.getsize, parts))
    # Files that were dealt out are of about one share, some a little larger.
    if size <= 2 * share or width <= _FILES:
        tables = [table for part in parts for table in read(part)]
        _remove(parts)
        yield from _sorted(tables)
        return
    step = -(-width // min(-(-size // share), _FILES))
    for number, path in sorted(_dealt(_gathered(parts, read, share), folder, lowest, step).items()):
        yield from shuffled([path], folder, _tables, memory, lowest + number * step, step)


def _dealt(tables: Iterable[pa.Table], folder: str, lowest: int, step: int) -> dict[int, str]:
    """Deal rows out to scratch files by their hashes: each file has the hashes of one step."""
    scratch = tempfile.mkdtemp(dir=folder, prefix="shuffle-")
    paths: dict[int, str] = {}
    with ExitStack() as opened:
        writers: dict[int, Any] = {}
        for table in tables:
            order = _hashes(table)
            rank = np.argsort(order, kind="stable")
            of = (order[rank] - np.uint64(lowest)) // np.uint64(step)
            moved = table.take(pa.array(rank))
            starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
            for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(of)], strict=True):
                number = int(of[start])
                if number not in writers:
                    descriptor, paths[number] = tempfile.mkstemp(dir=scratch)  # mode 600
                    file = opened.enter_context(os.fdopen(descriptor, "wb"))
                    writers[number] = opened.enter_context(pa.ipc.new_stream(file, moved.schema))
                writers[number].write_table(moved.slice(start, stop - start))
    return paths


def _gathered(parts: Sequence[str], read: _Read, size: int) -> Iterator[pa.Table]:
    """Gather rows into tables that are large enough to be dealt out."""
    waiting: list[pa.Table] = []
    gathered = 0
    for part in parts:
        for table in read(part):
            waiting.append(table)
            gathered += table.nbytes
            if gathered >= size:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting, gathered = [], 0
        _remove([part])
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _tables(path: str) -> Iterator[pa.Table]:
    with pa.OSFile(path) as file, pa.ipc.open_stream(file) as reading:
        for batch in reading:
            yield pa.Table.from_batches([batch])


def _remove(parts: Sequence[str]) -> None:
    for part in parts:
        os.unlink(part)


def _sorted(tables: list[pa.Table]) -> Iterator[pa.Table]:
    if tables:
        table = pa.concat_tables(tables).combine_chunks()
        tables.clear()
        rank = np.argsort(_hashes(table), kind="stable")
        yield table.drop_columns([ORDER]).take(pa.array(rank))


def _hashes(table: pa.Table) -> NDArray[np.uint64]:
    return np.asarray(table.column(ORDER).to_numpy(), dtype=np.uint64)
