"""Rows sorted by the hashes that `Anonymize` gives them, so that only the secret knows their order.

Rows that do not fit into memory are first dealt out, by their hashes, to scratch files, which are then sorted one by
one.
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

#: Bytes of rows that are sorted at once, and that are gathered before they are dealt out.
_BYTES = 64 << 20
#: The most scratch files that are open at once; more rows make each of them larger.
_FILES = 256


def shuffled(parts: Sequence[str], folder: str, read: Callable[[str], Iterable[pa.Table]]) -> Iterator[pa.Table]:
    """Sort the rows of all parts by their hashes, and remove these.

    Args:
        parts: Files of rows; they are removed after they were dealt out.
        folder: The folder for scratch files.
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
    """Deal rows out to scratch files: the rows of each have smaller hashes than those of the next."""
    scratch = tempfile.mkdtemp(dir=folder, prefix="shuffle-")
    paths = [os.path.join(scratch, str(number)) for number in range(count)]
    with ExitStack() as opened:
        writers: dict[int, Any] = {}
        for table in _gathered(parts, read):
            order = _hashes(table)
            rank = np.argsort(order, kind="stable")
            # Equal parts of the range of hashes; the upper half of a hash is enough to tell its part.
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
    """Gather rows into tables that are large enough to be dealt out."""
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
