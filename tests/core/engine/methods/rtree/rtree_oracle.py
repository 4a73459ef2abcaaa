"""The four methods of continuous publishing in plain Python, written from `docs/continuous.md`.

It has a list of leaves instead of a tree, and computes everything anew each time. It adds floats in loops, in the order
that the page gives. It takes the keystream and the quasi-identifiers' axes from CASTLE's oracle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.core.engine.methods.castle.castle_oracle import (
    CLUSTER,
    FIRST_MOMENT,
    LAST_MOMENT,
    SUPPRESSED,
    OracleRelease,
    Random,
    Row,
    axis_of,
)

Box = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(eq=False)
class Leaf:
    rows: list[Row]
    split_at: int
    #: The publishing time, if one is set.
    due: int | None = None


@dataclass(eq=False)
class Chain:
    #: Pairs of number and point, from the head on.
    links: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    successor: int = -1


def bounded(moment: int) -> int:
    return max(FIRST_MOMENT, min(moment, LAST_MOMENT))


class ContinuousOracle:
    def __init__(
        self,
        *,
        method: str,
        geometries: Sequence[Any],
        weights: Sequence[float],
        k: int,
        l: int | None,
        columns: int,
        delay: int | None,
        delay_rows: int | None,
        disorder: int,
        key: bytes,
        active_rows: int = 0,
        instant: int | None = None,
        alpha: float = 0.0,
        sample: int = 0,
        window_rows: int = 0,
    ) -> None:
        self.method, self.k, self.l, self.columns = method, k, l, columns
        self.delay, self.delay_rows, self.disorder = delay, delay_rows, disorder
        self.active_rows, self.instant = active_rows, instant
        self.decay = math.log1p(alpha)
        self.window = window_rows
        self.chains = [Chain() for _ in range(sample)]
        self.axes = [axis_of(geometry) for geometry in geometries]
        total = 0.0
        for weight in weights:
            total += weight
        self.shares = [weight / total for weight in weights]
        self.random = Random(key)
        self.leaves: list[Leaf] = []
        self.arrivals, self.clock, self.released = 0, FIRST_MOMENT, 0
        self.rate_rows, self.rate_since = 0.0, 0.0
        self.over = False
        #: For each row number, the instant from which the row is no longer held back.
        self.patience: dict[int, int] = {}
        self.out: list[OracleRelease] = []

    # -- boxes -----------------------------------------------------------------------------------

    def scale(self, j: int) -> float:
        width = self.axes[j].width()
        return self.shares[j] / width if width > 0 else 0.0

    def box(self, rows: Sequence[Row]) -> Box:
        return self.joined([(row.qi, row.qi) for row in rows])

    def joined(self, boxes: Sequence[Box]) -> Box:
        ends = [
            self.axes[j].span(min(lo[j] for lo, _ in boxes), max(hi[j] for _, hi in boxes))
            for j in range(len(self.axes))
        ]
        return tuple(lo for lo, _ in ends), tuple(hi for _, hi in ends)

    def loss(self, box: Box) -> float:
        total = 0.0
        for j, (lo, hi) in enumerate(zip(*box, strict=True)):
            total += self.scale(j) * (hi - lo + self.axes[j].cell)
        return total

    def enlargement(self, box: Box, other: Box) -> float:
        total = 0.0
        wider = self.joined([box, other])
        for j in range(len(self.axes)):
            total += self.scale(j) * ((wider[1][j] - wider[0][j]) - (box[1][j] - box[0][j]))
        return total

    def contains(self, box: Box, point: Sequence[float]) -> bool:
        return all(lo <= x <= hi for lo, x, hi in zip(box[0], point, box[1], strict=True))

    # -- groups ----------------------------------------------------------------------------------

    def enough(self, rows: Sequence[Row]) -> bool:
        return len({row.person for row in rows}) >= self.k and self.diverse(rows)

    def diverse(self, rows: Sequence[Row]) -> bool:
        return self.l is None or all(len({row.sensitive[j] for row in rows}) >= self.l for j in range(self.columns))

    def cut(self, leaf: Leaf) -> tuple[list[Row], list[Row]] | None:
        best, found = math.inf, None
        n = len(leaf.rows)
        for j in range(len(self.axes)):
            ordered = sorted(leaf.rows, key=lambda row: row.qi[j])
            for i in range(n - self.k, self.k - 1, -1):
                first, second = ordered[:i], ordered[i:]
                if not (self.diverse(first) and self.diverse(second)):
                    continue
                penalty = i * self.loss(self.box(first)) + (n - i) * self.loss(self.box(second))
                if penalty < best:
                    best, found = penalty, (first, second)
        if found is None:
            return None
        return [row for row in leaf.rows if row in found[0]], [row for row in leaf.rows if row in found[1]]

    def split(self, leaf: Leaf) -> list[Leaf]:
        """Return the leaf, or the two leaves that it was cut into."""
        if len(leaf.rows) < leaf.split_at:
            return [leaf]
        halves = self.cut(leaf)
        if halves is None:
            leaf.split_at = len(leaf.rows) + max(len(leaf.rows) // 2, 1)
            return [leaf]
        self.leaves.remove(leaf)
        made = [Leaf(rows, 2 * self.k) for rows in halves]
        self.leaves += made
        return made

    # -- publishing times ------------------------------------------------------------------------

    def trials(self, chance: float) -> int:
        high = self.random.below(2**26)
        uniform = (high * 2**27 + self.random.below(2**27) + 1) / 2**53
        if chance >= 1.0:
            return 1
        failures = math.log(uniform) / math.log1p(-chance) if chance > 0.0 else math.inf
        return int(min(failures, float(2**60))) + 1

    def rate(self) -> float:
        if self.instant is None:
            return 1.0
        return self.rate_rows / max((float(self.clock) - self.rate_since) / self.instant, 1.0)

    def haste(self, leaf: Leaf) -> float:
        if self.method not in ("rtree-density", "rtree-full") or self.decay == 0.0:
            return 0.0
        box = self.box(leaf.rows)
        samples = sum(self.contains(box, chain.links[0][1]) for chain in self.chains)
        if samples == 0:
            return 1.0
        missing = max(2 * self.k - len(leaf.rows), 1)
        return min(self.decay * missing * len(self.chains) / (samples * self.rate()), 1.0)

    def chance(self, leaf: Leaf) -> float:
        loss = self.loss(self.box(leaf.rows))
        if self.method == "min-delay" or loss <= 0.0:
            return 1.0
        haste, total = self.haste(leaf), 0.0
        for other in self.leaves:
            other_loss = self.loss(self.box(other.rows))
            if other_loss > 0.0 and self.enough(other.rows):
                total += len(other.rows) / other_loss * math.exp(self.haste(other) - haste)
        return self.rate() * self.held / self.active_rows / (loss * total)

    @property
    def held(self) -> int:
        return sum(len(leaf.rows) for leaf in self.leaves) + self.beside

    #: The number of held rows that are in no leaf.
    beside = 0

    def schedule(self, leaf: Leaf) -> None:
        leaf.due = None
        if self.enough(leaf.rows):
            chance = self.chance(leaf)
            later = self.trials(chance)
            if chance >= 1.0:
                later = 0
            leaf.due = self.after(later)

    def now(self) -> int:
        return self.arrivals - 1 if self.instant is None else bounded(self.clock - self.clock % self.instant)

    def after(self, instants: int) -> int:
        size = self.instant or 1
        return min(bounded(self.now() + min(instants, 2**62 // size) * size), LAST_MOMENT - 1)

    def worth_waiting(self, loss: float, later: float) -> int:
        most = float(self.active_rows) / self.rate()
        if later > 0.0 and self.decay > 0.0:
            most = min(most, math.log(loss / later) / self.decay)
        return int(most)

    # -- sampling --------------------------------------------------------------------------------

    def begin(self, chain: Chain, number: int, point: tuple[float, ...]) -> None:
        chain.links = [(number, point)]
        chain.successor = number + 1 + self.random.below(max(self.window - 1, 1))

    def sample(self, number: int, point: tuple[float, ...]) -> None:
        chance = 1.0 / min(number + 1, self.window)
        at = self.trials(chance) - 1
        begun = set()
        while at < len(self.chains):
            self.begin(self.chains[at], number, point)
            begun.add(at)
            at += self.trials(chance)
        for at, chain in enumerate(self.chains):
            if at in begun:
                continue
            if chain.successor == number:
                chain.links.append((number, point))
                chain.successor = number + 1 + self.random.below(max(self.window - 1, 1))
            if chain.links[0][0] == number - self.window:
                del chain.links[0]

    # -- releases --------------------------------------------------------------------------------

    def release(self, rows: list[Row], kind: int, box: Box, loss: float) -> None:
        self.out.append(
            OracleRelease(
                rows=[row.number for row in rows],
                kind=kind,
                lo=box[0],
                hi=box[1],
                loss=loss,
                persons=len({row.person for row in rows}),
                moment=self.clock,
                arrivals=self.arrivals,
                group=self.released,
            )
        )
        self.released += 1

    def later(self, row: Row, box: Box) -> float:
        if self.is_due(row) or self.now() >= self.patience.get(row.number, LAST_MOMENT):
            return math.inf
        needed = -(-(self.k - 1) * len(self.chains) // min(self.window, self.arrivals))
        near = [
            chain.links[0][1]
            for chain in self.chains
            if self.contains(box, chain.links[0][1]) and chain.links[0][0] != row.number
        ]
        if len(near) < needed:
            return math.inf
        small = self.box([row])
        loss = self.loss(small)
        for _ in range(needed):
            growth = [self.enlargement(small, (point, point)) for point in near]
            best = growth.index(min(growth))
            loss += growth[best]
            small = self.joined([small, (near[best], near[best])])
            # The order does not matter, so the last point takes the place of the removed one.
            near[best] = near[-1]
            near.pop()
        return loss

    def is_due(self, row: Row) -> bool:
        if row.deadline is not None and row.deadline <= self.clock:
            return True
        return self.delay_rows is not None and row.number + self.delay_rows < self.arrivals

    def held_back(self, leaf: Leaf) -> list[Row]:
        if self.method != "rtree-full" or self.over:
            return []
        box = self.box(leaf.rows)
        now = self.loss(box) / math.exp(self.decay)
        losses = {row.number: self.later(row, box) for row in leaf.rows}
        wanted = sorted(
            (row for row in leaf.rows if losses[row.number] < now),
            key=lambda row: (losses[row.number], -row.number),
        )
        stay: list[Row] = []
        for row in wanted:
            others = [other for other in leaf.rows if other not in stay and other is not row]
            if len(others) >= self.k and self.diverse(others):
                stay.append(row)
                if row.number not in self.patience:
                    self.patience[row.number] = self.after(self.worth_waiting(self.loss(box), losses[row.number]))
        return stay

    def publish(self, leaf: Leaf) -> None:
        stay = self.held_back(leaf)
        self.leaves.remove(leaf)
        rows = [row for row in leaf.rows if row not in stay]
        box = self.box(rows)
        for i in range(len(rows) - 1, 0, -1):
            j = self.random.below(i + 1)
            rows[i], rows[j] = rows[j], rows[i]
        self.release(rows, CLUSTER, box, self.loss(box))
        self.beside = len(stay)
        for row in (row for row in leaf.rows if row in stay):
            self.beside -= 1
            self.place(row, self.beside)
        self.beside = 0

    def suppress(self, row: Row, leaf: Leaf) -> None:
        whole = [axis_.whole() for axis_ in self.axes]
        self.release([row], SUPPRESSED, (tuple(lo for lo, _ in whole), tuple(hi for _, hi in whole)), 1.0)
        leaf.rows.remove(row)
        if not leaf.rows:
            self.leaves.remove(leaf)

    def settle(self, leaf: Leaf, row: Row) -> None:
        if self.enough(leaf.rows):
            self.publish(leaf)
            return
        while self.enough([other for one in self.leaves for other in one.rows]):
            persons = {other.person for other in leaf.rows}
            company = [
                other
                for other in self.leaves
                if other is not leaf and any(theirs.person not in persons for theirs in other.rows)
            ]
            if not company:
                break
            box = self.box(leaf.rows)
            nearest = min(company, key=lambda other: self.enlargement(box, self.box(other.rows)))
            for theirs in list(nearest.rows):
                if theirs.person not in {other.person for other in leaf.rows}:
                    nearest.rows.remove(theirs)
                    leaf.rows.append(theirs)
            if not nearest.rows:
                self.leaves.remove(nearest)
            elif not self.enough(nearest.rows):
                nearest.due = None
            made = self.split(leaf)
            for one in made:
                self.schedule(one)
            leaf = next(one for one in made if row in one.rows)
            if self.enough(leaf.rows):
                self.publish(leaf)
                return
        self.suppress(row, leaf)

    # -- rows in ---------------------------------------------------------------------------------

    def place(self, row: Row, beside: int) -> None:
        """Insert a row into a leaf. `beside` is the number of other held rows that are in no leaf."""
        self.beside = beside
        without = [leaf for leaf in self.leaves if all(other.person != row.person for other in leaf.rows)]
        if not without:
            leaf = Leaf([row], 2 * self.k)
            self.leaves.append(leaf)
            made = [leaf]
        else:
            leaf = without[0] if self.method == "min-delay" else min(without, key=lambda one: self.order(one, row))
            leaf.rows.append(row)
            made = self.split(leaf)
        for one in made:
            if one.due is None:
                self.schedule(one)

    def order(self, leaf: Leaf, row: Row) -> tuple[float, float]:
        box = self.box(leaf.rows)
        return self.enlargement(box, (row.qi, row.qi)), self.loss(box)

    def next_by_time(self) -> tuple[int, int, Leaf, Row] | None:
        """Return the next event: its moment, the leaf's place among the leaves, the leaf, and the row."""
        if self.delay is None or not self.leaves:
            return None
        events = []
        for at, leaf in enumerate(self.leaves):
            row = min(leaf.rows, key=lambda one: (one.deadline, one.number))
            assert row.deadline is not None
            moment = row.deadline
            if self.instant is not None and leaf.due is not None:
                moment = min(moment, leaf.due)
            events.append((moment, at, leaf, row))
        return min(events, key=lambda event: event[:2])

    def next_by_row(self) -> tuple[int, int, Leaf, Row] | None:
        events = []
        for at, leaf in enumerate(self.leaves):
            row = min(leaf.rows, key=lambda one: one.number)
            numbers = [row.number + self.delay_rows] if self.delay_rows is not None else []
            if self.instant is None and leaf.due is not None:
                numbers.append(leaf.due)
            if numbers:
                events.append((min(numbers), at, leaf, row))
        return min(events, key=lambda event: event[:2], default=None)

    def expire_until(self, now: int) -> None:
        while (event := self.next_by_time()) is not None and event[0] <= now:
            self.clock = max(self.clock, event[0])
            self.settle(event[2], event[3])
        self.clock = max(self.clock, now)

    def arrive(self, qi: Sequence[float], person: int, sensitive: Sequence[int], time: int) -> None:
        self.expire_until(max(self.clock, bounded(time - self.disorder)))
        for axis_, x in zip(self.axes, qi, strict=True):
            axis_.see(x)
        number = self.arrivals
        self.arrivals += 1
        if self.instant is not None:
            if self.rate_rows == 0.0:
                self.rate_since = float(self.clock)
            self.rate_rows += 1.0
            if self.rate_rows >= 2.0 * self.active_rows:
                self.rate_rows /= 2.0
                self.rate_since += (float(self.clock) - self.rate_since) / 2.0
        if self.chains:
            self.sample(number, tuple(qi))
        deadline = None
        if self.delay is not None:
            deadline = bounded(time + self.delay)
            deadline = bounded(deadline - deadline % max(self.delay // 16, 1))
        self.place(Row(number, tuple(qi), person, tuple(sensitive), deadline), 0)
        while (event := self.next_by_row()) is not None and event[0] <= number:
            self.settle(event[2], event[3])
        self.expire_until(self.clock)

    # -- the contract ----------------------------------------------------------------------------

    def push(self, rows: Iterable[tuple[Any, ...]]) -> list[OracleRelease]:
        for qi, person, sensitive, time in rows:
            self.arrive(qi, person, sensitive, time)
        return self.taken()

    def advance(self, now: int) -> list[OracleRelease]:
        self.expire_until(now)
        return self.taken()

    def flush(self) -> list[OracleRelease]:
        self.over = True
        while poor := [leaf for leaf in self.leaves if not self.enough(leaf.rows)]:
            self.settle(poor[0], min(poor[0].rows, key=lambda row: row.number))
        while self.leaves:
            self.publish(self.leaves[0])
        self.over = False
        return self.taken()

    def taken(self) -> list[OracleRelease]:
        out, self.out = self.out, []
        return out
