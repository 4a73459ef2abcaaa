"""FADS: its steps on a few rows, and all of it against the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.audit import audit
from crenel.audit.attacks import posterior
from crenel.encoding.rows import Rows
from crenel.engine import Engine, Kind, Releases, create_engine
from crenel.errors import PolicyError
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric
from crenel.testing.engine_streams import Case, run
from tests.core.engine.cases import cases, fads_parameters
from tests.core.engine.methods.fads.fads_oracle import FadsOracle


def policy(**changes: Any) -> Policy:
    said: dict[str, Any] = {
        "person": "p",
        "quasi_identifiers": {"age": Numeric(domain=(0, 100))},
        "k": 3,
        "delay_rows": 5,
        "method": "fads",
        "parameters": {"reuse": "best"},
        "seed": 1,
    }
    return Policy(**said | changes)


def ages(*values: float, person: int = 0) -> Rows:
    count = len(values)
    none = np.zeros((count, 0), np.int64)
    return Rows(np.array(values, np.float64)[:, None], np.arange(person, person + count), none, np.arange(count))


def released(engine: Engine, *values: float, person: int) -> list[tuple[Kind, list[int], float, float]]:
    return [
        (r.kind, sorted(r.rows.tolist()), float(r.lo[0]), float(r.hi[0]))
        for r in engine.push(ages(*values, person=person))
    ]


def test_the_oldest_row_leaves_with_its_nearest_neighbours():
    engine = create_engine(policy())
    assert released(engine, 50, 10, 52, 90, 47, person=0) == []
    # 50 has seen five arrivals after it: 47 and 52 are nearest. 10 and 90 wait.
    assert released(engine, 11, person=5) == [(Kind.CLUSTER, [0, 2, 4], 47.0, 52.0)]
    assert engine.held == 3


#: The first three leave as [50, 52]; then those near 10, and those near 90. 51 is due when 80 comes.
LATER = (50, 51, 52, 10, 90, 10, 51, 91, 9, 89, 20, 80)


def test_a_row_leaves_alone_under_a_box_that_loses_less_than_its_neighbours():
    engine = create_engine(policy(parameters={"reuse": "best", "reuse_for": 100}))
    assert released(engine, *LATER, person=0) == [
        (Kind.CLUSTER, [0, 1, 2], 50.0, 52.0),
        (Kind.CLUSTER, [3, 5, 8], 9.0, 10.0),
        (Kind.CLUSTER, [4, 7, 9], 89.0, 91.0),
        (Kind.REUSE, [6], 50.0, 52.0),
    ]
    *_, last = released(create_engine(policy(parameters={"reuse": "off"})), *LATER, person=0)
    assert last == (Kind.CLUSTER, [6, 10, 11], 20.0, 80.0)


def test_a_group_that_loses_as_little_as_the_box_is_published():
    engine = create_engine(policy(parameters={"reuse": "best", "reuse_for": 100}))
    released(engine, *LATER[:6], person=0)
    left = released(engine, 51, 91, 9, 89, 50, 52, person=6)
    assert left[-1] == (Kind.CLUSTER, [6, 10, 11], 50.0, 52.0)


@pytest.mark.parametrize(("reuse_for", "kind"), [(7, Kind.REUSE), (6, Kind.CLUSTER)])
def test_a_box_is_used_again_only_for_a_time(reuse_for: int, kind: Kind):
    """[50, 52] was published when 6 rows had arrived, and 51 is due when there are 12."""
    engine = create_engine(policy(parameters={"reuse": "best", "reuse_for": reuse_for}))
    assert released(engine, *LATER, person=0)[-1][0] is kind


def test_the_papers_buffer_is_always_full_and_holds_rows_for_longer():
    """With a buffer of 5 rows, the oldest leaves when there are 5, however many rows came meanwhile."""
    engine = create_engine(policy(delay_rows=1000, parameters={"reuse": "best", "buffer": 5}))
    assert len(released(engine, 50, 10, 52, 90, 47, person=0)) == 1
    assert engine.held == 2
    assert released(engine, 11, 91, person=5) == []
    assert len(released(engine, 12, person=7)) == 1


def test_each_person_is_in_a_group_once():
    engine = create_engine(policy())
    rows = ages(50, 50, 50, 10, 90, 20)
    rows.person[:3] = 7
    (group,) = engine.push(rows)
    assert sorted(group.rows.tolist()) == [0, 3, 5]


WRONG = {
    "l": ({"l": 2, "sensitive": ["s"]}, "policy.l is not kept by the method 'fads'"),
    "a buffer below k": ({"parameters": {"buffer": 2}}, r"parameters.buffer must be at least k \(3\)"),
    "a buffer that is never full": ({"parameters": {"buffer": 6}}, r"buffer must be at most delay_rows \(5\)"),
    "a duration": ({"parameters": {"reuse_for": "5s"}}, "reuse_for must be a number of rows where policy.delay"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_contradictions_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(PolicyError, match=message):
        policy(**changes)


def test_without_reuse_every_release_is_a_crowd():
    """The attacker who knows everything but the secret names no row better than 1/k; with reuse, many for certain."""
    random = np.random.default_rng(4)
    count = 400
    values = np.round(random.choice([20.0, 70.0], count) + random.normal(0, 6, count)).clip(0, 100)
    rows = Rows(values[:, None], random.integers(0, 150, count), np.zeros((count, 0), np.int64), np.arange(count))
    for reuse, crowd in (("off", True), ("best", False)):
        chosen = policy(delay_rows=20, parameters={"reuse": reuse, "reuse_for": 400})
        assert chosen.crowd is crowd
        engine = create_engine(chosen)
        releases = Releases.concat([engine.push(rows), engine.flush()])
        report = audit(chosen, rows, releases)
        assert report.ok, str(report)
        told = posterior(chosen, rows, releases)
        assert told is not None
        if crowd:
            assert told.above == report.no_crowd == 0
            assert told.highest <= 1 / 3
        else:
            assert told.above > 0.1 * count
            assert told.highest == 1.0


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=cases(method="fads", parameters=fads_parameters()), buffer=st.none() | st.integers(0, 9))
def test_releases_are_those_of_the_oracle(case: Case, buffer: int | None):
    if buffer is not None:
        size = min(case.policy.k + buffer, case.policy.delay_rows or 10**6)
        parameters = replace(case.policy.parameters, buffer=size)
        case = replace(case, policy=replace(case.policy, parameters=parameters))
    releases, expected = list(run(case)), FadsOracle(case).run()
    found = [(int(r.kind), tuple(sorted(r.rows.tolist())), r.moment, r.arrivals, r.persons, r.group) for r in releases]
    assert found == [(one.kind, one.rows, one.moment, one.arrivals, one.persons, one.group) for one in expected]
    for release, one in zip(releases, expected, strict=True):
        assert release.loss == pytest.approx(one.loss)
        if release.kind is not Kind.SUPPRESSED:
            assert list(zip(release.lo.tolist(), release.hi.tolist(), strict=True)) == one.box
