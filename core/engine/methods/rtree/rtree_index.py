"""An R-tree (Guttman, 1984) whose leaves are groups of at least k rows of different persons.

Rows join the leaf that they enlarge the least; a leaf of 2k rows is cut into two of at least k; leaves are deleted as a
whole. The loops are in `rtree_index_kernel`, where the methods of continuous publishing call them; `RTree` is the same
tree for callers in Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crenel.engine.kernels.arrays import NONE
from crenel.engine.kernels.box_geometry import Boxes, Space
from crenel.engine.kernels.distinct_counts import ENTRY
from crenel.engine.methods.rtree import rtree_index_kernel

__all__ = ["RTree", "empty_tree"]


def empty_tree(capacity: int, dimensions: int, least: NDArray[np.int64], labels: int) -> rtree_index_kernel.Tree:
    """Return an empty tree.

    Args:
        capacity: Rows that it can hold.
        dimensions: Quasi-identifiers.
        least: For each kind of label, how many distinct ones a leaf must have to be published. The first kind is the
            person.
        labels: Labels of a row, at least as many as kinds.
    """
    # No leaf is empty, and each inner node has two children; one box is scratch space.
    nodes = 2 * capacity + 1
    meta = np.zeros(1, dtype=rtree_index_kernel.META)
    meta["root"] = NONE
    meta["free"] = nodes - 1
    # The table counts each label of a row for its leaf, for all rows (if the caller does), and once more while a leaf
    # is cut. At most half of it is used.
    table = 1 << (6 * capacity * len(least)).bit_length()
    return rtree_index_kernel.Tree(
        meta=meta,
        nodes=np.zeros(nodes, dtype=rtree_index_kernel.NODE),
        children=np.empty((nodes, rtree_index_kernel.FAN_OUT + 1), dtype=np.int64),
        # One box per line, with one number more: with a single quasi-identifier numba would otherwise see a contiguous
        # array, and compile everything again for it.
        boxes=Boxes(*(np.zeros((nodes, dimensions + 1), dtype=t).T[:dimensions] for t in ("f8", "f8", "i8"))),
        free=np.arange(nodes - 1, dtype=np.int64)[::-1].copy(),
        leaves=np.empty(nodes, dtype=np.int64),
        stack=np.empty(nodes, dtype=np.int64),
        bound=np.empty(nodes),
        rows=np.empty(capacity, dtype=rtree_index_kernel.ROW),
        points=np.empty((capacity, dimensions)),
        labels=np.empty((capacity, labels), dtype=np.int64),
        least=least,
        counts=np.zeros(table, dtype=ENTRY),
        distinct=np.zeros((nodes, len(least)), dtype=np.int64),
    )


class RTree:
    """An R-tree of rows, which are numbered in the order of their insertion.

    Args:
        space: The quasi-identifiers: what a box is, and what it loses.
        k: Rows that a leaf must have to be published.
        l: With labels beside the person: for each kind, how many distinct ones such a leaf must have.
        capacity: Rows that it can hold at once.
    """

    def __init__(self, space: Space, k: int, *, l: Sequence[int] = (), capacity: int = 1024) -> None:
        self._space = space
        self._tree = empty_tree(capacity, len(space.dimensions), np.array([k, *l], dtype=np.int64), 1 + len(l))
        self._unused = list(range(capacity))[::-1]
        self._slots: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._inserted = 0

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._slots)

    def insert(self, point: NDArray[np.float64], person: int, labels: Sequence[int] = ()) -> int:
        """Put a row into the leaf that it enlarges the least, and return its number."""
        number, slot = self._inserted, self._unused.pop()
        self._inserted += 1
        self._slots[number], self._rows[slot] = slot, number
        self._tree.points[slot] = point
        self._tree.labels[slot] = [person, *labels]
        rtree_index_kernel.insert(self._tree, self._space, slot)
        return number

    def leaves(self) -> list[int]:
        """Return the leaves, the oldest first."""
        count: int = self._tree.meta["leaves"][0]
        return [int(leaf) for leaf in self._tree.leaves[:count]]

    def rows_of(self, leaf: int) -> list[int]:
        """Return the numbers of a leaf's rows, in the order in which they joined it."""
        rows, slot = [], int(self._tree.nodes["head"][leaf])
        while slot != NONE:
            rows.append(self._rows[slot])
            slot = int(self._tree.rows["next"][slot])
        return rows

    def leaf_of(self, number: int) -> int:
        """Return the leaf that a row is in."""
        return int(self._tree.rows["leaf"][self._slots[number]])

    def box_of(self, node: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the least and the greatest coordinates of a node."""
        return self._tree.boxes.lo[:, node].copy(), self._tree.boxes.hi[:, node].copy()

    def is_mature(self, leaf: int) -> bool:
        """Return whether a leaf has enough persons and labels to be published."""
        return bool(np.all(self._tree.distinct[leaf] >= self._tree.least))

    def delete_leaf(self, leaf: int) -> list[int]:
        """Delete a leaf with its rows, and return their numbers."""
        rows = self.rows_of(leaf)
        rtree_index_kernel.delete_leaf(self._tree, self._space, leaf)
        self._forget(rows)
        return rows

    def delete_row(self, number: int) -> None:
        """Delete one row, and its leaf if that is empty then."""
        rtree_index_kernel.delete_row(self._tree, self._space, self._slots[number])
        self._forget([number])

    def merge(self, leaf: int, other: int) -> None:
        """Move the rows of another leaf whose persons this one lacks into it, and cut it if it is then too large."""
        rtree_index_kernel.merge(self._tree, self._space, leaf, other)

    def covering(self, point: NDArray[np.float64]) -> list[int]:
        """Return the leaves whose boxes contain the point, the oldest first."""
        found = np.empty(len(self._tree.leaves), dtype=np.int64)
        count = rtree_index_kernel.find_covering(self._tree, point, found)
        return sorted(map(int, found[:count]), key=self._tree.nodes["born"].__getitem__)

    def root(self) -> int | None:
        """Return the root, if there are rows."""
        root = int(self._tree.meta["root"][0])
        return None if root == NONE else root

    def children(self, node: int) -> list[int]:
        """Return the children of a node; a leaf has none."""
        inner = self._tree.nodes["level"][node] > 0
        return [int(child) for child in self._tree.children[node, : self._tree.nodes["count"][node]]] if inner else []

    def _forget(self, numbers: list[int]) -> None:
        for number in numbers:
            slot = self._slots.pop(number)
            del self._rows[slot]
            self._unused.append(slot)
