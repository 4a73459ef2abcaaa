# ruff: noqa: B008 - Beam declares state and timers as defaults
"""Several steps with state in one pipeline, on Beam's local runner: every row is accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder
from apache_beam.metrics import MetricsFilter
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow

from crenel.transforms import Anonymize
from tests.transforms.streams import anonymize, policy, rows
from tests.transforms.test_anonymize import labels

GIVEN = rows(1000)
WAITED = "waited"


class Wait(beam.DoFn):
    """A step of a user's own: keeps everything until the end of its window, and counts what it emits."""

    KEPT = BagStateSpec("kept", PickleCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def setup(self) -> None:
        self._counter = beam.metrics.Metrics.counter("crenel", WAITED)

    def process(
        self, element: Any, kept: Any = beam.DoFn.StateParam(KEPT), end: Any = beam.DoFn.TimerParam(END)
    ) -> None:
        kept.add(element[1])
        end.set(GlobalWindow().max_timestamp())

    @on_timer(END)
    def on_end(self, kept: Any = beam.DoFn.StateParam(KEPT)) -> Iterator[Any]:
        found = list(kept.read())
        kept.clear()
        self._counter.inc(len(found))
        yield from found


class WaitForDeadline(Wait):
    """The same with a timer that others may call so, too."""

    END = TimerSpec("deadline", TimeDomain.WATERMARK)

    def process(
        self, element: Any, kept: Any = beam.DoFn.StateParam(Wait.KEPT), end: Any = beam.DoFn.TimerParam(END)
    ) -> None:
        super().process(element, kept, end)

    @on_timer(END)
    def on_end(self, kept: Any = beam.DoFn.StateParam(Wait.KEPT)) -> Iterator[Any]:
        return super().on_end(kept)


def keyed(collection: Any, label: str, step: beam.DoFn) -> Any:
    keys = collection | f"{label} keys" >> beam.Map(lambda row: (0, row)).with_output_types(tuple[int, Any])
    return keys | label >> beam.ParDo(step)


def counted(pipeline: beam.Pipeline) -> dict[str, Counter[str]]:
    """Run the pipeline; return what each step counted, by its first word."""
    result = pipeline.run()
    result.wait_until_finish()
    found: dict[str, Counter[str]] = {}
    for metric in result.metrics().query(MetricsFilter().with_namespace("crenel"))["counters"]:
        step = metric.key.step.split("/")[0]
        found.setdefault(step, Counter())[metric.key.metric.name] += metric.committed
    return found


def released(counts: Counter[str]) -> int:
    return counts["published"] + counts["suppressed"]


@pytest.fixture(params=["FnApiRunner", "DirectRunner"])
def pipeline(request: pytest.FixtureRequest) -> beam.Pipeline:
    return beam.Pipeline(runner=request.param)


def test_two_of_one_source(pipeline: beam.Pipeline) -> None:
    given = pipeline | beam.Create(GIVEN)
    for name in ("A", "B", "C"):
        _ = given | name >> anonymize(shards=3)
    counts = counted(pipeline)
    assert [released(counts[name]) for name in ("A", "B", "C")] == [1000] * 3


def test_two_of_one_source_release_what_one_does() -> None:
    alone, beside = beam.Pipeline(runner="FnApiRunner"), beam.Pipeline(runner="FnApiRunner")
    _ = alone | beam.Create(GIVEN) | "B" >> anonymize()
    given = beside | beam.Create(GIVEN)
    _ = given | "A" >> anonymize()
    _ = given | "B" >> anonymize()
    assert counted(beside)["B"] == counted(alone)["B"]


def test_one_after_the_other(pipeline: beam.Pipeline) -> None:
    first = pipeline | beam.Create(GIVEN) | "A" >> anonymize(publish=["number", "nickname"])
    again = first | beam.Map(lambda row: {**row, "age": 50.0, "zipcode": "12345", "education": "master"})
    later = policy(person="nickname", event_time=None, delay=None, delay_rows=200)
    _ = again | "B" >> Anonymize(later)
    counts = counted(pipeline)
    assert [released(counts[name]) for name in ("A", "B")] == [1000, 1000]
    assert counts["B"]["rejected"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("step", [Wait, WaitForDeadline])
def test_after_a_step_with_state(pipeline: beam.Pipeline, step: type[Wait]) -> None:
    given = keyed(pipeline | beam.Create(GIVEN), "Waiting", step())
    _ = given | "A" >> anonymize()
    counts = counted(pipeline)
    assert (counts["Waiting"][WAITED], released(counts["A"])) == (1000, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("step", [Wait, WaitForDeadline])
@pytest.mark.parametrize("first", [True, False])
def test_beside_a_step_with_state(pipeline: beam.Pipeline, step: type[Wait], first: bool) -> None:
    given = pipeline | beam.Create(GIVEN)
    if first:
        _ = given | "A" >> anonymize()
    _ = keyed(given, "Waiting", step())
    if not first:
        _ = given | "A" >> anonymize()
    counts = counted(pipeline)
    assert (counts["Waiting"][WAITED], released(counts["A"])) == (1000, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("step", [Wait, WaitForDeadline])
def test_before_a_step_with_state(pipeline: beam.Pipeline, step: type[Wait]) -> None:
    out = pipeline | beam.Create(GIVEN) | "A" >> anonymize()
    _ = keyed(out.published, "Waiting", step())
    counts = counted(pipeline)
    assert released(counts["A"]) == 1000
    assert counts["Waiting"][WAITED] == 1000  # also the suppressed ones, which leave as stars


def test_packs_are_kept_apart_only_where_they_must_be() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | beam.Create(GIVEN[:1])
    _ = given | "A" >> anonymize()
    _ = given | "B" >> anonymize()
    apart = [label for label in labels(pipeline) if label.endswith("/Apart")]
    assert apart == ["B/Apart"]
