"""A uniform sample of encoded rows that does not depend on their order, nor on how they are cut into parts.

Every row has a hash of its content, and the rows of the least hashes are the sample. So samples of parts can be merged
in any order, on any number of workers, and a part that is read again after a failure gives the same sample.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crenel.encoding.keyed_hash import siphash
from crenel.encoding.rows import Rows

__all__ = ["MOST_ROWS", "RowSample", "joined"]

#: The rows of a sample: some hundred for each of a hundred shards.
MOST_ROWS = 16_384

#: The hash need not be secret: it decides which rows are counted, and nobody sees which.
_KEY = np.array([0x6372656E656C2E73, 0x686172642E747265], dtype=np.uint64)


class RowSample:
    """The sample so far, the number of rows it was drawn from, and their event times."""

    def __init__(self) -> None:
        self.count = 0
        self.since: int | None = None
        self.until: int | None = None
        self._rows: list[Rows] = []
        self._hashes: list[NDArray[np.int64]] = []

    def __repr__(self) -> str:
        """Show sizes, never values."""
        return f"RowSample({sum(map(len, self._rows))} of {self.count} rows)"

    @property
    def rows(self) -> Rows:
        """The sampled rows, by their hashes."""
        self._trim(0)
        return self._rows[0]

    @property
    def span(self) -> int:
        """Microseconds of event time between the first and the last row."""
        return 0 if self.since is None or self.until is None else self.until - self.since

    def add(self, rows: Rows) -> None:
        """Draw from more rows."""
        if not len(rows):
            return
        self.count += len(rows)
        self._lived(int(rows.time.min()), int(rows.time.max()))
        self._rows.append(rows)
        self._hashes.append(_hashes(rows))
        self._trim(4 * MOST_ROWS)

    def merge(self, other: RowSample) -> None:
        """Take over what another sample has drawn."""
        self.count += other.count
        if other.since is not None and other.until is not None:
            self._lived(other.since, other.until)
        self._rows += other._rows
        self._hashes += other._hashes
        self._trim(4 * MOST_ROWS)

    def _lived(self, since: int, until: int) -> None:
        self.since = since if self.since is None else min(self.since, since)
        self.until = until if self.until is None else max(self.until, until)

    def _trim(self, most: int) -> None:
        """Keep the rows of the least hashes, if there are more than `most` rows, or several parts."""
        if most and sum(map(len, self._rows)) <= most:
            return
        rows, hashes = joined(self._rows), np.concatenate([*self._hashes, np.zeros(0, dtype=np.int64)])
        least = np.argsort(hashes, kind="stable")[:MOST_ROWS]
        self._rows, self._hashes = [rows.take(least)], [hashes[least]]


def _hashes(rows: Rows) -> NDArray[np.int64]:
    hashes = siphash(rows.person, _KEY)
    for column in (rows.time, *rows.qi.T):
        hashes = siphash(hashes ^ np.ascontiguousarray(column).view(np.int64), _KEY)
    return hashes


def joined(parts: list[Rows]) -> Rows:
    """Join rows."""
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return Rows(np.zeros((0, 0)), none, np.zeros((0, 0), dtype=np.int64), none)
    return Rows(
        np.concatenate([part.qi for part in parts]),
        np.concatenate([part.person for part in parts]),
        np.concatenate([part.sensitive for part in parts]),
        np.concatenate([part.time for part in parts]),
    )
