"""The runner for endless input: sources, timers in order, state, stopping, errors, and what it refuses."""
# ruff: noqa: B008 - Beam declares state and timers as default arguments

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import BytesCoder, PickleCoder, StrUtf8Coder, VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import FixedWindows, GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from crenel.encoding import tree_following, tree_learning
from crenel.engine import Kind
from crenel.runners import Job, JobFailed, RunnerError, streaming
from crenel.transforms import Anonymize, Counts

FOREVER = 1 << 60
#: The end of time, in seconds.
END = GlobalWindow().max_timestamp().micros // 1_000_000
#: What the steps of the running test recorded. A test runs in one thread, and only one runs at a time.
SEEN: list[Any] = []
STOP = threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SEEN.clear()
    STOP.clear()


def run(build: Any) -> list[Any]:
    """Run a pipeline, and return what its steps recorded."""
    assert streaming.launch(Job(build=build, shards=1, stop=STOP)) == 1
    return SEEN


class See(beam.DoFn):
    def __init__(self, name: str = "") -> None:
        self._name = name

    def process(self, element: Any, at: Any = beam.DoFn.TimestampParam) -> None:
        SEEN.append((self._name, element, int(at.micros // 1_000_000)) if self._name else element)


class Ranges(RestrictionProvider):
    def initial_restriction(self, element: tuple[str, int, int]) -> OffsetRange:
        return OffsetRange(0, element[1])

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return 1


class Count(beam.DoFn):
    """Emits (name, number) at `number * step` seconds, five per call, and asks to be resumed."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: tuple[str, int, int],
        tracker: Any = beam.DoFn.RestrictionParam(Ranges()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        name, _, step = element
        start = tracker.current_restriction().start
        for number in range(start, start + 5):
            if not tracker.try_claim(number):
                return
            watermark.set_watermark(Timestamp(number * step))
            yield TimestampedValue((name, number), number * step)
        tracker.defer_remainder(Duration(0))


def counting(pipeline: beam.Pipeline, *parts: tuple[str, int, int]) -> Any:
    return pipeline | "Parts" >> beam.Create(parts) | "Count" >> beam.ParDo(Count())


# --- Elements ---


def test_elements_take_every_way_through_the_pipeline() -> None:
    def split(number: int) -> Iterator[Any]:
        yield TaggedOutput("odd", number) if number % 2 else number
        yield TaggedOutput("unread", number)

    def build(pipeline: beam.Pipeline) -> None:
        numbers = pipeline | beam.Create([1, 2, 3, 4])
        parts = numbers | beam.FlatMap(split).with_outputs("odd", main="even")
        tens = parts.even | "Tens" >> beam.Map(lambda number: number * 10)
        _ = (tens, parts.odd) | beam.Flatten() | beam.WindowInto(FixedWindows(60)) | beam.ParDo(See())

    assert sorted(run(build)) == [1, 3, 20, 40]


class Pairs(beam.DoFn):
    """Emits the elements of a bundle when it ends."""

    def start_bundle(self) -> None:
        self._bundle: list[Any] = []

    def process(self, element: Any) -> None:
        self._bundle.append(element)

    def finish_bundle(self) -> Iterator[Any]:
        if self._bundle:
            from apache_beam.utils.windowed_value import WindowedValue

            yield WindowedValue(tuple(number for _, number in self._bundle), 0, (GlobalWindow(),))


def test_a_bundle_is_one_call_of_the_source_and_steps_end_in_order() -> None:
    def build(pipeline: beam.Pipeline) -> None:
        bundles = counting(pipeline, ("a", 12, 1)) | "Bundles" >> beam.ParDo(Pairs())
        # The next step gets what this step emits at the end of a bundle within the same bundle.
        _ = bundles | "Again" >> beam.Map(lambda numbers: ("", numbers)) | "More" >> beam.ParDo(Pairs())
        _ = bundles | beam.ParDo(See())

    assert run(build) == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (10, 11)]


class Lifecycle(beam.DoFn):
    def setup(self) -> None:
        SEEN.append("setup")

    def start_bundle(self) -> None:
        SEEN.append("start")

    def process(self, element: Any) -> None:
        SEEN.append(element)

    def finish_bundle(self) -> None:
        SEEN.append("finish")

    def teardown(self) -> None:
        SEEN.append("teardown")


def test_a_step_is_set_up_once_and_torn_down_once() -> None:
    seen = run(lambda pipeline: pipeline | beam.Create([1, 2]) | beam.ParDo(Lifecycle()))
    assert seen == ["setup", "start", 1, 2, "finish", "teardown"]


# --- Sources and stopping ---


def test_a_source_is_read_to_its_end_and_the_one_behind_comes_first() -> None:
    """One source's event time advances ten times as fast, so that source has to wait for the other."""

    def build(pipeline: beam.Pipeline) -> None:
        _ = counting(pipeline, ("slow", 50, 1), ("fast", 50, 10)) | beam.ParDo(See())

    seen = run(build)
    assert sorted(seen) == sorted((name, number) for name in ("slow", "fast") for number in range(50))
    behind = max((number * 10 if name == "fast" else number) for name, number in seen[: seen.index(("slow", 49))])
    assert behind <= 50 + 5 * 10


def test_sources_that_are_equally_far_are_read_in_one_bundle() -> None:
    def build(pipeline: beam.Pipeline) -> None:
        numbered = [(f"{number}", 20, 1) for number in range(4)]
        _ = counting(pipeline, *numbered) | "Bundles" >> beam.ParDo(Pairs()) | beam.ParDo(See())

    assert run(build) == [tuple(range(start, start + 5)) * 4 for start in (0, 5, 10, 15)]


class StopAt(beam.DoFn):
    def process(self, element: tuple[str, int]) -> None:
        if element[1] == 33:
            STOP.set()


def test_an_endless_source_is_stopped_and_what_is_held_is_released() -> None:
    def build(pipeline: beam.Pipeline) -> None:
        numbers = counting(pipeline, ("a", FOREVER, 1))
        _ = numbers | "Stop" >> beam.ParDo(StopAt())
        _ = numbers | "Hold" >> beam.ParDo(Hold(100)) | beam.ParDo(See())

    # The bundle that asks for the stop is completed: all its five elements are here.
    assert run(build) == [("a", number) for number in range(35)]


class Idle(beam.DoFn):
    """Emits nothing, and asks to be resumed after 0.2 seconds; the third time after an hour, while a stop comes."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Ranges()),
    ) -> Iterator[Any]:
        SEEN.append(time.monotonic())
        if len(SEEN) == 3:
            threading.Timer(0.2, STOP.set).start()
        tracker.defer_remainder(Duration(0.2 if len(SEEN) < 3 else 3600))
        yield from ()


def test_an_idle_source_is_not_asked_all_the_time_and_a_stop_does_not_wait_for_it() -> None:
    asked = run(lambda pipeline: pipeline | beam.Create([("a", FOREVER, 1)]) | beam.ParDo(Idle()))
    assert len(asked) == 3
    assert all(later - before >= 0.19 for before, later in pairwise(asked))


def test_input_without_a_source_is_over_at_once() -> None:
    assert run(lambda pipeline: pipeline | beam.Create([1]) | beam.ParDo(See())) == [1]


# --- State and timers ---


class Hold(beam.DoFn):
    """Holds each element for `delay` seconds."""

    HELD = BagStateSpec("held", VarIntCoder())
    NAME = ReadModifyWriteStateSpec("name", StrUtf8Coder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    def __init__(self, delay: int) -> None:
        self._delay = delay

    def process(
        self,
        element: tuple[str, int],
        at: Any = beam.DoFn.TimestampParam,
        held: Any = beam.DoFn.StateParam(HELD),
        name: Any = beam.DoFn.StateParam(NAME),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> None:
        assert name.read() in (None, element[0]), "a key has a state of its own"
        name.write(element[0])
        held.add(element[1])
        due.set(at + self._delay, dynamic_timer_tag=str(element[1]))

    @on_timer(DUE)
    def on_due(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        held: Any = beam.DoFn.StateParam(HELD),
    ) -> Iterator[Any]:
        rest = [number for number in held.read() if number != int(tag)]
        held.clear()
        for number in rest:
            held.add(number)
        yield key, int(tag)


def test_timers_fire_in_order_when_the_watermark_passes_them_and_not_before() -> None:
    def build(pipeline: beam.Pipeline) -> None:
        numbers = counting(pipeline, ("a", 40, 1), ("b", 40, 1))
        _ = numbers | "Arrive" >> beam.ParDo(See("in"))
        _ = numbers | "Hold" >> beam.ParDo(Hold(10)) | beam.ParDo(See("out"))

    seen = run(build)
    out = [(number, at) for kind, (_, number), at in seen if kind == "out"]
    assert sorted(number for number, _ in out) == sorted([*range(40)] * 2), "each is released once"
    due = [(number, at) for number, at in out if at < END]
    assert [at for _, at in due] == [number + 10 for number, _ in due], "at the time that its timer was set to"
    assert [number for number, _ in out] == sorted(number for number, _ in out), "in the order of these times"
    latest: dict[str, int] = {"a": 0, "b": 0}
    for kind, (name, number), at in seen:
        if kind == "in":
            latest[name] = number
        elif at < END:
            assert at <= min(latest.values()), "released before the watermark passed"
    assert [number for number, at in out if at == END] == sorted([*range(25, 40)] * 2), "the rest together, at the end"


class Again(beam.DoFn):
    """Sets timers repeatedly, and clears one of them."""

    TIMER = TimerSpec("timer", TimeDomain.WATERMARK)
    LAST = TimerSpec("last", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[str, int],
        timer: Any = beam.DoFn.TimerParam(TIMER),
        last: Any = beam.DoFn.TimerParam(LAST),
    ) -> None:
        timer.set(1000)
        timer.set(3)
        last.set(2)
        last.clear()
        last.set(100)

    @on_timer(TIMER)
    def on_time(self, at: Any = beam.DoFn.TimestampParam, timer: Any = beam.DoFn.TimerParam(TIMER)) -> None:
        SEEN.append(("timer", int(at.micros // 1_000_000)))
        if at < 9:
            timer.set(at + 3)

    @on_timer(LAST)
    def on_last(self, at: Any = beam.DoFn.TimestampParam) -> None:
        SEEN.append(("last", int(at.micros // 1_000_000)))


def test_a_timer_that_is_set_again_or_cleared_fires_as_it_was_set_last() -> None:
    def build(pipeline: beam.Pipeline) -> None:
        _ = counting(pipeline, ("a", 50, 1)) | beam.Filter(lambda pair: pair[1] == 0) | beam.ParDo(Again())

    assert run(build) == [("timer", 3), ("timer", 6), ("timer", 9), ("last", END)]


class Mutable(beam.DoFn):
    CELL = ReadModifyWriteStateSpec("cell", PickleCoder())

    def process(self, element: tuple[int, int], cell: Any = beam.DoFn.StateParam(CELL)) -> None:
        numbers = cell.read() or []
        numbers.append(element[1])
        cell.write(numbers)
        numbers.append("changed after it was written")
        SEEN.append(cell.read())


def test_state_is_kept_as_it_was_written() -> None:
    run(lambda pipeline: pipeline | beam.Create([(0, 1), (0, 2), (1, 3)]) | beam.ParDo(Mutable()))
    assert SEEN == [[1], [1, 2], [3]]


# --- Anonymize ---


@pytest.mark.parametrize("by", ["person", "locality"])
def test_anonymize_releases_rows_before_their_deadlines_while_the_stream_goes_on(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tree_following, tree_learning):
        monkeypatch.setattr(module, "CROWD", 2.0)  # so that 16 rows inside the deadline feed two shards
    monkeypatch.setattr(tree_following, "_SAMPLE", 64)
    policy = {
        "version": 1,
        "person": "who",
        "event_time": "at",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 99]}},
        "publish": ["number"],
        "k": 3,
        "delay": "16s",
        "shards": 2,
        "shard_by": by,
        "seed": 1,
    }

    def row(pair: tuple[str, int]) -> dict[str, Any]:
        return {"who": pair[1], "age": pair[1] % 7, "at": pair[1], "number": pair[1]}

    def build(pipeline: beam.Pipeline) -> None:
        numbers = counting(pipeline, ("a", FOREVER, 1))
        rows = numbers | "Rows" >> beam.Map(row).with_output_types(dict)
        _ = rows | "Arrive" >> beam.ParDo(See("in"))
        _ = rows | "Stop" >> beam.Map(lambda row: ("", row["number"] - 267)) | beam.ParDo(StopAt())
        result = rows | "Anonymize" >> Anonymize(policy)
        _ = result.published | "Published" >> beam.ParDo(See("out"))
        _ = result.counts | "Counts" >> beam.ParDo(See("counts"))
        _ = result.releases | "Releases" >> beam.ParDo(See("releases"))

    seen = run(build)
    arrived = 0
    for kind, element, _ in seen:
        if kind == "in":
            arrived = element["number"]
        elif kind == "out":
            # A bundle has five rows, and the watermark is the time of the last one.
            assert arrived <= element["number"] + 16 + 5, "a row left after its deadline"
    published = sorted(element["number"] for kind, element, _ in seen if kind == "out")
    counts = Counts.of(element for kind, element, _ in seen if kind == "counts")
    assert counts.rows == arrived + 1 == sum(counts.kinds) == 305
    assert len(published) == len(set(published)) == counts.kinds[Kind.CLUSTER] + counts.kinds[Kind.REUSE]
    assert len(published) > 295
    assert {element["shard"] for kind, element, _ in seen if kind == "releases"} == {0, 1}


# --- Errors ---


class Fails(beam.DoFn):
    def process(self, element: Any) -> None:
        raise ValueError(f"cannot stand {element}")

    def teardown(self) -> None:
        SEEN.append("torn down")
        raise OSError("and this, too")


def test_an_error_is_a_sentence_with_the_step_and_without_the_row(caplog: pytest.LogCaptureFixture) -> None:
    def build(pipeline: beam.Pipeline) -> None:
        _ = pipeline | beam.Create(["SECRET"]) | "Pass" >> beam.Map(str) | "Break" >> beam.ParDo(Fails())

    with pytest.raises(JobFailed, match=r"^the step Break failed \(ValueError\)\. Set CRENEL_DEBUG=1 to see") as raised:
        run(build)
    assert "SECRET" not in str(raised.value) + caplog.text
    assert raised.value.__cause__ is None
    assert SEEN == ["torn down"]


def test_an_error_is_shown_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRENEL_DEBUG", "1")
    with pytest.raises(JobFailed) as raised:
        run(lambda pipeline: pipeline | beam.Create([7]) | beam.ParDo(Fails()))
    assert str(raised.value.__cause__) == "cannot stand 7"


def test_a_step_may_tell_the_user_why_the_job_failed() -> None:
    def fail(_: Any) -> None:
        raise JobFailed("the broker is gone.")

    with pytest.raises(JobFailed, match=r"^the broker is gone\.$"):
        run(lambda pipeline: pipeline | beam.Create([7]) | beam.Map(fail))


# --- What is refused ---


class RealTime(beam.DoFn):
    TIMER = TimerSpec("timer", TimeDomain.REAL_TIME)

    def process(self, element: Any, timer: Any = beam.DoFn.TimerParam(TIMER)) -> None: ...

    @on_timer(TIMER)
    def on_time(self) -> None: ...


class Sums(beam.DoFn):
    SUM = CombiningValueStateSpec("sum", VarIntCoder(), sum)

    def process(self, element: Any, total: Any = beam.DoFn.StateParam(SUM)) -> None: ...


class Bytes(beam.DoFn):
    CELL = BagStateSpec("cell", BytesCoder())

    def process(self, element: Any, cell: Any = beam.DoFn.StateParam(CELL)) -> None: ...


class Finalizes(beam.DoFn):
    def process(self, element: Any, finalizer: Any = beam.DoFn.BundleFinalizerParam) -> None: ...


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (beam.GroupByKey(), "is a GroupByKey"),
        (beam.ParDo(RealTime()), "has timers of processing time"),
        (beam.ParDo(Sums()), "has state other than bags and single values"),
        (beam.ParDo(Finalizes()), "finalizes bundles"),
    ],
)
def test_a_primitive_that_is_not_executed_is_refused_by_name(step: Any, said: str) -> None:
    def build(pipeline: beam.Pipeline) -> None:
        pairs = pipeline | beam.Create([("a", 1)])
        _ = pairs | beam.ParDo(See())
        _ = pairs | "Mine" >> step

    with pytest.raises(RunnerError, match=f"the step Mine.* {said}, which crenel's runner for endless input does not"):
        run(build)
    assert SEEN == [], "nothing was read"


def test_side_inputs_and_windowed_state_are_refused() -> None:
    def with_side_input(pipeline: beam.Pipeline) -> None:
        other = pipeline | "Other" >> beam.Create([1])
        _ = pipeline | beam.Create([1]) | "Mine" >> beam.Map(print, beam.pvalue.AsList(other))

    with pytest.raises(RunnerError, match="the step Mine has a side input"):
        run(with_side_input)

    def with_windows(pipeline: beam.Pipeline) -> None:
        windows = pipeline | beam.Create([("a", 1)]) | beam.WindowInto(FixedWindows(60))
        _ = windows | "Mine" >> beam.ParDo(Bytes())

    with pytest.raises(RunnerError, match="the step Mine has state in windows other than the global one"):
        run(with_windows)
