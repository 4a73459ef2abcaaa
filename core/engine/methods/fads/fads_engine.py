"""FADS: a buffer whose oldest row leaves with its k - 1 nearest neighbours, or alone under a box that lost less.

Guo, Zhang: *Fast clustering-based anonymization approaches with time constraints for data streams*, Knowledge-Based
Systems 46, 2013. How each step is done, and what was chosen where the method is only known from others' descriptions,
is in `docs/fads.md`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crenel.engine.buffered import Buffered
from crenel.engine.groups import Floats, Ints, groups_of
from crenel.engine.kernels.box_geometry import INTERVAL, TREE, Space
from crenel.engine.kernels.deadlines import LATEST
from crenel.engine.methods.fads import FadsParameters
from crenel.policy.durations import parse_duration
from crenel.policy.parameters import Reuse


class Fads(Buffered[FadsParameters]):
    """FADS, on one shard's rows."""

    parameters_of = FadsParameters

    def _until_full(self) -> int:
        return (self._parameters.buffer or LATEST) - self.held

    def _decide(self) -> None:
        for number in self._held.number[self._due()].tolist():
            self._leave_with_neighbours(number)
        while self._until_full() <= 0:
            self._leave_with_neighbours(self._oldest())

    def _finish(self) -> None:
        while self.held:
            self._leave_with_neighbours(self._oldest())

    def _leave_with_neighbours(self, number: int) -> None:
        """Release a row, unless it has left as the neighbour of another one."""
        at = int(np.searchsorted(self._held.number, number))
        if at == self.held or self._held.number[at] != number:
            return
        self._forget_old_boxes()
        group = self._neighbours(at)
        reusable = None if self._parameters.reuse is Reuse.OFF else self._reusable_box(at)
        if reusable is not None and reusable.loss < self._loss(group):
            self._leave_under(at, reusable)
            self._forget(np.array([at]))
        elif len(group):
            chosen = np.full(self.held, -1, dtype=np.int64)
            chosen[group] = 0
            self._release_groups(chosen, reusable=True)
        else:
            self._suppress(np.array([at]))

    def _loss(self, group: Ints) -> float:
        """Return the loss of a group, which is infinite if there is none."""
        if len(group) == 0:
            return np.inf
        rows = self._held.rows.take(group)
        return float(groups_of(self._space, rows, np.zeros(len(group), dtype=np.int64)).loss[0])

    def _neighbours(self, at: int) -> Ints:
        """Return a row and the nearest rows of k - 1 other persons; no row, if there are not enough persons."""
        held = self._held
        order = np.argsort(distances(self._space, held.qi, at), kind="stable")
        # The row itself comes first, and then the nearest row of every person.
        order = np.concatenate([[at], order[held.person[order] != held.person[at]]])
        first = np.sort(np.unique(held.person[order], return_index=True)[1])
        return order[first[: self._policy.k]] if len(first) >= self._policy.k else order[:0]

    def _forget_old_boxes(self) -> None:
        rows, time = self._reuse_for
        table, numbers = self._boxes.table, self._numbers
        while numbers["reusable"][0]:
            oldest = table[numbers["reusable_oldest"][0]]
            if self._arrivals - oldest["arrivals"] < rows and self._clock - int(oldest["moment"]) < time:
                return
            self._forget_oldest_box()

    @property
    def _reuse_for(self) -> tuple[int, int]:
        """How long a box can be used again, in rows and in microseconds."""
        given = self._parameters.reuse_for
        if isinstance(given, int):
            return given, 2 * LATEST
        if given is not None:
            return LATEST, parse_duration(given) or 0
        if self._policy.delay_rows is not None:
            return self._policy.delay_rows, 2 * LATEST
        return LATEST, self._policy.delay or 0


def distances(space: Space, qi: Floats, at: int) -> Floats:
    """Return how much would be lost by publishing each row together with row `at` alone, up to a constant."""
    total = np.zeros(len(qi))
    for d, dimension in enumerate(space.dimensions):
        column, x = qi[:, d], float(qi[at, d])
        if dimension["kind"] == INTERVAL:
            widths = np.abs(column - x)
        else:
            widths = np.zeros(len(qi))
            # From the widest span to the narrowest, so that the narrowest that contains a row counts.
            for lo, hi in reversed(list(_spans(space, d, x, column.min(), column.max()))):
                widths[(column >= lo) & (column <= hi)] = hi - lo
        total += dimension["scale"] * widths
    return total


def _spans(space: Space, d: int, x: float, least: float, greatest: float) -> Iterator[tuple[float, float]]:
    """Yield the spans around a coordinate of a category or prefix, until one contains all rows."""
    dimension = space.dimensions[d]
    lo, hi, size = x, x, 1.0
    node = int(space.leaf[int(dimension["leaf_offset"]) + int(x)]) if dimension["kind"] == TREE else -1
    yield lo, hi
    while lo > least or hi < greatest:
        if dimension["kind"] == TREE:
            node = int(space.nodes[node]["parent"])
            lo, hi = float(space.nodes[node]["first"]), float(space.nodes[node]["last"])
        else:
            size *= float(dimension["digits"])
            lo = float(np.floor(x / size) * size)
            hi = lo + size - 1.0
        yield lo, hi
