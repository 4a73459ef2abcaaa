"""The static anonymizer: its groups, its cuts, and its loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import datasets
from crenel.encoding.rows import Rows
from crenel.engine.methods.mondrian.mondrian_engine import groups_of, learn, partition
from crenel.engine.space import space_of
from crenel.policy import Policy
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Numeric, Prefix
from crenel.testing.engine_streams import Case
from tests.core.engine.cases import cases
from tests.core.engine.methods.mondrian.mondrian_oracle import Oracle

TREE = Hierarchy.from_mapping({"a": ["a1", "a2", "a3"], "b": ["b1", "b2"], "c": ["c1"]})


def rows_of(*columns: list[float], person: list[int] | None = None, sensitive: list[int] | None = None) -> Rows:
    n = len(columns[0])
    return Rows(
        qi=np.array(columns, np.float64).T.copy(),
        person=np.array(person if person is not None else range(n), np.int64),
        sensitive=np.array([sensitive], np.int64).T.copy() if sensitive is not None else np.zeros((n, 0), np.int64),
        time=np.zeros(n, np.int64),
    )


def cut(
    quasi_identifiers: dict[str, object], rows: Rows, k: int, l: int | None = None, **how: object
) -> list[set[int]]:
    """Return the groups as sets of rows, in order, followed by the rows that are left over."""
    space = space_of(Policy(person="p", quasi_identifiers=quasi_identifiers, k=k, delay_rows=10**6))
    group = partition(space, rows, k, l, **how)
    return [
        set(np.flatnonzero(group == number).tolist())
        for number in [*range(group.max() + 1), *range(-1, group.min() - 1, -1)]
    ]


AGE = {"age": Numeric(domain=(0, 100))}
KIND = {"kind": Categorical(hierarchy=TREE)}


def test_a_number_is_cut_at_its_median():
    assert cut(AGE, rows_of([1, 9, 2, 8, 3, 7]), 3) == [{0, 2, 4}, {1, 3, 5}]
    assert cut(AGE, rows_of([1, 9, 2, 8, 3, 7]), 2) == [{0, 2, 4}, {1, 3, 5}]
    assert cut(AGE, rows_of([1, 2, 3, 4, 5, 6, 7, 8]), 2) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]


def test_equal_values_are_cut_apart_only_if_relaxed():
    rows = rows_of([1, 5, 5, 5, 5, 9])
    assert cut(AGE, rows, 3, relaxed=False) == [set(range(6))]
    assert cut(AGE, rows, 3) == [{0, 1, 2}, {3, 4, 5}]
    assert cut(AGE, rows_of([5, 5, 5, 5]), 2) == [{0, 1, 2, 3}], "nothing is gained"


def test_a_cut_beside_the_median_keeps_equal_values_together():
    assert cut(AGE, rows_of([1, 5, 5, 5, 9, 9, 9]), 2, relaxed=False) == [{0, 1, 2, 3}, {4, 5, 6}]


def test_a_category_is_cut_by_the_children_of_its_node():
    # a1 a1 b1 b2 a2 a3 c1 c1
    assert cut(KIND, rows_of([0, 0, 3, 4, 1, 2, 5, 5]), 2) == [{0, 1}, {4, 5}, {2, 3}, {6, 7}]


def test_children_that_are_too_small_stay_together():
    # a has 3 rows, b has 1, and c has 1. The children of a are too small as well.
    assert cut(KIND, rows_of([0, 1, 2, 3, 5]), 2) == [{0, 1, 2}, {3, 4}]
    # c alone is too small, so b, the smaller of the other two, joins it.
    assert cut(KIND, rows_of([0, 1, 2, 3, 4, 5]), 2) == [{0, 1, 2}, {3, 4, 5}]


def test_children_that_are_too_small_may_be_left_over():
    rows = rows_of([0, 1, 2, 3, 4, 5])
    assert cut(KIND, rows, 2, spare=1) == [{0, 1, 2}, {3, 4}, {5}]
    # b and c would be left over. Grouping them under the root loses no more than that.
    assert cut(KIND, rows_of([0, 1, 2, 3, 5]), 2, spare=2) == [{0, 1, 2}, {3, 4}]
    # a1 has 8 of 10 rows. c1 and b1 are left over separately, because each may become a group later.
    assert cut(KIND, rows_of([0] * 8 + [5, 3]), 3, spare=2) == [set(range(8)), {9}, {8}]


def test_the_outermost_rows_of_a_number_may_be_left_over():
    # Without 100, seven rows lose 0.06 each instead of a half of them nearly 1.
    rows = rows_of([1, 2, 3, 4, 5, 6, 7, 100])
    assert cut(AGE, rows, 4) == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert cut(AGE, rows, 4, spare=1) == [set(range(7)), {7}]
    assert cut(AGE, rows_of([0, 94, 95, 96, 97, 98, 99]), 4, spare=2) == [set(range(1, 7)), {0}]
    # Both ends, one after the other; each is left over by itself.
    assert cut(AGE, rows_of([0, 50, 51, 52, 53, 100]), 4, spare=2) == [{1, 2, 3, 4}, {0}, {5}]
    # One row may be left over, but two have the value: half of them would tell nothing apart.
    assert cut(AGE, rows_of([1, 2, 3, 4, 90, 90]), 4, spare=1) == [set(range(6))]


def test_rows_are_left_over_only_if_all_lose_less():
    # 4 of 40 lose 0.1 each; without it they would lose 0.02 each, and the row everything.
    assert cut(AGE, rows_of([1, 2, 3, 11]), 3, spare=1) == [set(range(4))]
    assert cut(KIND, rows_of([0, 1, 2, 0, 1, 3]), 3, spare=1) == [{0, 1, 2, 3, 4}, {5}]


def test_a_prefix_is_cut_by_its_next_digit():
    rows = rows_of([110, 111, 119, 150, 151, 900, 901])
    assert cut({"zip": Prefix(length=3)}, rows, 2) == [{0, 1, 2}, {3, 4}, {5, 6}]


def test_the_cut_is_along_the_column_that_loses_least():
    # A cut by x makes each group exact in x, and a cut by y makes it exact in y: they lose the same, and x comes first.
    both = {"x": Numeric(domain=(0, 10)), "y": Numeric(domain=(0, 10))}
    assert cut(both, rows_of([0, 10, 0, 10], [0, 0, 10, 10]), 2) == [{0, 2}, {1, 3}]
    assert cut(both, rows_of([0, 1, 0, 1], [0, 0, 10, 10]), 2) == [{0, 1}, {2, 3}]


def test_persons_are_counted_not_rows():
    rows = rows_of([1, 2, 8, 9], person=[1, 1, 2, 2])
    assert cut(AGE, rows, 2) == [{0, 1, 2, 3}]
    assert cut(AGE, rows_of([1, 2, 8, 9], person=[1, 2, 1, 2]), 2) == [{0, 1}, {2, 3}]


def test_every_group_has_l_values():
    assert cut(AGE, rows_of([1, 2, 8, 9], sensitive=[1, 1, 2, 2]), 2, 2) == [{0, 1, 2, 3}]
    assert cut(AGE, rows_of([1, 2, 8, 9], sensitive=[1, 2, 1, 2]), 2, 2) == [{0, 1}, {2, 3}]


def test_too_few_rows_form_no_group():
    assert cut(AGE, rows_of([1, 2, 3], person=[1, 1, 1]), 2) == [{0, 1, 2}]
    space = space_of(Policy(person="p", quasi_identifiers=AGE, k=2, delay_rows=10))
    assert partition(space, rows_of([1, 2], person=[1, 1]), 2).tolist() == [-1, -1]
    assert partition(space, rows_of([]), 2).tolist() == []


@settings(max_examples=60)
@given(case=cases(diverse=True), spare=st.integers(0, 5), relaxed=st.booleans())
def test_groups_are_what_they_must_be(case: Case, spare: int, relaxed: bool):
    """Groups have k persons and l values, and none could be cut at the median again."""
    rows, policy = case.rows, case.policy
    space = space_of(policy)
    learn(space, rows.qi)
    group = partition(space, rows, policy.k, policy.l, spare=spare, relaxed=relaxed)
    assert len(group) == len(rows)
    lines = [rows.person, *rows.sensitive.T]
    needed = [policy.k] + [policy.l] * (len(lines) - 1)
    enough = all(len(np.unique(line)) >= least for line, least in zip(lines, needed, strict=True))
    assert enough == bool((group >= 0).any())
    if enough:
        assert (group < 0).sum() <= spare
    found = groups_of(space, rows, group)
    assert sorted(found.order.tolist()) == np.flatnonzero(group >= 0).tolist()
    for number in range(len(found.loss)):
        inside = found.order[found.offsets[number] : found.offsets[number + 1]]
        assert inside.tolist() == np.flatnonzero(group == number).tolist()
        for line, least in zip(lines, needed, strict=True):
            assert len(np.unique(line[inside])) >= least
        assert found.persons[number] == len(np.unique(rows.person[inside]))
        for d, qi in enumerate(policy.quasi_identifiers.values()):
            values = rows.qi[inside, d]
            assert (found.lo[number, d], found.hi[number, d]) == qi.geometry.span(values.min(), values.max())
        assert 0 <= found.loss[number] <= 1 + 1e-12


@settings(max_examples=60)
@given(case=cases(diverse=True), spare=st.integers(0, 5), relaxed=st.booleans())
def test_groups_are_those_of_the_oracle(case: Case, spare: int, relaxed: bool):
    rows, policy = case.rows, case.policy
    space = space_of(policy)
    learn(space, rows.qi)
    group = partition(space, rows, policy.k, policy.l, spare=spare, relaxed=relaxed)
    domains = list(zip(space.dimensions["domain_lo"].tolist(), space.dimensions["domain_hi"].tolist(), strict=True))
    groups, left = Oracle(policy, rows, domains, relaxed, spare).groups()
    assert [np.flatnonzero(group == number).tolist() for number in range(group.max(initial=-1) + 1)] == groups
    assert {tuple(np.flatnonzero(group == number)) for number in set(group[group < 0])} == set(map(tuple, left))


#: Mean loss of all rows at once, by the quasi-identifiers and k: 6 numeric, and 10 with 4 categories.
ADULT = [(6, 100, 0.132), (6, 10, 0.042), (10, 100, 0.307), (10, 10, 0.101)]


@pytest.mark.parametrize(("size", "k", "expected"), ADULT)
def test_adult_loses_little(size: int, k: int, expected: float, data_dir: Path):
    stream = datasets.adult(datasets.ADULT[:size], folder=data_dir)
    space = space_of(stream.policy(k=k, delay_rows=k))
    found = groups_of(space, stream.rows, partition(space, stream.rows, k))
    assert len(found.order) == len(stream.rows)
    assert found.loss @ np.diff(found.offsets) / len(stream.rows) == pytest.approx(expected, rel=0.02)
