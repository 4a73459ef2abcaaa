"""Whose row is this: by who is inside the box, and by who is inside several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.audit.attacks import Chances, Seen, intersection, linkage
from crenel.encoding.rows import Rows
from crenel.engine import Kind
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric
from crenel.testing.engine_streams import Case, run
from tests.core.audit.streams import N, policy, published, seen, stream, view
from tests.core.engine.test_engines import BUFFERED, METHODS

#: For each kind of method one; what perturbs does not say the truth of anybody's values.
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


def in_groups(rows: Rows, size: int) -> Seen:
    """A weak publisher: rows next to each other, so many at a time, whatever k is."""
    ordered = np.argsort(rows.qi[:, 0], kind="stable")
    groups = np.array_split(ordered, len(ordered) // size)
    lo = np.concatenate([np.repeat(rows.qi[group].min(0)[None], len(group), 0) for group in groups])
    hi = np.concatenate([np.repeat(rows.qi[group].max(0)[None], len(group), 0) for group in groups])
    return Seen(
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
def test_nobody_is_linked_with_more_than_one_in_k(method: str, data: st.DataObject):
    case: Case = data.draw(TRIED[method], label="case")
    outcome = linkage(case.policy, Seen.of(case.policy, case.rows, run(case)), case.rows)
    assert outcome.kept
    assert outcome.highest <= 1 / case.policy.k + 1e-12


def test_a_weak_stream_links_some_with_more():
    rows = line([float(i) for i in range(20)])
    weak = linkage(small(5), in_groups(rows, 4), rows)
    assert (weak.targets, weak.highest, weak.mean, weak.above) == (20, 0.25, 0.25, 20)
    assert not weak.kept
    assert linkage(small(5), in_groups(rows, 5), rows).kept


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_a_stream_of_one_row_each(method: str):
    """Told who is in a group, the attacker has one over its rows, and no more than 1/k even then."""
    of, rows = policy(method, on_suppress="drop"), stream()
    outcome = linkage(of, seen(of, rows), rows)
    out = published(of, rows)
    lo, hi = out.lo[out.kind != Kind.SUPPRESSED], out.hi[out.kind != Kind.SUPPRESSED]
    inside = sum(bool(np.any(np.all((lo <= row) & (row <= hi), axis=1))) for row in rows.qi)
    assert inside > N - 5
    assert (outcome.targets, outcome.bound, outcome.above) == (inside, 0.2, 0)
    assert 0 < outcome.mean <= outcome.highest <= outcome.told <= 0.2


def test_linkage_by_hand():
    # Of the persons, 1 has two rows; 9 is of nobody's group.
    rows = line([1.0, 2.0, 3.0, 9.0, 3.0], [0, 1, 2, 3, 1])
    boxes = view([[1.0], [1.0], [2.0], [2.0]], [[2.0], [2.0], [3.0], [3.0]], [0, 0, 0, 0])
    outcome = linkage(small(2), boxes, rows)
    # Two are inside each of the boxes: persons 0 and 1, and 1 and 2.
    assert (outcome.targets, outcome.highest, outcome.mean, outcome.above) == (3, 0.5, 0.5, 0)
    assert (outcome.only_stars, outcome.among_stars) == (1, 0.0)
    assert linkage(small(3), boxes, rows).above == 3
    assert "above 0.333" in str(linkage(small(3), boxes, rows))


def test_what_is_told_counts_rows():
    """Nothing is promised of one who knows that most of a group's rows are of one person."""
    rows = line([1.0, 1.0, 1.0, 2.0], [0, 0, 0, 1])
    boxes = view([[1.0]] * 4, [[2.0]] * 4, [0, 0, 0, 0])
    outcome = linkage(small(2), boxes, rows)
    assert (outcome.highest, outcome.told) == (0.5, 0.75)


def test_a_star_hides_among_stars_alone():
    """Who is inside no box is one of the suppressed: of these nothing is promised."""
    rows = line([1.0, 2.0, 9.0])
    boxes = view([[1.0], [1.0], [0.0]], [[2.0], [2.0], [100.0]], [0, 0, 0], [False, False, True])
    outcome = linkage(small(2), boxes, rows)
    assert (outcome.only_stars, outcome.among_stars) == (1, 1.0)
    assert outcome.highest == 0.5


