"""The contract between a method and its caller: rows in, releases out."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from crenel.encoding.rows import Rows
from crenel.errors import SnapshotError
from crenel.seal import Seal

__all__ = ["Engine", "Kind", "Release", "Releases", "SnapshotError"]

#: What a snapshot is, to its seal.
_KIND = "crenel.engine"


class Kind(IntEnum):
    """Why rows leave."""

    #: They are a group of at least k persons.
    CLUSTER = 0
    #: One row leaves under a generalization that was published before.
    REUSE = 1
    #: One row leaves for which no group could be found.
    SUPPRESSED = 2
    #: One row was left out at random, by a method that samples.
    SAMPLED_OUT = 3
    #: One row is left out because `once_per` allows no other row of its person. It belongs to no group (-1), and is no
    #: release to the method.
    LEFT_OUT = 4


@dataclass(frozen=True, eq=False)
class Release:
    """Rows that leave together, under one generalization, at one moment."""

    #: The numbers of the rows, in the order in which they leave. Rows are numbered from 0 as they arrive in the engine.
    rows: NDArray[np.int64]
    kind: Kind
    #: The generalization: the least and the greatest coordinate of each quasi-identifier. NaN means that the
    #: quasi-identifier is not published, for any row of the release.
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    #: Generalized loss of the box, from 0 to 1; the mean over the rows where some of them lack quasi-identifiers.
    loss: float
    #: Distinct persons of the rows; for a reused generalization, those of the release that published it first.
    persons: int
    #: The engine's clock, event time in microseconds.
    moment: int
    #: Rows that had arrived by then.
    arrivals: int
    #: Number of the release that published the generalization first: its own, unless the generalization is reused.
    group: int

    def __repr__(self) -> str:
        """Tell how many rows there are, but nothing about them."""
        return f"Release({self.kind.name}, rows={len(self.rows)}, persons={self.persons})"


@dataclass(frozen=True, eq=False)
class Releases:
    """Releases in columns, in the order in which they leave. Iterating yields a `Release` each."""

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
        """Yield the releases in the order in which they leave."""
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
        """Tell how many rows there are, but nothing about them."""
        return f"Releases({len(self)} of {len(self.rows)} rows)"

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows in each release."""
        return np.diff(self.offsets)

    def per_row(self, column: NDArray[np.generic]) -> NDArray[np.generic]:
        """Repeat a release's value for each of its rows, in the order of `rows`."""
        return np.repeat(column, self.sizes, axis=0)

    def take(self, order: NDArray[np.intp]) -> Releases:
        """Return these releases, each with its rows, in this order."""
        sizes = self.sizes[order]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][order] - offsets[:-1], sizes)
        own = ("rows", "offsets")
        columns = {field.name: getattr(self, field.name)[order] for field in fields(self) if field.name not in own}
        return Releases(rows=self.rows[places], offsets=offsets, **columns)

    @classmethod
    def empty(cls, dimensions: int) -> Releases:
        """Return no releases, for a policy with this number of quasi-identifiers."""
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
        """Join releases that follow each other."""
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
    """A method running on one shard's rows. It keeps the seven promises that `docs/design.md` lists."""

    #: Whether the engine's secret was drawn for it alone, so that no other engine has the same key.
    is_drawn: bool = False

    @abstractmethod
    def push(self, rows: Rows) -> Releases:
        """Take rows that arrive in this order, and return what became due."""

    @abstractmethod
    def advance(self, now: int) -> Releases:
        """Move event time on to `now`, in microseconds, and return what became due."""

    @abstractmethod
    def flush(self) -> Releases:
        """End the stream, and return everything that is still held."""

    @abstractmethod
    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` must be called next, or None."""

    def snapshot(self) -> bytes:
        """Return the complete state of the engine, with a digest under a key of the engine's own."""
        return self._seal().close(_KIND, self.dump())

    def restore(self, data: bytes) -> None:
        """Check the digest, and take over the state of the engine that `snapshot` was called on.

        The digest shows that the snapshot is of an engine of the same secret and shard. Where a secret is drawn for
        each engine (`create_engine` without a secret), the snapshot carries the key: its digest shows damage, but not
        who has written it.

        Raises:
            SnapshotError: The snapshot was taken from another method, under other quasi-identifiers or another secret,
                or is damaged.
        """
        self.load(self._seal().open(_KIND, data))

    @abstractmethod
    def dump(self) -> bytes:
        """Return the complete state of the engine, including its random generator, for a caller that protects it."""

    @abstractmethod
    def load(self, data: bytes) -> None:
        """Take over the state of the engine that `dump` was called on. It must be as `dump` returned it.

        Raises:
            SnapshotError: It is of another method or of other quasi-identifiers.
        """

    @property
    @abstractmethod
    def key(self) -> bytes:
        """The key of the random generator. Keep it secret."""

    def _seal(self) -> Seal:
        key = hashlib.blake2b(key=self.key, digest_size=32, person=b"crenel.snapshot").digest()
        return Seal(key, carried=self.is_drawn)

    @property
    @abstractmethod
    def held(self) -> int:
        """Rows that have arrived and not left."""
