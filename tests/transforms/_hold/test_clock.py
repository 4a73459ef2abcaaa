"""What moves the clock of a shard, and the timers by which it learns how far the watermark has come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from apache_beam.transforms.window import GlobalWindow

from crenel.transforms import Anonymize
from crenel.transforms._hold import hold_step
from crenel.transforms._pack.row_options import Clock
from tests.transforms.cells import State, Worker, forget, packs, published, tagged
from tests.transforms.streams import SECOND, policy, rows

#: Deadlines are ten minutes after the rows, and fall on 16 moments in that time. These rows span 170 such moments.
POLICY = policy(k=2, method="bastion")
GIVEN = rows(640)
FIRST, LAST = (int(GIVEN[place]["seen"] * SECOND) for place in (0, -1))
#: After this time, all rows are due.
OVER = LAST + 601 * SECOND


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    forget()
    yield
    forget()


def fired(worker: Worker, state: State, watermark: int) -> tuple[list[Any], int]:
    """Fire timers as Flink does: those that are set meanwhile wait for the next bundle. Count bundles with rows."""
    out: list[Any] = []
    bundles = 0
    for _ in range(1000):
        due = sorted((at, tag) for tag, at in state.timers.items() if at <= watermark)
        if not due:
            return out, bundles
        before = len(out)
        for _, tag in due:
            del state.timers[tag]
        for at, _ in due:
            out += worker.fire(state, at=at)
        bundles += len(out) > before
    raise AssertionError("the timers are set again for ever")


def held(worker: Worker) -> State:
    """Return the state after all rows came, and no watermark."""
    state = State()
    for pack in packs(POLICY, GIVEN, 40):
        assert worker.push(state, pack) == []
    return state


def numbers(out: list[Any]) -> list[int]:
    return sorted(row["number"] for row in published(out))


def test_a_watermark_that_jumps_to_the_end_takes_one_bundle() -> None:
    worker = Worker(POLICY, clock=Clock.WATERMARK)
    out, bundles = fired(worker, held(worker), OVER)
    assert numbers(out) == list(range(len(GIVEN)))
    assert bundles == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_watermark_that_jumps_far_takes_few_bundles(share: float) -> None:
    """Each bundle gets the key through half of what is due, at least."""
    worker = Worker(POLICY, clock=Clock.WATERMARK)
    watermark = FIRST + int(share * (OVER - FIRST))
    out, bundles = fired(worker, held(worker), watermark)
    due = sum(int(row["seen"] * SECOND) + 600 * SECOND <= watermark for row in GIVEN)
    assert len(published(out)) >= due
    assert bundles <= 9


def test_with_one_timer_each_deadline_takes_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the two tests before would find."""
    monkeypatch.setattr(hold_step.HoldRows, "_steps", lambda self, due, last: iter([hold_step._in_millis(due)]))
    worker = Worker(POLICY, clock=Clock.WATERMARK)
    _, bundles = fired(worker, held(worker), OVER)
    assert bundles > 100


def test_timers_are_as_many_as_doublings_of_a_tick() -> None:
    assert 8 <= len(held(Worker(POLICY, clock=Clock.WATERMARK)).timers) <= 10
    state, worker = State(), Worker(POLICY)
    for pack in packs(POLICY, GIVEN, 40):
        worker.push(state, pack)
    assert len(state.timers) <= 6


def test_rows_of_a_source_that_lags_are_late_by_the_clock_of_rows_only() -> None:
    """Two partitions, of which one is read before the other."""
    ahead, behind = GIVEN[::2], GIVEN[1::2]
    suppressed = {}
    for clock in Clock:
        forget()
        state, worker = State(), Worker(POLICY, clock=clock)
        out: list[Any] = []
        for pack in packs(POLICY, [*ahead, *behind], 40):
            out += worker.push(state, pack)
        out += fired(worker, state, OVER)[0]
        assert numbers(out) == list(range(len(GIVEN)))
        suppressed[clock] = sum(one["rows"] for one in tagged(out, "releases") if one["kind"] == "suppressed")
    assert suppressed[Clock.WATERMARK] == 0
    assert suppressed[Clock.ROWS] > len(behind) // 2


def test_state_is_taken_up_under_the_other_clock() -> None:
    """Its log is replayed by the clock under which it was written: what was released then is not released again."""
    for before, after in ((Clock.ROWS, Clock.WATERMARK), (Clock.WATERMARK, Clock.ROWS)):
        forget()
        state = State()
        one, other = Worker(POLICY, clock=before), Worker(POLICY, clock=after)
        given = packs(POLICY, GIVEN, 40)
        out = [element for pack in given[:8] for element in one.push(state, pack)]
        forget()
        out += [element for pack in given[8:] for element in other.push(state, pack)]
        out += fired(other, state, OVER)[0]
        assert numbers(out) == list(range(len(GIVEN)))


def test_a_clock_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="Anonymize: clock must be 'rows' or 'watermark', not 'wall'"):
        Anonymize(POLICY, clock="wall")


# -- Rows wait for the watermark, so the engine sees them in the order of event times -------------------------------


def by_timers(of: Any, given: list[Any], clock: Clock, watermarks: list[int]) -> list[Any]:
    """Push rows in packs of 40; after each pack, the watermark moves on."""
    forget()
    state, worker = State(), Worker(of, clock=clock)
    out: list[Any] = []
    for pack, watermark in zip(packs(of, given, 40), watermarks, strict=True):
        out += worker.push(state, pack)
        out += fired(worker, state, watermark)[0]
    return out + worker.fire(state, at=GlobalWindow().max_timestamp().micros)


METHODS = [
    *({"method": name} for name in ("bastion", "castle", "adaptive-window", "mondrian", "fads", "min-delay")),
    {"method": "rtree", "parameters": {"instant": "10s"}},
    {"method": "z-anonymity", "parameters": {"window": "1h"}},
    {"method": "bastion", "delay_rows": 30},
    {"method": "bastion", "once_per": "5m"},
    {"method": "bastion", "delay_rows": 30, "together": "30d"},
]


@pytest.mark.parametrize("said", METHODS, ids=str)
def test_rows_that_come_in_order_fare_the_same_under_both_clocks(said: dict[str, Any]) -> None:
    """No method sees a clock that lags behind its rows: windows, memory of persons and moments are those of rows."""
    of = policy(k=2, **said)
    watermarks = [int(GIVEN[place]["seen"] * SECOND) for place in range(39, len(GIVEN), 40)]
    found = {clock: by_timers(of, GIVEN, clock, watermarks) for clock in Clock}
    shown = {
        clock: sorted(repr({name: row[name] for name in row if name != "number"}) for row in published(out))
        for clock, out in found.items()
    }
    assert len(shown[Clock.ROWS]) > len(GIVEN) // 4
    assert shown[Clock.WATERMARK] == shown[Clock.ROWS]


@pytest.mark.parametrize("said", METHODS, ids=str)
def test_moments_are_times_of_the_stream(said: dict[str, Any]) -> None:
    of = policy(k=2, **said)
    half = [*GIVEN[::2], *GIVEN[1::2]]
    out = by_timers(of, half, Clock.WATERMARK, [FIRST] * (len(half) // 40))
    moments = [one["moment"].micros for one in tagged(out, "releases")]
    assert moments
    assert min(moments) >= FIRST
    assert numbers(out) or tagged(out, "suppressed")
