"""How a range of coordinates widens into what can be published, and how much information that loses.

Every quasi-identifier maps its values to coordinates (float64) and has one of three geometries:

- `Interval`: a range is published as it is; if coordinates number cells, as those cells.
- `Radix`: numbers with a fixed count of digits. A range widens to all numbers with the common prefix.
- `Tree`: the leaves of a hierarchy, numbered depth-first. A range widens to all leaves under the lowest common
  ancestor.

The compiled engine knows only these three. What is special about a quasi-identifier (a logarithmic scale, a cell on a
map, an address) lies in its mapping from values to coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXACT", "Geometry", "Interval", "Radix", "Tree"]

#: float64 represents all integers from -EXACT to EXACT exactly.
EXACT = 2**53


@dataclass(frozen=True)
class Interval:
    """The real numbers from `lo` to `hi`. If both are None, the range is learned from the stream.

    With `cells`, the whole numbers from `lo` to `hi`. Each stands for a cell of the same width, so the width of a range
    is the number of its cells, and even a single cell loses information.
    """

    lo: float | None = None
    hi: float | None = None
    cells: bool = False

    def __post_init__(self) -> None:
        if (self.lo is None) != (self.hi is None):
            msg = f"interval: lo and hi must both be given or both be None, not {self.lo}, {self.hi}."
            raise ValueError(msg)
        if self.lo is None or self.hi is None:
            return
        if self.cells:
            if not (self.lo == self.lo // 1 and self.hi == self.hi // 1 and -EXACT <= self.lo <= self.hi <= EXACT):
                msg = f"interval: lo and hi of cells must be whole, and lo not above hi, not {self.lo}, {self.hi}."
                raise ValueError(msg)
            return
        width = self.hi - self.lo
        # The engine multiplies by 1 / width, which must be finite too.
        if not (0 < width < math.inf and math.isfinite(1.0 / width)):
            msg = f"interval: lo must be less than hi, and both finite, not {self.lo}, {self.hi}."
            raise ValueError(msg)

    @property
    def learned(self) -> bool:
        """Whether the domain is learned from the stream."""
        return self.lo is None

    @property
    def cell(self) -> float:
        """The width of a single coordinate."""
        return 1.0 if self.cells else 0.0

    def widest(self) -> tuple[float, float]:
        """Return the whole domain; `(-inf, inf)` if it is learned."""
        if self.lo is None or self.hi is None:
            return (-math.inf, math.inf)
        return (float(self.lo), float(self.hi))

    def span(self, lo: float, hi: float) -> tuple[float, float]:
        """Return what the range is published as: the range itself."""
        return (float(lo), float(hi))

    def loss(self, lo: float, hi: float) -> float:
        """Return the range's share of the domain; NaN if the domain is learned."""
        if math.isinf(lo) and math.isinf(hi) and lo < hi:
            return 1.0
        if self.lo is None or self.hi is None:
            return math.nan
        return (hi - lo + self.cell) / (self.hi - self.lo + self.cell)


@dataclass(frozen=True)
class Radix:
    """The numbers `0 .. base**length - 1`, written with `length` digits."""

    base: int
    length: int

    def __post_init__(self) -> None:
        if not _is_integer(self.base) or self.base < 2:
            msg = f"radix: base must be an integer of at least 2, not {self.base!r}."
            raise ValueError(msg)
        if not _is_integer(self.length) or self.length < 1:
            msg = f"radix: length must be an integer of at least 1, not {self.length!r}."
            raise ValueError(msg)
        # Base 2 allows at most 53 digits. Checking that first keeps the power small.
        if self.length > 53 or self.base**self.length > EXACT:
            msg = f"radix: base**length must be at most 2**53, not {self.base}**{self.length}."
            raise ValueError(msg)

    def widest(self) -> tuple[float, float]:
        """All numbers."""
        return (0.0, float(self.base**self.length - 1))

    def span(self, lo: float, hi: float) -> tuple[float, float]:
        """Return all numbers that share the common prefix of `lo` and `hi`."""
        a, b, size = int(lo), int(hi), 1
        while a != b:
            a, b, size = a // self.base, b // self.base, size * self.base
        return (float(a * size), float(a * size + size - 1))

    def levels(self) -> int:
        """Count the spans that contain a number: itself, and one for each digit that is left out."""
        return self.length + 1

    def shared(self, lo: float, hi: float) -> int:
        """Count the leading digits that `lo` and `hi` have in common."""
        a, b, digits = int(lo), int(hi), self.length
        while a != b:
            a, b, digits = a // self.base, b // self.base, digits - 1
        return digits

    def loss(self, lo: float, hi: float) -> float:
        """Return the share of the domain that the range's span covers."""
        first, last = self.span(lo, hi)
        return (last - first) / self.widest()[1]


