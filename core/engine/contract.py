"""The contract between a method and whoever runs it: rows in, releases out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from crenel.encoding.rows import Rows
from crenel.errors import SnapshotError

__all__ = ["Engine", "Kind", "Release", "Releases", "SnapshotError"]


class Kind(IntEnum):
    """Why rows leave."""

    #: A group of their own, of at least k persons.
    CLUSTER = 0
    #: One row, under a generalization that was published before.
    REUSE = 1
    #: One row that no group could be found for.
    SUPPRESSED = 2
    #: Left out at random, where the method samples.
    SAMPLED_OUT = 3


@dataclass(frozen=True, eq=False)
class Release:
    """Rows that leave together, under one generalization, at one moment."""

    #: Row numbers (arrivals in this engine, from 0), in the order in which they leave.
    rows: NDArray[np.int64]
    kind: Kind
    #: The generalization: per quasi-identifier the least and the greatest coordinate it stands for; NaN if it is not
    #: published, which is then so for all rows of the release.
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    #: Generalized loss of the box, from 0 to 1; where rows lack quasi-identifiers, the mean of theirs.
    loss: float
    #: Distinct persons of the rows; of a reused generalization, those it had when it was first published.
    persons: int
    #: The engine's clock, event time in microseconds.
    moment: int
    #: Rows that had arrived by then.
    arrivals: int
    #: Number of the release whose generalization this is: its own, or that of the reused one.
    group: int

    def __repr__(self) -> str:
        """Say how much, never what."""
        return f"Release({self.kind.name}, rows={len(self.rows)}, persons={self.persons})"


@dataclass(frozen=True, eq=False)
class Releases:
    """Releases in columns, in the order in which they leave; iterates as `Release`."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    kind: NDArray[np.int8]
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    loss: NDArray[np.float64]
    persons: NDArray[np.int64]
    moment: NDArray[np.int64]
    arrivals: NDArray[np.int64]
    group: NDArray[np.int64]

    def __len__(self) -> int:
        """Count the releases, not the rows."""
        return len(self.kind)

    def __iter__(self) -> Iterator[Release]:
        """Go through the releases in the order in which they leave."""
        for i in range(len(self)):
            yield Release(
                rows=self.rows[self.offsets[i] : self.offsets[i + 1]],
                kind=Kind(int(self.kind[i])),
                lo=self.lo[i],
                hi=self.hi[i],
                loss=float(self.loss[i]),
                persons=int(self.persons[i]),
                moment=int(self.moment[i]),
                arrivals=int(self.arrivals[i]),
                group=int(self.group[i]),
            )

    def __repr__(self) -> str:
        """Say how much, never what."""
        return f"Releases({len(self)} of {len(self.rows)} rows)"

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows in each release."""
        return np.diff(self.offsets)

    def per_row(self, column: NDArray[np.generic]) -> NDArray[np.generic]:
        """Repeat a release's value for each of its rows, in the order of `rows`."""
        return np.repeat(column, self.sizes, axis=0)

    @classmethod
    def empty(cls, dimensions: int) -> Releases:
        """No release, of a space of so many quasi-identifiers."""
        none = np.zeros(0, dtype=np.int64)
        boxes = np.zeros((0, dimensions))
        return cls(
            rows=none,
            offsets=np.zeros(1, dtype=np.int64),
            kind=np.zeros(0, dtype=np.int8),
            lo=boxes,
            hi=boxes,
            loss=np.zeros(0),
            persons=none,
            moment=none,
            arrivals=none,
            group=none,
        )

    @classmethod
    def concat(cls, parts: Sequence[Releases]) -> Releases:
        """Join releases that follow one another."""
        if len(parts) == 1:
            return parts[0]
        columns = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
            if field.name != "offsets"
        }
        sizes = np.concatenate([part.sizes for part in parts])
        return cls(offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), **columns)


class Engine(ABC):
    """A method at work on one shard's rows. `docs/design.md` lists the seven promises that every one of them keeps."""

    @abstractmethod
    def push(self, rows: Rows) -> Releases:
        """Take rows that arrive in this order; return what became due."""

    @abstractmethod
    def advance(self, now: int) -> Releases:
        """Take note that event time has moved on to `now`, in microseconds; return what became due."""

    @abstractmethod
    def flush(self) -> Releases:
        """Take note that the stream is over; return everything that is still held."""

    @abstractmethod
    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` is next needed, if there is one."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """Return all of the engine, its random generator included."""

    @abstractmethod
    def restore(self, data: bytes) -> None:
        """Become the engine that `snapshot` was called on.

        Raises
        ------
        SnapshotError
            If the snapshot is of another method, or of other quasi-identifiers.
        """

    @property
    @abstractmethod
    def held(self) -> int:
        """Rows that have arrived and not left."""