def test_some_boxes_only():
    of, rows = policy("bastion"), stream()
    what = seen(of, rows)
    every, some = linkage(of, what, rows), linkage(of, what, rows, most=10, seed=3)
    assert 0 < some.targets < every.targets
    assert some.highest <= every.highest
    assert (some.only_stars, some.among_stars) == (None, None)
    assert linkage(of, what, rows, most=10**6) == every


def test_nobody_need_know_whose_rows_they_are():
    of, rows = policy("bastion"), stream()
    what = seen(of, rows)
    blind = Seen(
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
    outcome = linkage(small(2), view(np.zeros((0, 1)), np.zeros((0, 1)), []), rows)
    assert (outcome.targets, outcome.highest, outcome.told) == (0, 0.0, None)


# -- intersection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TRIED)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_there_is_nothing_to_intersect(method: str, data: st.DataObject):
    """Each row is published once; and a replay publishes it again as it was."""
    case: Case = data.draw(TRIED[method], label="case")
    once = Seen.of(case.policy, case.rows, run(case))
    assert intersection(case.policy, once, case.rows).targets == 0
    again = Seen.of(case.policy, case.rows, run(case, case.calls(cuts=[])))
    assert intersection(case.policy, once.then(again), case.rows).targets == 0


@pytest.mark.parametrize(
    ("method", "changes"), [("castle", {}), ("bastion", {"parameters": {"reuse": "weighted", "lonely": 1.0}})]
)
def test_a_stream_that_is_published_twice(method: str, changes: dict[str, Any]):
    """What a replay by another seed would tell, or, where few draws matter, other parameters: why promise 6 is one."""
    rows = stream()
    one = seen(policy(method, 1, on_suppress="drop"), rows)
    other = seen(policy(method, 2, on_suppress="drop", **changes), rows)
    twice = intersection(policy(method), one.then(other), rows)
    assert twice.targets > 20
    assert twice.highest == 1.0
    assert not twice.kept


def test_intersection_by_hand():
    rows = line([1.0, 2.0, 3.0, 4.0])
    once = view([[1.0], [1.0], [3.0], [3.0]], [[2.0], [2.0], [4.0], [4.0]], [0] * 4)
    twice = view([[1.0], [2.0], [2.0], [1.0]], [[4.0], [3.0], [3.0], [4.0]], [0] * 4)
    assert intersection(small(2), once, rows).targets == 0
    # 1 and 4: as before one of two; 2 is the only one in 1..2 and 2..3, and 3 likewise.
    assert intersection(small(2), once.then(twice), rows) == Chances(
        attack="intersection", targets=4, highest=1.0, mean=0.75, bound=0.5, above=2
    )


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_rows_of_one_person_that_are_known_to_be(method: str):
    """Inherent: each box has k persons, and all of them together only one, if rows can be told to be of one person."""
    random = np.random.default_rng(3)
    person = random.integers(0, 80, N)
    rows = Rows(random.uniform(1, 99, (80, 2))[person], person, random.integers(0, 4, (N, 1)), np.zeros(N, np.int64))
    of = policy(method, on_suppress="drop")
    what = seen(of, rows)
    assert linkage(of, what, rows).kept
    known = intersection(of, what, rows, of_person=True)
    assert known.bound is None
    assert known.targets > 40
    assert known.highest > 1 / of.k
    assert known.mean < 1.0
    # Not knowing it, he has one row at a time.
    assert intersection(of, what, rows).targets == 0


def test_a_person_with_rows_apart():
    """Whoever has a row in each of the boxes may be the one, wherever these are."""
    rows = line([1.0, 9.0, 1.5, 8.0, 2.0, 3.0], [0, 0, 1, 1, 2, 3])
    boxes = view([[1.0], [8.0], [1.0], [8.0], [1.0]], [[2.0], [9.0], [2.0], [9.0], [2.0]], [0] * 5)
    outcome = intersection(small(2), boxes, rows, of_person=True)
    assert (outcome.targets, outcome.highest) == (2, 0.5)
