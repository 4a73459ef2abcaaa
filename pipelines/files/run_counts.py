"""What became of the rows of a run: counted while they leave, and added up at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.engine import Kind
from crenel.transforms._hold.holder import Departure

__all__ = ["Spread", "Tally"]


@dataclass
class Spread:
    """Of some figures how many there are, and the least, the mean and the greatest of them."""

    count: int = 0
    total: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def add(self, figures: NDArray[Any]) -> None:
        """Take more figures."""
        if len(figures):
            self.join(Spread(len(figures), float(figures.sum()), float(figures.min()), float(figures.max())))

    def join(self, other: Spread) -> None:
        """Take the figures of another."""
        if not other.count:
            return
        self.least = min(self.least, other.least) if self.count else other.least
        self.most = max(self.most, other.most) if self.count else other.most
        self.count += other.count
        self.total += other.total

    @property
    def mean(self) -> float:
        """The mean; 0 if there are no figures."""
        return self.total / self.count if self.count else 0.0


@dataclass
class Tally:
    """What left so far."""

    #: Rows, by how they left.
    kinds: list[int] = field(default_factory=lambda: [0] * len(Kind))
    releases: int = 0
    #: Rows that left for everybody without a crowd: see `Departure.alone`.
    alone: int = 0
    #: Of the rows that are published or suppressed, added up.
    loss: float = 0.0
    #: Rows of each release that left for everybody: one that reuses a generalization, or leaves as `*`, is one row.
    sizes: Spread = field(default_factory=Spread)
    #: Microseconds of event time that each row waited.
    delay: Spread = field(default_factory=Spread)
    #: The most rows that a shard was seen to hold.
    held: int = 0

    def count(self, departure: Departure) -> None:
        """Count what leaves."""
        releases = departure.releases
        sizes = releases.sizes
        rows = np.bincount(releases.kind, sizes, minlength=len(Kind)).astype(np.int64)
        self.kinds = [before + more for before, more in zip(self.kinds, rows.tolist(), strict=True)]
        self.releases += len(releases)
        boxed = releases.kind != Kind.SAMPLED_OUT
        self.loss += float((releases.loss * sizes)[boxed].sum())
        self.alone += departure.rows_alone
        self.sizes.add(sizes[(releases.kind == Kind.CLUSTER) | departure.alone])
        waited = np.repeat(releases.moment, sizes) - departure.time[releases.rows]
        self.delay.add(np.maximum(waited[np.repeat(boxed, sizes)], 0))

    def holds(self, rows: int) -> None:
        """Take note of how many rows a shard holds."""
        self.held = max(self.held, rows)

    def as_dict(self) -> dict[str, Any]:
        """As a record."""
        return asdict(self)

    @classmethod
    def of(cls, records: Iterable[dict[str, Any]]) -> Tally:
        """The tallies of all records together."""
        all_of_them = cls()
        for record in records:
            one = cls(**record | {name: Spread(**record[name]) for name in ("sizes", "delay")})
            all_of_them.kinds = [a + b for a, b in zip(all_of_them.kinds, one.kinds, strict=True)]
            all_of_them.releases += one.releases
            all_of_them.alone += one.alone
            all_of_them.loss += one.loss
            all_of_them.sizes.join(one.sizes)
            all_of_them.delay.join(one.delay)
            all_of_them.holds(one.held)
        return all_of_them
