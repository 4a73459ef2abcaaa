"""All attacks at once, as the audit reports them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.audit.attacks import AttackResult, Observation, run_all
from crenel.audit.evidence import Published
from crenel.testing.engine_streams import Case, run
from tests.core.audit.streams import CROWD, clouds, observed, policy, published, stream
from tests.core.engine.test_engines import BUFFERED, METHODS


def by_name(found: list[AttackResult]) -> dict[str, AttackResult]:
    return {one.name: one for one in found}


@pytest.mark.parametrize("method", [*METHODS, *BUFFERED], ids=lambda method: method.name)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_no_promise_is_broken(method, data: st.DataObject):
    case: Case = data.draw(method.cases, label="case")
    releases = run(case)
    for one in run_all(case.policy, case.rows, Observation.of(case.policy, case.rows, releases), releases):
        assert one.state != "broken", one.text
        assert one.right <= one.claims <= one.targets
        json.dumps(one.as_dict(), allow_nan=False)


def test_all_attacks_run_on_a_known_stream():
    of, rows = policy("bastion", l=2, on_suppress="drop"), stream()
    releases = published(of, rows)
    found = by_name(run_all(of, rows, Observation.of(of, rows, releases), releases))
    assert {name: one.state for name, one in found.items()} == {
        "posterior": "information",
        "observer": "information",
        "linkage": "kept",
        "homogeneity:s": "kept",
        "outermost:s": "information",
        "boundary": "information",
        "ends": "information",
        "intersection": "kept",
        "order": "kept",
        "shrinking": "information",
    }
    assert found["linkage"].bound == 0.2
    assert "odds between two persons" in found["shrinking"].text
    assert found["posterior"].success == 1.0


def test_a_crowd_is_promised_against_an_attacker_who_knows_times():
    of, rows = policy("bastion", **CROWD), stream()
    releases = published(of, rows)
    found = by_name(run_all(of, rows, Observation.of(of, rows, releases), releases))
    for name in ("posterior", "observer"):
        assert (found[name].state, found[name].bound) == ("kept", 0.2)
        assert 0 < found[name].success <= 0.2
    # The same promise for a stream in which rows leave alone.
    weak = published(policy("bastion", on_suppress="drop"), rows)
    broken = by_name(run_all(of, rows, Observation.of(of, rows, weak), weak))
    assert (broken["posterior"].state, broken["posterior"].success) == ("broken", 1.0)


@pytest.mark.parametrize("method", ["bastion", "castle"])
def test_losses_need_not_be_reported(method: str):
    of, rows = policy(method), stream()
    releases = published(of, rows)
    untold = replace(Published.of(releases), loss=None)
    with_it, without = (
        by_name(run_all(of, rows, observed(of, rows), told))["shrinking"] for told in (releases, untold)
    )
    assert with_it == without
    assert with_it.targets > 0


def test_few_attacks_run_without_the_true_rows():
    of, rows = policy("bastion"), stream()
    blind = replace(observed(of, rows), rows=np.full(len(rows), -1))
    assert list(by_name(run_all(of, rows, blind))) == ["linkage", "homogeneity:s"]


def test_weak_streams_are_broken():
    of, rows = policy("bastion", k=5, l=2, on_suppress="drop"), clouds()
    # The groups are smaller than promised.
    careless = policy("bastion", k=2, on_suppress="drop")
    what = observed(careless, rows)
    found = by_name(run_all(of, rows, what, most=10**6))
    assert {name for name, one in found.items() if one.state == "broken"} == {"linkage", "homogeneity:s"}
    assert found["linkage"].success > found["linkage"].bound
    twice = what.then(observed(policy("castle", 7, k=2, on_suppress="drop"), rows))
    assert by_name(run_all(of, rows, twice))["intersection"].state == "broken"
    in_order = replace(what, rows=np.sort(what.rows))
    assert by_name(run_all(of, rows, in_order))["order"].state == "broken"


def test_an_empty_stream():
    of, rows = policy("bastion"), stream(0)
    assert [one.targets for one in run_all(of, rows, observed(of, rows), published(of, rows))] == [0, 0]
