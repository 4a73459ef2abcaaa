"""Deadlines are rounded down and never overflow, in kernels and in Python alike."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crenel.engine.kernels import deadlines
from crenel.engine.kernels.deadlines import EARLIEST, LATEST

moments = st.integers(EARLIEST, LATEST)
spans = st.integers(0, LATEST)


def clipped(moment: int) -> int:
    return min(max(moment, EARLIEST), LATEST)


@given(moments, moments)
def test_sums_end_at_the_limits(moment: int, span: int) -> None:
    assert deadlines.saturating_add(moment, span) == clipped(moment + span)


@given(moments, spans, st.integers(1, LATEST))
def test_a_deadline_is_a_tick_and_never_later_than_the_delay_allows(moment: int, delay: int, tick: int) -> None:
    found, exact = deadlines.deadline_after(moment, delay, tick), clipped(moment + delay)
    assert exact - tick < found <= exact
    assert found % tick == 0 or found == EARLIEST


def test_without_a_delay_there_is_no_deadline() -> None:
    assert deadlines.deadline_after(5, -1, 1) == LATEST


@given(st.lists(moments, max_size=20), spans, spans, st.integers(1, 10**9))
def test_many_rows_are_the_same_as_one_by_one(times: list[int], disorder: int, delay: int, tick: int) -> None:
    clocks, found = np.empty(len(times), np.int64), np.empty(len(times), np.int64)
    deadlines.write_clocks_and_deadlines(np.array(times, np.int64), disorder, delay, tick, clocks, found)
    assert found.tolist() == [deadlines.deadline_after(time, delay, tick) for time in times]
    clock = EARLIEST
    for time, moved in zip(times, clocks.tolist(), strict=True):
        clock = deadlines.clock_after(clock, time, disorder)
        assert moved == clock
