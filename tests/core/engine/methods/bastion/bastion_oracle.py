"""Bastion in plain Python, written from ``docs/bastion.md`` alone.

The parts that the page takes from CASTLE (axes, generator, clock, closeness) come from CASTLE's oracle, and the cuts of
Mondrian from Mondrian's oracle. It shares no code with ``crenel.engine``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from crenel.encoding.rows import Rows
from tests.core.engine.methods.castle.castle_oracle import (
    CLUSTER,
    REUSE,
    SUPPRESSED,
    IntervalAxis,
    Oracle,
    Row,
    saturate,
)
from tests.core.engine.methods.mondrian.mondrian_oracle import Oracle as Mondrian

SAMPLE = 192
PART = 4096
CUT_SAMPLE, LOOK, FEW = 16384, 65, 8
#: If more rows are held than this times the candidates that cells give, they are kept in cells.
CELLED = 4


@dataclass(eq=False)
class Held(Row):
    loneliness: float = 0.0


@dataclass
class Box:
    """A box that was published."""

    lo: tuple[float, ...]
    hi: tuple[float, ...]
    loss: float
    persons: int
    group: int
    values: list[Counter[int]]

    def contains(self, row: Row) -> bool:
        return all(lo <= x <= hi for lo, x, hi in zip(self.lo, row.qi, self.hi, strict=True))


@dataclass(eq=False)
class Cell:
    """What the cuts leave of the space: values from `lo` to below `hi`."""

    lo: list[float]
    hi: list[float]

    def contains(self, row: Row) -> bool:
        return all(lo <= x < hi for lo, x, hi in zip(self.lo, row.qi, self.hi, strict=True))

    def nearest(self, i: int, x: float) -> float:
        return min(max(x, self.lo[i]), self.hi[i])


class Group:
    """A group around an anchor: its rows, and the rows that may still join it."""

    def __init__(self, oracle: BastionOracle, anchor: Held, pool: list[Held], most: float) -> None:
        self.oracle, self.anchor, self.most = oracle, anchor, most
        self.free, self.pool = pool, [row for row in pool if row.person != anchor.person]
        self.nearby = bool(oracle.cells)
        self.rows = [anchor]
        self.lo, self.hi = list(anchor.qi), list(anchor.qi)
        self.candidates: list[Held] = []
        self.scores: dict[int, np.float32] = {}

    @property
    def loss(self) -> float:
        return self.oracle.loss(self.lo, self.hi)

    def has(self, person: int) -> bool:
        return any(row.person == person for row in self.rows)

    def widened(self, i: int, x: float) -> tuple[float, float]:
        return self.oracle.axes[i].span(min(self.lo[i], x), max(self.hi[i], x))

    def grow(self, wanted: int) -> None:
        """Add rows until the group has the wanted size, no row is left, or the first k rows lose too much."""
        while len(self.rows) < wanted:
            able = [row for row in self.candidates if not self.has(row.person)]
            if not able:
                nearby, self.nearby = self.nearby, False
                if not ((nearby and self.choose_nearby()) or self.choose()):
                    return
                continue
            self.join(min(able, key=lambda row: (self.scores[row.number], row.number)))
            if len(self.rows) <= self.oracle.k and self.loss > self.most:
                return

    def take_oldest(self) -> None:
        for row in self.pool:
            if len(self.rows) < self.oracle.k and not self.has(row.person):
                self.take(row)

    def choose_nearby(self) -> bool:
        oracle, found = self.oracle, list[Held]()
        for cell in sorted(oracle.cells, key=self.distance):  # of equally near ones, in their order
            rows = [row for row in self.free if cell.contains(row)]
            others = sum(row.person != self.anchor.person for row in found)
            if found and len(found) + len(rows) > oracle.search_cells and others >= oracle.k - 1:
                break
            found += rows
        self.candidates = [row for row in found if row.person != self.anchor.person]
        self.scores = {row.number: self.score(row) for row in self.candidates}
        return len(self.candidates) >= max(oracle.k - 1, 1)

    def distance(self, cell: Cell) -> float:
        total = 0.0
        for i, x in enumerate(self.anchor.qi):
            if cell.nearest(i, x) != x:
                total += self.oracle.growth(i, x, x, cell.nearest(i, x))
        return total

    def choose(self) -> bool:
        oracle = self.oracle
        fit = [row for row in self.pool if not self.has(row.person)]
        if self.most < math.inf:
            fit = [row for row in fit if oracle.pair_loss(self.anchor.qi, row.qi) <= self.most]
        if not fit or len(fit) < oracle.k - len(self.rows):
            return False
        self.scores = {row.number: self.score(row) for row in fit}
        best = sorted(fit, key=lambda row: (self.scores[row.number], row.number))
        self.candidates = best[: oracle.search]
        return True

    def join(self, chosen: Held) -> None:
        self.rows.append(chosen)
        for i, x in enumerate(chosen.qi):
            old, new = (self.lo[i], self.hi[i]), self.widened(i, x)
            if old != new:
                for row in self.candidates:
                    change = self.change(i, old, new, row)
                    # The addend is a double. Only the sum is rounded.
                    self.scores[row.number] = np.float32(self.scores[row.number] + change)
                self.lo[i], self.hi[i] = new

    def score(self, row: Held) -> np.float32:
        oracle = self.oracle
        total = np.float32(-oracle.lonely * row.loneliness * oracle.age(row))
        for i, axis in enumerate(oracle.axes):
            if isinstance(axis, IntervalAxis):
                x, lo, hi = (self.offset(i, value) for value in (row.qi[i], self.lo[i], self.hi[i]))
                total = total + (beyond(x, hi) + beyond(-x, -lo))
            else:
                total = np.float32(total + np.float64(oracle.growth(i, self.lo[i], self.hi[i], row.qi[i])))
        return total

    def change(self, i: int, old: tuple[float, float], new: tuple[float, float], row: Held) -> Any:
        """Return what to add to a row's score when the span of a quasi-identifier grows."""
        oracle = self.oracle
        if not isinstance(oracle.axes[i], IntervalAxis):
            return np.float64(oracle.growth(i, *new, row.qi[i]) - oracle.growth(i, *old, row.qi[i]))
        x = self.offset(i, row.qi[i])
        (old_lo, old_hi), (new_lo, new_hi) = ([self.offset(i, end) for end in span] for span in (old, new))
        if new[1] > old[1]:
            return beyond(x, new_hi) - beyond(x, old_hi)
        return beyond(-x, -new_lo) - beyond(-x, -old_lo)

    def offset(self, i: int, x: float) -> np.float32:
        return np.float32(self.oracle.scale[i] * (x - self.anchor.qi[i]))

    def add_rings(self) -> bool:
        """Add rings of rows, and return whether the group then has the required sensitive values."""
        while True:
            size, lo, hi = len(self.rows), list(self.lo), list(self.hi)
            half = size // 2
            self.grow(size + half)
            if len(self.rows) < size + half:
                return self.oracle.suffice(self.rows)
            first, rest, ring = self.rows[:half], self.rows[half:size], self.rows[size:]
            if all(self.oracle.suffice(two) for two in (first + rest, first + ring, rest + ring)):
                self.rows, self.lo, self.hi = first + rest, lo, hi
                return True

    def added_by(self, row: Held) -> float:
        growth = 0.0
        for i, x in enumerate(row.qi):
            lo, hi = self.widened(i, x)
            growth += self.oracle.scale[i] * ((hi - lo) - (self.hi[i] - self.lo[i]))
        return len(self.rows) * growth + self.loss + growth

    def take(self, row: Held) -> None:
        self.rows.append(row)
        for i, x in enumerate(row.qi):
            self.lo[i], self.hi[i] = self.widened(i, x)


