"""The tree alone: its invariants hold after any insertions and deletions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crenel.engine.methods.rtree.rtree_index import RTree
from crenel.engine.methods.rtree.rtree_index_kernel import FAN_OUT, LEAST_CHILDREN
from crenel.engine.space import space_of
from crenel.policy import Policy
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Numeric, Prefix

HIERARCHY = Hierarchy.from_mapping({"a": ["a1", "a2", "a3"], "b": {"b1": ["b11", "b12"], "b2": ["b21"]}, "c": None})
POLICY = Policy(
    person="p",
    quasi_identifiers={
        "x": Numeric(domain=(0, 10)),
        "y": Categorical(hierarchy=HIERARCHY, weight=2.0),
        "z": Prefix(length=2, alphabet="digits"),
    },
    k=2,
    delay_rows=2,
)
GEOMETRIES = [qi.geometry for qi in POLICY.quasi_identifiers.values()]
POINTS = st.tuples(st.integers(0, 10), st.integers(0, 6), st.sampled_from([0, 1, 11, 12, 17, 50, 99]))


class Tried:
    """A tree, and the rows that must be in it."""

    def __init__(self, k: int, l: int | None) -> None:
        self.k, self.l = k, l
        self.tree = RTree(space_of(POLICY), k, l=() if l is None else (l,), capacity=256)
        self.rows: dict[int, tuple[np.ndarray[Any, Any], int, int]] = {}

    def insert(self, point: tuple[int, ...], person: int, value: int) -> None:
        at = np.array(point, np.float64)
        without = [leaf for leaf in self.tree.leaves() if not self.has(leaf, person)]
        least = min((self.enlargement(leaf, at) for leaf in without), default=None)
        nearest = [leaf for leaf in without if self.enlargement(leaf, at) <= least + 1e-12]
        members = {leaf: set(self.tree.rows_of(leaf)) for leaf in nearest}
        number = self.tree.insert(at, person, () if self.l is None else (value,))
        self.rows[number] = (at, person, value)
        # Before, all other rows of its leaf were together in one leaf of least enlargement.
        company = set(self.tree.rows_of(self.tree.leaf_of(number))) - {number}
        assert not company if not without else any(company <= before for before in members.values())

    def has(self, leaf: int, person: int) -> bool:
        return any(self.rows[row][1] == person for row in self.tree.rows_of(leaf))

    def span(self, rows: list[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        points = np.array([self.rows[row][0] for row in rows])
        ends = [g.span(lo, hi) for g, lo, hi in zip(GEOMETRIES, points.min(0), points.max(0), strict=True)]
        return np.array([lo for lo, _ in ends]), np.array([hi for _, hi in ends])

    def loss(self, lo: np.ndarray[Any, Any], hi: np.ndarray[Any, Any]) -> float:
        weights = [qi.weight for qi in POLICY.quasi_identifiers.values()]
        losses = [g.loss(a, b) for g, a, b in zip(GEOMETRIES, lo, hi, strict=True)]
        return float(np.average(losses, weights=weights))

    def enlargement(self, leaf: int, point: np.ndarray[Any, Any]) -> float:
        lo, hi = self.tree.box_of(leaf)
        joined = [g.span(min(a, x), max(b, x)) for g, a, b, x in zip(GEOMETRIES, lo, hi, point, strict=True)]
        return self.loss(np.array([a for a, _ in joined]), np.array([b for _, b in joined])) - self.loss(lo, hi)

    def check(self) -> None:
        tree, leaves = self.tree, self.tree.leaves()
        held = [row for leaf in leaves for row in tree.rows_of(leaf)]
        assert sorted(held) == sorted(self.rows), "no row is lost, none is there twice"
        assert len(tree) == len(held)
        for leaf in leaves:
            self.check_leaf(leaf)
        root = tree.root()
        assert (root is None) == (not leaves)
        if root is not None:
            levels: set[int] = set()
            assert sorted(self.below(root, 0, levels)) == sorted(leaves), "every leaf is under the root, once"
            assert len(levels) == 1, "all leaves are equally far from the root"
        for point in [row[0] for row in self.rows.values()][:5]:
            boxes = {leaf: tree.box_of(leaf) for leaf in leaves}
            around = [leaf for leaf in leaves if np.all(boxes[leaf][0] <= point) and np.all(point <= boxes[leaf][1])]
            assert tree.covering(point) == around

    def check_leaf(self, leaf: int) -> None:
        rows = self.tree.rows_of(leaf)
        persons = [self.rows[row][1] for row in rows]
        assert rows, "no leaf is empty"
        assert len(set(persons)) == len(persons), "no person is in a leaf twice"
        values = {self.rows[row][2] for row in rows}
        assert self.tree.is_mature(leaf) == (len(rows) >= self.k and len(values) >= (self.l or 0))
        if self.l is None:
            assert len(rows) < 2 * self.k, "a leaf of 2k rows is cut"
        lo, hi = self.tree.box_of(leaf)
        expected = self.span(rows)
        np.testing.assert_array_equal(lo, expected[0], err_msg="boxes are tight")
        np.testing.assert_array_equal(hi, expected[1], err_msg="boxes are tight")
        assert all(self.tree.leaf_of(row) == leaf for row in rows)

    def below(self, node: int, depth: int, levels: set[int]) -> list[int]:
        children = self.tree.children(node)
        if not children:
            levels.add(depth)
            return [node]
        least = 2 if depth == 0 else LEAST_CHILDREN
        assert least <= len(children) <= FAN_OUT, "fan-out"
        boxes = [self.tree.box_of(child) for child in children]
        lo, hi = np.min([a for a, _ in boxes], axis=0), np.max([b for _, b in boxes], axis=0)
        spans = np.array([g.span(a, b) for g, a, b in zip(GEOMETRIES, lo, hi, strict=True)])
        np.testing.assert_array_equal(self.tree.box_of(node), spans.T, err_msg="boxes are tight")
        return [leaf for child in children for leaf in self.below(child, depth + 1, levels)]


OPERATIONS = st.one_of(
    st.tuples(st.just("insert"), POINTS, st.integers(0, 40), st.integers(0, 2)),
    st.tuples(st.just("insert"), POINTS, st.integers(0, 40), st.integers(0, 2)),
    st.tuples(st.just("insert many"), st.integers(0, 2**32), st.integers(5, 60)),
    st.tuples(st.sampled_from(["delete leaf", "delete row", "merge"]), st.integers(0, 1000)),
)


@pytest.mark.slow
@settings(max_examples=80)
@given(
    k=st.sampled_from([2, 2, 3, 5]),
    l=st.sampled_from([None, None, 2, 3]),
    operations=st.lists(OPERATIONS, max_size=30),
)
def test_invariants(k: int, l: int | None, operations: list[tuple[Any, ...]]) -> None:
    tried = Tried(k, l)
    tree = tried.tree
    for operation, *given_ in operations:
        leaves = tree.leaves()
        if operation == "insert" and len(tree) < 256:
            tried.insert(*given_)
        elif operation == "insert many":
            random = np.random.default_rng(given_[0])
            for _ in range(min(given_[1], 256 - len(tree))):
                point = (random.integers(11), random.integers(7), random.integers(100))
                tried.insert(point, int(random.integers(500)), int(random.integers(3)))
        elif operation == "delete leaf" and leaves:
            leaf = leaves[given_[0] % len(leaves)]
            rows = tree.rows_of(leaf)
            assert tree.delete_leaf(leaf) == rows
            for row in rows:
                del tried.rows[row]
        elif operation == "delete row" and tried.rows:
            row = sorted(tried.rows)[given_[0] % len(tried.rows)]
            tree.delete_row(row)
            del tried.rows[row]
        elif operation == "merge" and len(leaves) > 1:
            small = [leaf for leaf in leaves if len(tree.rows_of(leaf)) < k]
            if not small:
                continue
            one = small[given_[0] % len(small)]
            other = next(leaf for leaf in leaves if leaf != one)
            tree.merge(one, other)
        else:
            continue
        tried.check()


def test_a_deep_tree_grows_and_shrinks() -> None:
    tried = Tried(2, None)
    random = np.random.default_rng(1)
    for person in range(250):
        tried.insert((random.integers(11), random.integers(7), random.integers(100)), person, 0)
    tried.check()
    assert len(tried.tree.leaves()) > FAN_OUT**1.5
    while tried.rows:
        leaf = tried.tree.leaves()[random.integers(len(tried.tree.leaves()))]
        for row in tried.tree.delete_leaf(leaf):
            del tried.rows[row]
        tried.check()
    assert tried.tree.root() is None


@pytest.mark.parametrize("k", [2, 5])
def test_a_cut_keeps_both_halves_at_k(k: int) -> None:
    tried = Tried(k, None)
    for person in range(2 * k):
        tried.insert((person % 2 * 10, 0, 0), person, 0)
    assert [len(tried.tree.rows_of(leaf)) for leaf in tried.tree.leaves()] == [k, k]
    assert {tuple(tried.tree.box_of(leaf)[0]) for leaf in tried.tree.leaves()} == {(0, 0, 0), (10, 0, 0)}


def test_a_leaf_that_cannot_be_cut_into_diverse_halves_stays_whole() -> None:
    tried = Tried(2, 2)
    for person in range(12):
        tried.insert((person % 11, 0, 0), person, 0)
    assert len(tried.tree.leaves()) == 1
    assert not tried.tree.is_mature(tried.tree.leaves()[0])
    for person in range(12, 40):
        tried.insert((person % 11, 0, 0), person, 1)
    assert len(tried.tree.leaves()) > 1
    assert all(tried.tree.is_mature(leaf) for leaf in tried.tree.leaves())