@dataclass(frozen=True, eq=False)
class Tree:
    """A rooted tree whose leaves are numbered depth-first.

    A parent has a smaller number than its children. Node 0 is the root and its own parent.

    Args:
        parent: The parent of each node.
        first: The first leaf number under each node; for a leaf, its own number.
        last: The last leaf number under each node; for a leaf, its own number.
        leaf: The node of each leaf number.
    """

    parent: NDArray[np.int32]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    leaf: NDArray[np.int32]

    def __post_init__(self) -> None:
        for name in ("parent", "first", "last", "leaf"):
            array = np.array(getattr(self, name), dtype=np.int32, order="C", ndmin=1)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        problem = self._problem()
        if problem:
            msg = f"tree: {problem}."
            raise ValueError(msg)

    @classmethod
    def from_parents(cls, parent: NDArray[np.int32]) -> Tree:
        """Build the tree from its parents, with nodes in depth-first order (root, first child, ...)."""
        parents = np.asarray(parent, dtype=np.int32)
        count = len(parents)
        is_leaf = np.ones(count, dtype=bool)
        is_leaf[parents[1:]] = False
        leaf = np.flatnonzero(is_leaf).astype(np.int32)
        # In depth-first order, the leaves under a node follow all leaves before the node.
        first = (np.cumsum(is_leaf) - is_leaf).astype(np.int32)
        last = first.tolist()
        above = parents.tolist()
        for node in range(count - 1, 0, -1):
            last[above[node]] = max(last[above[node]], last[node])
        return cls(parents, first, np.array(last, dtype=np.int32), leaf)

    def __eq__(self, other: object) -> bool:
        # `first`, `last` and `leaf` follow from the parents.
        return isinstance(other, Tree) and np.array_equal(self.parent, other.parent)

    def __hash__(self) -> int:
        return hash(self.parent.tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return Tree, (self.parent, self.first, self.last, self.leaf)

    def __repr__(self) -> str:
        return f"Tree({len(self.leaf)} leaves, {len(self.parent)} nodes)"

    def widest(self) -> tuple[float, float]:
        """All leaves."""
        return (0.0, float(len(self.leaf) - 1))

    def levels(self) -> int:
        """Count the nodes from the root to a leaf, at most."""
        depth = np.ones(len(self.parent), np.int64)
        for node in range(1, len(depth)):  # a parent comes before its children
            depth[node] = depth[self.parent[node]] + 1
        return int(depth.max())

    def ancestor(self, lo: float, hi: float) -> int:
        """Return the lowest node above the leaves `lo` and `hi`. O(depth)."""
        node = int(self.leaf[int(lo)])
        last = int(hi)
        while self.last[node] < last:
            node = int(self.parent[node])
        return node

    def span(self, lo: float, hi: float) -> tuple[float, float]:
        """Return the leaves under the lowest common ancestor."""
        node = self.ancestor(lo, hi)
        return (float(self.first[node]), float(self.last[node]))

    def loss(self, lo: float, hi: float) -> float:
        """Return the share of the leaves that the range's span covers; 0 if there is only one leaf."""
        widest = len(self.leaf) - 1
        if widest == 0:
            return 0.0
        first, last = self.span(lo, hi)
        return (last - first) / widest

    def _problem(self) -> str | None:
        nodes, leaves = len(self.parent), len(self.leaf)
        if not nodes or len(self.first) != nodes or len(self.last) != nodes:
            return "parent, first and last must be of one length, at least 1"
        if self.parent[0] != 0 or np.any(self.parent[1:] >= np.arange(1, nodes)):
            return "a parent must come before its children, and the root must be node 0 and its own parent"
        if np.any(self.parent < 0) or np.any(self.leaf < 0) or np.any(self.leaf >= nodes):
            return "parent and leaf must hold node numbers"
        if self.first[0] != 0 or self.last[0] != leaves - 1:
            return "all leaves must be under the root"
        number = np.arange(leaves)
        if np.any(self.first[self.leaf] != number) or np.any(self.last[self.leaf] != number):
            return "first and last of a leaf must be its own number"
        above = self.parent
        if np.any(self.first < self.first[above]) or np.any(self.last > self.last[above]):
            return "a node's leaves must be among its parent's"
        return None


Geometry: TypeAlias = Interval | Radix | Tree


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