class BastionOracle(Oracle):
    """The method ``bastion`` on one shard's rows."""

    def __init__(self, *, eta: float, lonely: float, search: int, shards: int, **others: Any) -> None:
        super().__init__(**others)
        self.geometries, self.weights = others["geometries"], others["weights"]
        self.reuse = self.reuse and self.max_reusable > 0
        self.eta, self.lonely, self.search = eta, lonely, search
        self.search_cells = min(search // 2, 128 * self.k)
        self.celled = math.inf if self.reuse else CELLED * self.search_cells
        self.cells: list[Cell] = []
        self.cut_at = 0
        self.rows: dict[int, Held] = {}  # in order of arrival
        self.over = False
        #: What a row may add to the loss of a group at the end, not to be suppressed.
        self.at_end = 1.0 if shards == 1 else math.inf
        #: With fewer rows, a group takes the oldest, if some stay.
        self.thin = 0 if shards == 1 or self.reuse else 2 * self.k + self.k // 2
        self.some_stay = False
        self.sample: list[tuple[float, ...]] = []
        self.sampled = 0
        self.left_out = 0
        self.boxes: list[Box] = []
        self.average: float | None = None
        self.ratio = 1.0
        self.guess = 1.0
        self.caution = 0.7
        self.waited = 0.0

    # A row arrives

    def push_one(self, qi: tuple[float, ...], person: int, sensitive: tuple[int, ...], time: int) -> None:
        self.move_clock(saturate(time - self.disorder))
        for axis, x in zip(self.axes, qi, strict=True):
            axis.see(x)
        self.scale = self.scales()
        if self.t is not None:
            for counts, value in zip(self.stream, sensitive, strict=True):
                counts[value] = counts.get(value, 0) + 1
        deadline = None if self.delay is None else self.deadline(time)
        row = Held(self.arrivals, qi, person, sensitive, deadline, self.estimate(qi))
        self.take_sample(qi)
        self.arrivals += 1
        self.rows[row.number] = row
        self.keep_cells()
        self.move_clock(self.clock)

    def keep_cells(self) -> None:
        if self.cells and self.arrivals < self.cut_at:
            return
        self.cells, h = [], len(self.rows)
        if h > self.celled:
            self.cut_at = self.arrivals + h
            rows, s = list(self.rows.values()), min(h, CUT_SAMPLE)
            sample = [rows[i * h // s] for i in range(s)]
            count = len(self.axes)
            self.cut(Cell([-math.inf] * count, [math.inf] * count), sample, max(self.search_cells * s // (8 * h), FEW))

    def cut(self, cell: Cell, sample: list[Held], most: int) -> None:
        looked = [sample[i * len(sample) // min(len(sample), LOOK)] for i in range(min(len(sample), LOOK))]
        ways = [self.way(i, sorted(row.qi[i] for row in looked)) for i in range(len(self.axes))]
        spread, axis, at = max(ways, key=lambda way: way[0])
        if len(sample) <= most or spread <= 0:
            self.cells.append(cell)
            return
        below, above = Cell(cell.lo.copy(), cell.hi.copy()), Cell(cell.lo.copy(), cell.hi.copy())
        below.hi[axis] = above.lo[axis] = at
        self.cut(below, [row for row in sample if row.qi[axis] < at], most)
        self.cut(above, [row for row in sample if row.qi[axis] >= at], most)

    def way(self, i: int, values: list[float]) -> tuple[float, int, float]:
        """Return how far values are spread, and where to cut them."""
        middle, count = values[len(values) // 2], len(values)
        at = values.index(middle)
        if 4 * at < count:
            at += values.count(middle)
        if 4 * at < count or 4 * (count - at) < count:
            return -1.0, i, 0.0
        spread = 0.0
        for x in values:
            spread += abs(x - middle)
        return spread * self.scale[i], i, values[at]

    def estimate(self, qi: tuple[float, ...]) -> float:
        known = len(self.sample)
        if known == 0:
            return 0.0
        expected = self.k * known / max(len(self.rows), 1)
        parts = min(max(round(expected), 1), known)
        size = known // parts
        total = 0.0
        for start in range(0, parts * size, size):
            total += min(self.pair_loss(qi, other) for other in self.sample[start : start + size])
        return float(np.float32(total / parts * math.sqrt(math.sqrt(min(expected, 1.0)))))

    def take_sample(self, qi: tuple[float, ...]) -> None:
        if self.left_out > 0:
            self.left_out -= 1
            return
        self.sample[self.sampled % SAMPLE : self.sampled % SAMPLE + 1] = [qi]
        self.sampled += 1
        self.left_out = len(self.rows) // SAMPLE

    def estimate_again(self) -> None:
        held = list(self.rows.values())
        h, s = len(held), min(len(held), SAMPLE)
        self.sample = [held[i * h // s].qi for i in range(s)]
        self.sampled, self.left_out = s, h // SAMPLE
        for row in held:
            row.loneliness = self.estimate(row.qi)

    def age(self, row: Held) -> float:
        if self.over:
            return 1.0
        age = 0.0
        if self.delay_rows is not None:
            age = min((self.arrivals - row.number) * (1.0 / self.delay_rows), 1.0)
        if self.delay is not None:
            assert row.deadline is not None
            age = max(age, min(1.0 - (float(row.deadline) - float(self.clock)) * (1.0 / self.delay), 1.0))
        return age

    # Rows are due

    def move_clock(self, now: int) -> None:
        now = max(self.clock, now)
        self.let_old_go()
        while self.delay is not None and self.rows:
            soonest = min(row.deadline for row in self.rows.values() if row.deadline is not None)
            if soonest > now:
                break
            self.clock = max(self.clock, soonest)
            self.let_go([row for row in self.rows.values() if row.deadline == soonest])
        self.clock = now

    def let_old_go(self) -> None:
        """Release rows that exceed `delay_rows`. There is at most one, unless the policy was changed."""
        if self.delay_rows is not None:
            old = [row for row in self.rows.values() if row.number < self.arrivals - self.delay_rows]
            if old:
                self.let_go(old)

    def flush(self) -> list[Any]:
        self.let_old_go()
        self.over = True
        if self.rows:
            self.let_go(list(self.rows.values()))
        self.over = False
        return self.take()

    def let_go(self, due: list[Held]) -> None:
        if self.reuse:
            for anchor in due:
                if anchor.number in self.rows:  # otherwise it has left in another row's group
                    self.expire(anchor)
            return
        self.some_stay = len(due) < len(self.rows)
        if len(due) == len(self.rows) >= 2 * self.k:
            groups = self.divide()
        else:
            if len(due) >= self.k and 2 * len(due) >= len(self.rows):
                self.estimate_again()
            groups = self.plan(due, dict(self.rows), self.most_added())
        for group in groups:
            self.leave_as_group(group)
        for row in due:
            if row.number in self.rows:
                self.leave_as_nothing(row)

    def most_added(self) -> float:
        return self.at_end if self.over else 1.0

    def plan(self, due: list[Held], free: dict[int, Held], most: float) -> list[Group]:
        """Form groups for rows that are due. A row in a group is no longer free."""
        groups: list[Group] = []
        for anchor in due:
            group = self.group(anchor, list(free.values())) if anchor.number in free else None
            if group is not None:
                groups.append(group)
                for row in group.rows:
                    del free[row.number]
        self.join_any(groups, due, free, most)
        return groups

    def join_any(self, groups: list[Group], rows: Iterable[Held], free: dict[int, Held], most: float) -> None:
        """Add the rows that are still free to groups, if they add less than `most` to their loss."""
        for row in [row for row in rows if row.number in free]:
            able = [group for group in groups if not group.has(row.person) and self.stays_within(group, row)]
            best = min(able, key=lambda group: group.added_by(row), default=None)
            if best is not None and best.added_by(row) < most:
                best.take(row)
                del free[row.number]

    def stays_within(self, group: Group, row: Held) -> bool:
        return self.t is None or self.within_t(self.counted([*group.rows, row]))

    def divide(self) -> list[Group]:
        self.cells = []
        self.estimate_again()
        count, best, least = len(self.rows), [], math.inf
        for m in sorted({self.k, min(3 * self.k, count), min(max(PART, self.k), count)}):
            free, groups = dict(self.rows), []
            parts = self.parts_of(m)
            for part in parts:
                inside = {row.number: row for row in part}
                groups += self.plan(part, inside, 1.0)
                for row in part:
                    if row.number not in inside:
                        del free[row.number]
            self.join_any(groups, [row for part in parts for row in part], free, self.most_added())
            loss = float(len(free))
            for group in groups:
                loss += len(group.rows) * group.loss
            if loss < least:
                best, least = groups, loss
        return best

    def parts_of(self, persons: int) -> list[list[Held]]:
        """Return the parts into which Mondrian cuts the held rows."""
        held = list(self.rows.values())
        columns = zip(self.geometries, self.weights, strict=True)
        policy: Any = SimpleNamespace(
            k=persons,
            l=None,
            quasi_identifiers={
                i: SimpleNamespace(geometry=geometry, weight=weight) for i, (geometry, weight) in enumerate(columns)
            },
        )
        rows = Rows(
            np.array([row.qi for row in held]),
            np.array([row.person for row in held]),
            np.zeros((len(held), 0), np.int64),
            np.zeros(len(held), np.int64),
        )
        domains = [(axis.lo, axis.hi) if isinstance(axis, IntervalAxis) else axis.whole() for axis in self.axes]
        parts, left = Mondrian(policy, rows, domains, relaxed=True, spare=0).groups()
        return [[held[i] for i in part] for part in parts + left]

    # A group

    def group(self, anchor: Held, pool: list[Held], most: float = math.inf) -> Group | None:
        nearest = 0.0
        if self.reuse:
            costs = sorted(self.pair_loss(anchor.qi, row.qi) for row in pool if row.person != anchor.person)
            costs = [cost for cost in costs if cost <= most]
            if len(costs) < self.k - 1 or costs[self.k - 2] > most / max(self.ratio, 1.0):
                return None
            nearest = costs[self.k - 2]
        group = Group(self, anchor, pool, most)
        if self.some_stay and len(pool) < self.thin:
            group.take_oldest()
        else:
            group.grow(self.k)
        if len(group.rows) < self.k or group.loss > most:
            return None
        if (self.l is not None or self.t is not None) and not (group.add_rings() and group.loss <= most):
            return None
        if self.reuse and nearest > 0:
            self.ratio += 0.05 * (group.loss / nearest - self.ratio)
        if self.reuse and anchor.loneliness > 0:
            self.guess += 0.05 * (group.loss / anchor.loneliness - self.guess)
        return group

    def suffice(self, rows: list[Held]) -> bool:
        """Whether the rows have l values in each sensitive column, and each column is within t of the stream."""
        values = self.counted(rows)
        if self.l is not None and any(len(counts) < self.l for counts in values):
            return False
        return self.t is None or self.within_t(values)

    def counted(self, rows: list[Held]) -> list[Counter[int]]:
        return [Counter(row.sensitive[column] for row in rows) for column in range(len(self.sensitive))]

    # Reuse

    def expire(self, anchor: Held) -> None:
        box = self.draw(anchor)
        most = math.inf
        if box is not None:
            assert self.average is not None
            spared = (0.95 + 18.0 * max(self.waited - 0.515, 0.0)) * self.average
            most = (box.loss + (self.k - 1) * spared) / self.k
        group = None
        if self.caution * self.guess * anchor.loneliness <= most:
            group = self.group(anchor, list(self.rows.values()), most)
            self.caution = min(self.caution + 0.01, 2.0) if group is None else max(self.caution - 0.05, 0.7)
        if group is not None:
            self.leave_as_group(group)
        elif box is not None:
            self.leave_under(box, anchor)
        else:
            self.leave_as_nothing(anchor)

    def draw(self, anchor: Held) -> Box | None:
        fitting = [box for box in self.boxes if box.contains(anchor) and self.stays_close(box, anchor)]
        if not fitting:
            return None
        least = min(box.loss for box in fitting)
        sums: list[float] = []
        total = 0.0
        for box in fitting:
            more = box.loss - least
            total += math.exp(-self.eta * min(more / (0.25 * self.average), 1.0)) if more > 0 else 1.0
            sums.append(total)
        high, low = self.random.word(), self.random.word()
        point = ((high << 32 | low) >> 11) / 2**53 * total
        return next((box for box, upto in zip(fitting, sums, strict=True) if upto > point), fitting[-1])

    # Releases

    def leave_as_group(self, group: Group) -> None:
        lo, hi, rows = tuple(group.lo), tuple(group.hi), group.rows
        numbers = [row.number for row in rows]
        for number in numbers:
            del self.rows[number]
        self.shuffle(numbers)
        loss, number = group.loss, self.releases
        self.release(numbers, CLUSTER, lo, hi, persons=len(rows))
        if self.reuse:
            total = 0.0
            for row in rows:
                total += min((self.arrivals - row.number) / (self.arrivals - rows[0].number), 1.0)
            self.note(loss, total / len(rows), len(rows))
            self.remember(Box(lo, hi, loss, len(rows), number, self.counted(rows)))

    def leave_under(self, box: Box, anchor: Held) -> None:
        del self.rows[anchor.number]
        for counts, value in zip(box.values, anchor.sensitive, strict=True):
            counts[value] += 1
        self.release([anchor.number], REUSE, box.lo, box.hi, persons=box.persons, group=box.group)
        self.note(box.loss, 1.0, 1)

    def leave_as_nothing(self, row: Held) -> None:
        del self.rows[row.number]
        whole = [axis.whole() for axis in self.axes]
        self.release([row.number], SUPPRESSED, tuple(w[0] for w in whole), tuple(w[1] for w in whole), persons=1)

    def remember(self, new: Box) -> None:
        for at, old in enumerate(self.boxes):
            if (old.lo, old.hi) == (new.lo, new.hi):
                self.boxes[at] = new
                return
        self.boxes.append(new)
        if len(self.boxes) > self.max_reusable:
            del self.boxes[0]

    def note(self, loss: float, waited: float, rows: int) -> None:
        self.waited += min(rows / (20.0 * self.k), 0.5) * (waited - self.waited)
        if self.average is None:
            self.average = loss
        else:
            self.average += min(rows / (10.0 * self.k), 0.5) * (loss - self.average)

    # Losses

    def growth(self, i: int, lo: float, hi: float, x: float) -> float:
        axis = self.axes[i]
        if isinstance(axis, IntervalAxis):
            return self.scale[i] * (max(x - hi, 0.0) + max(lo - x, 0.0))
        new_lo, new_hi = axis.span(min(lo, x), max(hi, x))
        return self.scale[i] * ((new_hi - new_lo) - (hi - lo))

    def pair_loss(self, one: tuple[float, ...], other: tuple[float, ...]) -> float:
        total = 0.0
        for i in range(len(self.axes)):
            total += self.growth(i, one[i], one[i], other[i])
        return total


def beyond(x: np.float32, end: np.float32) -> np.float32:
    return max(x - end, np.float32(0.0))
