"""The tree of rows has the rows that were added and not removed, and its boxes contain them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.box_geometry import Space
from crenel.engine.kernels.compiler import kernel
from crenel.engine.kernels.row_tree import (
    BLOCK,
    CREDIT,
    FIRST,
    LEAF,
    LEFT,
    PARENT,
    ROWS,
    RowTree,
    add_row,
    clear_tree,
    insert_all,
    least_growth,
    move_row,
    rebuild,
    remove_row,
    resized_tree,
)
from crenel.engine.space import space_of
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Categorical, Numeric

LETTERS = {"vowels": ["a", "e", "i"], "others": ["b", "c", "d", "f"]}
POLICY = Policy(
    person="person",
    quasi_identifiers={
        "x": Numeric(domain=(0, 1000)),
        "y": Numeric(domain=(0, 1000)),
        "letter": Categorical(hierarchy={"any": LETTERS}),
    },
    k=2,
    delay_rows=10,
    method="bastion",
)
SPACE = space_of(POLICY)
ADD, REMOVE, MOVE, FILL, REBUILD = range(5)


@kernel
def work(space: Space, tree: RowTree, steps: Array, rows: Array) -> None:
    """Do steps: what to do, with which row, and its new number."""
    for i in range(steps.shape[0]):
        step, row, to = steps[i, 0], steps[i, 1], steps[i, 2]
        if step == ADD:
            add_row(space, tree, row, rows)
        elif step == REMOVE:
            remove_row(tree, row)
        elif step == MOVE:
            move_row(tree, row, to)
        elif step == FILL:
            clear_tree(tree)
            for j in range(row):
                rows[j] = j
            insert_all(space, tree, 0, rows[:row])
        else:
            rebuild(space, tree, 0, rows)


@kernel
def bounds(space: Space, tree: RowTree, row: Array, leaf: Array, nodes: Array, bound: Array) -> None:
    for i in range(nodes.size):
        bound[i] = least_growth(space, tree.boxes, nodes[i], row, row, leaf)


class Forest:
    """A tree, and the set of rows that it must have."""

    def __init__(self, points: Array, *, capacity: int) -> None:
        self.points = points
        self.order = np.arange(len(points))
        self.credit = (self.order * 7 % 11).astype(np.float32)
        self.rows: set[int] = set()
        self.tree = self.resized(None, capacity)
        self.do((FILL, 0, 0))

    def resized(self, before: RowTree | None, capacity: int) -> RowTree:
        return resized_tree(before, self.points.T, self.order, self.credit, capacity)

    def do(self, *steps: tuple[int, int, int]) -> None:
        for step, row, _ in steps:
            if step == ADD:
                self.rows.add(row)
            elif step == REMOVE:
                self.rows.remove(row)
            elif step == FILL:
                self.rows = set(range(row))
        scratch = np.empty(len(self.tree.where) + 1, dtype=np.int64)
        work(SPACE, self.tree, np.array(steps, dtype=np.int64).reshape(-1, 3), scratch)

    def leaves_below(self, node: int) -> list[int]:
        left = self.tree.links[node, LEFT]
        return [node] if left == NONE else [leaf for child in (left, left + 1) for leaf in self.leaves_below(child)]

    def rows_below(self, node: int) -> list[int]:
        starts = [(int(self.tree.links[leaf, BLOCK]) * LEAF, leaf) for leaf in self.leaves_below(node)]
        return [
            int(row) for start, leaf in starts for row in self.tree.rows[start : start + self.tree.links[leaf, ROWS]]
        ]

    def nodes(self, node: int = 0) -> list[int]:
        left = int(self.tree.links[node, LEFT])
        return [node] if left == NONE else [node, *self.nodes(left), *self.nodes(left + 1)]

    def check(self) -> None:
        tree, nodes = self.tree, self.nodes()
        assert sorted(self.rows_below(0)) == sorted(self.rows)
        blocks = [int(tree.links[leaf, BLOCK]) for leaf in self.leaves_below(0)]
        assert sorted([*blocks, *tree.blocks[: tree.free[1]]]) == list(range(len(tree.blocks)))
        pairs = [(node - 1) // 2 for node in nodes[1:] if node % 2 == 1]
        assert sorted([*pairs, *tree.pairs[: tree.free[0]]]) == list(range(len(tree.pairs)))
        for node in nodes:
            self.check_node(node)
        for row in self.rows:
            assert tree.rows[tree.where[row]] == row

    def check_node(self, node: int) -> None:
        tree, rows = self.tree, self.rows_below(node)
        left = int(tree.links[node, LEFT])
        assert tree.links[node, ROWS] == len(rows)
        assert node == 0 or rows
        if left == NONE:
            block = int(tree.links[node, BLOCK])
            assert tree.node_of[block] == node
            columns = np.vstack([self.points[rows].T, self.credit[rows]]).astype(np.float32)
            assert np.array_equal(tree.columns[block, :, : len(rows)], columns)
        else:
            assert tree.links[left, PARENT] == tree.links[left + 1, PARENT] == node
        for row in rows:
            assert (tree.boxes[node, 0] <= self.points[row]).all()
            assert (tree.boxes[node, 1] >= self.points[row]).all()
            assert tree.marks[node, FIRST] <= self.order[row]
            assert tree.marks[node, CREDIT] >= self.credit[row]


def points_of(draw: Any, count: int) -> Array:
    """Draw rows: scattered, a few values only, in order, or all the same."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = draw(st.sampled_from([1, 2, 5, 1000]))
    x, y = (random.integers(0, values, count).astype(np.float64) for _ in range(2))
    if draw(st.booleans()):
        x = np.sort(x)
    return np.stack([x, y, random.integers(0, 7, count).astype(np.float64)], axis=1)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_tree_has_the_rows_that_were_added_and_not_removed(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 700))
    forest = Forest(points_of(data.draw, count), capacity=count)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    if data.draw(st.booleans()):
        forest.do((FILL, count, 0))
        forest.check()
    for _ in range(data.draw(st.integers(1, 4))):
        missing, there = sorted(set(range(count)) - forest.rows), sorted(forest.rows)
        chosen = missing if data.draw(st.booleans()) else list(random.permutation(missing))
        forest.do(*[(ADD, int(row), 0) for row in chosen[: data.draw(st.integers(0, count))]])
        forest.check()
        there = list(random.permutation(sorted(forest.rows)))
        forest.do(*[(REMOVE, int(row), 0) for row in there[: data.draw(st.integers(0, count))]])
        forest.check()
        if data.draw(st.booleans()):
            forest.do((REBUILD, 0, 0))
            forest.check()


