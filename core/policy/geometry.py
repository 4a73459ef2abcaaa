"""How a range of coordinates widens into what can be published, and how wide that is.

Every quasi-identifier maps its values to coordinates (float64) and has one of three geometries:

- `Interval`: a range is published as it is, or, where coordinates are numbers of cells, as those cells;
- `Radix`: numbers of a fixed count of digits; a range widens to all numbers that share its prefix;
- `Tree`: the leaves of a hierarchy, numbered depth-first; a range widens to the leaves under their
  lowest common ancestor.

These three are all that the compiled engine knows. A quasi-identifier's own sense (a logarithmic
scale, a cell on a map, an address) lies in the mapping from values to coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXACT", "Geometry", "Interval", "Radix", "Tree"]

#: The integers from -EXACT to EXACT are exact as float64.
EXACT = 2**53


@dataclass(frozen=True)
class Interval:
    """The real numbers from `lo` to `hi`; both None: the range that the stream has shown so far.

    With `cells`, the whole numbers from `lo` to `hi`, each of which stands for a cell as wide as any other: a range of
    them is as wide as the cells in it, and one cell alone is not lossless.
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
        # The engine multiplies by 1 / width, so that has to be a number too.
        if not (0 < width < math.inf and math.isfinite(1.0 / width)):
            msg = f"interval: lo must be less than hi, and both finite, not {self.lo}, {self.hi}."
            raise ValueError(msg)

    @property
    def learned(self) -> bool:
        """Whether the domain is learned from the stream."""
        return self.lo is None

    @property
    def cell(self) -> float:
        """The width of what one coordinate stands for."""
        return 1.0 if self.cells else 0.0

    def widest(self) -> tuple[float, float]:
        """The whole domain; `(-inf, inf)` if it is learned."""
        if self.lo is None or self.hi is None:
            return (-math.inf, math.inf)
        return (float(self.lo), float(self.hi))

    def span(self, lo: float, hi: float) -> tuple[float, float]:
        """What the range is published as: itself."""
        return (float(lo), float(hi))

    def loss(self, lo: float, hi: float) -> float:
        """Width of the range as a part of the domain's; NaN where that is yet to be learned."""
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
        # 53 digits of the smallest base are the most; asking first keeps the power small.
        if self.length > 53 or self.base**self.length > EXACT:
            msg = f"radix: base**length must be at most 2**53, not {self.base}**{self.length}."
            raise ValueError(msg)

    def widest(self) -> tuple[float, float]:
        """All numbers."""
        return (0.0, float(self.base**self.length - 1))

    def span(self, lo: float, hi: float) -> tuple[float, float]:
        """The block of all numbers that share the common prefix of `lo` and `hi`."""
        a, b, size = int(lo), int(hi), 1
        while a != b:
            a, b, size = a // self.base, b // self.base, size * self.base
        return (float(a * size), float(a * size + size - 1))

    def shared(self, lo: float, hi: float) -> int:
        """How many leading digits `lo` and `hi` have in common."""
        a, b, digits = int(lo), int(hi), self.length
        while a != b:
            a, b, digits = a // self.base, b // self.base, digits - 1
        return digits

    def loss(self, lo: float, hi: float) -> float:
        """Width of the range's span as a part of the domain's."""
        first, last = self.span(lo, hi)
        return (last - first) / self.widest()[1]


@dataclass(frozen=True, eq=False)
class Tree:
    """A rooted tree whose leaves are numbered depth-first.

    Nodes are numbered so that a parent comes before its children; node 0 is the root and its own
    parent.

    Args:
        parent: For each node its parent.
        first: For each node the first leaf number under it; its own for a leaf.
        last: For each node the last leaf number under it; its own for a leaf.
        leaf: For each leaf number its node.
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
        """The tree of these parents, its nodes in depth-first order (root, first child, ...)."""
        parents = np.asarray(parent, dtype=np.int32)
        count = len(parents)
        is_leaf = np.ones(count, dtype=bool)
        is_leaf[parents[1:]] = False
        leaf = np.flatnonzero(is_leaf).astype(np.int32)
        # Depth-first: a node's leaves are a run that starts after all leaves before the node.
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

    def ancestor(self, lo: float, hi: float) -> int:
        """The lowest node that has the leaves `lo` and `hi` under it. O(depth)."""
        node = int(self.leaf[int(lo)])
        last = int(hi)
        while self.last[node] < last:
            node = int(self.parent[node])
        return node

    def span(self, lo: float, hi: float) -> tuple[float, float]:
        """The leaves under the lowest common ancestor."""
        node = self.ancestor(lo, hi)
        return (float(self.first[node]), float(self.last[node]))

    def loss(self, lo: float, hi: float) -> float:
        """Width of the range's span as a part of all leaves'; 0 where there is one leaf."""
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
            return "a parent must come before its children, and the root be node 0 and its own parent"
        if np.any(self.parent < 0) or np.any(self.leaf < 0) or np.any(self.leaf >= nodes):
            return "parent and leaf must hold numbers of nodes"
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
