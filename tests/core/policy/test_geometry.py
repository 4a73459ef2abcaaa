from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.policy.geometry import Geometry, Interval, Radix, Tree


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw a tree in depth-first order: a node's parent is the node before it, or an ancestor of that node."""
    parents = [0]
    for node in range(1, draw(st.integers(1, 25))):
        line = [node - 1]
        while line[-1] != 0:
            line.append(parents[line[-1]])
        parents.append(draw(st.sampled_from(line)))
    return Tree.from_parents(np.array(parents, dtype=np.int32))


@st.composite
def geometries_with_ends(draw: st.DrawFn) -> tuple[Geometry, list[float]]:
    geometry: Geometry = draw(
        st.one_of(
            st.just(Interval(-10.0, 20.0)),
            st.builds(lambda lo, n: Interval(lo, lo + n, cells=True), st.integers(-10, 10), st.integers(0, 30)),
            st.builds(Radix, st.integers(2, 12), st.integers(1, 14)),
            trees(),
        )
    )
    lo, hi = geometry.widest()
    numbers = st.integers(int(lo), int(hi)).map(float)
    points = st.floats(lo, hi) if isinstance(geometry, Interval) and not geometry.cells else numbers
    return geometry, sorted(draw(st.tuples(points, points, points, points)))


@given(geometries_with_ends())
def test_a_span_contains_its_range_is_its_own_span_and_grows_with_the_range(drawn):
    geometry, (a, lo, hi, b) = drawn
    first, last = geometry.span(lo, hi)
    assert first <= lo <= hi <= last
    assert geometry.span(first, last) == (first, last)
    outer = geometry.span(a, b)
    assert outer[0] <= first <= last <= outer[1]
    assert 0 <= geometry.loss(lo, hi) <= geometry.loss(a, b) <= 1


@given(geometries_with_ends())
def test_the_widest_span_is_the_domain_and_loses_everything(drawn):
    geometry, _ = drawn
    lo, hi = geometry.widest()
    assert geometry.span(lo, hi) == (lo, hi)
    cells = isinstance(geometry, Interval) and geometry.cells
    assert geometry.loss(lo, hi) == (1.0 if hi > lo or cells else 0.0)


@given(geometries_with_ends())
def test_geometries_pickle(drawn):
    geometry, _ = drawn
    again = pickle.loads(pickle.dumps(geometry))
    assert again == geometry
    assert hash(again) == hash(geometry)


def test_a_learned_interval_has_no_ends_and_no_loss():
    geometry = Interval()
    assert geometry.learned
    assert geometry.widest() == (-math.inf, math.inf)
    assert geometry.loss(-math.inf, math.inf) == 1.0
    assert math.isnan(geometry.loss(0, 1))
    assert geometry.span(3, 4) == (3.0, 4.0)


def test_cells_lose_their_whole_width():
    geometry = Interval(3, 17, cells=True)
    assert geometry.widest() == (3.0, 17.0)
    assert geometry.loss(4, 4) == 1 / 15
    assert geometry.loss(4, 6) == 3 / 15
    assert math.isnan(Interval(cells=True).loss(0, 1))
    assert Interval(3, 17, cells=True) != Interval(3, 17)
    for lo, hi in [(0.5, 2), (2, 1), (0, 2**54)]:
        with pytest.raises(ValueError, match="lo and hi of cells must be whole"):
            Interval(lo, hi, cells=True)


def test_a_radix_span_is_the_block_of_the_common_prefix():
    geometry = Radix(10, 5)
    assert geometry.span(53706, 53706) == (53706, 53706)
    assert geometry.span(53703, 53706) == (53700, 53709)
    assert geometry.span(53706, 53800) == (53000, 53999)
    assert geometry.span(9, 10) == (0, 99)
    assert geometry.span(49999, 50000) == (0, 99999)
    assert geometry.shared(53703, 53706) == 4
    assert geometry.loss(53703, 53706) == 9 / 99999


@given(st.data(), st.integers(2, 12), st.integers(1, 12))
def test_a_radix_span_covers_all_numbers_with_the_prefix(data, base, length):
    geometry = Radix(base, length)
    lo, hi = sorted(data.draw(st.tuples(*[st.integers(0, base**length - 1)] * 2)))

    def digits(number):
        return [number // base**place % base for place in range(length - 1, -1, -1)]

    a, b = digits(lo), digits(hi)
    shared = next((i for i in range(length) if a[i] != b[i]), length)
    block = base ** (length - shared)
    assert geometry.shared(lo, hi) == shared
    assert geometry.span(lo, hi) == (lo // block * block, lo // block * block + block - 1)


@given(trees(), st.data())
def test_a_tree_span_covers_the_lowest_common_ancestor(tree, data):
    leaves = len(tree.leaf)
    lo, hi = sorted(data.draw(st.tuples(*[st.integers(0, leaves - 1)] * 2)))

    def line(leaf):
        nodes = [int(tree.leaf[leaf])]
        while nodes[-1] != 0:
            nodes.append(int(tree.parent[nodes[-1]]))
        return nodes

    above = set(line(hi))
    ancestor = next(node for node in line(lo) if node in above)
    assert tree.ancestor(lo, hi) == ancestor
    under = [leaf for leaf in range(leaves) if ancestor in line(leaf)]
    assert tree.span(lo, hi) == (under[0], under[-1])


@given(tree=trees())
def test_levels_of_a_tree_count_its_nodes_from_the_root(tree):
    def nodes_above(node):
        return 1 if node == 0 else 1 + nodes_above(int(tree.parent[node]))

    assert tree.levels() == max(nodes_above(int(node)) for node in tree.leaf)
    assert Radix(10, 5).levels() == 6


def test_a_tree_of_one_leaf_loses_nothing():
    tree = Tree.from_parents(np.array([0, 0], dtype=np.int32))
    assert tree.widest() == (0.0, 0.0)
    assert tree.loss(0, 0) == 0.0


def test_a_tree_is_read_only():
    tree = Tree.from_parents(np.array([0, 0, 0], dtype=np.int32))
    with pytest.raises(ValueError, match="read-only"):
        tree.parent[1] = 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interval(1.0, 1.0), "interval: lo must be less than hi"),
        (lambda: Interval(0.0, math.inf), "interval: lo must be less than hi, and both finite"),
        (lambda: Interval(0.0, 5e-324), "interval: lo must be less than hi"),
        (lambda: Interval(0.0, None), "interval: lo and hi must both be given"),
        (lambda: Radix(1, 3), "radix: base must be an integer of at least 2, not 1"),
        (lambda: Radix(2, 0), "radix: length must be an integer of at least 1, not 0"),
        (lambda: Radix(True, 2), "radix: base must be an integer"),
        (lambda: Radix(10, 16), r"radix: base\*\*length must be at most 2\*\*53, not 10\*\*16"),
        (lambda: Radix(2, 10**9), r"at most 2\*\*53"),
        (lambda: Tree([0, 2, 0], [0, 0, 0], [1, 0, 1], [1, 2]), "a parent must come before"),
        (lambda: Tree([], [], [], []), "at least 1"),
        (lambda: Tree([0, 0], [0, 0], [1, 0], [1]), "all leaves must be under the root"),
    ],
)
def test_a_wrong_geometry_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_largest_radix_is_exact():
    assert Radix(2, 53).widest() == (0.0, 2.0**53 - 1)
