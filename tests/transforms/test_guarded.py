"""The transform with methods that sample and perturb: sampled-out rows appear nowhere, and retries repeat the draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing import test_pipeline as pipelines
from apache_beam.testing.util import assert_that

from crenel.policy import Policy
from crenel.transforms import Anonymize
from tests.transforms.cells import END, State, Worker, forget, packs, published, rolled_back, tagged
from tests.transforms.streams import policy, rows

METHODS: dict[str, dict[str, Any]] = {
    "castleguard": {"parameters": {"beta_sample": 0.6, "phi": 10.0}},
    "sdgs": {
        "parameters": {"beta_sample": 0.6, "grid": {"age": 2, "zipcode": 0}, "cover": "quasi_identifiers"},
        "delay": "1h",
    },
}
GIVEN = rows(400)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture(params=METHODS)
def guarded(request: pytest.FixtureRequest) -> Policy:
    return policy(method=request.param, on_suppress="drop", **METHODS[request.param])


def through(of: Policy, *, failing: bool) -> list[Any]:
    state, worker, out = State(), Worker(of), []
    for number, pack in enumerate(packs(of, GIVEN, 25)):
        if failing:  # the first attempt is not committed, and every other retry runs in another process
            before = rolled_back(state)
            worker.push(state, pack)
            state = before
            if number % 2:
                forget()
        out += worker.push(state, pack)
    return out + worker.fire(state, at=END)


def test_a_retry_publishes_the_same_noise_again(guarded: Policy):
    """An attacker could average two noisy values of one row to come closer to the truth."""
    once, again = through(guarded, failing=False), through(guarded, failing=True)
    assert published(once) == published(again)
    assert len(published(once)) > 100


def test_sampled_out_rows_appear_nowhere(guarded: Policy):
    out = through(guarded, failing=False)
    releases = tagged(out, "releases")
    left_out = sum(release["rows"] for release in releases if release["kind"] == "sampled_out")
    shown = [row["number"] for row in published(out)]
    hidden = [row["number"] for row in tagged(out, "suppressed")]
    assert 100 < left_out < 220
    assert len(shown) + len(hidden) + left_out == len(GIVEN)
    assert len(set(shown) | set(hidden)) == len(shown) + len(hidden)


def test_in_a_pipeline(guarded: Policy):
    def judge(found: list[dict[str, Any]]) -> None:
        assert 100 < len(found) < 300
        assert all(set(row) == {"age", "zipcode", "education", "disease", "number"} for row in found)

    pipeline = pipelines.TestPipeline()
    result = pipeline | beam.Create(GIVEN) | Anonymize(guarded)
    assert_that(result.published, judge)
    done = pipeline.run()
    done.wait_until_finish()
    counts = {
        c.key.metric.name: c.committed for c in done.metrics().query()["counters"] if c.key.metric.namespace == "crenel"
    }
    assert counts["sampled_out"] > 100
    assert counts["published"] + counts.get("suppressed", 0) + counts["sampled_out"] == counts["rows"] == len(GIVEN)
