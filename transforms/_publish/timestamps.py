"""The timestamps of published rows.

A row is emitted with the moment of its release, never with its own event time. The moment is rounded up, too: with
`delay_rows` it is the event time of the row whose arrival caused the release.
"""

from __future__ import annotations

import numpy as np
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP
from numpy.typing import NDArray

#: Beam's first and last timestamp, in microseconds. Looked up once: to compute them costs a microsecond.
RANGE = int(MIN_TIMESTAMP.micros), int(MAX_TIMESTAMP.micros)


def rounded(time: int, tick: int) -> int:
    """Round up to a multiple of a tick."""
    return -(-time // tick) * tick


def stamps(moment: NDArray[np.int64], earliest: int, latest: int, tick: int) -> list[int]:
    """Compute the timestamps of releases, in microseconds.

    Args:
        moment: The engine's clock at each release.
        earliest: The least timestamp that is not late. It is no row's event time, and is not rounded.
        latest: The end of the window.
        tick: Moments are rounded up to multiples of it.
    """
    first = max(earliest, MIN_TIMESTAMP.micros)
    return [min(max(rounded(at, tick), first), latest) for at in moment.tolist()]


def clamped(time: int) -> int:
    """A time in microseconds, limited to Beam's range."""
    return min(max(time, RANGE[0]), RANGE[1])
