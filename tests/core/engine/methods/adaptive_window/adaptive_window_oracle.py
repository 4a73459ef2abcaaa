"""The adaptive window in plain Python, written from `docs/adaptive-window.md`. It shares no code with the engine.

It needs no random draws: the rows of a release are a set, and reuse is `best` or `off`.
"""

from __future__ import annotations

import math
from typing import Any

from crenel.encoding.rows import Rows
from crenel.engine.methods.adaptive_window import AdaptiveWindowParameters
from crenel.policy.parameters import Reuse
from crenel.testing.engine_streams import Advance, Case
from tests.core.engine.methods.mondrian.mondrian_oracle import Oracle

CLUSTER, REUSE, SUPPRESSED = 0, 1, 2
FIRST = -(2**63)


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
        self.published: list[list[tuple[float, float]]] = []
        self.left: list[tuple[int, tuple[int, ...], int, int]] = []
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
            self.release(SUPPRESSED, [row])
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
        groups, left = self.cut(self.parameters.spare)
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
        box = self.box(group)
        if box not in self.published and self.parameters.max_reusable:
            self.published = [*self.published, box][-self.parameters.max_reusable :]
        self.release(CLUSTER, group)

    def box(self, group: list[int]) -> list[tuple[float, float]]:
        values = self.rows.qi[group]
        return [g.span(values[:, d].min(), values[:, d].max()) for d, g in enumerate(self.geometries)]

    def reuse(self, row: int) -> bool:
        values: Any = self.rows.qi[row]
        covers = [box for box in self.published if all(lo <= x <= hi for (lo, hi), x in zip(box, values, strict=True))]
        if not covers or self.parameters.reuse is Reuse.OFF:
            return False
        self.release(REUSE, [row])
        return True

    def release(self, kind: int, rows: list[int]) -> None:
        self.left.append((kind, tuple(sorted(rows)), self.clock, self.arrivals))
        self.held = [row for row in self.held if row not in rows]

    def finish(self) -> None:
        for group in self.cut(0)[0] if self.held else []:
            self.publish(group)
        for row in [row for row in self.held if not self.reuse(row)]:
            self.release(SUPPRESSED, [row])
