"""Windows and event time: every promise in every window, on TestStream, and timers that stop."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindow,
    GlobalWindows,
    IntervalWindow,
    NonMergingWindowFn,
    Sessions,
    SlidingWindows,
)

from crenel.transforms import Anonymize, AnonymizeBounded
from crenel.transforms._hold import hold_step
from tests.transforms.streams import SECOND, Left, Stamped, anonymize, check, policy, rows, run, span, stream

HOUR = 3600
GIVEN = rows(700)
FIRST = GIVEN[0]["seen"]


def name(windows: Any) -> str:
    """Return a test id without a memory address, which would differ between processes."""
    return type(windows).__name__


@pytest.fixture(autouse=True)
def firings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the times at which timers fire; fail instead of hanging if a timer is set again forever."""
    fired: list[int] = []
    wake = hold_step.HoldRows._wake

    def counted(self: Any, key: Any, now: int, *rest: Any) -> Any:
        fired.append(now)
        assert len(fired) < 2_000, "the timer re-arms for ever"
        return wake(self, key, now, *rest)

    monkeypatch.setattr(hold_step.HoldRows, "_wake", counted)
    return fired


def by_window(found: list[Left]) -> dict[Any, list[Left]]:
    split = defaultdict(list)
    for left in found:
        split[left.window].append(left)
    return split


def check_windows(given: list[dict[str, Any]], out: Any, windows: Any, **changes: Any) -> None:
    """Check all promises in each window, and that each row is published in its own windows."""
    published, suppressed = by_window(out.published), by_window(out.suppressed)
    rows_of = defaultdict(list)
    for row in given:
        for window in windows.assign(beam.transforms.window.WindowFn.AssignContext(row["seen"], row)):
            rows_of[window].append(row)
    assert set(published) == set(rows_of)
    for window, inside in rows_of.items():
        check(policy(**changes), inside, published[window], suppressed[window])
        assert all(left.timestamp <= window.max_timestamp().micros for left in published[window])


@pytest.mark.parametrize("windows", [Sessions(600), Sessions(1)])
def test_windows_that_merge_are_refused(windows: Any) -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | beam.Create(GIVEN) | beam.WindowInto(windows)
    with pytest.raises(ValueError, match=r"Anonymize: windows must not merge \(state is per window\), not "):
        _ = given | anonymize()


# --- Windows that would publish a row twice ---


def test_windows_that_overlap_are_refused_unless_asked_for() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | beam.Create(GIVEN) | beam.WindowInto(SlidingWindows(2 * HOUR, HOUR))
    with pytest.raises(ValueError, match=r"Anonymize: windows must not overlap, .* overlapping_windows=True"):
        _ = given | anonymize()
    with pytest.raises(ValueError, match=r"Anonymize: windows must not overlap, .* overlapping_windows=True"):
        _ = given | "Bounded" >> AnonymizeBounded(policy())
    _ = given | "Asked for" >> anonymize(overlapping_windows=True)
    # These windows have gaps between them, so a row is in at most one.
    apart = given | "Window apart" >> beam.WindowInto(SlidingWindows(HOUR, 2 * HOUR))
    _ = apart | "Apart" >> anonymize()


class Twice(NonMergingWindowFn):
    """A user's own windows. That they overlap shows only when a row arrives."""

    def assign(self, context: Any) -> list[IntervalWindow]:
        start = int(context.timestamp) // HOUR * HOUR
        return [IntervalWindow(start, start + HOUR), IntervalWindow(start, start + 2 * HOUR)]

    def get_window_coder(self) -> Any:
        return IntervalWindowCoder()


def test_custom_windows_that_overlap_are_refused_when_a_row_arrives() -> None:
    with pytest.raises(Exception, match="Anonymize: windows must not overlap") as caught:
        run(Stamped(GIVEN[:50]), anonymize(), window=Twice())
    assert GIVEN[0]["patient"] not in str(caught.value)
    out = run(Stamped(GIVEN[:50]), anonymize(overlapping_windows=True), window=Twice())
    assert len(out.published) == 100


@pytest.mark.parametrize("step", [Anonymize, AnonymizeBounded])
def test_panes_that_accumulate_are_refused(step: Any) -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    windows = beam.WindowInto(
        FixedWindows(HOUR), allowed_lateness=HOUR, accumulation_mode=beam.trigger.AccumulationMode.ACCUMULATING
    )
    given = pipeline | beam.Create(GIVEN) | windows
    with pytest.raises(ValueError, match="Anonymize: panes must not accumulate"):
        _ = given | step(policy())


