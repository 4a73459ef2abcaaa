"""The clock and the deadlines of an engine: moments in microseconds, which saturate instead of overflowing.

A deadline is rounded down to a multiple of the policy's tick. This is a privacy guarantee: an attacker who sees a row
leave alone, at its deadline, must not learn the row's event time from the moment. All engines take their deadlines from
here; Python calls the same compiled functions.
"""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import Array
from crenel.engine.kernels.compiler import kernel

#: The limits of moments. LATEST also stands for a deadline that never comes.
EARLIEST, LATEST = -(2**63), 2**63 - 1


@kernel
def saturating_add(moment: int, span: int) -> int:
    """Return the sum, or the limit that it would exceed."""
    if span >= 0:
        return moment + span if moment <= LATEST - span else LATEST
    return moment + span if moment >= EARLIEST - span else EARLIEST


@kernel
def rounded_down(moment: int, step: int) -> int:
    """Return the last multiple of `step` that is not after the moment."""
    return saturating_add(moment, -(moment % step))


@kernel
def deadline_after(moment: int, delay: int, tick: int) -> int:
    """Return the deadline that is `delay` after the moment, rounded down; LATEST if the delay is negative: no limit."""
    return rounded_down(saturating_add(moment, delay), tick) if delay >= 0 else np.int64(LATEST)


@kernel
def clock_after(clock: int, time: int, disorder: int) -> int:
    """Return the clock once a row of this event time has arrived: rows may be late by `disorder`."""
    return max(clock, saturating_add(time, -disorder))


@kernel
def write_clocks_and_deadlines(
    times: Array, disorder: int, delay: int, tick: int, clocks: Array, deadlines: Array
) -> None:
    """Write the clock after each of some rows, as if they were the first, and the deadline of each."""
    clock = np.int64(EARLIEST)
    for i in range(times.size):
        clock = clock_after(clock, times[i], disorder)
        clocks[i] = clock
        deadlines[i] = deadline_after(times[i], delay, tick)
