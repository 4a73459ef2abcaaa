"""Methods that decide on all held rows at once: long streams, snapshots, and the rules of FAANST and Mondrian."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crenel.encoding.rows import Rows
from crenel.engine import Engine, Kind, Releases, SnapshotError, create_engine
from crenel.errors import PolicyError
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric
from crenel.testing.engine_checks import audited
from crenel.testing.engine_streams import Case, run
from tests.core.engine.test_engines import LONG, long_case

BUFFERED = ["mondrian", "adaptive-window", "faanst-passive", "faanst-proactive"]


def of(method: str, changes: dict[str, Any]) -> dict[str, Any] | None:
    """Add the parameters that the method needs to the changes. Return None if the method does not support them."""
    timed, counted = changes.get("delay", "") is not None, changes.get("delay_rows", 1) is not None
    if "t" in changes or (method == "adaptive-window" and not timed):
        return None
    parameters = {"mu": 100} if method.startswith("faanst") and not counted else None
    return {"method": method, "parameters": parameters, **changes}


STREAMS = [
    pytest.param(changes, id=f"{method}, {name}")
    for method in BUFFERED
    for name, asked in LONG.items()
    if (changes := of(method, asked)) is not None
]


@pytest.mark.parametrize("changes", STREAMS)
def test_long_stream(changes: dict[str, Any]):
    case = long_case(**changes)
    report = audited(case, run(case))
    assert report.ok, str(report)
    # Suppressing all rows would keep every promise, too. FAANST suppresses the rows of small clusters.
    assert report.published > (0.8 if "faanst" in changes["method"] else 0.95) * report.rows
    assert report.loss is not None
    assert report.loss < 0.4


@pytest.mark.parametrize("method", BUFFERED)
def test_state_does_not_grow_with_the_stream(method: str):
    case = long_case(6000, method=method, parameters={} if method == "mondrian" else {"max_reusable": 20}, l=2)
    engine = case.engine()
    sizes = []
    for start in range(0, 6000, 100):
        engine.push(case.rows.slice(start, start + 100))
        sizes.append(len(engine.snapshot()))
    assert max(sizes[30:]) < 1.5 * max(sizes[:30])


LAST, FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@pytest.mark.parametrize("method", BUFFERED)
@pytest.mark.parametrize("disorder", [0, "1d"])
@pytest.mark.parametrize("times", [[FIRST, 0, LAST], [LAST, LAST, FIRST], [FIRST] * 3, [LAST - 1, LAST, LAST]])
def test_times_at_the_limits_of_int64(method: str, times: list[int], disorder: object):
    policy = long_case(3, method=method, parameters=None, disorder=disorder, delay="1d", k=2).policy
    rows = Rows(
        qi=np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]),
        person=np.arange(3),
        sensitive=np.zeros((3, 1), np.int64),
        time=np.array(times, np.int64),
    )
    case = Case(policy=policy, rows=rows)
    engine = case.engine()
    report = audited(case, Releases.concat([engine.push(rows), engine.advance(int(LAST)), engine.flush()]))
    assert report.ok, str(report)


def test_one_by_one_is_the_same_as_all_at_once_of_many_rows():
    case = long_case(700, method="adaptive-window", parameters=None, delay_rows=None)
    np.testing.assert_array_equal(run(case, case.calls(cuts=range(700))).rows, run(case).rows)


@pytest.mark.parametrize("method", ["mondrian", "adaptive-window"])
def test_no_moment_of_release_reveals_an_arrival(method: str):
    """Every release by time happens at a tick, and no row arrived at a tick."""
    case = long_case(2000, method=method, parameters=None, delay_rows=None, disorder=0, delay="3200us")
    rows = replace(case.rows, time=np.cumsum(np.full(2000, 7)) * 200 + 1)
    case = replace(case, rows=rows)
    engine = case.engine()
    left = Releases.concat([engine.push(rows), engine.advance(int(rows.time[-1]) + 10_000)])
    assert len(left.rows) == 2000
    assert (left.moment % case.policy.tick == 0).all()


# --- Snapshots ---


@pytest.mark.parametrize("method", BUFFERED)
def test_a_snapshot_of_another_method_is_refused(method: str):
    taken = long_case(10, method=method, parameters=None).engine().snapshot()
    other = long_case(10, method=BUFFERED[BUFFERED.index(method) - 1], parameters=None).engine()
    with pytest.raises(SnapshotError, match=r"policy\.method has changed"):
        other.restore(taken)
    with pytest.raises(SnapshotError):
        long_case(10).engine().restore(taken)


def test_a_snapshot_of_other_columns_is_refused():
    taken = long_case(10, method="mondrian", parameters=None).engine().snapshot()
    other = long_case(
        10, method="mondrian", parameters=None, quasi_identifiers={"x": Numeric(domain=(0, 1)), "y": Numeric()}
    )
    with pytest.raises(SnapshotError, match=r"policy\.quasi_identifiers or policy\.sensitive has changed"):
        other.engine().restore(taken)


@pytest.mark.parametrize("changes", [{"k": 6}, {"l": 2}], ids=str)
def test_a_stronger_guarantee_forgets_what_was_published_under_the_weaker(changes: dict[str, Any]):
    case = long_case(1000, method="faanst-passive", parameters=None)
    engine = case.engine()
    engine.push(case.rows)
    again, stronger = case.engine(), long_case(1, method="faanst-passive", parameters=None, **changes).engine()
    again.restore(engine.snapshot())
    stronger.restore(engine.snapshot())
    assert again._numbers["reusable"][0] > 0
    assert stronger._numbers["reusable"][0] == 0
    assert stronger.held == engine.held


# --- Mondrian ---


def ages(*values: float, at: list[int] | None = None, person: int = 0) -> Rows:
    """Make rows of distinct persons, with these ages and these times in seconds."""
    n = len(values)
    return Rows(
        qi=np.array(values, np.float64)[:, None],
        person=np.arange(person, person + n),
        sensitive=np.zeros((n, 0), np.int64),
        time=np.array(at or [0] * n, np.int64) * 10**6,
    )


def engine(method: str, **changes: Any) -> Engine:
    said: dict[str, Any] = {"person": "p", "quasi_identifiers": {"age": Numeric(domain=(0, 100))}, "k": 2, "seed": 3}
    return create_engine(Policy(method=method, **said | changes))


def test_mondrian_waits_for_the_first_deadline_and_takes_all():
    held = engine("mondrian", delay="16s")
    assert len(held.push(ages(1, 2, 50, 51, at=[0, 3, 6, 9]))) == 0
    assert held.next_deadline() == 16 * 10**6
    assert [sorted(release.rows.tolist()) for release in held.advance(16 * 10**6)] == [[0, 1], [2, 3]]


def test_mondrian_suppresses_only_what_is_due():
    held = engine("mondrian", delay="16s", k=3)
    held.push(ages(1, 2, at=[0, 8]))
    (alone,) = held.advance(16 * 10**6)
    assert (alone.kind, alone.rows.tolist()) == (Kind.SUPPRESSED, [0])
    held.push(ages(3, 4, at=[17, 18], person=2))
    (group,) = held.advance(24 * 10**6)
    assert sorted(group.rows.tolist()) == [1, 2, 3]


def test_mondrian_releases_when_delay_rows_are_held():
    held = engine("mondrian", delay_rows=4)
    assert len(held.push(ages(1, 2, 50))) == 0
    assert len(held.push(ages(51, 7, person=3))) == 2
    assert held.held == 1
    assert [release.kind for release in held.flush()] == [Kind.SUPPRESSED]


def test_rows_of_a_single_person_are_suppressed_one_by_one():
    held = engine("mondrian", delay_rows=4)
    same = ages(*range(10))
    same.person[:] = 1
    left = [row for release in held.push(same) for row in release.rows.tolist()]
    assert left == list(range(6))
    assert held.held == 4


# --- FAANST ---


def faanst(kind: str, **parameters: Any) -> Engine:
    given = {"mu": 6, "clusters": 2, "max_loss": 0.2, **parameters}
    return engine(f"faanst-{kind}", k=3, delay="16s", parameters=given)


def test_faanst_publishes_good_clusters_and_recycles_the_rest():
    held = faanst("passive")
    # There are two clusters: ages 1 to 4, and the ages 60 and 90, which are too few.
    assert len(held.push(ages(1, 2, 3, 60, 90))) == 0
    (group,) = held.push(ages(4, at=[1], person=5))
    assert (group.kind, sorted(group.rows.tolist())) == (Kind.CLUSTER, [0, 1, 2, 5])
    assert held.held == 2
    # Four more rows arrive. Only age 2 lies where a group was published.
    left = list(held.push(ages(2, 65, 70, 95, at=[2, 2, 2, 2], person=6)))
    assert [(r.kind, sorted(r.rows.tolist())) for r in left if r.kind is Kind.REUSE] == [(Kind.REUSE, [6])]


def test_passive_faanst_lets_a_lossy_cluster_expire_and_the_proactive_one_publishes_it():
    rows = ages(0, 40, 100, 1, 41, 99, at=[0, 0, 0, 10, 10, 10])
    passive, proactive = faanst("passive", clusters=1), faanst("proactive", clusters=1)
    assert len(passive.push(rows)) == 0
    # The buffer took 10 s to fill. If it takes 10 s again, the first three rows expire before it is full.
    (group,) = proactive.push(rows)
    assert group.rows.size == 6
    assert [release.kind for release in passive.advance(16 * 10**6)] == [Kind.SUPPRESSED] * 3


def test_faanst_clusters_again_when_k_more_rows_have_arrived():
    held = faanst("passive", clusters=1)
    held.push(ages(0, 20, 40, 60, 80, 100))
    rounds = held._last_arrivals
    held.push(ages(1, 2, person=6))
    assert held._last_arrivals == rounds == 6
    held.push(ages(3, person=8))
    assert held._last_arrivals == 9


WRONG = {
    "no buffer": ({"delay": "1s"}, "parameters.mu must be given if delay_rows is not"),
    "a buffer below k": ({"delay": "1s", "parameters": {"mu": 2}}, r"parameters.mu must be at least k \(3\)"),
    "a buffer that is never full": ({"delay_rows": 5, "parameters": {"mu": 6}}, r"mu must be at most delay_rows \(5\)"),
    "a loss": ({"delay_rows": 5, "parameters": {"max_loss": 1.5}}, "max_loss must be a number above 0 and at most 1"),
    "t": ({"delay_rows": 5, "t": 0.2, "sensitive": ["s"]}, "policy.t is not kept by the method 'faanst-passive'"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_settings_that_faanst_does_not_support_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(PolicyError, match=message):
        engine("faanst-passive", k=3, **changes)


def test_mondrian_does_not_promise_t():
    with pytest.raises(PolicyError, match=r"policy.t is not kept by the method 'mondrian'"):
        engine("mondrian", delay_rows=5, t=0.2, sensitive=["s"])
