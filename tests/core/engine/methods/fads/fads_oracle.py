"""FADS in plain Python, written from `docs/fads.md`. It shares no code with the engine."""

from __future__ import annotations

from crenel.policy.parameters import Reuse
from tests.core.engine.buffer_oracle import BufferOracle


class FadsOracle(BufferOracle):
    """The method on one whole stream. `reuse_for` is a number of rows, or not given."""

    def is_full(self) -> bool:
        return self.parameters.buffer is not None and len(self.held) >= self.parameters.buffer

    def decide(self) -> None:
        for row in self.due():
            if row in self.held:
                self.let_go(row)
        while self.held and self.is_full():
            self.let_go(self.held[0])

    def finish(self) -> None:
        while self.held:
            self.let_go(self.held[0])

    def let_go(self, row: int) -> None:
        self.published = [one for one in self.published if not self.is_old(one.arrivals, one.moment)]
        group = self.neighbours(row)
        covers = self.covering(row)
        if covers and self.parameters.reuse is not Reuse.OFF:
            one = self.chosen(covers)
            if not group or self.loss(one.box) < self.loss(self.box(group)):
                self.release(1, [row], one.box, one.persons, one.group)
                return
        if group:
            self.publish([group])
        else:
            self.suppress(row)

    def is_old(self, arrivals: int, moment: int) -> bool:
        rows = self.parameters.reuse_for or self.policy.delay_rows
        if rows is not None:
            return self.arrivals - arrivals >= rows
        return self.clock - moment >= (self.policy.delay or 0)

    def neighbours(self, row: int) -> list[int]:
        """Return the row and the nearest rows of k - 1 other persons, or none."""
        group, persons = [row], self.persons([row])
        for other in sorted(self.held, key=lambda one: (self.distance(row, one), one)):
            if len(group) < self.policy.k and not persons & self.persons([other]):
                group.append(other)
                persons |= self.persons([other])
        return group if len(group) == self.policy.k else []

    def distance(self, row: int, other: int) -> float:
        total = 0.0
        for scale, (lo, hi) in zip(self.scales(), self.box([row, other]), strict=True):
            total += scale * (hi - lo)
        return total
