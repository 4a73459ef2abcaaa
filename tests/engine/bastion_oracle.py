"""Bastion in plain Python, written from ``docs/bastion.md`` alone.

What that page takes over from CASTLE (axes, the generator, the clock, closeness) is that of the other oracle. Nothing
is shared with ``crenel.engine``.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.engine.oracle import CLUSTER, REUSE, IntervalAxis, Oracle, Row, saturate

SAMPLE = 128


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


class BastionOracle(Oracle):
    """The method ``bastion`` on one shard's rows."""

    def __init__(self, *, eta: float, lonely: float, search: int, **others: Any) -> None:
        super().__init__(**others)
        self.eta, self.lonely, self.search = eta, lonely, search
        self.rows: dict[int, Held] = {}  # in order of arrival
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
        if self.delay_rows is not None and row.number - self.delay_rows in self.rows:
            self.expire(self.rows[row.number - self.delay_rows])
        self.move_clock(self.clock)

    def estimate(self, qi: tuple[float, ...]) -> float:
        if not self.sample:
            return 0.0
        parts = round(self.k * len(self.sample) / max(len(self.rows), 1))
        parts = min(max(parts, 1), len(self.sample))
        size = len(self.sample) // parts
        total = 0.0
        for start in range(0, parts * size, size):
            total += min(self.pair_loss(qi, other) for other in self.sample[start : start + size])
        return float(np.float32(total / parts))

    def take_sample(self, qi: tuple[float, ...]) -> None:
        if self.left_out > 0:
            self.left_out -= 1
            return
        self.sample[self.sampled % SAMPLE : self.sampled % SAMPLE + 1] = [qi]
        self.sampled += 1
        self.left_out = len(self.rows) // SAMPLE

    def move_clock(self, now: int) -> None:
        now = max(self.clock, now)
        while self.delay is not None and self.rows:
            row = min(self.rows.values(), key=lambda row: (row.deadline, row.number))
            assert row.deadline is not None
            if row.deadline > now:
                break
            self.clock = max(self.clock, row.deadline)
            self.expire(row)
        self.clock = now

    def flush(self) -> list[Any]:
        while self.rows:
            self.expire(next(iter(self.rows.values())), over=True)
        return self.take()

    # A row is due

    def expire(self, anchor: Held, *, over: bool = False) -> None:
        box = self.draw(anchor)
        most = math.inf
        if box is not None:
            assert self.average is not None
            spared = (0.95 + 18.0 * max(self.waited - 0.515, 0.0)) * self.average
            most = (box.loss + (self.k - 1) * spared) / self.k
        group = []
        if self.caution * self.guess * anchor.loneliness <= most:
            group = self.group(anchor, most)
            self.caution = max(self.caution - 0.05, 0.7) if group else min(self.caution + 0.01, 2.0)
        if group and over:
            group = self.with_the_rest(group)
        if group:
            self.leave_as_group(group)
        elif box is not None:
            self.leave_under(box, anchor)
        else:
            del self.rows[anchor.number]
            whole = [axis.whole() for axis in self.axes]
            self.release([anchor.number], 2, tuple(w[0] for w in whole), tuple(w[1] for w in whole), persons=1)

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

    def group(self, anchor: Held, most: float) -> list[Held]:
        if len(self.rows) < self.k:
            return []
        members = [anchor]
        lo, hi = list(anchor.qi), list(anchor.qi)
        candidates: list[Held] = []
        scores: dict[int, np.float32] = {}
        nearest = 0.0
        while True:
            new_value = None
            if len(members) >= self.k:
                new_value = self.scarce(members)
                if new_value is None and (self.t is None or self.within_t(self.counted(members))):
                    loss = self.loss(lo, hi)
                    if nearest > 0:
                        self.ratio += 0.05 * (loss / nearest - self.ratio)
                    if anchor.loneliness > 0:
                        self.guess += 0.05 * (loss / anchor.loneliness - self.guess)
                    return members
            able = [row for row in candidates if self.may_join(row, members, new_value)]
            if not able:
                others = [
                    row
                    for row in self.rows.values()
                    if self.may_join(row, members, new_value) and self.pair_loss(anchor.qi, row.qi) <= most
                ]
                if not others or len(others) < self.k - len(members):
                    return []
                others.sort(key=lambda row: (self.pair_loss(anchor.qi, row.qi), row.number))
                if len(members) == 1:
                    nearest = self.pair_loss(anchor.qi, others[self.k - 2].qi)
                    if nearest > most / max(self.ratio, 1.0):
                        return []
                wanted = self.search * self.k
                wanted = min(wanted, max(512, wanted // 2))
                candidates = sorted(others[:wanted], key=lambda row: row.number)
                scores = {row.number: self.score(lo, hi, row, anchor) for row in candidates}
                continue
            chosen = min(able, key=lambda row: (scores[row.number], row.number))
            members.append(chosen)
            for i, axis in enumerate(self.axes):
                new_lo, new_hi = axis.span(min(lo[i], chosen.qi[i]), max(hi[i], chosen.qi[i]))
                for row in candidates if (new_lo, new_hi) != (lo[i], hi[i]) else []:
                    for change in self.changes(i, (lo[i], hi[i]), (new_lo, new_hi), row, anchor):
                        scores[row.number] = np.float32(scores[row.number] + change)
                lo[i], hi[i] = new_lo, new_hi
            if self.loss(lo, hi) > most:
                return []

    def may_join(self, row: Held, members: list[Held], new_value: tuple[int, set[int]] | None) -> bool:
        if any(row.person == member.person for member in members):
            return False
        return new_value is None or row.sensitive[new_value[0]] not in new_value[1]

    def scarce(self, members: list[Held]) -> tuple[int, set[int]] | None:
        """The first column that has too few values, and those."""
        for column in range(len(self.sensitive) if self.l is not None else 0):
            values = {row.sensitive[column] for row in members}
            if len(values) < self.l:
                return column, values
        return None

    def counted(self, members: list[Held]) -> list[Counter[int]]:
        return [Counter(row.sensitive[column] for row in members) for column in range(len(self.sensitive))]

    def with_the_rest(self, group: list[Held]) -> list[Held]:
        rest = [row for row in self.rows.values() if row not in group]
        if not rest or len({row.person for row in rest}) >= self.k:
            return group
        together = group + rest
        cost = len(group) * self.loss(*self.box(group)) + len(rest)
        if len(together) * self.loss(*self.box(together)) >= cost:
            return group
        return together if self.t is None or self.within_t(self.counted(together)) else group

    def leave_as_group(self, group: list[Held]) -> None:
        lo, hi = self.box(group)
        numbers = [row.number for row in group]
        waited = sum(self.age(row, group[0]) for row in group) / len(group)
        for number in numbers:
            del self.rows[number]
        self.shuffle(numbers)
        persons = len({row.person for row in group})
        loss, number = self.loss(lo, hi), self.releases
        self.release(numbers, CLUSTER, lo, hi, persons=persons)
        self.note(loss, waited, len(numbers))
        if self.reuse and self.max_reusable > 0:
            self.remember(Box(lo, hi, loss, persons, number, self.counted(group)))

    def leave_under(self, box: Box, anchor: Held) -> None:
        del self.rows[anchor.number]
        for counts, value in zip(box.values, anchor.sensitive, strict=True):
            counts[value] += 1
        self.release([anchor.number], REUSE, box.lo, box.hi, persons=box.persons, group=box.group)
        self.note(box.loss, 1.0, 1)

    def remember(self, new: Box) -> None:
        for at, old in enumerate(self.boxes):
            if (old.lo, old.hi) == (new.lo, new.hi):
                self.boxes[at] = new
                return
        self.boxes.append(new)
        if len(self.boxes) > self.max_reusable:
            del self.boxes[0]

    def age(self, row: Held, anchor: Held) -> float:
        return min((self.arrivals - row.number) / (self.arrivals - anchor.number), 1.0)

    def note(self, loss: float, waited: float, rows: int) -> None:
        self.waited += min(rows / (20.0 * self.k), 0.5) * (waited - self.waited)
        if self.average is None:
            self.average = loss
        else:
            self.average += min(rows / (10.0 * self.k), 0.5) * (loss - self.average)

    # Losses

    def box(self, rows: list[Held]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        spans = [
            axis.span(min(row.qi[i] for row in rows), max(row.qi[i] for row in rows))
            for i, axis in enumerate(self.axes)
        ]
        return tuple(lo for lo, _ in spans), tuple(hi for _, hi in spans)

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

    def score(self, lo: list[float], hi: list[float], row: Held, anchor: Held) -> np.float32:
        """In single precision, each term and each sum."""
        age = self.age(row, anchor)
        total = np.float32(float(np.float32(-self.lonely * row.loneliness)) * math.sqrt(math.sqrt(age)))
        for i, axis in enumerate(self.axes):
            if isinstance(axis, IntervalAxis):
                x, low, high = (self.offset(i, value, anchor) for value in (row.qi[i], lo[i], hi[i]))
                total += beyond(x, high) + beyond(-x, -low)
            else:
                total = np.float32(float(total) + self.growth(i, lo[i], hi[i], row.qi[i]))
        return total

    def changes(self, i: int, old: tuple[float, float], new: tuple[float, float], row: Held, anchor: Held) -> list[Any]:
        """What is added to a row's score, one after another, when the box's span grows."""
        if not isinstance(self.axes[i], IntervalAxis):
            x = row.qi[i]
            # To a single precision score a double is added, and the sum is rounded.
            return [np.float64(-self.growth(i, *old, x)), np.float64(self.growth(i, *new, x))]
        x = self.offset(i, row.qi[i], anchor)
        (old_lo, old_hi), (new_lo, new_hi) = ([self.offset(i, v, anchor) for v in span] for span in (old, new))
        if new_hi > old_hi:
            return [beyond(x, new_hi) - beyond(x, old_hi)]
        return [beyond(-x, -new_lo) - beyond(-x, -old_lo)]

    def offset(self, i: int, x: float, anchor: Held) -> np.float32:
        return np.float32(self.scale[i] * (x - anchor.qi[i]))


def beyond(x: np.float32, end: np.float32) -> np.float32:
    return max(x - end, np.float32(0.0))
