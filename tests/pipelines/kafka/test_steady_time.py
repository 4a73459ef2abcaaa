"""The event time of a partition: one row with a wrong date does not move it, and a night does; how fast it is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.kafka.steady_time import Pace, SteadyTime

SECOND = 1_000_000
NOW = 2_000_000_000
DELAY = 600


def seen(*times: float, most: int | None = DELAY) -> float | None:
    time = SteadyTime(None if most is None else most * SECOND, lambda: float(NOW))
    for at in times:
        time.see(int(at * SECOND))
    return None if time.latest is None else time.latest / SECOND


def test_it_follows_rows_and_never_goes_back() -> None:
    assert seen() is None
    assert seen(1000) == 1000
    assert seen(1000, 1020, 1010) == 1020
    assert seen(1000, 1000 + DELAY) == 1000 + DELAY


@pytest.mark.parametrize("wrong", [NOW + 2 * DELAY, 3 * NOW])
def test_a_row_of_the_future_is_not_believed(wrong: float) -> None:
    assert seen(wrong) is None
    assert seen(wrong, NOW, NOW + 1) == NOW + 1
    assert seen(NOW, wrong, NOW + 1, wrong, NOW + 2) == NOW + 2


def test_one_row_far_ahead_is_not_believed_and_some_are() -> None:
    ahead = [5000.0 + i for i in range(9)]
    assert seen(1000, *ahead) == 1000
    assert seen(1000, *ahead, 5100) == 5100
    assert seen(1000, *ahead, 1001, 5100) == 1001  # contradicted
    assert seen(1000, *ahead, 1000 - DELAY - 1, 5100) == 5100  # by a row from long ago, which says nothing
    assert seen(1000, *(5000.0 + i * (DELAY + 1) for i in range(50))) == 1000  # none agrees with another


def test_without_a_limit_every_row_is_believed() -> None:
    assert seen(3 * NOW, 1000, most=None) == 3 * NOW


@given(
    st.lists(st.lists(st.integers(0, 40) | st.integers(NOW, NOW + 40).map(lambda at: at * 10))),
    st.none() | st.integers(1, 20),
)
def test_many_rows_at_once_are_seen_as_one_by_one(batches: list[list[int]], most: int | None) -> None:
    time = SteadyTime(None if most is None else most * SECOND, lambda: float(NOW))
    for batch in batches:
        time.see_all([at * SECOND for at in batch])
    every = [at for batch in batches for at in batch]
    assert (None if time.latest is None else time.latest / SECOND) == seen(*every, most=most)


def reads(pace: Pace, times: list[int]) -> list[list[int]]:
    """Cut times into reads."""
    found = []
    while times:
        part = times[: pace.count]
        while not pace.allows(len(part), part):
            part = times[: pace.count]
        found.append(part)
        times = times[len(part) :]
    return found


def test_a_read_spans_a_limited_time_and_grows_where_rows_are_dense() -> None:
    sparse, dense = list(range(0, 1000, 10)), [1000 + i // 100 for i in range(3000)]
    found = reads(Pace(400, 50), sparse + dense)
    assert [at for part in found for at in part] == sparse + dense
    assert max(part[-1] - part[0] for part in found) <= 50
    assert max(map(len, found[: len(found) // 2])) <= 6
    assert max(map(len, found)) == 400


def test_a_wrong_date_does_not_slow_a_read_down() -> None:
    times = list(range(400))
    times[200] = 10**15
    assert list(map(len, reads(Pace(100, 200), times))) == [100] * 4


def test_a_read_takes_at_least_one_message() -> None:
    assert list(map(len, reads(Pace(8, 5), [0, 100, 200, 300]))) == [1, 1, 1, 1]


def test_a_read_may_take_all_if_no_time_counts() -> None:
    assert list(map(len, reads(Pace(8, None), [0, 10**9, 2 * 10**9]))) == [3]
    assert Pace(8, 5).allows(8, [])
