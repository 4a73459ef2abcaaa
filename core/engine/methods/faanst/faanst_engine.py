"""FAANST, passive and proactive: a buffer of rows that is divided into clusters whenever it is full.

Zakerzadeh, Osborn: *FAANST: Fast Anonymizing Algorithm for Numerical Streaming DaTa*, DPM 2010, and *Delay-sensitive
approaches for anonymizing numerical streaming data*, IJIS 2013. How each step is done is in `docs/faanst.md`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crenel.engine.buffered import Buffered
from crenel.engine.groups import Floats, Ints, groups_of
from crenel.engine.kernels.arrays import NONE
from crenel.engine.kernels.deadlines import EARLIEST, LATEST
from crenel.engine.kernels.group_boxes import shuffle_groups
from crenel.engine.methods.faanst import FaanstParameters

#: How often the means of the clusters are computed again, at most.
_MOST_PASSES = 10


class Faanst(Buffered[FaanstParameters]):
    """Passive FAANST: a row leaves when it has expired."""

    parameters_of = FaanstParameters

    #: When the buffer was last divided into clusters: the clock, and the rows that had arrived.
    _last_clock, _last_arrivals = EARLIEST, 0

    @property
    def _mu(self) -> int:
        return self._parameters.buffer(self._policy.k, self._policy.delay_rows) or LATEST

    def _until_full(self) -> int:
        """Return how many rows are missing to mu, at least k of them new: old rows alone would make no new clusters."""
        return max(self._mu - self.held, self._policy.k - (self._arrivals - self._last_arrivals))

    def _decide(self) -> None:
        if self._until_full() <= 0:
            self._round()
        self._reuse(self._due().tolist())
        self._suppress(self._due())

    def _round(self) -> None:
        """Publish the clusters that are good enough, and other rows that a reusable box contains. The rest waits."""
        self._publish(self._clusters(), self._parameters.max_loss)
        self._reuse(range(self.held))
        self._last_clock, self._last_arrivals = self._clock, self._arrivals

    def _publish(self, cluster: Ints, max_loss: float) -> None:
        """Release the clusters whose loss is at most `max_loss`, and those with a row that must not wait."""
        found = groups_of(self._space, self._held.rows, cluster)
        expire = self._would_expire()
        good = np.full(len(found.loss), NONE, dtype=np.int64)
        accepted = 0
        for number in range(len(found.loss)):
            rows = found.order[found.offsets[number] : found.offsets[number + 1]]
            if (found.loss[number] <= max_loss or expire[rows].any()) and self._enough(rows):
                good[number] = accepted
                accepted += 1
        self._release_groups(good[cluster], reusable=True)

    def _would_expire(self) -> NDArray[np.bool_]:
        """Return which held rows must not wait for the next round: passive FAANST knows of none."""
        return np.zeros(self.held, dtype=np.bool_)

    def _clusters(self) -> Ints:
        """Return the number of each held row's cluster, by k-means on coordinates relative to their domains."""
        places = self._held.qi * self._space.dimensions["scale"]
        count = min(self._parameters.clusters or max(self.held // self._policy.k, 1), len(places))
        order = np.arange(len(places))
        shuffle_groups(self._random, self._numbers, order, np.array([0, len(places)]))
        cluster = _nearest(places, places[order[:count]])
        for _ in range(_MOST_PASSES):
            again = _nearest(places, _means(places, cluster))
            if np.array_equal(again, cluster):
                break
            cluster = again
        return np.unique(cluster, return_inverse=True)[1].astype(np.int64, copy=False)

    def _finish(self) -> None:
        """End the stream: release clusters that are groups, then rows that reusable boxes contain, then all others."""
        self._publish(self._clusters(), np.inf)
        self._reuse(range(self.held))
        if self.held and self._all_enough():
            self._release_groups(np.zeros(self.held, dtype=np.int64), reusable=True)
        self._suppress(np.arange(self.held))
        self._last_clock, self._last_arrivals = self._clock, self._arrivals

    def _own_numbers(self) -> list[int]:
        return [self._last_clock, self._last_arrivals]

    def _restore_own_numbers(self, numbers: list[int]) -> None:
        self._last_clock, self._last_arrivals = numbers


class ProactiveFaanst(Faanst):
    """Proactive FAANST: a row leaves early if it would expire before the end of a round as long as the last one."""

    def _would_expire(self) -> NDArray[np.bool_]:
        held = self._held
        expire = np.zeros(len(held.number), dtype=np.bool_)
        came = self._arrivals - self._last_arrivals
        if self._policy.delay is not None:
            began = self._last_clock if self._last_clock != EARLIEST else int(held.time.min())
            took = max(self._clock - began, 0)
            expire |= held.deadline <= min(self._clock + took, LATEST)
        if self._policy.delay_rows is not None:
            expire |= held.number < self._arrivals + came - self._policy.delay_rows
        return expire


def _nearest(places: Floats, means: Floats) -> Ints:
    """Return the number of the nearest mean to each place; of equally near ones, the first."""
    nearest = np.zeros(len(places), dtype=np.int64)
    least = np.full(len(places), np.inf)
    for number, mean in enumerate(means):
        distance = np.zeros(len(places))
        for d in range(places.shape[1]):
            distance += (places[:, d] - mean[d]) ** 2
        nearer = distance < least
        nearest[nearer] = number
        least[nearer] = distance[nearer]
    return nearest


def _means(places: Floats, cluster: Ints) -> Floats:
    """Return the mean of each cluster that has rows."""
    used, dense = np.unique(cluster, return_inverse=True)
    sizes = np.bincount(dense, minlength=len(used))
    columns = [np.bincount(dense, weights=column, minlength=len(used)) / sizes for column in places.T]
    return np.stack(columns, axis=1)