@pytest.mark.slow
def test_rows_that_come_and_go_in_order_keep_the_tree_flat() -> None:
    count, held = 6_000, 600
    points = np.stack([np.arange(count) / 6.0, np.zeros(count), np.zeros(count)], axis=1)
    forest = Forest(points, capacity=count)
    for row in range(count):
        forest.do((ADD, row, 0), *([(REMOVE, row - held, 0)] if row >= held else []))
    forest.check()

    def depth(node: int) -> int:
        left = int(forest.tree.links[node, LEFT])
        return 1 if left == NONE else 1 + max(depth(left), depth(left + 1))

    assert depth(0) < 40


def test_leaves_with_few_rows_make_way_when_there_is_no_space() -> None:
    """Rows approach a point, and most of them leave: each leaf that is split off keeps one row."""
    count = 4_000
    points = np.zeros((count, 3))
    points[:, 0] = 1000.0 * 0.99 ** np.arange(count)
    forest = Forest(points, capacity=200)
    forest.tree = forest.tree._replace(where=np.empty(count, dtype=np.int32))
    there: list[int] = []
    for row in range(count):
        forest.do((ADD, row, 0))
        there.append(row)
        if len(there) == 150:
            gone = [row for i, row in enumerate(there) if i % 12 != 0]
            forest.do(*[(REMOVE, row, 0) for row in gone])
            there = [row for i, row in enumerate(there) if i % 12 == 0]
            forest.check()
    forest.check()


def test_rows_can_be_called_by_other_numbers() -> None:
    points = np.random.default_rng(1).integers(0, 50, (300, 3)).astype(np.float64)
    points[100:200] = points[200:300]
    forest = Forest(points, capacity=300)
    forest.credit[100:200] = forest.credit[200:300]
    forest.do(*[(ADD, row, 0) for row in range(200, 300)])
    forest.do(*[(MOVE, row, row - 100) for row in range(200, 300)])
    forest.rows = set(range(100, 200))
    assert sorted(forest.rows_below(0)) == sorted(forest.rows)
    forest.do(*[(REMOVE, row, 0) for row in range(100, 200)])
    forest.check()


@pytest.mark.parametrize("seed", range(5))
def test_a_larger_tree_has_the_same_nodes(seed: int) -> None:
    random = np.random.default_rng(seed)
    points = random.integers(0, 7, (900, 3)).astype(np.float64)
    forest = Forest(points, capacity=300)
    forest.do(*[(ADD, row, 0) for row in range(300)], *[(REMOVE, row, 0) for row in range(0, 300, 2)])
    forest.tree = forest.resized(forest.tree, 900)
    forest.check()
    forest.do(*[(ADD, row, 0) for row in range(300, 900)])
    forest.check()


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_row_below_a_node_is_nearer_than_its_bound(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 300))
    points = points_of(data.draw, count)
    forest = Forest(points, capacity=count)
    forest.do((FILL, count, 0))
    row = points[data.draw(st.integers(0, count - 1))] if data.draw(st.booleans()) else np.array([17.0, 0.0, 4.0])
    leaf = np.array([0, 0, SPACE.leaf[SPACE.dimensions[2]["leaf_offset"] + int(row[2])]], dtype=np.float64)
    nodes = np.array(forest.nodes(), dtype=np.int64)
    bound = np.empty(len(nodes))
    bounds(SPACE, forest.tree, row, leaf, nodes, bound)
    for node, least in zip(nodes, bound, strict=True):
        assert least <= min(_growth(row, points[other]) for other in forest.rows_below(node))


def _growth(row: Array, other: Array) -> float:
    """Return how much the loss of a row's box grows if it takes another row, as the kernels add it up."""
    total = 0.0
    for d, (a, b) in enumerate(zip(row, other, strict=True)):
        lo, hi = min(a, b), max(a, b)
        if SPACE.dimensions[d]["kind"] != 0 and a != b:
            node = SPACE.leaf[SPACE.dimensions[d]["leaf_offset"] + int(lo)]
            while SPACE.nodes[node]["last"] < hi:
                node = SPACE.nodes[node]["parent"]
            lo, hi = SPACE.nodes[node]["first"], SPACE.nodes[node]["last"]
        total += SPACE.dimensions[d]["scale"] * (hi - lo)
    return total
