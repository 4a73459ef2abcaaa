"""An R-tree (Guttman, 1984) whose leaves are groups of at least k rows of different persons.

Rows join the leaf that they enlarge the least; a leaf of 2k rows is cut into two of at least k; leaves are deleted
whole. The loops are in `kernels/rtree.py`, and the methods of continuous publishing call them there; `RTree` is the
same tree for whoever wants one by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crenel.engine.kernels import common
from crenel.engine.methods.rtree import rtree_index_kernel as kernels

__all__ = ["RTree", "room_for"]


def room_for(capacity: int, dimensions: int, least: NDArray[np.int64], labels: int) -> kernels.Tree:
    """An empty tree.

    Parameters
    ----------
    capacity
        Rows that it can hold.
    dimensions
        Quasi-identifiers.
    least
        How many different labels of each kind a leaf that may be published has; the first kind is the person.
    labels
        Labels that a row has, at least as many as kinds.
    """
    # No leaf is empty, and each inner node has two children; one box is to compute with.
    nodes = 2 * capacity + 1
    meta = np.zeros(1, dtype=kernels.META)
    meta["root"] = common.NONE
    meta["free"] = nodes - 1
    # A label of each row is there for its leaf and (if the caller counts that) for all rows, and once more while a
    # leaf is cut; at most half of the table is used.
    table = 1 << (6 * capacity * len(least)).bit_length()
    return kernels.Tree(
        meta=meta,
        nodes=np.zeros(nodes, dtype=kernels.NODE),
        children=np.empty((nodes, kernels.FAN_OUT + 1), dtype=np.int64),
        # A box each in a row, and one number more: an array that numba could take for another kind of array, as it
        # would where there is but one quasi-identifier, would be compiled for again.
        boxes=common.Boxes(*(np.zeros((nodes, dimensions + 1), dtype=t).T[:dimensions] for t in ("f8", "f8", "i8"))),
        free=np.arange(nodes - 1, dtype=np.int64)[::-1].copy(),
        leaves=np.empty(nodes, dtype=np.int64),
        stack=np.empty(nodes, dtype=np.int64),
        bound=np.empty(nodes),
        rows=np.empty(capacity, dtype=kernels.ROW),
        points=np.empty((capacity, dimensions)),
        labels=np.empty((capacity, labels), dtype=np.int64),
        least=least,
        counts=np.zeros(table, dtype=common.ENTRY),
        distinct=np.zeros((nodes, len(least)), dtype=np.int64),
    )


class RTree:
    """An R-tree of rows, which are numbered in the order of their insertion.

    Parameters
    ----------
    space
        The quasi-identifiers: what a box is, and what it loses.
    k
        Rows of a leaf that may be published, at least.
    l
        With labels beside the person: how many different ones of each kind such a leaf has, at least.
    capacity
        Rows that it can hold at once.
    """

    def __init__(self, space: common.Space, k: int, *, l: Sequence[int] = (), capacity: int = 1024) -> None:
        self._space = space
        self._tree = room_for(capacity, len(space.dimensions), np.array([k, *l], dtype=np.int64), 1 + len(l))
        self._unused = list(range(capacity))[::-1]
        self._slots: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._inserted = 0

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._slots)

    def insert(self, point: NDArray[np.float64], person: int, labels: Sequence[int] = ()) -> int:
        """Put a row into the leaf that it enlarges the least; return its number."""
        number, slot = self._inserted, self._unused.pop()
        self._inserted += 1
        self._slots[number], self._rows[slot] = slot, number
        self._tree.points[slot] = point
        self._tree.labels[slot] = [person, *labels]
        kernels.insert(self._tree, self._space, slot)
        return number

    def leaves(self) -> list[int]:
        """The leaves, the oldest first."""
        count: int = self._tree.meta["leaves"][0]
        return [int(leaf) for leaf in self._tree.leaves[:count]]

    def rows_of(self, leaf: int) -> list[int]:
        """The numbers of a leaf's rows, in the order in which they joined it."""
        rows, slot = [], int(self._tree.nodes["head"][leaf])
        while slot != common.NONE:
            rows.append(self._rows[slot])
            slot = int(self._tree.rows["next"][slot])
        return rows

    def leaf_of(self, number: int) -> int:
        """The leaf that a row is in."""
        return int(self._tree.rows["leaf"][self._slots[number]])

    def box_of(self, node: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least and the greatest coordinates of a node."""
        return self._tree.boxes.lo[:, node].copy(), self._tree.boxes.hi[:, node].copy()

    def is_mature(self, leaf: int) -> bool:
        """Whether a leaf has enough persons and labels to be published."""
        return bool(np.all(self._tree.distinct[leaf] >= self._tree.least))

    def delete_leaf(self, leaf: int) -> list[int]:
        """Delete a leaf; return the numbers of its rows, which leave with it."""
        rows = self.rows_of(leaf)
        kernels.delete_leaf(self._tree, self._space, leaf)
        self._forget(rows)
        return rows

    def delete_row(self, number: int) -> None:
        """Delete one row; a leaf without rows goes too."""
        kernels.delete_row(self._tree, self._space, self._slots[number])
        self._forget([number])

    def merge(self, leaf: int, other: int) -> None:
        """Move the rows of another leaf whose persons this one lacks into it, and cut it if it is then too large."""
        kernels.merge(self._tree, self._space, leaf, other)

    def covering(self, point: NDArray[np.float64]) -> list[int]:
        """The leaves whose boxes have this point, the oldest first."""
        found = np.empty(len(self._tree.leaves), dtype=np.int64)
        count = kernels.find_covering(self._tree, point, found)
        return sorted(map(int, found[:count]), key=self._tree.nodes["born"].__getitem__)

    def root(self) -> int | None:
        """The root, if there are rows."""
        root = int(self._tree.meta["root"][0])
        return None if root == common.NONE else root

    def children(self, node: int) -> list[int]:
        """The nodes below a node; a leaf has none."""
        inner = self._tree.nodes["level"][node] > 0
        return [int(child) for child in self._tree.children[node, : self._tree.nodes["count"][node]]] if inner else []

    def _forget(self, numbers: list[int]) -> None:
        for number in numbers:
            slot = self._slots.pop(number)
            del self._rows[slot]
            self._unused.append(slot)
