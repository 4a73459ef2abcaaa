"""Attacks that find a row's person: by who is inside its box, and by who is inside several boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.audit.attacks import Chances, Observation, intersection, linkage
from crenel.encoding.rows import Rows
from crenel.engine import Kind
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric
from crenel.testing.engine_streams import Case, run
from tests.core.audit.streams import N, observation, observed, policy, published, stream
from tests.core.engine.test_engines import BUFFERED, METHODS

#: One method of each kind. Methods that perturb are left out: their boxes say nothing true about anyone's values.
TRIED = {
    method.name: method.cases
    for method in [*METHODS, *BUFFERED]
    if method.name in {"castle", "bastion", "castle in order", "sdgs", "partition", "mondrian with l", "rtree"}
    or method.name.startswith(("adaptive", "faanst-proactive"))
}
ONE = {"x": Numeric(domain=(0, 100))}


def line(values: list[float], persons: list[int] | None = None) -> Rows:
    n = len(values)
    return Rows(
        np.array(values, np.float64)[:, None],
        np.arange(n) if persons is None else np.array(persons, np.int64),
        np.zeros((n, 1), np.int64),
        np.zeros(n, np.int64),
    )


def small(k: int, **changes: object) -> Policy:
    return policy("castle", k=k, quasi_identifiers=ONE, **changes)


def in_groups(rows: Rows, size: int) -> Observation:
    """A weak publisher: groups of `size` neighbouring rows, whatever k is."""
    ordered = np.argsort(rows.qi[:, 0], kind="stable")
    groups = np.array_split(ordered, len(ordered) // size)
    lo = np.concatenate([np.repeat(rows.qi[group].min(0)[None], len(group), 0) for group in groups])
    hi = np.concatenate([np.repeat(rows.qi[group].max(0)[None], len(group), 0) for group in groups])
    return Observation(
        lo=lo,
        hi=hi,
        sensitive=rows.sensitive[ordered],
        star=np.zeros(len(rows), np.bool_),
        left=np.full(len(rows), len(rows)),
        rows=ordered,
        release=np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
    )


# -- linkage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TRIED)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_nobody_is_linked_with_probability_above_one_in_k(method: str, data: st.DataObject):
    case: Case = data.draw(TRIED[method], label="case")
    outcome = linkage(case.policy, Observation.of(case.policy, case.rows, run(case)), case.rows)
    assert outcome.kept
    assert outcome.highest <= 1 / case.policy.k + 1e-12


def test_a_weak_stream_links_some_with_a_higher_probability():
    rows = line([float(i) for i in range(20)])
    weak = linkage(small(5), in_groups(rows, 4), rows)
    assert (weak.targets, weak.highest, weak.mean, weak.above) == (20, 0.25, 0.25, 20)
    assert not weak.kept
    assert linkage(small(5), in_groups(rows, 5), rows).kept


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_a_stream_of_one_row_each(method: str):
    """Even an attacker who knows who is in a group links a row with probability 1/(rows of the group), at most 1/k."""
    of, rows = policy(method, on_suppress="drop"), stream()
    outcome = linkage(of, observed(of, rows), rows)
    out = published(of, rows)
    lo, hi = out.lo[out.kind != Kind.SUPPRESSED], out.hi[out.kind != Kind.SUPPRESSED]
    inside = sum(bool(np.any(np.all((lo <= row) & (row <= hi), axis=1))) for row in rows.qi)
    assert inside > N - 5
    assert (outcome.targets, outcome.bound, outcome.above) == (inside, 0.2, 0)
    assert 0 < outcome.mean <= outcome.highest <= outcome.told <= 0.2


def test_linkage_by_hand():
    # Person 1 has two rows. The row at 9 is in no group.
    rows = line([1.0, 2.0, 3.0, 9.0, 3.0], [0, 1, 2, 3, 1])
    boxes = observation([[1.0], [1.0], [2.0], [2.0]], [[2.0], [2.0], [3.0], [3.0]], [0, 0, 0, 0])
    outcome = linkage(small(2), boxes, rows)
    # Each box contains two persons: 0 and 1, and 1 and 2.
    assert (outcome.targets, outcome.highest, outcome.mean, outcome.above) == (3, 0.5, 0.5, 0)
    assert (outcome.only_stars, outcome.among_stars) == (1, 0.0)
    assert linkage(small(3), boxes, rows).above == 3
    assert "above 0.333" in str(linkage(small(3), boxes, rows))


def test_the_told_probability_counts_rows():
    """Nothing is promised against an attacker who knows that most of a group's rows belong to one person."""
    rows = line([1.0, 1.0, 1.0, 2.0], [0, 0, 0, 1])
    boxes = observation([[1.0]] * 4, [[2.0]] * 4, [0, 0, 0, 0])
    outcome = linkage(small(2), boxes, rows)
    assert (outcome.highest, outcome.told) == (0.5, 0.75)


