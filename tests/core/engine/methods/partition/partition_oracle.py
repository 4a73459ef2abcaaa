"""The method `partition` in plain Python, written from `docs/partition.md`.

It shares no code with `crenel.engine`. The generator and the axes come from CASTLE's oracle. None stands for a missing
value. Floats are added in loops, because the builtin `sum` compensates for rounding from Python 3.12 on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crenel.policy import Policy
from crenel.policy.parameters import Reuse
from tests.core.engine.methods.castle.castle_oracle import (
    CLUSTER,
    FIRST_MOMENT,
    LAST_MOMENT,
    REUSE,
    SUPPRESSED,
    OracleRelease,
    Random,
    axis_of,
)

Box = tuple[tuple[float, float] | None, ...]


@dataclass(eq=False)
class Row:
    number: int
    qi: tuple[float | None, ...]
    person: int
    sensitive: tuple[int, ...]
    deadline: int | None

    @property
    def set(self) -> frozenset[int]:
        return frozenset(i for i, x in enumerate(self.qi) if x is not None)


@dataclass
class Reusable:
    set: frozenset[int]
    box: Box
    group: int
    persons: int
    arrivals: int
    moment: int


class PartitionOracle:
    """The method on one shard's rows."""

    def __init__(self, policy: Policy, key: bytes) -> None:
        self.policy, self.parameters = policy, policy.parameters
        columns = policy.quasi_identifiers.values()
        self.axes = [axis_of(qi.geometry) for qi in columns]
        total = 0.0
        for qi in columns:
            total += qi.weight
        self.shares = [qi.weight / total for qi in columns]
        self.random = Random(key)
        self.held: list[Row] = []  # in order of arrival
        self.kept: list[Reusable] = []  # oldest first
        self.clock, self.arrivals, self.released = FIRST_MOMENT, 0, 0
        self.out: list[OracleRelease] = []

    def push(self, rows: Iterable[tuple[Sequence[float], int, Sequence[int], int]]) -> list[OracleRelease]:
        for qi, person, sensitive, time in rows:
            self.move_clock(saturate(time - self.policy.disorder))
            known = tuple(None if math.isnan(x) else x for x in qi)
            for axis, x in zip(self.axes, known, strict=True):
                if x is not None:
                    axis.see(x)
            number = self.arrivals
            self.arrivals += 1
            self.held.append(Row(number, known, person, tuple(sensitive), self.deadline(time)))
            while self.policy.delay_rows and self.held and self.held[0].number <= number - self.policy.delay_rows:
                self.expire(self.held[0])
            self.move_clock(self.clock)
        return self.take()

    def advance(self, now: int) -> list[OracleRelease]:
        self.move_clock(now)
        return self.take()

    def flush(self) -> list[OracleRelease]:
        while self.held:
            self.expire(self.held[0])
        return self.take()

    def take(self) -> list[OracleRelease]:
        out, self.out = self.out, []
        return out

    def deadline(self, time: int) -> int | None:
        if self.policy.delay is None:
            return None
        end = saturate(time + self.policy.delay)
        return saturate(end - end % self.policy.tick)

    def move_clock(self, now: int) -> None:
        while due := [row for row in self.held if row.deadline is not None and row.deadline <= max(now, self.clock)]:
            first = min(due, key=lambda row: (row.deadline, row.number))
            self.clock = max(self.clock, first.deadline or 0)
            self.expire(first)
        self.clock = max(self.clock, now)

    # Expiry

    def expire(self, due: Row) -> None:
        own = [row for row in self.held if row.set == due.set]
        if self.enough(own):
            group = self.nearest(due, own)
            box = self.generalization(group, fill=False)
            loss = self.loss(due.set, box)
            again = self.reusable(due)
            if again is not None and self.loss(due.set, again.box) < loss:
                self.leave_alone(due, again)
                return
            number = self.released
            self.release(group, box, loss)
            self.keep(Reusable(due.set, box, number, persons_of(group), self.arrivals, self.clock))
            return
        again = self.reusable(due)
        if again is not None:
            self.leave_alone(due, again)
            return
        pool = self.merged(due, own)
        if pool is None:
            self.suppress(due)
            return
        group = self.nearest(due, pool)
        box = self.generalization(group, fill=self.parameters.fill_missing)
        total = 0.0
        for row in group:
            total += self.loss(row.set, box)
        self.release(group, box, total / len(group))

    def enough(self, rows: Sequence[Row]) -> bool:
        if persons_of(rows) < self.policy.k:
            return False
        values = zip(*(row.sensitive for row in rows), strict=True)
        return self.policy.l is None or all(len(set(column)) >= self.policy.l for column in values)

    def merged(self, due: Row, own: list[Row]) -> list[Row] | None:
        sets = {row.set for row in self.held} - {due.set}
        pool, common = list(own), due.set
        while not self.enough(pool):
            may = [one for one in sets if self.parameters.fill_missing or one & common]
            if not may:
                return None

            def rank(one: frozenset[int]) -> tuple[float, int, int]:
                either = len(due.set | one)
                similarity = len(due.set & one) / either if either else 0.0
                return similarity, sum(row.set == one for row in self.held), -sum(2**i for i in one)

            chosen = max(may, key=rank)
            sets.remove(chosen)
            pool += [row for row in self.held if row.set == chosen]
            common &= chosen
        return pool

    def nearest(self, due: Row, pool: Sequence[Row]) -> list[Row]:
        group = [due]
        for row in sorted(pool, key=lambda row: (self.distance(due, row), row.number)):
            if self.enough(group):
                break
            new_person = row.person not in {one.person for one in group}
            if row is not due and (new_person or self.brings_value(row, group)):
                group.append(row)
        return group

    def brings_value(self, row: Row, group: Sequence[Row]) -> bool:
        if self.policy.l is None:
            return False
        for j, value in enumerate(row.sensitive):
            there = {one.sensitive[j] for one in group}
            if len(there) < self.policy.l and value not in there:
                return True
        return False

    # Distance, generalization, loss

    def scale(self, i: int) -> float:
        width = self.axes[i].width()
        return self.shares[i] / width if width > 0 else 0.0

    def distance(self, one: Row, other: Row) -> float:
        total = shared = 0.0
        for i in sorted(one.set & other.set):
            x, y = sorted((one.qi[i], other.qi[i]))
            lo, hi = self.axes[i].span(x, y)
            total += self.scale(i) * (hi - lo)
            shared += self.shares[i]
        return total / shared if shared > 0 else 1.0

    def generalization(self, group: Sequence[Row], *, fill: bool) -> Box:
        sets = [row.set for row in group]
        published = frozenset.union(*sets) if fill else frozenset.intersection(*sets)
        box: list[tuple[float, float] | None] = []
        for i, axis in enumerate(self.axes):
            values = [row.qi[i] for row in group if row.qi[i] is not None]
            box.append(axis.span(min(values), max(values)) if i in published else None)
        return tuple(box)

    def loss(self, has: frozenset[int], box: Box) -> float:
        lost = whole = 0.0
        for i, span in enumerate(box):
            if i not in has and span is None:
                continue
            whole += self.shares[i]
            if i in has and span is not None:
                lost += self.scale(i) * (span[1] - span[0] + self.axes[i].cell)
            else:
                lost += self.shares[i]
        return lost / whole if whole > 0 else 0.0

    # Reuse

    def young(self, kept: Reusable) -> bool:
        reuse_for, policy = self.parameters.reuse_for, self.policy
        if reuse_for is None and policy.delay_rows is not None:
            reuse_for = max(policy.delay_rows // 10, 1)
        if isinstance(reuse_for, int):
            return self.arrivals - kept.arrivals < reuse_for
        assert reuse_for is None, "the cases have no duration"
        return saturate(kept.moment + max(policy.delay // 10, 1)) > self.clock

    def reusable(self, row: Row) -> Reusable | None:
        self.kept = [one for one in self.kept if self.young(one)]
        covering = [one for one in self.kept if one.set == row.set and covers(one.box, row)]
        if not covering:
            return None
        losses = [self.loss(row.set, one.box) for one in covering]
        if self.parameters.reuse is Reuse.BEST:
            return covering[losses.index(min(losses))]
        if self.parameters.reuse is Reuse.UNIFORM:
            return covering[self.random.below(len(covering))]
        total = 0.0
        for loss in losses:
            total += loss
        weights = [math.exp(-self.parameters.eta * (x * len(losses) / total if total > 0 else 1.0)) for x in losses]
        whole = 0.0
        for weight in weights:
            whole += weight
        at = self.random.below(2**31) / 2**31 * whole
        for one, weight in zip(covering, weights, strict=True):
            at -= weight
            if at < 0:
                return one
        return covering[-1]

    def keep(self, new: Reusable) -> None:
        if self.parameters.reuse is Reuse.OFF:
            return
        self.kept = [one for one in self.kept if self.young(one)]
        if not any((one.set, one.box) == (new.set, new.box) for one in self.kept):
            self.kept.append(new)
        self.kept = self.kept[max(len(self.kept) - self.parameters.max_reusable, 0) :]

    # Releases

    def release(self, group: list[Row], box: Box, loss: float) -> None:
        rows = list(group)
        for i in range(len(rows) - 1, 0, -1):
            j = self.random.below(i + 1)
            rows[i], rows[j] = rows[j], rows[i]
        self.leave(rows, CLUSTER, box, loss, persons_of(group), self.released)

    def leave_alone(self, row: Row, kept: Reusable) -> None:
        self.leave([row], REUSE, kept.box, self.loss(row.set, kept.box), kept.persons, kept.group)

    def suppress(self, row: Row) -> None:
        self.leave([row], SUPPRESSED, tuple(axis.whole() for axis in self.axes), 1.0, 1, self.released)

    def leave(self, rows: list[Row], kind: int, box: Box, loss: float, persons: int, group: int) -> None:
        ends = [(None, None) if span is None else span for span in box]
        self.out.append(
            OracleRelease(
                rows=[row.number for row in rows],
                kind=kind,
                lo=tuple(lo for lo, _ in ends),
                hi=tuple(hi for _, hi in ends),
                loss=loss,
                persons=persons,
                moment=self.clock,
                arrivals=self.arrivals,
                group=group,
            )
        )
        self.released += 1
        self.held = [row for row in self.held if row not in rows]


def persons_of(rows: Sequence[Row]) -> int:
    return len({row.person for row in rows})


def covers(box: Box, row: Row) -> bool:
    return all(span is None or span[0] <= x <= span[1] for span, x in zip(box, row.qi, strict=True))


def saturate(moment: int) -> int:
    return min(max(moment, FIRST_MOMENT), LAST_MOMENT)
