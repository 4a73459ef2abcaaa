"""Rows that are too far ahead of the clock: which are taken, which are refused, and that nothing else decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.encoding.rows import Rows
from crenel.policy import Policy
from crenel.transforms._hold import ahead
from crenel.transforms._hold.ahead import AheadRows, Refusal
from crenel.transforms._pack.payloads import Form, Objects
from crenel.transforms._pack.row_pack import RowPack

SECOND = 1_000_000
DELAY = 600
YEAR = 365 * 86_400

#: The time of a row in seconds, and its person.
Row = tuple[float, int]


def policy(**changes: object) -> Policy:
    said = {"person": "who", "quasi_identifiers": {"age": {"type": "numeric"}}, "k": 3, "delay": f"{DELAY}s"}
    return Policy.from_dict({**said, **changes})


def pack(rows: Sequence[Row], first: int = 0) -> RowPack:
    """A pack whose payload numbers the rows."""
    count = len(rows)
    encoded = Rows(
        qi=np.zeros((count, 1)),
        person=np.array([person for _, person in rows], dtype=np.int64),
        sensitive=np.zeros((count, 0), dtype=np.int64),
        time=np.array([int(time * SECOND) for time, _ in rows], dtype=np.int64),
    )
    numbers = list(range(first, first + count))
    return RowPack(encoded, Form.DICT, Objects((numbers,), ("number",), count), b"", b"", shard=0)


def numbers(packs: Iterable[RowPack]) -> list[int]:
    return [number for one in packs for number in one.payload.column("number")]


class Run:
    """What became of rows that were pushed in some packs."""

    def __init__(self, rules: Policy, rows: Sequence[Row], cuts: Iterable[int] = (), *, stored: bool = False) -> None:
        self.taken: list[int] = []
        self.refused: list[int] = []
        self.ahead = AheadRows(rules)
        ends = [*sorted({cut for cut in cuts if 0 < cut < len(rows)}), len(rows)]
        for start, end in zip([0, *ends], ends, strict=False):
            self._keep(*self.ahead.push(pack(rows[start:end], start)))
            if stored:
                before, self.ahead = self.ahead.snapshot(), AheadRows(rules)
                self.ahead.restore(before)
        self.waiting = len(self.ahead)

    def _keep(self, taken: list[RowPack], refused: list[Refusal]) -> None:
        self.taken += numbers(taken)
        self.refused += numbers(one.rows for one in refused)

    def advance(self, seconds: float) -> None:
        self._keep(*self.ahead.advance(int(seconds * SECOND)))

    def flush(self) -> Run:
        self._keep(*self.ahead.flush())
        return self


def steady(count: int, *, start: float = 0.0, every: float = 10.0, persons: int = 40) -> list[Row]:
    return [(start + i * every, i * 7 % persons) for i in range(count)]


# -- a wrong date ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 5, 100, 199])
@pytest.mark.parametrize("seconds", [DELAY + 2000 + 1, YEAR, 165 * YEAR])
def test_one_row_with_a_wrong_date_is_refused_and_moves_nothing(place: int, seconds: float) -> None:
    rows = steady(200)
    wrong = [*rows[:place], (rows[place][0] + seconds, 99), *rows[place:]]
    run = Run(policy(), wrong).flush()
    assert run.refused == [place]
    assert run.taken == [number for number in range(201) if number != place]


def test_a_row_that_is_not_too_far_ahead_is_taken_at_once() -> None:
    rows = [*steady(100), (990 + DELAY, 99), *steady(10, start=1000)]
    assert Run(policy(), rows).taken == list(range(110 + 1))
    late = [*steady(100), (990 + DELAY + 0.000001, 99)]
    assert Run(policy(), late).waiting == 1


def test_the_limit_is_the_policys() -> None:
    rows = [*steady(100), (990 + 3 * DELAY, 99), *steady(200, start=1000)]
    assert Run(policy(), rows).refused == [100]
    assert Run(policy(max_ahead="30m"), rows).refused == []
    assert Run(policy(max_ahead="1s", delay="1h"), rows).taken == []  # every row is far ahead of the one before it


def test_a_device_with_a_wrong_clock_does_not_move_the_clock() -> None:
    rows = [row for pair in zip(steady(300), steady(300, start=YEAR, persons=1), strict=True) for row in pair]
    run = Run(policy(), rows).flush()
    assert sorted(run.refused) == list(range(1, 600, 2))
    assert run.taken == list(range(0, 600, 2))


def test_a_date_that_stands_for_none_is_not_believed_because_many_rows_have_it() -> None:
    """One row in ten, of all persons."""
    draw = np.random.default_rng(1)
    rows = [(YEAR, person) if draw.random() < 0.1 else (time, person) for time, person in steady(5000)]
    run = Run(policy(), rows).flush()
    late = [number for number, (time, _) in enumerate(rows) if time == YEAR]
    # The last ones wait together until the end, and do no harm there.
    assert set(run.refused) <= set(late)
    assert len(run.refused) > 0.95 * len(late)
    ordinary = [number for number in run.taken if rows[number][0] != YEAR]
    assert ordinary == [number for number in range(5000) if number not in late]


# -- time that has really moved on -------------------------------------------------------------------


@pytest.mark.parametrize("gap", [DELAY + 1, 12 * 3600, 3 * 86_400, YEAR])
@pytest.mark.parametrize("persons", [3, 40])
def test_a_night_is_no_error(gap: float, persons: int) -> None:
    rows = [*steady(100, persons=persons), *steady(100, start=1000 + gap, persons=persons)]
    run = Run(policy(), rows)
    assert (run.taken, run.refused, run.waiting) == (list(range(200)), [], 0)


def test_a_night_is_believed_after_some_rows_of_k_persons() -> None:
    before = steady(100)
    few = [(9000.0 + i, 50 + i % 2) for i in range(50)]  # two persons, and k is three
    assert Run(policy(), [*before, *few]).waiting == 50
    assert Run(policy(), [*before, *few, (9060.0, 60)]).taken == list(range(151))
    many = [(9000.0 + i, 50 + i) for i in range(9)]
    assert Run(policy(), [*before, *many]).waiting == 9
    assert Run(policy(), [*before, *many, (9060.0, 60)]).taken == list(range(110))


def test_rows_that_are_late_by_far_do_not_hold_time_up() -> None:
    rows = [*steady(100, start=100_000)]
    after = steady(100, start=150_000)
    old = steady(100, start=0)  # somebody sends what is a day old
    run = Run(policy(), [*rows, *(row for pair in zip(after, old, strict=True) for row in pair)])
    assert (run.refused, run.waiting) == ([], 0)


def test_a_clock_that_stands_still_does_not_hold_time_up() -> None:
    after = [row for row in steady(100, start=50_000) for row in (row, (990.0, 1000))]
    run = Run(policy(), [*steady(100), *after])
    assert (run.refused, run.waiting) == ([], 0)


def test_a_wrong_date_in_the_night_is_refused_in_the_morning() -> None:
    rows = [*steady(100), (YEAR, 99), *steady(200, start=50_000)]
    assert Run(policy(), rows).refused == [100]


def test_the_watermark_shows_that_time_has_moved_on() -> None:
    run = Run(policy(), [*steady(100), (9000.0, 99), (9300.0, 98)])
    assert run.ahead.next_deadline() == (9000 - DELAY) * SECOND
    run.advance(9000 - DELAY - 1)
    assert run.waiting == len(run.ahead) == 2
    run.advance(9000 - DELAY)
    assert run.taken == list(range(102))
    assert run.ahead.next_deadline() is None


# -- the beginning and the end -----------------------------------------------------------------------


def test_wrong_dates_at_the_very_start_do_no_harm() -> None:
    wrong = [(YEAR, 1), (2 * YEAR, 2), (-YEAR, 3), (YEAR + 1, 4)]
    run = Run(policy(), [*wrong, *steady(200)]).flush()
    assert run.refused == [0, 1, 3]
    assert sorted(run.taken) == [2, *range(4, 204)]


def test_a_short_stream_is_taken_as_it_is() -> None:
    rows = [(0.0, 1), (5000.0, 2), (10_000.0, 3)]
    run = Run(policy(), rows)
    assert run.waiting == 3
    assert run.flush().taken == [0, 1, 2]


def test_k_persons_at_the_end_are_taken() -> None:
    end = [(50_000.0, 1), (50_010.0, 2), (50_020.0, 3), (90_000.0, 1), (90_010.0, 2)]
    run = Run(policy(), [*steady(100), *end]).flush()
    assert run.taken == list(range(103))
    assert run.refused == [103, 104]


def test_no_row_waits_for_more_than_delay_rows() -> None:
    rules = policy(delay_rows=5)
    at_first = [(YEAR, 9), *((float(i), i) for i in range(5))]
    assert Run(rules, at_first[:5]).waiting == 5
    run = Run(rules, at_first)
    assert (run.taken, run.refused) == ([1, 2, 3, 4, 5], [0])
    later = [*steady(50), (YEAR, 9), *steady(6, start=500)]
    assert Run(rules, later[:55]).refused == []
    assert Run(rules, later).refused == [50]


def test_without_a_delay_every_row_is_taken() -> None:
    rules = policy(delay=None, delay_rows=10, max_ahead="1s")
    assert Run(rules, [(YEAR, 1), *steady(20)]).taken == list(range(21))


def test_the_rows_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_MOST", 20)
    sparse = steady(500, every=DELAY + 1)
    run = Run(policy(), [*steady(20), *((time + 10_000, person) for time, person in sparse)])
    assert run.waiting <= 21
    assert run.refused == list(range(20, 520 - run.waiting))
    near = [(10_000 + i / 100, i % 2) for i in range(500)]  # two persons inside of a deadline may become a crowd
    assert Run(policy(), [*steady(20), *near]).waiting == 500


# -- whatever comes ----------------------------------------------------------------------------------

_TIMES = st.integers(0, 40).map(lambda i: 100.0 * i) | st.integers(0, 10).map(lambda i: 50_000.0 + 300 * i)
_ROWS = st.lists(st.tuples(_TIMES | st.just(float(YEAR)), st.integers(0, 5)), max_size=120)
_RULES = st.sampled_from(
    [policy(), policy(max_ahead="1s"), policy(max_ahead="1h"), policy(k=2, delay_rows=7), policy(disorder="5m")]
)


@given(_RULES, _ROWS, st.lists(st.integers(1, 119)))
def test_it_does_not_matter_how_rows_are_cut_into_packs(rules: Policy, rows: list[Row], cuts: list[int]) -> None:
    one_by_one = Run(rules, rows, range(len(rows)))
    for run in (Run(rules, rows), Run(rules, rows, cuts), Run(rules, rows, cuts, stored=True)):
        assert (run.taken, run.refused, run.waiting) == (one_by_one.taken, one_by_one.refused, one_by_one.waiting)
    both = Run(rules, rows).flush(), Run(rules, rows, cuts, stored=True).flush()
    assert both[0].taken == both[1].taken
    assert both[0].refused == both[1].refused


@given(_RULES, _ROWS, st.lists(st.integers(1, 119)), st.integers(0, 60_000))
def test_nothing_is_lost(rules: Policy, rows: list[Row], cuts: list[int], now: int) -> None:
    run = Run(rules, rows, cuts)
    assert len(run.taken) + len(run.refused) + run.waiting == len(rows)
    run.advance(now)
    run.flush()
    assert sorted(run.taken + run.refused) == list(range(len(rows)))
    assert len(run.ahead) == 0


@given(st.lists(st.integers(0, DELAY), max_size=80), st.lists(st.integers(0, 5), min_size=81, max_size=81))
def test_a_stream_without_gaps_is_passed_on_as_it_is(steps: list[int], persons: list[int]) -> None:
    times = np.cumsum([0, *steps]).tolist()
    rows = list(zip(map(float, times), persons, strict=False))
    run = Run(policy(), rows).flush()
    assert (run.taken, run.refused) == (list(range(len(rows))), [])


# -- another policy ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "taken", "refused"),
    [
        ({"delay_rows": 3}, [7], [2]),  # more rows have followed than may
        ({"delay_rows": 9, "max_ahead": f"{2 * YEAR}s"}, [2, 7], []),  # no longer ahead
        ({"delay_rows": 9, "delay": None}, [2, 7], []),  # nothing is ahead without a delay
    ],
)
def test_rows_that_wait_are_decided_on_under_another_policy(
    after: dict[str, object], taken: list[int], refused: list[int]
) -> None:
    run = Run(policy(delay_rows=9), [(0, 0), (1, 1)])
    run.advance(1)
    rows = [(YEAR, 2), *steady(4, start=2)]
    run.ahead.push(pack(rows, 2))
    assert len(run.ahead) == 1
    other = AheadRows(policy(**after))
    other.restore(run.ahead.snapshot())
    found, dropped = other.push(pack([(5, 7)], 7))
    assert (numbers(found), numbers(one.rows for one in dropped)) == (taken, refused)
    assert len(other) == 0
