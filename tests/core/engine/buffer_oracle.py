"""What the oracles of buffered methods share, in plain Python: held rows, the clock, deadlines, boxes and reuse.

It shares no code with `crenel.engine`; the generator is that of CASTLE's oracle. A method adds when it decides and what
it releases then. Floats are added in loops, because the builtin `sum` compensates for rounding from Python 3.12 on.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crenel.policy.geometry import Interval
from crenel.policy.parameters import Reuse
from crenel.testing.engine_streams import Advance, Case
from tests.core.engine.methods.castle.castle_oracle import CLUSTER, FIRST_MOMENT, REUSE, SUPPRESSED, Random

Box = list[tuple[float, float]]


class Left(NamedTuple):
    """What was released, when, and under which box."""

    kind: int
    rows: tuple[int, ...]
    moment: int
    arrivals: int
    box: Box
    loss: float
    persons: int
    #: The number of the release that published the box first.
    group: int


class Published(NamedTuple):
    """A box that may be used again."""

    box: Box
    persons: int
    group: int
    arrivals: int
    moment: int


class BufferOracle:
    """A buffered method on one whole stream."""

    def __init__(self, case: Case) -> None:
        self.case, self.policy, self.rows = case, case.policy, case.rows
        self.parameters = case.policy.parameters
        self.geometries = [qi.geometry for qi in case.policy.quasi_identifiers.values()]
        self.random = Random(case.engine().key)
        self.clock, self.arrivals = FIRST_MOMENT, 0
        self.held: list[int] = []
        self.published: list[Published] = []
        self.left: list[Left] = []

    def run(self) -> list[Left]:
        for call in self.case.calls():
            if isinstance(call, Advance):
                self.move_to(call.now)
            else:
                for number in range(call.start, call.stop):
                    self.arrive(number)
        if self.held:
            self.finish()
        return self.left

    # --- What a method adds ---

    @abstractmethod
    def is_full(self) -> bool:
        """Whether the method decides now, although no row may be due."""

    @abstractmethod
    def decide(self) -> None:
        """Release what leaves now."""

    @abstractmethod
    def finish(self) -> None:
        """Release everything."""

    # --- Time ---

    def deadline(self, row: int) -> int | None:
        if self.policy.delay is None:
            return None
        moment = int(self.rows.time[row]) + self.policy.delay
        return moment - moment % self.policy.tick

    def arrive(self, row: int) -> None:
        self.move_to(max(self.clock, int(self.rows.time[row]) - self.policy.disorder))
        self.held.append(row)
        self.arrivals += 1
        if self.is_full() or self.due():
            self.decide()

    def move_to(self, now: int) -> None:
        while self.held and self.policy.delay is not None:
            first = min(self.deadline(row) or 0 for row in self.held)
            if first > now:
                break
            self.clock = max(self.clock, first)
            self.decide()
        self.clock = max(self.clock, now)

    def due(self) -> list[int]:
        rows = self.policy.delay_rows
        return [row for row in self.held if self.is_due(row, rows)]

    def is_due(self, row: int, rows: int | None) -> bool:
        deadline = self.deadline(row)
        return (deadline is not None and deadline <= self.clock) or (rows is not None and self.arrivals - row > rows)

    # --- Boxes ---

    def domains(self) -> list[tuple[float, float]]:
        seen = self.rows.qi[: self.arrivals]
        return [
            (float(seen[:, d].min()), float(seen[:, d].max())) if math.isinf(g.widest()[0]) else g.widest()
            for d, g in enumerate(self.geometries)
        ]

    def cell(self, d: int) -> float:
        geometry = self.geometries[d]
        return 1.0 if isinstance(geometry, Interval) and geometry.cells else 0.0

    def scales(self) -> list[float]:
        weights = [qi.weight for qi in self.policy.quasi_identifiers.values()]
        total = 0.0
        for weight in weights:
            total += weight
        widths = [hi - lo + self.cell(d) for d, (lo, hi) in enumerate(self.domains())]
        return [weight / total / width if width > 0 else 0.0 for weight, width in zip(weights, widths, strict=True)]

    def box(self, group: Iterable[int]) -> Box:
        values = self.rows.qi[list(group)]
        return [g.span(values[:, d].min(), values[:, d].max()) for d, g in enumerate(self.geometries)]

    def loss(self, box: Box) -> float:
        total = 0.0
        for d, ((lo, hi), scale) in enumerate(zip(box, self.scales(), strict=True)):
            total += scale * (hi - lo + self.cell(d))
        return total

    def persons(self, rows: Iterable[int]) -> set[int]:
        return {int(self.rows.person[row]) for row in rows}

    def enough(self, rows: Sequence[int]) -> bool:
        l = self.policy.l
        return len(self.persons(rows)) >= self.policy.k and (
            l is None or all(len({column[row] for row in rows}) >= l for column in self.rows.sensitive.T)
        )

    # --- Releases ---

    def shuffle(self, items: list[int]) -> None:
        for i in range(len(items) - 1, 0, -1):
            j = self.random.below(i + 1)
            items[i], items[j] = items[j], items[i]

    def publish(self, groups: Sequence[Sequence[int]]) -> None:
        """Release groups: first all of them are shuffled, and then their boxes are kept."""
        boxes = []
        for group in groups:
            self.shuffle(sorted(group))
            persons = len(self.persons(group))
            boxes.append(Published(self.box(group), persons, len(self.left), self.arrivals, self.clock))
            self.release(CLUSTER, group, boxes[-1].box, persons, len(self.left))
        for one in boxes:
            if self.parameters.max_reusable and one.box not in [known.box for known in self.published]:
                self.published = [*self.published, one][-self.parameters.max_reusable :]

    def covering(self, row: int) -> list[Published]:
        values = self.rows.qi[row]
        return [
            one for one in self.published if all(lo <= x <= hi for (lo, hi), x in zip(one.box, values, strict=True))
        ]

    def chosen(self, covers: Sequence[Published]) -> Published:
        if self.parameters.reuse is Reuse.BEST:
            return min(covers, key=lambda one: self.loss(one.box))
        return covers[self.random.below(len(covers))]

    def reuse(self, row: int) -> bool:
        covers = self.covering(row)
        if self.parameters.reuse is Reuse.OFF or not covers:
            return False
        one = self.chosen(covers)
        self.release(REUSE, [row], one.box, one.persons, one.group)
        return True

    def suppress(self, row: int) -> None:
        self.release(SUPPRESSED, [row], [g.widest() for g in self.geometries], 1, len(self.left))

    def release(self, kind: int, rows: Sequence[int], box: Box, persons: int, group: int) -> None:
        loss = 1.0 if kind == SUPPRESSED else self.loss(box)
        self.left.append(Left(kind, tuple(sorted(rows)), self.clock, self.arrivals, box, loss, persons, group))
        self.held = [row for row in self.held if row not in rows]