def test_a_star_hides_only_among_stars():
    """A person inside no box is among the suppressed rows, for which nothing is promised."""
    rows = line([1.0, 2.0, 9.0])
    boxes = observation([[1.0], [1.0], [0.0]], [[2.0], [2.0], [100.0]], [0, 0, 0], [False, False, True])
    outcome = linkage(small(2), boxes, rows)
    assert (outcome.only_stars, outcome.among_stars) == (1, 1.0)
    assert outcome.highest == 0.5


def test_a_sample_of_the_boxes():
    of, rows = policy("bastion"), stream()
    what = observed(of, rows)
    every, some = linkage(of, what, rows), linkage(of, what, rows, most=10, seed=3)
    assert 0 < some.targets < every.targets
    assert some.highest <= every.highest
    assert (some.only_stars, some.among_stars) == (None, None)
    assert linkage(of, what, rows, most=10**6) == every


def test_linkage_does_not_need_the_true_rows():
    of, rows = policy("bastion"), stream()
    what = observed(of, rows)
    blind = Observation(
        lo=what.lo,
        hi=what.hi,
        sensitive=what.sensitive,
        star=what.star,
        left=what.left,
        rows=np.full(len(what), -1),
        release=what.release,
    )
    known, unknown = linkage(of, what, rows), linkage(of, blind, rows)
    assert unknown.told is None
    assert (unknown.highest, unknown.mean) == (known.highest, known.mean)


def test_an_empty_stream():
    rows = line([])
    outcome = linkage(small(2), observation(np.zeros((0, 1)), np.zeros((0, 1)), []), rows)
    assert (outcome.targets, outcome.highest, outcome.told) == (0, 0.0, None)


# -- intersection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TRIED)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_there_is_nothing_to_intersect(method: str, data: st.DataObject):
    """Each row is published once, and a replay publishes it again unchanged."""
    case: Case = data.draw(TRIED[method], label="case")
    once = Observation.of(case.policy, case.rows, run(case))
    assert intersection(case.policy, once, case.rows).targets == 0
    again = Observation.of(case.policy, case.rows, run(case, case.calls(cuts=[])))
    assert intersection(case.policy, once.then(again), case.rows).targets == 0


@pytest.mark.parametrize(
    ("method", "changes"), [("castle", {}), ("bastion", {"parameters": {"reuse": "weighted", "lonely": 1.0}})]
)
def test_a_stream_that_is_published_twice(method: str, changes: dict[str, Any]):
    """A replay with another seed, or with other parameters if few draws matter, reveals rows: hence promise 6."""
    rows = stream()
    one = observed(policy(method, 1, on_suppress="drop"), rows)
    other = observed(policy(method, 2, on_suppress="drop", **changes), rows)
    twice = intersection(policy(method), one.then(other), rows)
    assert twice.targets > 20
    assert twice.highest == 1.0
    assert not twice.kept


def test_intersection_by_hand():
    rows = line([1.0, 2.0, 3.0, 4.0])
    once = observation([[1.0], [1.0], [3.0], [3.0]], [[2.0], [2.0], [4.0], [4.0]], [0] * 4)
    twice = observation([[1.0], [2.0], [2.0], [1.0]], [[4.0], [3.0], [3.0], [4.0]], [0] * 4)
    assert intersection(small(2), once, rows).targets == 0
    # 1 and 4 stay one of two; 2 is the only one in both 1..2 and 2..3, and likewise 3.
    assert intersection(small(2), once.then(twice), rows) == Chances(
        attack="intersection", targets=4, highest=1.0, mean=0.75, bound=0.5, above=2
    )


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_rows_known_to_belong_to_one_person(method: str):
    """This cannot be avoided: each box has k persons, but only one person is in all of them."""
    random = np.random.default_rng(3)
    person = random.integers(0, 80, N)
    rows = Rows(random.uniform(1, 99, (80, 2))[person], person, random.integers(0, 4, (N, 1)), np.zeros(N, np.int64))
    of = policy(method, on_suppress="drop")
    what = observed(of, rows)
    assert linkage(of, what, rows).kept
    known = intersection(of, what, rows, of_person=True)
    assert known.bound is None
    assert known.targets > 40
    assert known.highest > 1 / of.k
    assert known.mean < 1.0
    # An attacker who does not know that the rows belong to one person attacks one row at a time.
    assert intersection(of, what, rows).targets == 0


def test_a_person_with_distant_rows():
    """Anyone with a row in each of the boxes may be the person, wherever the boxes lie."""
    rows = line([1.0, 9.0, 1.5, 8.0, 2.0, 3.0], [0, 0, 1, 1, 2, 3])
    boxes = observation([[1.0], [8.0], [1.0], [8.0], [1.0]], [[2.0], [9.0], [2.0], [9.0], [2.0]], [0] * 5)
    outcome = intersection(small(2), boxes, rows, of_person=True)
    assert (outcome.targets, outcome.highest) == (2, 0.5)
