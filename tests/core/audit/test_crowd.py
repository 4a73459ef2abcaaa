"""Attackers who know times, or group members, or only the output: a crowd withstands them, and rows alone do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from crenel.audit import Published, audit
from crenel.audit.attacks import Observation, ends, observer, outermost, posterior
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases, create_engine
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric
from crenel.testing.engine_streams import run
from tests.core.audit.streams import CROWD, observed, policy, published, stream
from tests.core.engine.cases import bastion_cases

EASILY = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
ONE = {"x": Numeric(domain=(0, 100))}


def line(values: list[float], persons: list[int] | None = None, time: list[int] | None = None) -> Rows:
    n = len(values)
    return Rows(
        np.array(values, np.float64)[:, None],
        np.arange(n) if persons is None else np.array(persons, np.int64),
        np.zeros((n, 1), np.int64),
        np.zeros(n, np.int64) if time is None else np.array(time, np.int64),
    )


def thin(n: int = 1_500) -> Rows:
    """Make about one row every ten seconds: on average twelve within a delay of two minutes."""
    gaps = np.random.default_rng(3).exponential(10.0, n)
    return replace(stream(n), time=np.cumsum(gaps * 1e6).astype(np.int64))


def timed(method: str, **changes: Any) -> Policy:
    return policy(method, **{"delay": "2m", "delay_rows": None, "k": 10} | changes)


# -- the observer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_an_attacker_who_knows_the_time_finds_rows_that_leave_alone(method: str):
    of, rows = timed(method), thin()
    weak = observer(of, rows, published(of, rows), most=500)
    assert weak.missed == 0
    assert weak.above > weak.targets / 10
    assert weak.linked > weak.targets / 20
    assert weak.highest == 1.0
    # The better the attacker knows the moment, the fewer rows are possible.
    better = observer(of, rows, published(of, rows), most=500, known=0.0)
    assert better.mean > weak.mean
    assert better.missed == 0


@pytest.mark.parametrize("known", [0.0, 0.1, 1.0])
def test_a_crowd_leaves_the_observer_one_in_k(known: float):
    for of, rows in ((timed("bastion", **CROWD), thin()), (policy("bastion", **CROWD), stream())):
        found = observer(of, rows, published(of, rows), most=500, known=known)
        assert (found.above, found.linked, found.missed) == (0, 0, 0)
        assert 0 < found.highest <= 1 / of.k


def test_stars_are_found_without_reuse():
    """Reuse is not the only problem: a star also leaves alone at its time."""
    of, rows = timed("bastion", parameters={"reuse": "off"}, on_suppress="star"), thin()
    found = observer(of, rows, published(of, rows), most=500)
    assert found.above > found.targets / 10


def test_the_observer_by_hand():
    of = policy("bastion", k=2, quasi_identifiers=ONE, delay_rows=4)
    rows = line([1.0, 2.0, 3.0, 9.0, 9.5, 2.5, 8.0, 7.0, 6.0, 5.0])
    out = Published(
        rows=[0, 1, 2, 3, 4, 5],
        offsets=[0, 2, 3, 5, 6],
        lo=[[1.0], [1.0], [9.0], [1.0]],
        hi=[[2.0], [3.0], [9.5], [3.0]],
        kind=[Kind.CLUSTER, Kind.REUSE, Kind.CLUSTER, Kind.REUSE],
        arrivals=[5, 7, 8, 10],
    )
    exact = observer(of, rows, out, known=0.0)
    # 1 and 2 left together, and so did 9 and 9.5: each is one of two. 3 and 2.5 left alone at their deadlines.
    assert (exact.targets, exact.linked, exact.above, exact.missed) == (6, 2, 2, 0)
    assert exact.mean == pytest.approx((4 * 0.5 + 2 * 1.0) / 6)
    # Without any knowledge of the time, 2 may be any of four rows, and 3 either of the two that left alone.
    nothing = observer(of, rows, out, known=5.0)
    assert nothing.mean == pytest.approx((1 / 4 + 1 / 4 + 1 / 2 + 1 / 2 + 1 / 2 + 1 / 2) / 6, abs=0.1)
    assert nothing.linked == 0
    assert observer(of, rows, replace(out, arrivals=None)) is None


# -- an attacker who knows all but the values --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_rows_that_leave_alone_have_a_best_guess_above_one_in_k(method: str):
    of, rows = policy(method), stream(1_400, seed=2)
    releases = published(of, rows)
    found = posterior(of, rows, releases)
    assert found.targets == 1_400
    # Not every reused row is counted: rows that leave at one moment hide each other.
    assert 10 < found.reused <= np.count_nonzero(releases.kind == Kind.REUSE)
    assert found.above == found.reused + found.stars
    assert found.highest == 1.0


def test_under_a_crowd_no_guess_is_above_one_in_k():
    for of, rows in ((timed("bastion", **CROWD), thin()), (policy("bastion", **CROWD), stream(1_400))):
        found = posterior(of, rows, published(of, rows))
        assert found.targets > len(rows) // 2
        assert (found.above, found.kept) == (0, True)
        assert found.highest <= 1 / of.k


@EASILY
@given(case=bastion_cases())
def test_only_rows_without_a_crowd_are_above_one_in_k(case):
    """No row that left in a crowd is above 1/k, and the audit counts every row that is."""
    releases = run(case)
    found = posterior(case.policy, case.rows, releases)
    assert found.above <= audit(case.policy, case.rows, releases, calls=[]).no_crowd


def test_the_posterior_by_hand():
    of = policy("bastion", k=3, quasi_identifiers=ONE)
    rows = line([1.0, 2.0, 3.0, 1.5, 1.6, 9.0, 50.0, 60.0, 2.0, 3.0, 1.0], [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9])
    out = Published(
        rows=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        offsets=[0, 3, 4, 5, 6, 7, 8, 11],
        lo=[[1.0], [1.0], [1.0], [1.0], [0.0], [0.0], [1.0]],
        hi=[[3.0], [3.0], [3.0], [9.0], [100.0], [100.0], [3.0]],
        kind=[Kind.CLUSTER, Kind.REUSE, Kind.REUSE, Kind.REUSE, Kind.SUPPRESSED, Kind.SUPPRESSED, Kind.CLUSTER],
        arrivals=[5, 6, 6, 6, 7, 7, 8],
    )
    found = posterior(of, rows, out)
    # 1/3 each. Of the three that left alone at once, two lie in the first box, and all in the last. Two stars at once.
    # In a release of two persons, one has two of the three rows.
    expected = [1 / 3] * 3 + [1 / 2, 1 / 2, 1 / 3] + [1 / 2, 1 / 2] + [2 / 3] * 3
    assert found.mean == pytest.approx(np.mean(expected))
    assert (found.reused, found.stars, found.together, found.above) == (2, 2, 3, 7)
    dropped = posterior(replace(of, on_suppress="drop"), rows, out)
    assert (dropped.targets, dropped.stars) == (9, 0)


# -- the outermost member --------------------------------------------------------------------------------------------


def nearest_and_a_new_value(n: int = 60, k: int = 10) -> tuple[Policy, Rows, Published]:
    """A weak publisher: the k rows nearest to one, and then the nearest with a new value."""
    random = np.random.default_rng(4)
    of = policy("bastion", k=k, l=2)
    qi, values, rows, offsets = [], [], [], [0]
    for group in range(n):
        places = random.uniform(0, 100, (200, 2))
        near = places[np.argsort(np.abs(places - places[0]).sum(axis=1))]
        qi += [*near[:k], near[k + random.integers(0, 20)]]
        values += [0] * k + [1]
        rows += (random.permutation(k + 1) + group * (k + 1)).tolist()
        offsets.append(len(rows))
    made = Rows(np.array(qi), np.arange(len(qi)), np.array(values)[:, None], np.zeros(len(qi), np.int64))
    inside = [made.qi[rows[a:b]] for a, b in pairwise(offsets)]
    out = Published(
        rows=rows,
        offsets=offsets,
        lo=[one.min(axis=0) for one in inside],
        hi=[one.max(axis=0) for one in inside],
        kind=np.zeros(n),
    )
    return of, made, out


def test_the_outermost_member_has_the_unique_value():
    of, rows, out = nearest_and_a_new_value()
    found = outermost(of, rows, out)
    assert found.targets == found.larger == 60
    assert found.expected == pytest.approx(60 / 11)
    assert found.ratio == found.larger_ratio > 7
    assert "times as often as by chance" in str(found)


def test_the_outermost_member_is_anyone_if_values_do_not_decide():
    """The groups are the same, but anyone may have the unique value: 5.5 of 60 guesses are right by chance."""
    of, rows, out = nearest_and_a_new_value(300)
    sensitive = np.zeros((len(rows), 1), np.int64)
    sensitive[np.arange(300) * 11 + np.random.default_rng(1).integers(0, 11, 300)] = 1
    found = outermost(of, replace(rows, sensitive=sensitive), out)
    assert found.targets == 300
    # 27 are expected, with a standard deviation of 5: this allows three of them.
    assert found.ratio < 1.6


def test_the_outermost_by_hand():
    of = policy("bastion", k=3, quasi_identifiers=ONE)
    values = np.array([0, 0, 0, 1, 0, 1, 0, 0, 2, 2, 1, 0])
    rows = replace(line([1.0, 2.0, 3.0, 9.0, 5.0, 5.1, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0]), sensitive=values[:, None])
    out = Published(
        rows=np.arange(12),
        offsets=[0, 4, 7, 11, 12],
        lo=[[1.0], [5.0], [1.0], [0.0]],
        hi=[[9.0], [8.0], [4.0], [100.0]],
        kind=[Kind.CLUSTER, Kind.CLUSTER, Kind.CLUSTER, Kind.SUPPRESSED],
    )
    found = outermost(of, rows, out)
    # 9 has the unique value. In the second group 8 is guessed, but 5.1 has it. The third has two unique values.
    assert (found.targets, found.right, found.larger, found.larger_right) == (2, 1, 1, 1)
    assert found.expected == pytest.approx(1 / 4 + 1 / 3)
    assert outermost(replace(of, sensitive={}), rows, out) is None


# -- the ends of ranges ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["castle", "bastion", "mondrian"])
def test_values_of_one_person_are_published_as_ends(method: str):
    of, rows = policy(method), stream()
    found = ends(of, observed(of, rows), rows)
    assert found.targets == 800
    assert found.claims == found.right == sum(found.of.values()) > 100
    noisy = policy("castleguard")
    assert ends(noisy, observed(noisy, rows), rows).claims == 0


def test_ends_by_hand():
    of = policy("bastion", k=2, quasi_identifiers=ONE)
    rows = line([1.0, 2.0, 2.0, 5.0, 100.0, 7.0], [0, 1, 2, 3, 4, 4])
    out = Published(
        rows=np.arange(6),
        offsets=[0, 3, 6],
        lo=[[1.0], [5.0]],
        hi=[[2.0], [100.0]],
        kind=[Kind.CLUSTER, Kind.CLUSTER],
        arrivals=[3, 6],
    )
    found = ends(of, Observation.of(of, rows, out), rows)
    # 1, 5, 7 and 100 belong to one person each, 2 to two. 100 ends the domain, which reveals nothing; 7 ends no box.
    assert (found.targets, found.claims, found.right, found.of) == (4, 2, 2, {"x": 2})


def rare_values(n: int = 200_000) -> Rows:
    """Make rows of which one in 20, anywhere, has the rare value: more than half of all groups of 10 lack it."""
    random = np.random.default_rng(8)
    qi = random.normal(50, 15, (n, 3)).clip(0, 100)
    return Rows(qi, np.arange(n), (random.random((n, 1)) < 0.05).astype(np.int64), np.zeros(n, np.int64))


def test_bastion_adds_no_row_for_its_value():
    """The unique value is found no more often than by chance. Methods that add rows for their values reveal it."""
    three = {name: Numeric(domain=(0, 100)) for name in "xyz"}
    rows, found = rare_values(), {}
    for method, said in (("bastion", CROWD), ("castle", {"parameters": {"reuse": "off"}})):
        of = policy(method, quasi_identifiers=three, k=10, l=2, delay_rows=500, **said)
        engine = create_engine(of)
        found[method] = outermost(of, rows, Releases.concat([engine.push(rows), engine.flush()]))
    ours = found["bastion"]
    assert ours.larger > 4_000
    # More than 150 are right by chance, with a standard deviation of at most 8%.
    assert ours.larger_expected > 150
    assert ours.ratio < 1.2 and ours.larger_ratio < 1.2
    assert found["castle"].larger_ratio > 2
