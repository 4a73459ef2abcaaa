"""The latest event time of a partition, which one row with a wrong date does not move.

A watermark that follows such a row tells every step after it that all rows are late. So a row that is further ahead
than the policy allows (`max_ahead`), of the rows before it or, if there are none, of the machine's clock, is believed
only when several rows in a row agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["SteadyTime"]

#: How many rows must agree.
_ENOUGH = 10


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
        if self.latest is not None and is_near:  # mostly: nothing that a row does then depends on the rows before it
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
