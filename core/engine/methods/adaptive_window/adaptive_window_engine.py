"""Adaptive window: windows of event time whose life is set by the rows that the last one left over.

Sakpere, Kayem: *Adaptive Buffer Resizing for Efficient Anonymization of Streaming Data with Minimal Information Loss*,
ICISSP 2015. How each of its six phases is done, and what was chosen where the paper is silent, is in
`docs/adaptive-window.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from crenel.engine.buffered import Buffered
from crenel.engine.groups import Ints
from crenel.engine.kernels import common
from crenel.engine.methods.adaptive_window import AdaptiveWindowParameters
from crenel.engine.methods.mondrian.mondrian_engine import partition

_CLOSED = (common.LATEST, common.LATEST, 0)


class LeftOver(NamedTuple):
    """A row that no group of its window took, and what there is of its kind."""

    #: T_E: how long it can still wait.
    remaining: int
    #: |u|: persons of its cluster that came while the window was open.
    came: int
    #: n: persons, or sensitive values, that its cluster lacks.
    lacks: int


def remaining_life(life: int, waited: int, processing: int) -> int:
    """Phase 3, equation 1: T_E of a row that has waited in a window of this life."""
    return life - waited - processing


def expected_arrivals(came: int, life: int, remaining: int) -> float:
    """Phase 4, equation 2: lambda, the rows of a cluster to be expected in the remaining life of one."""
    return came / life * remaining


def chance_of(least: int, expected: float) -> float:
    """Phase 5, equations 3 and 4: the probability of at least so many arrivals, by Poisson."""
    if expected == 0.0:
        return 1.0 if least <= 0 else 0.0
    # By logarithms: e to the power of -expected may be too small for a number.
    fewer = (math.exp(i * math.log(expected) - expected - math.lgamma(i + 1)) for i in range(least))
    return max(0.0, 1.0 - sum(fewer))


def first_to_wait(left_over: Sequence[LeftOver], life: int, min_delay: int, threshold: float) -> int | None:
    """Phase 6: the first row whose remaining life the next window is to have; None if no row is worth it.

    Parameters
    ----------
    left_over
        In the order of their remaining lives.
    life
        Of the window that has ended.
    """
    for i, row in enumerate(left_over):
        if row.remaining < min_delay:
            continue
        if chance_of(row.lacks, expected_arrivals(row.came, life, row.remaining)) >= threshold:
            return i
    return None


class AdaptiveWindow(Buffered[AdaptiveWindowParameters]):
    """Windows that size themselves, on one shard's rows."""

    parameters_of = AdaptiveWindowParameters

    #: When the window began and is to end, and the number of the first row that could come in it.
    _begin: int
    _end: int
    _first: int
    _begin, _end, _first = _CLOSED

    # --- The window ---

    @property
    def _open(self) -> bool:
        return self._begin != common.LATEST

    def _open_window(self, life: int) -> None:
        # As deadlines are rounded: who sees when a window ends must not learn when a row came.
        tick, end = self._policy.tick, min(self._clock + life, common.LATEST)
        self._begin = max(self._clock - self._clock % tick, common.EARLIEST)
        self._end = end - end % tick
        self._first = self._arrivals

    def _close_window(self) -> None:
        self._begin, self._end, self._first = _CLOSED

    def _alone(self) -> bool:
        return not self._open

    def _arrived(self) -> None:
        """Phase 1: a window begins with a row, and lives as long as it may."""
        self._open_window(self._lives[1])
        self._first -= 1

    @property
    def _lives(self) -> tuple[int, int]:
        return self._parameters.lives(self._delay)

    @property
    def _delay(self) -> int:
        if self._policy.delay is None:
            message = "adaptive-window: policy.delay must be given."
            raise TypeError(message)
        return self._policy.delay

    def _event(self) -> int:
        return min(self._end, self._first_deadline) if self._end > self._clock else self._first_deadline

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` is next needed, if there is one."""
        # At the end of a window in which no group can be made, nothing leaves.
        if self.held and self._clock < self._end < self._first_deadline and self._all_enough():
            return self._end
        return super().next_deadline()

    def _until_full(self) -> int:
        return (self._policy.delay_rows or common.LATEST) - self.held

    # --- What leaves ---

    def _decide(self) -> None:
        if self._ends():
            if self._all_enough():
                self._end_window()
            else:
                self._go_on()
        due = self._due()
        self._reuse(due.tolist())
        self._suppress(self._due())
        if not self.held:
            self._close_window()

    def _ends(self) -> bool:
        """Whether the window ends now: at its end, or if a row that waits for it cannot, or there is no more room."""
        if not self._open:
            return False
        full = self._policy.delay_rows is not None and self.held >= self._policy.delay_rows
        grown = self._clock >= self._begin + self._lives[0]
        waiting = grown and not self._held.hopeless[self._due()].all()
        return self._clock >= self._end or full or waiting

    def _end_window(self) -> None:
        """Phases 1 and 2: anonymize what was collected; then see to what is left over."""
        group = self._partition(self._parameters.spare)
        self._release_groups(group, reusable=True)
        self._see_to(group[group < 0], life=max(self._clock - self._begin, 1))

    def _partition(self, spare: int) -> Ints:
        return partition(self._space, self._held.rows, self._policy.k, self._policy.l, spare=spare)

    def _see_to(self, clusters: Ints, life: int) -> None:
        """Phases 3 to 6: rows that are left over wait for the next window, or leave as another did before."""
        held = self._held
        remaining = self._remaining()
        order = np.lexsort((held.number, remaining))
        left_over = [self._left_over(clusters, int(remaining[i]), int(clusters[i])) for i in order]
        decides = first_to_wait(left_over, life, self._lives[0], self._parameters.threshold)
        held.hopeless[:] = False
        held.hopeless[order[:decides]] = True
        if decides is None:
            self._close_window()
        else:
            self._open_window(min(left_over[decides].remaining, self._lives[1]))
        self._reuse(order[:decides].tolist())

    def _remaining(self) -> Ints:
        """T_E of each held row: equation 1, for a window of whatever life, and a row of any window."""
        remaining = [
            remaining_life(self._delay, self._clock - time, self._parameters.processing)
            for time in self._held.time.tolist()
        ]
        return np.array([min(max(life, common.EARLIEST), common.LATEST) for life in remaining], dtype=np.int64)

    def _left_over(self, clusters: Ints, remaining: int, cluster: int) -> LeftOver:
        held, policy = self._held, self._policy
        like = clusters == cluster
        came = len(np.unique(held.person[like & (held.number >= self._first)]))
        lacks = policy.k - len(np.unique(held.person[like]))
        if policy.l is not None:
            values = min(len(np.unique(column[like])) for column in held.sensitive.T)
            lacks = max(lacks, policy.l - values)
        return LeftOver(remaining, came, lacks)

    def _go_on(self) -> None:
        """No group can be made: all wait, in a window that ends when the first of those that can wait must leave."""
        held = self._held
        remaining = self._remaining()
        can_wait = remaining >= self._lives[0]
        held.hopeless[:] = ~can_wait
        if can_wait.any():
            self._open_window(min(int(remaining[can_wait].min()), self._lives[1]))
        else:
            self._close_window()

    def _finish(self) -> None:
        if self._all_enough():
            self._release_groups(self._partition(0), reusable=True)
        self._reuse(range(self.held))
        self._suppress(np.arange(self.held))
        self._close_window()

    # --- Snapshots ---

    def _marks(self) -> list[int]:
        return [self._begin, self._end, self._first]

    def _restore_marks(self, marks: list[int]) -> None:
        self._begin, self._end, self._first = marks
