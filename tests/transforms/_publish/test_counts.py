"""Counts of published, suppressed and rejected rows do not depend on bundles, shards and workers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Timestamp

from crenel.transforms import Anonymize, AnonymizeBounded, Counts
from tests.transforms.streams import Outcome, Stamped, policy, rows, run

GIVEN = rows(300)
HOLE = "missing (missing: category takes it)"


def total(out: Outcome) -> Counts:
    return Counts.of(json.loads(json.dumps([left.value for left in out.counts])))


@pytest.mark.parametrize("transform", [Anonymize, AnonymizeBounded])
@pytest.mark.parametrize("shards", [1, 3])
def test_counts_agree_with_the_outputs(transform: Any, shards: int) -> None:
    broken = [GIVEN[0] | {"age": "old"}, GIVEN[1] | {"age": "old"}, GIVEN[2] | {"zipcode": None}]
    out = run([*GIVEN, *broken], transform(policy(shards=shards, on_suppress="drop")))
    counts = total(out)
    assert counts.rows == len(GIVEN) + 3
    assert dict(counts.rejected) == {("age", "not a number"): 2, ("zipcode", HOLE): 1}
    cluster, reuse, suppressed, sampled_out, left_out = counts.kinds
    assert (cluster + reuse, suppressed) == (len(out.published), len(out.suppressed))
    assert (sampled_out, left_out) == (0, 0)
    assert counts.releases == len(out.releases)
    assert counts.loss == pytest.approx(sum(left.value["loss"] * left.value["rows"] for left in out.releases))
    assert counts.held == out.distribution("held_rows").max
    assert counts.alone == out.counter("alone")
    assert counts.delay.count == len(GIVEN)


def test_a_record_lies_in_its_window() -> None:
    out = run(Stamped(GIVEN), AnonymizeBounded(policy()), window=FixedWindows(1_000))
    assert {left.window for left in out.counts} == {left.window for left in out.published}
    # Beam rounds timestamps to milliseconds between two stages.
    assert all(left.timestamp // 1000 == left.window.max_timestamp().micros // 1000 for left in out.counts)
    assert total(out).rows == len(GIVEN)


@pytest.mark.parametrize("transform", [Anonymize, AnonymizeBounded])
def test_moments_are_event_times_or_those_of_beam_or_unknown(transform: Any) -> None:
    by_column = run(GIVEN, transform(policy()))
    by_beam = run(Stamped(GIVEN), transform(policy(event_time=None)))
    ends = [{Timestamp(row["seen"]) for row in (GIVEN[0], GIVEN[-1])}] * 2
    for out, (first, last) in zip((by_column, by_beam), map(sorted, ends), strict=True):
        moments = [left.value["moment"] for left in out.releases]
        assert all(first <= moment <= last + 600 for moment in moments)
        assert len(set(moments)) > 10
    timeless = run(GIVEN, transform(policy(event_time=None, delay=None, delay_rows=50)))
    assert {left.value["moment"] for left in timeless.releases} == {None}