def test_a_trigger_before_bounded_rows_is_refused() -> None:
    """Each pane would be a stream of its own, but all of them would share one random generator."""
    pipeline = beam.Pipeline(runner="FnApiRunner")
    windows = beam.WindowInto(
        FixedWindows(HOUR),
        trigger=beam.trigger.Repeatedly(beam.trigger.AfterCount(10)),
        accumulation_mode=beam.trigger.AccumulationMode.DISCARDING,
    )
    given = pipeline | beam.Create(GIVEN) | windows
    with pytest.raises(ValueError, match="AnonymizeBounded: windows must have no trigger of their own"):
        _ = given | AnonymizeBounded(policy())
    _ = given | anonymize()


@pytest.mark.slow
def test_two_boxes_of_one_row_can_single_out_its_person() -> None:
    """Why overlapping windows are refused: each box has k persons, but the intersection of two may have only one."""
    windows = SlidingWindows(2 * HOUR, HOUR)
    of = policy(method="bastion", parameters={"reuse": "off"}, on_suppress="drop", l=None)
    out = run(Stamped(GIVEN), Anonymize(of, overlapping_windows=True), window=windows)
    boxes = defaultdict(list)
    for left in out.published:
        # An attacker links two published rows by their number.
        boxes[left.value["number"]].append([span(column, left.value[column]) for column in of.quasi_identifiers])
    assert max(map(len, boxes.values())) == 2
    people = [[span(column, exact(column, row)) for column in of.quasi_identifiers] for row in GIVEN]

    def inside(box: list[tuple[float, float]]) -> set[str]:
        fit = [all(a <= lo and hi <= b for (lo, hi), (a, b) in zip(point, box, strict=True)) for point in people]
        return {row["patient"] for row, fits in zip(GIVEN, fit, strict=True) if fits}

    few = alone = 0
    for number, found in boxes.items():
        assert all(len(inside(box)) >= of.k for box in found)
        meet = [(max(lo for lo, _ in ends), min(hi for _, hi in ends)) for ends in zip(*found, strict=True)]
        suspects = inside(meet)
        assert GIVEN[number]["patient"] in suspects
        few += len(suspects) < of.k
        alone += len(suspects) == 1
    assert few > 20
    assert alone > 0


def exact(column: str, row: dict[str, Any]) -> Any:
    """Return a row's value as if it were published exactly."""
    return {"lo": row[column], "hi": row[column]} if column == "age" else row[column]


# --- Windows that are accepted ---


@pytest.mark.parametrize("windows", [FixedWindows(HOUR), SlidingWindows(2 * HOUR, HOUR), GlobalWindows()], ids=name)
@pytest.mark.parametrize("event_time", ["seen", None])
def test_bounded_rows_in_windows(windows: Any, event_time: str | None) -> None:
    out = run(Stamped(GIVEN), anonymize(event_time=event_time, overlapping_windows=True), window=windows)
    check_windows(GIVEN, out, windows)


@pytest.mark.parametrize("windows", [FixedWindows(HOUR), SlidingWindows(2 * HOUR, HOUR), GlobalWindows()], ids=name)
@pytest.mark.parametrize("changes", [{}, {"delay": None, "delay_rows": 50}, {"delay_rows": 30}], ids=str)
def test_streams_in_windows(windows: Any, changes: dict[str, Any]) -> None:
    parts: list[Any] = []
    for start in range(0, len(GIVEN), 100):
        parts += [GIVEN[start : start + 100], GIVEN[min(start + 100, len(GIVEN) - 1)]["seen"] - 1]
    parts += [FIRST + hours * HOUR for hours in range(2, 6)]
    step = anonymize(overlapping_windows=True, **changes)
    out = run(stream(parts), step, window=windows, runner="BundleBasedDirectRunner")
    check_windows(GIVEN, out, windows, **changes)


def test_the_engine_of_each_window_has_its_own_random_generator() -> None:
    assert hold_step.shard_name(3, GlobalWindow()) == b"3"
    one, two = IntervalWindow(0, 10), IntervalWindow(10, 20)
    assert len({hold_step.shard_name(shard, window) for shard in (0, 1) for window in (one, two)}) == 4


# --- A key that goes idle is woken by its timer ---


