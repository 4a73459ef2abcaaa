"""What became of the rows, in numbers: no value, no person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.engine import Kind
from crenel.transforms._hold.shard_holder import Departure

__all__ = ["LONGER", "ROW_LOSS", "WAITED", "WAITS", "Counts", "Spread", "waited_up_to"]

#: Bounds of waiting times, in seconds: rows are counted up to each of these, and beyond the last.
WAITS = (1, 2, 5, 10, 30, 60, 300, 900, 3_600, 10_800, 43_200, 86_400, 604_800)
#: Names of counters: milliseconds that rows waited in all, rows that waited longer than all of these, and the sum of
#: the losses of rows, in millionths.
WAITED, LONGER, ROW_LOSS = "waited ms", "waited longer", "row loss millionths"
_BOUNDS = np.array(WAITS) * 1_000_000


def waited_up_to(seconds: int) -> str:
    """The name of the counter of rows that waited at most this long, but longer than the next smaller of `WAITS`."""
    return f"waited up to {seconds} s"


@dataclass
class Spread:
    """The count, least, mean and greatest of some figures."""

    count: int = 0
    total: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def add(self, figures: NDArray[Any]) -> None:
        """Add figures."""
        if len(figures):
            self.join(Spread(len(figures), float(figures.sum()), float(figures.min()), float(figures.max())))

    def join(self, other: Spread) -> None:
        """Add the figures of another."""
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
class Counts:
    """Counts of rows that arrived, were rejected, and were released.

    A step counts what it sees: PACK rows and rejections, HOLD everything else. The counts of a run are the sum of all
    records, in any order (`Counts.of`).
    """

    #: Rows that arrived, rejected ones included. A row that lies in several windows counts once for each.
    rows: int = 0
    #: Messages that have no row, such as the deletes of a change stream. They are no rows.
    ignored: int = 0
    #: Rejected rows, by field and reason.
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Released rows, by the kind of their release (`Kind`).
    kinds: list[int] = field(default_factory=lambda: [0] * len(Kind))
    releases: int = 0
    #: Rows published without a crowd: see `Departure.alone`.
    alone: int = 0
    #: The sum of the losses of published and suppressed rows.
    loss: float = 0.0
    #: Rows in each published release: a reused generalization, and a row published as `*`, count as one row each.
    sizes: Spread = field(default_factory=Spread)
    #: Microseconds that each published or suppressed row waited.
    delay: Spread = field(default_factory=Spread)
    #: Published and suppressed rows by how long they waited: up to each of `WAITS`, and longer.
    waits: list[int] = field(default_factory=lambda: [0] * (len(WAITS) + 1))
    #: The most rows that a shard held after a step.
    held: int = 0

    @property
    def published(self) -> int:
        """Rows published in groups, or under the generalization of one; not those that were published as `*`."""
        return self.kinds[Kind.CLUSTER] + self.kinds[Kind.REUSE]

    @property
    def suppressed(self) -> int:
        """Rows that no group was found for."""
        return self.kinds[Kind.SUPPRESSED]

    @property
    def sampled_out(self) -> int:
        """Rows that were left out at random, by a method that samples."""
        return self.kinds[Kind.SAMPLED_OUT]

    @property
    def left_out(self) -> int:
        """Rows that were left out because `once_per` allows no other row of their person."""
        return self.kinds[Kind.LEFT_OUT]

    @property
    def mean_loss(self) -> float | None:
        """The average loss of published and suppressed rows, from 0 to 1; None if there are none."""
        rows = self.published + self.suppressed
        return self.loss / rows if rows else None

    def arrive(self, rows: int, rejected: Iterable[tuple[str, str]] = ()) -> None:
        """Count rows that arrived, and the field and reason of each that was rejected."""
        self.rows += rows
        self.rejected.update(rejected)

    def ignore(self, messages: int) -> None:
        """Count messages that have no row."""
        self.ignored += messages

    def add(self, departure: Departure) -> None:
        """Count rows that leave."""
        releases = departure.releases
        sizes = releases.sizes
        rows = np.bincount(releases.kind, sizes, minlength=len(Kind)).astype(np.int64)
        self.kinds = [before + more for before, more in zip(self.kinds, rows.tolist(), strict=True)]
        self.releases += int(np.count_nonzero(releases.kind != Kind.LEFT_OUT))
        boxed = (releases.kind != Kind.SAMPLED_OUT) & (releases.kind != Kind.LEFT_OUT)
        self.loss += float((releases.loss * sizes)[boxed].sum())
        self.alone += departure.rows_alone
        self.sizes.add(sizes[(releases.kind == Kind.CLUSTER) | departure.alone])
        waited = np.repeat(releases.moment, sizes) - departure.time[releases.rows]
        waited = np.maximum(waited[np.repeat(boxed, sizes)], 0)
        self.delay.add(waited)
        # Mostly no row has waited for long, and the bounds beyond need not be searched.
        bounds = _BOUNDS[: np.searchsorted(_BOUNDS, waited.max(initial=0))]
        binned = np.bincount(np.searchsorted(bounds, waited), minlength=len(self.waits))
        self.waits = [before + more for before, more in zip(self.waits, binned.tolist(), strict=True)]

    def hold(self, rows: int) -> None:
        """Note how many rows a shard holds."""
        self.held = max(self.held, rows)

    def join(self, other: Counts) -> None:
        """Add other counts."""
        self.rows += other.rows
        self.ignored += other.ignored
        self.rejected.update(other.rejected)
        self.kinds = [mine + its for mine, its in zip(self.kinds, other.kinds, strict=True)]
        self.releases += other.releases
        self.alone += other.alone
        self.loss += other.loss
        self.sizes.join(other.sizes)
        self.delay.join(other.delay)
        self.waits = [mine + its for mine, its in zip(self.waits, other.waits, strict=True)]
        self.hold(other.held)

    def as_dict(self) -> dict[str, Any]:
        """A record of plain values, fit for JSON."""
        rejected = [[name, reason, rows] for (name, reason), rows in self.rejected.items()]
        spreads = {"sizes": asdict(self.sizes), "delay": asdict(self.delay)}
        return {**vars(self), **spreads, "kinds": list(self.kinds), "waits": list(self.waits), "rejected": rejected}

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Counts:
        """The sum of records."""
        total = cls()
        for record in records:
            rejected = Counter({(name, reason): rows for name, reason, rows in record["rejected"]})
            spreads = {name: Spread(**record[name]) for name in ("sizes", "delay")}
            total.join(cls(**{**record, **spreads, "rejected": rejected}))
        return total
