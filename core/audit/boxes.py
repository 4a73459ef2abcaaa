"""Which boxes a policy can publish, computed without the `span` functions that the engine uses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from crenel.policy import Policy
from crenel.policy.geometry import Geometry, Interval, Radix, Tree

__all__ = ["legal"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def legal(policy: Policy, lo: Floats, hi: Floats) -> Bools:
    """Tell which boxes, given a row each, the policy's geometries can publish."""
    right = np.ones(len(lo), np.bool_)
    for j, qi in enumerate(policy.quasi_identifiers.values()):
        geometry = qi.geometry
        unpublished = np.isnan(lo[:, j]) & np.isnan(hi[:, j]) & policy.declaration.takes_holes
        right &= _legal(geometry, np.where(unpublished, geometry.widest()[0], lo[:, j]), hi[:, j]) | unpublished
    return right


def _legal(geometry: Geometry, lo: Floats, hi: Floats) -> Bools:
    """Tell which ranges are spans. This does not call `span`, which the engine uses."""
    least, most = geometry.widest()
    inside = (least <= lo) & (lo <= hi) & (hi <= most)
    if isinstance(geometry, Interval):
        everything = (lo == least) & (hi == most)
        if geometry.cells:
            inside &= (np.floor(lo) == lo) & (np.floor(hi) == hi)
        return np.asarray(inside & ((np.isfinite(lo) & np.isfinite(hi)) | everything))
    whole = inside & (np.floor(lo) == lo) & (np.floor(hi) == hi)
    first = np.where(whole, lo, 0).astype(np.int64)
    last = np.where(whole, hi, 0).astype(np.int64)
    if isinstance(geometry, Radix):
        block = np.zeros(len(lo), np.bool_)
        for free in range(geometry.length + 1):
            size = geometry.base**free
            block |= (first % size == 0) & (last - first == size - 1)
        return np.asarray(whole & block)
    return np.asarray(whole & _is_node(geometry, first, last))


def _is_node(tree: Tree, first: Ints, last: Ints) -> Bools:
    leaves = len(tree.leaf)
    nodes = tree.first.astype(np.int64) * leaves + tree.last.astype(np.int64)
    return np.isin(first * leaves + last, nodes)
