"""Bounded rows: the same results under the same names, in whatever order the rows arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.testing.test_stream import TestStream as Stream
from apache_beam.transforms.window import FixedWindows, Sessions, SlidingWindows

from crenel.encoding.encoder import Encoder
from crenel.policy.secret import Secret
from crenel.transforms import Anonymize, AnonymizeBounded
from crenel.transforms._pack.arrow_tables import concat, unified
from tests.transforms.streams import Outcome, Stamped, as_dict, as_dicts, check, policy, rows, run


def shuffled(given: Sequence[Any], seed: int = 3) -> list[Any]:
    mixed = list(given)
    random.Random(seed).shuffle(mixed)
    return mixed


def values(outcome: Outcome) -> list[Any]:
    return [(as_dict(left.value), left.timestamp) for left in outcome.published]


def batches(given: Sequence[dict[str, Any]], size: int) -> list[pa.RecordBatch]:
    parts = [given[start : start + size] for start in range(0, len(given), size)]
    return [pa.RecordBatch.from_pylist(list(part)) for part in parts]


def test_every_promise_is_kept() -> None:
    of, given = policy(), rows(400)
    outcome = run(shuffled(given), AnonymizeBounded(of))
    check(of, given, outcome.published, outcome.suppressed)
    assert outcome.counter("rows") == 400
    assert outcome.counter("published") + outcome.counter("suppressed") == 400
    assert sum(left.value["rows"] for left in outcome.releases) == 400


def test_rows_in_order_leave_as_from_anonymize() -> None:
    of, given = policy(delay=None, delay_rows=50), rows(300)
    stateful, bounded = run(given, Anonymize(of)), run(shuffled(given), AnonymizeBounded(of))
    assert [row for row, _ in values(bounded)] == [row for row, _ in values(stateful)]
    assert [left.value for left in bounded.releases] == [left.value for left in stateful.releases]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_input_does_not_matter(seed: int) -> None:
    of, given = policy(shards=3), rows(300, every=0.0)  # all with one event time
    known = sorted(map(repr, values(run(given, AnonymizeBounded(of)))))
    assert sorted(map(repr, values(run(shuffled(given, seed), AnonymizeBounded(of))))) == known


def test_twins_are_told_apart_by_what_leaves_as_it_is() -> None:
    of = policy(k=2, delay=None, delay_rows=4)
    given = [{**row, "patient": i % 3, "number": i} for i, row in enumerate(rows(1) * 60)]
    known = values(run(given, AnonymizeBounded(of)))
    assert values(run(shuffled(given), AnonymizeBounded(of))) == known
    texts = [{**row, "number": f"{row['number']}.0"} for row in given]
    found = values(run(shuffled(texts), AnonymizeBounded(of)))
    assert [float(row["number"]) for row, _ in found] == [row["number"] for row, _ in known]


def test_twins_that_differ_in_how_a_number_is_written_come_in_one_order() -> None:
    of = policy(k=2, delay=None, delay_rows=4)
    texts = ["1.5", "1.50", "", None, "one"]
    given = [{**row, "patient": i % 3, "number": texts[i % 5]} for i, row in enumerate(rows(1) * 60)]
    known = values(run(given, AnonymizeBounded(of)))
    assert values(run(shuffled(given), AnonymizeBounded(of))) == known


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_arrow_batches_of_any_size(size: int) -> None:
    of, given = policy(), rows(200)
    known = [row for row, _ in values(run(given, AnonymizeBounded(of)))]
    outcome = run(shuffled(batches(given, size)), AnonymizeBounded(of))
    assert [row for left in outcome.published for row in left.value.to_pylist()] == known


def test_rows_of_several_forms_are_one_stream() -> None:
    of, given = policy(), rows(200)
    mixed = shuffled([*given[:100], *(beam.Row(**row) for row in given[100:150]), *batches(given[150:], 9)])
    outcome = run(mixed, AnonymizeBounded(of))
    found = [
        number
        for left in outcome.published
        for number in (
            left.value["number"].to_pylist()
            if isinstance(left.value, pa.RecordBatch)
            else [as_dict(left.value)["number"]]
        )
    ]
    assert sorted(found) == list(range(200))
    whole = run(given, AnonymizeBounded(of))
    for one in (outcome, whole):
        assert sum(record["rows"] for record in as_dicts(one.releases)) == 200


@pytest.mark.parametrize("window", [FixedWindows(600), SlidingWindows(600, 300)])
def test_a_window_is_a_stream_of_its_own(window: Any) -> None:
    of, given = policy(), rows(200)
    outcome = run(Stamped(given), AnonymizeBounded(of, overlapping_windows=True), window=window)
    assert len({left.window for left in outcome.published}) > 3
    for one in {left.window for left in outcome.published}:
        inside = [row for row in given if one.start <= row["seen"] < one.end]
        check(
            of,
            inside,
            [left for left in outcome.published if left.window == one],
            [left for left in outcome.suppressed if left.window == one],
        )


def test_beams_timestamps_are_event_times() -> None:
    of, given = policy(event_time=None), rows(200)
    known = values(run(Stamped(given), AnonymizeBounded(of)))
    assert values(run(Stamped(shuffled(given)), AnonymizeBounded(of))) == known


def test_rejected_and_empty() -> None:
    of, given = policy(), rows(50)
    given[7]["age"] = 1000
    outcome = run(given, AnonymizeBounded(of))
    (rejected,) = outcome.rejected
    assert (rejected.value["field"], rejected.value["reason"]) == ("age", "outside the domain")
    assert run([], AnonymizeBounded(of)).published == []


def test_what_is_no_bounded_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="AnonymizeBounded: the rows must be bounded"):
        _ = beam.Pipeline(runner="FnApiRunner") | Stream().advance_watermark_to_infinity() | AnonymizeBounded(policy())
    with pytest.raises(ValueError, match="windows must not merge"):
        _ = (
            beam.Pipeline(runner="FnApiRunner")
            | beam.Create([{}])
            | beam.WindowInto(Sessions(10))
            | AnonymizeBounded(policy())
        )


@pytest.mark.not_on_prism("it does no bundle twice")
def test_bundles_that_are_replayed_leave_once() -> None:
    of, given = policy(), rows(100)
    outcome = run(given, AnonymizeBounded(of), options={"direct_runner_bundle_repeat": 1})
    check(of, given, outcome.published, outcome.suppressed)


def test_the_order_is_that_of_time_then_person() -> None:
    of = policy(k=2, delay=None, delay_rows=2, parameters={"reuse": "off"})
    given = [{**row, "patient": i, "seen": float(i // 10)} for i, row in enumerate(rows(40))]
    encoded = (
        Encoder(of, secret=Secret.of(of).root).encode({name: [row[name] for row in given] for name in given[0]}).rows
    )
    order = np.lexsort([encoded.person, encoded.time])
    known = run([given[i] for i in order.tolist()], Anonymize(of))
    found = run(shuffled(given), AnonymizeBounded(of))
    assert [row for row, _ in values(found)] == [row for row, _ in values(known)]


def test_types_that_differ_meet() -> None:
    tables = [
        pa.table({"a": [1, 2]}),
        pa.table({"a": [1.5], "b": ["x"]}),
        pa.table({"b": pa.array(["y"]).dictionary_encode()}),
    ]
    assert concat(tables).to_pylist() == [
        {"a": 1.0, "b": None},
        {"a": 2.0, "b": None},
        {"a": 1.5, "b": "x"},
        {"a": None, "b": "y"},
    ]
    mixed = [pa.table({"a": [1]}), pa.table({"a": ["one"]}), pa.table({"a": [{"n": 1}]})]
    assert unified([table.schema for table in mixed]).field("a").type == pa.string()
    assert concat(mixed)["a"].to_pylist() == ["1", "one", "{'n': 1}"]
