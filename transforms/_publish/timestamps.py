"""The timestamps that published rows leave with.

A row leaves with the moment of its release, never with its own event time. The moment itself is rounded up: with
`delay_rows` it is the event time of the row whose arrival made others leave.
"""

from __future__ import annotations

import numpy as np
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP
from numpy.typing import NDArray

#: Looked up once: to compute them costs a microsecond.
_EARLIEST, _LATEST = int(MIN_TIMESTAMP.micros), int(MAX_TIMESTAMP.micros)


def rounded(time: int, tick: int) -> int:
    """The next multiple of a tick."""
    return -(-time // tick) * tick


def stamps(moment: NDArray[np.int64], earliest: int, latest: int, tick: int) -> list[int]:
    """When releases leave, in microseconds.

    Args:
        moment: The engine's clock at each release.
        earliest: Before it they would be late. No row's event time: it is taken as it is.
        latest: The end of the window.
        tick: What moments are rounded up to.
    """
    first = max(earliest, MIN_TIMESTAMP.micros)
    return [min(max(rounded(at, tick), first), latest) for at in moment.tolist()]


def clamped(time: int) -> int:
    """A time in microseconds, limited to Beam's range."""
    return min(max(time, _EARLIEST), _LATEST)