def test_an_idle_key_is_woken_by_its_timer(firings: list[int]) -> None:
    first = rows(40, every=1.0)
    out = run(stream([first, FIRST + 300, FIRST + 700]), anonymize(), runner="BundleBasedDirectRunner")
    check(policy(), first, out.published, out.suppressed)
    delay = policy().delay
    assert delay is not None
    # The rows are released by their deadlines, not at the end of time.
    assert max(left.timestamp for left in out.published) <= int((FIRST + 39) * SECOND) + delay
    assert firings


def test_every_shard_is_woken() -> None:
    first = rows(200, every=1.0)
    out = run(stream([first, FIRST + 900]), anonymize(shards=5), runner="BundleBasedDirectRunner")
    assert {left.value["number"] for left in out.published} == set(range(200))
    delay = policy().delay
    assert delay is not None
    assert max(left.timestamp for left in out.published) <= int((FIRST + 199) * SECOND) + delay
    assert {left.value["shard"] for left in out.releases} == set(range(5))


def test_the_timer_stops(firings: list[int]) -> None:
    out = run(stream([GIVEN[:50], FIRST + 5_000, FIRST + 90_000]), anonymize(), runner="BundleBasedDirectRunner")
    assert len(out.published) == 50
    # It fires at most once per tick between the first deadline and the last, and a few times more.
    assert len(firings) <= 50 * 10 / (policy().tick / SECOND) + 20


# --- Disorder ---


def shuffled(given: list[dict[str, Any]], within: int) -> list[dict[str, Any]]:
    import random

    draw = random.Random(3)
    order = sorted(range(len(given)), key=lambda i: i + draw.random() * within)
    return [given[i] for i in order]


@pytest.mark.parametrize("runner", ["FnApiRunner", "BundleBasedDirectRunner"])
def test_rows_out_of_order(runner: str) -> None:
    given = shuffled(GIVEN, 30)
    if runner == "FnApiRunner":
        out = run(Stamped(given), anonymize(disorder="5m"), runner=runner)
    else:
        parts: list[Any] = []
        for start in range(0, len(given), 100):
            parts += [given[start : start + 100], max(FIRST, FIRST + start * 10 - 400)]
        out = run(stream([*parts, FIRST + 90_000]), anonymize(disorder="5m"), runner=runner)
    report = check_all_but_late(given, out, disorder="5m")
    assert report.suppressed < 100


def check_all_but_late(given: list[dict[str, Any]], out: Any, **changes: Any) -> Any:
    """Check all promises, but allow timestamps up to `disorder` after a deadline: the engine's clock is that late."""
    late = policy(**changes).disorder
    early = [left._replace(timestamp=left.timestamp - late) for left in out.published]
    return check(policy(**changes), given, early, out.suppressed)


def test_late_rows_of_a_window_that_is_over() -> None:
    windows = beam.WindowInto(
        FixedWindows(HOUR), allowed_lateness=10 * HOUR, accumulation_mode=beam.trigger.AccumulationMode.DISCARDING
    )
    on_time, late = GIVEN[:300], GIVEN[100:200]
    given = [*on_time[:100], *on_time[200:], *late]
    parts = stream([[*on_time[:100], *on_time[200:]], FIRST + 2 * HOUR, late[:50], late[50:], FIRST + 3 * HOUR])
    out = run(parts, _Then(windows, anonymize()), runner="BundleBasedDirectRunner")
    assert sorted(left.value["number"] for left in out.published) == sorted(row["number"] for row in given)
    inside = FixedWindows(HOUR).assign(beam.transforms.window.WindowFn.AssignContext(late[0]["seen"]))[0]
    published = by_window(out.published)[inside]
    mine = [row for row in given if inside.start <= row["seen"] < inside.end]
    # Late rows are released at once, because the watermark had already passed their deadlines.
    told = [(sum(row not in late for row in mine), int((FIRST + 2 * HOUR) * SECOND))]
    report = check(policy(), mine, published, by_window(out.suppressed)[inside], calls=told)
    assert report.published > 50


