"""The adaptive window in plain Python, written from `docs/adaptive-window.md`. It shares no code with the engine.

It needs no random draws: the rows of a release are a set, and reuse is `best` or `off`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from crenel.encoding.rows import Rows
from crenel.engine.methods.adaptive_window import AdaptiveWindowParameters
from crenel.policy.geometry import Interval
from crenel.policy.parameters import Reuse
from crenel.testing.engine_streams import Advance, Case
from tests.core.engine.methods.mondrian.mondrian_oracle import Oracle

CLUSTER, REUSE, SUPPRESSED = 0, 1, 2
FIRST = -(2**63)


Box = list[tuple[float, float]]


class Left(NamedTuple):
    """What was released, when, and under which box."""

    kind: int
    rows: tuple[int, ...]
    moment: int
    arrivals: int
    box: Box
    loss: float
    #: The number of the release that published the box first.
    group: int


class AdaptiveOracle:
    """The method on one whole stream."""

    def __init__(self, case: Case) -> None:
        self.policy, self.rows = case.policy, case.rows
        self.parameters: AdaptiveWindowParameters = case.policy.parameters
        assert self.parameters.reuse is not Reuse.UNIFORM
        assert case.policy.delay is not None
        self.delay: int = case.policy.delay
        self.least, self.most = self.parameters.lives(self.delay)
        self.geometries = [qi.geometry for qi in case.policy.quasi_identifiers.values()]
        self.clock, self.arrivals = FIRST, 0
        self.held: list[int] = []
        self.hopeless: set[int] = set()
        self.window: tuple[int, int, int] | None = None
        #: The boxes that may be used again, and the numbers of the releases that published them.
        self.published: list[tuple[Box, int]] = []
        self.left: list[Left] = []
        for call in case.calls():
            if isinstance(call, Advance):
                self.move_to(call.now)
            else:
                for number in range(call.start, call.stop):
                    self.arrive(number)
        self.finish()

    def time(self, row: int) -> int:
        return int(self.rows.time[row])

    def rounded(self, moment: int) -> int:
        return moment - moment % self.policy.tick

    def deadline(self, row: int) -> int:
        return self.rounded(self.time(row) + self.delay)

    def arrive(self, row: int) -> None:
        self.move_to(max(self.clock, self.time(row) - self.policy.disorder))
        self.held.append(row)
        self.arrivals += 1
        if self.window is None:
            self.open(self.most, row)
        if self.full_now or self.due():
            self.look()

    @property
    def full_now(self) -> bool:
        return len(self.held) == self.policy.delay_rows

    def open(self, life: int, first: int) -> None:
        self.window = self.rounded(self.clock), self.rounded(self.clock + life), first

    def move_to(self, now: int) -> None:
        while self.held:
            moments = [self.deadline(row) for row in self.held]
            if self.window and self.window[1] > self.clock:
                moments.append(self.window[1])
            if min(moments) > now:
                break
            self.clock = max(self.clock, min(moments))
            self.look()
        self.clock = max(self.clock, now)

    def due(self) -> list[int]:
        rows = self.policy.delay_rows
        return [
            row
            for row in self.held
            if self.deadline(row) <= self.clock or (rows is not None and self.arrivals - row > rows)
        ]

    def look(self) -> None:
        """Release the window if it has ended, then the single rows that are due."""
        if self.window is not None:
            begin, end, _ = self.window
            waited_for = [row for row in self.due() if row not in self.hopeless]
            full = self.policy.delay_rows is not None and len(self.held) >= self.policy.delay_rows
            if self.clock >= end or full or (self.clock >= begin + self.least and waited_for):
                self.end_window()
        for row in [row for row in self.due() if not self.reuse(row)]:
            self.suppress(row)
        if not self.held:
            self.window = None

    def cut(self, spare: int) -> tuple[list[list[int]], list[list[int]]]:
        held, rows = list(self.held), self.rows
        part = Rows(rows.qi[held], rows.person[held], rows.sensitive[held], rows.time[held])
        oracle = Oracle(self.policy, part, self.domains(), True, spare)
        groups, left = oracle.groups()
        return [[held[i] for i in group] for group in groups], [[held[i] for i in one] for one in left]

    def domains(self) -> list[tuple[float, float]]:
        seen = self.rows.qi[: self.arrivals]
        return [
            (float(seen[:, d].min()), float(seen[:, d].max())) if math.isinf(g.widest()[0]) else g.widest()
            for d, g in enumerate(self.geometries)
        ]

    def end_window(self) -> None:
        groups, left = self.cut(math.floor(self.parameters.spare * len(self.held)))
        if not groups:
            can_wait = [self.remaining(row) for row in self.held if self.remaining(row) >= self.least]
            self.hopeless = {row for row in self.held if self.remaining(row) < self.least}
            self.window = None
            if can_wait:
                self.open(min(*can_wait, self.most), self.arrivals)
            return
        for group in groups:
            self.publish(group)
        assert self.window is not None
        begin, _, first = self.window
        life = max(self.clock - begin, 1)
        in_order = sorted(self.held, key=lambda row: (self.remaining(row), row))
        self.window, refused = None, []
        for row in in_order:
            cluster = next(one for one in left if row in one)
            if (
                self.remaining(row) >= self.least
                and self.chance(cluster, row, first, life) >= self.parameters.threshold
            ):
                self.open(min(self.remaining(row), self.most), self.arrivals)
                break
            refused.append(row)
        self.hopeless = set(refused)
        for row in refused:
            self.reuse(row)

    def remaining(self, row: int) -> int:
        return self.time(row) + self.delay - self.clock - self.parameters.processing

    def chance(self, cluster: list[int], row: int, first: int, life: int) -> float:
        persons = self.rows.person
        came = len({persons[i] for i in cluster if i >= first})
        lacks = self.policy.k - len({persons[i] for i in cluster})
        if self.policy.l is not None:
            for column in self.rows.sensitive.T:
                lacks = max(lacks, self.policy.l - len({column[i] for i in cluster}))
        expected = came / life * self.remaining(row)
        return 1 - sum(expected**i * math.exp(-expected) / math.factorial(i) for i in range(lacks))

    def publish(self, group: list[int]) -> None:
        box, number = self.box(group), len(self.left)
        if self.parameters.max_reusable and box not in [known for known, _ in self.published]:
            self.published = [*self.published, (box, number)][-self.parameters.max_reusable :]
        self.release(CLUSTER, group, box, number)

    def box(self, group: list[int]) -> Box:
        values = self.rows.qi[group]
        return [g.span(values[:, d].min(), values[:, d].max()) for d, g in enumerate(self.geometries)]

    def loss(self, box: Box) -> float:
        """Return the loss of a box, under the domains of the rows so far."""
        weights = [qi.weight for qi in self.policy.quasi_identifiers.values()]
        total = 0.0
        for (lo, hi), (first, last), geometry, weight in zip(
            box, self.domains(), self.geometries, weights, strict=True
        ):
            cell = 1.0 if isinstance(geometry, Interval) and geometry.cells else 0.0
            if last - first + cell > 0:
                total += weight / sum(weights) / (last - first + cell) * (hi - lo + cell)
        return total

    def reuse(self, row: int) -> bool:
        values: Any = self.rows.qi[row]
        covers = [
            (self.loss(box), place, box, number)
            for place, (box, number) in enumerate(self.published)
            if all(lo <= x <= hi for (lo, hi), x in zip(box, values, strict=True))
        ]
        if not covers or self.parameters.reuse is Reuse.OFF:
            return False
        # Losses that are equal but for the order of additions are equal: then the oldest box is used.
        least = min(covers)[0]
        _, _, box, number = next(one for one in covers if one[0] <= least + 1e-12)
        self.release(REUSE, [row], box, number)
        return True

    def suppress(self, row: int) -> None:
        self.release(SUPPRESSED, [row], [g.widest() for g in self.geometries], len(self.left))

    def release(self, kind: int, rows: list[int], box: Box, group: int) -> None:
        loss = 1.0 if kind == SUPPRESSED else self.loss(box)
        self.left.append(Left(kind, tuple(sorted(rows)), self.clock, self.arrivals, box, loss, group))
        self.held = [row for row in self.held if row not in rows]

    def finish(self) -> None:
        for group in self.cut(0)[0] if self.held else []:
            self.publish(group)
        for row in [row for row in self.held if not self.reuse(row)]:
            self.suppress(row)
