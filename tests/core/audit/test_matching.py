"""The bounds from the input alone hold under every matching, including the one that made the output."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.audit import matching
from crenel.audit.matching import Candidates


@st.composite
def published(draw: st.DrawFn) -> dict[str, Any]:
    """Draw rows in random groups, each under the box of its rows. Some rows lack a coordinate that the group hides."""
    count = draw(st.integers(1, 30))
    cell = st.integers(0, 5)
    qi = np.array(draw(st.lists(st.tuples(cell, cell), min_size=count, max_size=count)), dtype=float)
    holes = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    qi[holes, 1] = np.nan
    numbers = st.lists(st.integers(0, 3), min_size=count, max_size=count)
    person, kind = (np.array(draw(numbers), dtype=np.int64) for _ in range(2))
    group = np.unique(np.array(draw(numbers)), return_inverse=True)[1]
    lo, hi = (np.array([end(qi[group == g], axis=0) for g in range(group.max() + 1)]) for end in (np.min, np.max))
    return {"qi": qi, "person": person, "kind": kind, "group": group, "lo": lo, "hi": hi}


def found(given: dict[str, Any], **changed: Any) -> matching.Bounds:
    known = given | changed
    return matching.bounds(
        Candidates(known["qi"]),
        person=known["person"],
        kind=known["kind"],
        lo=known["lo"],
        hi=known["hi"],
        box=known["group"],
        published=changed.get("published", known["kind"]),
        **({"cost": changed["cost"]} if "cost" in changed else {}),
    )


@given(published(), st.sampled_from([0, 20, 10**9]))
def test_the_bounds_enclose_the_true_number_of_persons(given: dict[str, Any], cost: int) -> None:
    bounds = found(given, cost=cost)
    for group in range(len(given["lo"])):
        persons = len(set(given["person"][given["group"] == group]))
        assert 1 <= bounds.least[group] <= persons <= bounds.most[group]
    assert not bounds.excess.any()


@given(published())
def test_the_bounds_hold_under_all_assignments(given: dict[str, Any]) -> None:
    """No assignment of candidates has fewer or more persons, and the bounds are as tight as one group allows."""
    bounds = found(given)
    group = 0
    mine = np.flatnonzero(given["group"] == group)
    if len(mine) > 4:
        return
    lo, hi = given["lo"][group], given["hi"][group]
    inside = [
        row
        for row, point in enumerate(given["qi"])
        if all(np.isnan(a) or a <= x <= b for a, x, b in zip(lo, point, hi, strict=True))
    ]
    wanted = sorted(given["kind"][mine].tolist())
    counts = [
        len({int(given["person"][row]) for row in rows})
        for rows in itertools.combinations(inside, len(mine))
        if sorted(given["kind"][list(rows)].tolist()) == wanted
    ]
    assert bounds.least[group] <= min(counts)
    assert bounds.most[group] >= max(counts)


@given(published(), st.sampled_from([0, 20, 10**9]))
def test_the_bounds_are_exact_if_each_person_has_one_row(given: dict[str, Any], cost: int) -> None:
    bounds = found(given, person=np.arange(len(given["qi"])), cost=cost)
    sizes = np.bincount(given["group"])
    assert bounds.least.tolist() == bounds.most.tolist() == sizes.tolist()


@given(published(), st.integers(0, 29), st.sampled_from([0, 10**9]))
def test_a_row_of_an_unknown_class_is_in_excess(given: dict[str, Any], place: int, cost: int) -> None:
    left = given["kind"].copy()
    left[place % len(left)] = 9
    bounds = found(given, published=left, cost=cost)
    assert bounds.excess.sum() == bounds.excess[given["group"][place % len(left)]] == 1


@given(published())
def test_an_index_finds_what_a_loop_finds(given: dict[str, Any]) -> None:
    for filled in (False, True):
        candidates = Candidates(given["qi"], filled=filled)
        for lo, hi in zip(given["lo"], given["hi"], strict=True):
            rows = sorted(candidates.order[candidates.within(lo, hi)].tolist())
            assert rows == [
                row
                for row, point in enumerate(given["qi"])
                if all(
                    np.isnan(a) or a <= x <= b or (filled and np.isnan(x))
                    for a, x, b in zip(lo, point, hi, strict=True)
                )
            ]


def test_an_index_of_many_rows() -> None:
    rng = np.random.default_rng(3)
    qi = np.column_stack([rng.integers(0, 50, 5_000), rng.exponential(1.0, 5_000)])
    qi[rng.random(5_000) < 0.1, 1] = np.nan
    candidates = Candidates(qi)
    for _ in range(50):
        lo = np.array([rng.integers(0, 50), rng.exponential(1.0)])
        hi = lo + np.array([5, 0.5])
        inside = np.flatnonzero(np.all((lo <= qi) & (qi <= hi), axis=1))
        assert sorted(candidates.order[candidates.within(lo, hi)].tolist()) == inside.tolist()


def test_an_empty_index_finds_no_rows() -> None:
    none = Candidates(np.zeros((0, 2)))
    assert none.within(np.zeros(2), np.ones(2)).tolist() == []


def test_a_person_counts_for_at_most_the_published_rows_of_a_class() -> None:
    # Person 0 has nine rows of class 0, two of which left. The two others are of class 1, which person 0 lacks.
    bounds = matching.bounds(
        Candidates(np.zeros((12, 1))),
        person=np.array([0] * 9 + [1, 2, 3]),
        kind=np.array([0] * 9 + [1, 1, 1]),
        lo=np.zeros((1, 1)),
        hi=np.zeros((1, 1)),
        box=np.zeros(4, np.int64),
        published=np.array([0, 0, 1, 1]),
    )
    assert (bounds.least.tolist(), bounds.most.tolist()) == ([3], [4])


def test_anyone_may_be_in_any_group_of_perturbed_rows() -> None:
    bounds = matching.bounds_of_perturbed(np.array([1, 1, 1, 2, 3]), np.array([1, 3, 4, 5, 6]))
    assert bounds.least.tolist() == [1, 1, 2, 3, 3]
    assert bounds.most.tolist() == [1, 3, 3, 3, 3]


def test_repeated_rows_must_be_found_as_often() -> None:
    assert matching.count_surplus(np.array([1, 1, 2]), np.array([1, 2, 2, 3])) == 1
    assert matching.count_surplus(np.array([7]), np.array([], dtype=np.int64)) == 1
    assert matching.count_surplus(np.array([], dtype=np.int64), np.array([1])) == 0
    qi = np.array([[1.0, np.nan], [1.0, np.nan], [1.0, 0.0], [1.0, -0.0]])
    marks = matching.fingerprints(qi, np.array([5, 5, 5, 5]))
    assert marks[0] == marks[1] != marks[2] == marks[3]
    assert matching.fingerprints(qi[:1], np.array([6]))[0] != marks[0]


@pytest.mark.parametrize("count", [0, 1, 256, 257, 1000])
def test_leaves_cover_all_rows(count: int) -> None:
    candidates = Candidates(np.random.default_rng(0).random((count, 3)))
    assert sorted(candidates.order.tolist()) == list(range(count))
