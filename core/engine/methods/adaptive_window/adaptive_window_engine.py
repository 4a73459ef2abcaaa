"""Adaptive window: windows of event time; the rows that a window leaves over set the length of the next one.

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
from crenel.engine.kernels.deadlines import EARLIEST, LATEST, deadline_after, rounded_down
from crenel.engine.methods.adaptive_window import AdaptiveWindowParameters
from crenel.engine.methods.mondrian.mondrian_engine import partition

_CLOSED = (LATEST, LATEST, 0)


class LeftOver(NamedTuple):
    """A row that no group of its window took, and its cluster: the rows it was left over with."""

    #: T_E: how long the row can still wait.
    remaining: int
    #: |u|: persons of its cluster that arrived while the window was open.
    came: int
    #: n: persons, or sensitive values, that its cluster lacks.
    lacks: int


def remaining_life(life: int, waited: int, processing: int) -> int:
    """Return T_E of a row that has waited in a window of this life: phase 3, equation 1."""
    return life - waited - processing


def expected_arrivals(came: int, life: int, remaining: int) -> float:
    """Return lambda, the rows of a cluster to expect in the remaining life of one of its rows: phase 4, equation 2."""
    return came / life * remaining


def chance_of(least: int, expected: float) -> float:
    """Return the probability of at least `least` arrivals (Poisson): phase 5, equations 3 and 4."""
    if expected == 0.0:
        return 1.0 if least <= 0 else 0.0
    # With logarithms, since e to the power of -expected may be too small for a float.
    fewer = (math.exp(i * math.log(expected) - expected - math.lgamma(i + 1)) for i in range(least))
    return max(0.0, 1.0 - sum(fewer))


def first_to_wait(left_over: Sequence[LeftOver], life: int, min_delay: int, threshold: float) -> int | None:
    """Return the first row whose remaining life becomes the life of the next window, or None: phase 6.

    Args:
        left_over: The rows that are left over, in the order of their remaining lives.
        life: The life of the window that has ended.
        min_delay: The shortest life of a window.
        threshold: The probability that enough rows arrive for the row's cluster must be at least this.
    """
    for i, row in enumerate(left_over):
        if row.remaining < min_delay:
            continue
        if chance_of(row.lacks, expected_arrivals(row.came, life, row.remaining)) >= threshold:
            return i
    return None


class AdaptiveWindow(Buffered[AdaptiveWindowParameters]):
    """Adaptive windows, on one shard's rows."""

    parameters_of = AdaptiveWindowParameters

    #: When the window began and is to end, and the number of the first row that could arrive in it.
    _begin: int
    _end: int
    _first: int
    _begin, _end, _first = _CLOSED

    # --- The window ---

    @property
    def _open(self) -> bool:
        return self._begin != LATEST

    def _open_window(self, life: int) -> None:
        # Rounded as deadlines are: an attacker who sees when a window ends must not learn when a row arrived.
        self._begin = rounded_down(self._clock, self._policy.tick)
        self._end = deadline_after(self._clock, life, self._policy.tick)
        self._first = self._arrivals

    def _close_window(self) -> None:
        self._begin, self._end, self._first = _CLOSED

    def _alone(self) -> bool:
        return not self._open

    def _arrived(self) -> None:
        """Open a window with the first row, with the longest life: phase 1."""
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
        """Return the moment at which `advance` must be called next, or None."""
        # At the end of a window in which no group can be made, nothing leaves.
        if self.held and self._clock < self._end < self._first_deadline and self._all_enough():
            return self._end
        return super().next_deadline()

    def _until_full(self) -> int:
        return (self._policy.delay_rows or LATEST) - self.held

    # --- Releases ---

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
        """Return whether the window ends now: its time is up, a row that waits for it is due, or the buffer is full."""
        if not self._open:
            return False
        full = self._policy.delay_rows is not None and self.held >= self._policy.delay_rows
        grown = self._clock >= self._begin + self._lives[0]
        waiting = grown and not self._held.hopeless[self._due()].all()
        return self._clock >= self._end or full or waiting

    def _end_window(self) -> None:
        """Anonymize the collected rows, then decide on those that are left over: phases 1 and 2."""
        group = self._partition(spare=math.floor(self._parameters.spare * self.held))
        self._release_groups(group, reusable=True)
        self._decide_on_left_over(group[group < 0], life=max(self._clock - self._begin, 1))

    def _partition(self, *, spare: int) -> Ints:
        return partition(self._space, self._held.rows, self._policy.k, self._policy.l, spare=spare)

    def _decide_on_left_over(self, clusters: Ints, life: int) -> None:
        """Let rows that are left over wait for the next window, or release them under a reusable box: phases 3 to 6."""
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
        """Return T_E of each held row: equation 1, for rows of any window, whatever its life."""
        remaining = [
            remaining_life(self._delay, self._clock - time, self._parameters.processing)
            for time in self._held.time.tolist()
        ]
        return np.array([min(max(life, EARLIEST), LATEST) for life in remaining], dtype=np.int64)

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
        """Let all rows wait, since they make no group: the next window ends when the first that can wait must leave."""
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
            self._release_groups(self._partition(spare=0), reusable=True)
        self._reuse(range(self.held))
        self._suppress(np.arange(self.held))
        self._close_window()

    # --- Snapshots ---

    def _own_numbers(self) -> list[int]:
        return [self._begin, self._end, self._first]

    def _restore_own_numbers(self, numbers: list[int]) -> None:
        self._begin, self._end, self._first = numbers
