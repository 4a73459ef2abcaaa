"""The event time of a partition: the latest, which one row with a wrong date does not move; and how fast it is read.

A watermark that follows such a row tells every step after it that all rows are late. So a row may be ahead of the rows
before it by at most the policy's `max_ahead`; if there are none, of the machine's clock. A row that is further ahead is
believed only when several rows, one after the other, agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["Pace", "SteadyTime"]

#: How many rows must agree.
_ENOUGH = 10


#: The share of rows, in percent, that count for how much time a read spans: a few may be late, or have a wrong date.
_FIRST, _LAST = 5, 95


class Pace:
    """Keeps the partitions of a topic together in event time, while there is much to read.

    The clock of an engine follows the latest rows. If one partition is read far ahead, the rows of all others come too
    late. So one read takes no more messages than span a fraction of the time for which rows are held, and the runner
    then turns to the partition that is furthest behind.

    Args:
        most: The most messages of a read.
        span: The most microseconds that its rows span; None for any number.
    """

    def __init__(self, most: int, span: int | None) -> None:
        self._most = most
        self._span = span
        #: How many messages the next read takes.
        self.count = most

    def allows(self, count: int, times: Sequence[int]) -> bool:
        """Tell whether one read may take `count` messages whose rows have these times; adapt the next read's size."""
        if self._span is None or not times:
            return True
        spread = max(times) - min(times)
        if spread > self._span:
            first, last = np.percentile(times, (_FIRST, _LAST))
            spread = last - first
        if spread > self._span and count > 1:
            self.count = count // 2
            return False
        if 2 * spread <= self._span and count == self.count:
            self.count = min(2 * count, self._most)
        return True


class SteadyTime:
    """Follows the event times of rows.

    Args:
        most_ahead: Microseconds by which a row may be ahead of the latest time; None if it may be by any.
        clock: Tells the time, in seconds since the epoch.
    """

    def __init__(self, most_ahead: int | None, clock: Callable[[], float]) -> None:
        self._most_ahead = most_ahead
        self._clock = clock
        #: The latest time; None before it is known.
        self.latest: int | None = None
        self._ahead: list[int] = []

    def see_all(self, times: Sequence[int]) -> None:
        """Take the event times of rows, in their order."""
        if not times:
            return
        most, latest = self._most_ahead, max(times)
        is_near = self.latest is not None and not self._ahead and (most is None or latest <= self.latest + most)
        if self.latest is not None and is_near:  # the usual case, in which the order of the rows does not matter
            self.latest = max(self.latest, latest)
            return
        for time in times:
            self.see(time)

    def see(self, time: int) -> None:
        """Take the event time of a row."""
        most = self._most_ahead
        if most is None:
            self.latest = time if self.latest is None else max(self.latest, time)
        elif self.latest is None and time <= int(self._clock() * 1e6) + most:
            self.latest = time
        elif self.latest is not None and time <= self.latest + most:
            if time >= self.latest - most:  # a row from long ago says nothing about today
                self._ahead = []
            self.latest = max(self.latest, time)
        else:
            self._ahead = [*self._ahead[1 - _ENOUGH :], time]
            near = [other for other in self._ahead if abs(other - time) <= most]
            if len(near) >= _ENOUGH:
                self.latest, self._ahead = max(near), []
