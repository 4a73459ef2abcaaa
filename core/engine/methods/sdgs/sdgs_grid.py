"""A grid over the quasi-identifiers that depends only on the policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from crenel.engine.methods.sdgs import SdgsParameters
from crenel.policy import Policy
from crenel.policy.geometry import Geometry, Interval, Radix, Tree
from crenel.policy.quasi_identifiers import QuasiIdentifier

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Grid:
    """The cells that rows are published as.

    Args:
        policy: The policy that has the quasi-identifiers. Every domain is declared.
        parameters: How fine the grid is.
        scale: How much each quasi-identifier adds to the loss per unit of width.
    """

    def __init__(self, policy: Policy, parameters: SdgsParameters, scale: Floats) -> None:
        geometries = {name: qi.geometry for name, qi in policy.quasi_identifiers.items()}
        qis = policy.quasi_identifiers
        self._axes = [axis_of(qi, parameters.fineness(name, qi.values)) for name, qi in qis.items()]
        self._scale = scale.copy()
        self._cell = np.array([getattr(geometry, "cell", 0.0) for geometry in geometries.values()])
        widest = np.array([geometry.widest() for geometry in geometries.values()])
        #: The box that contains every row.
        self.widest: tuple[Floats, Floats] = (widest[:, 0], widest[:, 1])

    def cells(self, qi: Floats) -> Ints:
        """Return the cell of each row: one number per quasi-identifier."""
        return np.stack([place(qi[:, d]) for d, (place, _, _) in enumerate(self._axes)], axis=1)

    def box(self, cell: Ints) -> tuple[Floats, Floats]:
        """Return the box of a cell."""
        places = cell.tolist()
        lo = np.array([lows[at] for at, (_, lows, _) in zip(places, self._axes, strict=True)])
        hi = np.array([highs[at] for at, (_, _, highs) in zip(places, self._axes, strict=True)])
        return lo, hi

    def loss(self, lo: Floats, hi: Floats) -> float:
        """Return the loss of a box, from 0 to 1."""
        total = 0.0
        for part in (self._scale * (hi - lo + self._cell)).tolist():
            total += part
        return total


#: A function from coordinates to places on the axis, and the first and last coordinate of each place.
_Axis = tuple[Callable[[Floats], Ints], "Floats | _Blocks | _AndMissing", "Floats | _Blocks | _AndMissing"]


class _Blocks:
    """The ends of blocks of equal size, computed since there are too many to list."""

    def __init__(self, size: int, offset: int) -> None:
        self._size, self._offset = size, offset

    def __getitem__(self, at: int) -> float:
        return float(at * self._size + self._offset)


class _AndMissing:
    """The ends of places, and of one more (-1) for missing values."""

    def __init__(self, ends: Floats | _Blocks, missing_at: float) -> None:
        self._ends, self._missing_at = ends, missing_at

    def __getitem__(self, at: int) -> float:
        return self._missing_at if at < 0 else float(self._ends[at])


def axis_of(qi: QuasiIdentifier, fineness: int) -> _Axis:
    """Return the axis of a quasi-identifier. Missing values, as a category, are a place of their own."""
    missing_at = qi.missing_at
    if missing_at is None:
        return _axis(qi.geometry, fineness)
    place, lows, highs = _axis(qi.values, fineness)

    def place_or_missing(x: Floats) -> Ints:
        missing = x == missing_at
        return np.where(missing, -1, place(x))

    return place_or_missing, _AndMissing(lows, missing_at), _AndMissing(highs, missing_at)


def _axis(geometry: Geometry, fineness: int) -> _Axis:
    if isinstance(geometry, Interval) and geometry.cells:
        return _bins_of_cells(*geometry.widest(), fineness)
    if isinstance(geometry, Interval):
        return _bins(*geometry.widest(), fineness)
    if isinstance(geometry, Radix):
        size = geometry.base ** (geometry.length - fineness)
        return lambda x: x.astype(np.int64) // size, _Blocks(size, 0), _Blocks(size, size - 1)
    return _level(geometry, fineness)


def _bins(lo: float, hi: float, count: int) -> _Axis:
    edges = lo + (hi - lo) * (np.arange(count + 1) / count)
    edges[0], edges[-1] = lo, hi
    # Compare with the edges, so that rounding never puts a value outside its own bin.
    return lambda x: np.clip(np.searchsorted(edges, x, side="right") - 1, 0, count - 1), edges[:-1], edges[1:]


def _bins_of_cells(lo: float, hi: float, count: int) -> _Axis:
    """Return bins of whole cells, whose sizes differ by at most one cell."""
    # In integers, since a domain may have too many cells for the precision of floats.
    cells = int(hi) - int(lo) + 1
    starts = np.array([lo + at * cells // count for at in range(count + 1)])
    return lambda x: np.searchsorted(starts[:-1], x, side="right") - 1, starts[:-1], starts[1:] - 1.0


def _level(tree: Tree, level: int) -> _Axis:
    """Return the nodes `level` levels below the root; a leaf that is less deep stands for itself."""
    depth = np.zeros(len(tree.parent), dtype=np.int64)
    for node in range(1, len(tree.parent)):
        depth[node] = depth[tree.parent[node]] + 1
    node_of = tree.leaf.astype(np.int64)
    while (deeper := depth[node_of] > level).any():
        node_of = np.where(deeper, tree.parent[node_of], node_of)
    return lambda x: node_of[x.astype(np.int64)], tree.first.astype(np.float64), tree.last.astype(np.float64)