class _Then(beam.PTransform):
    """Applies two transforms in sequence, and returns the results of the second."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__()
        self.first, self.second = first, second

    def expand(self, given: Any) -> Any:
        return given | self.first | self.second


def test_all_rows_at_the_same_moment() -> None:
    given = rows(300, every=0.0)
    for source, runner in (
        (given, "FnApiRunner"),
        (stream([given[:150], given[150:], FIRST + 700]), "BundleBasedDirectRunner"),
    ):
        out = run(source, anonymize(), runner=runner)
        report = check(policy(), given, out.published, out.suppressed)
        assert report.suppressed < 20


def test_rows_without_any_time() -> None:
    """Neither a column nor Beam gives the rows a time, so all of them are at the beginning of time."""
    out = run(GIVEN[:100], anonymize(event_time=None, delay=None, delay_rows=20))
    assert {left.value["number"] for left in out.published} == set(range(100))
    out = run(GIVEN[:100], anonymize(event_time=None))
    assert {left.value["number"] for left in out.published} == set(range(100))


@pytest.mark.parametrize(("size", "of"), [(1, 50), (20, 350), (350, 350)])
def test_tiny_and_huge_bundles_publish_the_same(size: int, of: int) -> None:
    given = GIVEN[:of]
    parts = [given[start : start + size] for start in range(0, len(given), size)]
    out = run(stream([*parts, FIRST + 90_000]), anonymize(), runner="BundleBasedDirectRunner")
    check(policy(), given, out.published, out.suppressed)
    whole = run(given, anonymize())
    # Bundles decide which rows are released at one moment, in random order, so compare by number.
    found, expected = ({left.value["number"]: left.value for left in each.published} for each in (out, whole))
    assert found == expected


def test_a_drain_releases_all_held_rows() -> None:
    """A drain moves the watermark to the end of time; so does the end of a stream."""
    out = run(stream([GIVEN[:60]]), anonymize(delay="1d"), runner="BundleBasedDirectRunner")
    report = check(policy(delay="1d"), GIVEN[:60], out.published, out.suppressed)
    assert report.suppressed < policy().k


# --- What a timestamp reveals ---


@pytest.mark.parametrize(
    "changes", [{}, {"delay": "1s"}, {"delay": None, "delay_rows": 40}, {"delay": "20m", "disorder": "3m"}], ids=str
)
@pytest.mark.parametrize("windows", [FixedWindows(HOUR), GlobalWindows()], ids=name)
def test_no_timestamp_is_an_event_time(changes: dict[str, Any], windows: Any) -> None:
    tick = policy(**changes).tick
    # Beam's old runner runs a bundle for each timer, and short delays set one for nearly every row.
    given = GIVEN[: 40 if tick < SECOND else 240]
    odd = [{**row, "seen": row["seen"] + 0.123457 + 0.000100 * i} for i, row in enumerate(given)]
    parts: list[Any] = []
    for start in range(0, len(odd), 80):
        parts += [odd[start : start + 80], int(odd[min(start + 80, len(odd) - 1)]["seen"]) - 1]
    streamed = run(
        stream([*parts, FIRST + 90_000]), anonymize(**changes), window=windows, runner="BundleBasedDirectRunner"
    )
    bounded = run(Stamped(odd), anonymize(**changes), window=windows)
    for out in (streamed, bounded):
        found = [*out.published, *out.suppressed, *out.releases]
        assert len(out.published) == len(odd)
        times = {round(row["seen"] * SECOND) for row in odd}
        for left in found:
            end = left.window.max_timestamp().micros
            # A timer is rounded up to the millisecond.
            at = left.timestamp // tick * tick
            assert left.timestamp in (at, -(-at // 1000) * 1000, end, end // 1000 * 1000)
            assert left.timestamp not in times


def test_rows_are_not_later_than_their_deadlines_where_ticks_are_no_milliseconds() -> None:
    given = rows(100, every=0.1)
    out = run(
        stream([given, *(FIRST + i / 10 for i in range(1, 200))]),
        anonymize(delay="1s"),
        runner="BundleBasedDirectRunner",
    )
    check(policy(delay="1s"), given, out.published, out.suppressed)


def test_results_go_on_to_windows_and_groups_downstream() -> None:
    """Published rows are not late, so a GroupByKey downstream drops none of them."""
    from apache_beam.testing.test_pipeline import TestPipeline as Pipeline
    from apache_beam.testing.util import assert_that, equal_to

    pipeline = Pipeline(runner="FnApiRunner")
    counted = (
        pipeline
        | Stamped(GIVEN)
        | Anonymize(policy())
        | beam.WindowInto(FixedWindows(HOUR))
        | beam.Map(lambda row: ("all", 1))
        | beam.CombinePerKey(sum)
        | beam.Values()
        | "Whole" >> beam.WindowInto(GlobalWindows())
        | "Sum" >> beam.CombineGlobally(sum)
    )
    assert_that(counted, equal_to([700]))
    pipeline.run().wait_until_finish()
