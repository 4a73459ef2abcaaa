"""Measures of what anonymity costs: published boxes, groups and delays.

All measures cover every published row, including rows published as `*`. A quasi-identifier that is not published, or
published as its whole domain, is lost entirely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.policy import Policy
from crenel.policy.geometry import Interval

__all__ = [
    "Loss",
    "cells",
    "distances",
    "diversity",
    "domains",
    "histogram",
    "histogram_of_sizes",
    "losses",
    "parts",
    "rounded",
    "widest",
]

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_BINS = 24


def widest(policy: Policy) -> Floats:
    """Return the ends of each quasi-identifier's domain, one row each; infinite if the domain is learned."""
    return np.array([qi.geometry.widest() for qi in policy.quasi_identifiers.values()], np.float64).reshape(-1, 2)


def domains(policy: Policy, *columns: Floats) -> Floats:
    """Return the same, with learned domains taken from the columns: matrices of coordinates or of box ends."""
    ends = widest(policy)
    for j in np.flatnonzero(np.isinf(ends[:, 0])):
        values = np.concatenate([column[:, j] for column in columns])
        values = values[np.isfinite(values)]
        ends[j] = (values.min(), values.max()) if len(values) else (0.0, 0.0)
    return ends


def cells(policy: Policy) -> Floats:
    """Return the width of a single coordinate, by quasi-identifier: with a step, a whole cell is published."""
    geometries = [qi.geometry for qi in policy.quasi_identifiers.values()]
    return np.array([1.0 if isinstance(g, Interval) and g.cells else 0.0 for g in geometries])


def parts(policy: Policy, lo: Floats, hi: Floats, ends: Floats) -> Floats:
    """Return the share of each domain that each box covers; 1 if the quasi-identifier is not published."""
    cell = cells(policy)
    width = ends[:, 1] - ends[:, 0] + cell
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(width > 0, (hi - lo + cell) / width, 0.0)
    return np.where(np.isnan(lo) | np.isinf(hi - lo), 1.0, np.minimum(part, 1.0))


@dataclass(frozen=True)
class Loss:
    """The information lost, as means over the rows."""

    #: The generalized loss metric with the policy's weights, and the same for each quasi-identifier alone.
    overall: float
    per_attribute: tuple[float, ...]
    #: The normalized certainty penalty. For a category it is the share of the leaves, and 0 for a single leaf.
    ncp: float
    #: The shares of the domains, added up without weights.
    penalty: float
    #: The loss of each row.
    rows: Floats


def losses(policy: Policy, lo: Floats, hi: Floats, ends: Floats, box: Ints, has: Bools | None = None) -> Loss | None:
    """Compute the losses of rows in boxes; None if there are no rows.

    `has` tells which quasi-identifiers each row has, if that is known and some rows lack one. A missing value that is
    not published counts as kept; a missing value that is published counts as lost.
    """
    if not len(box):
        return None
    part, certainty = parts(policy, lo, hi, ends), _certainty(policy, lo, hi, ends)
    counted = np.ones(part.shape, np.bool_)
    cell = np.asarray(box)
    if has is not None:
        pattern = has @ (1 << np.arange(has.shape[1], dtype=np.int64))
        _, first, cell = np.unique(
            box.astype(np.int64) * (1 << has.shape[1]) + pattern, return_index=True, return_inverse=True
        )
        shown, there = ~np.isnan(lo[box[first]]), has[first]
        counted = shown | there
        part, certainty = (np.where(shown & there, p[box[first]], shown ^ there) for p in (part, certainty))
    rows = np.bincount(cell, minlength=len(part)).astype(np.float64)
    weights = np.array([float(qi.weight) for qi in policy.quasi_identifiers.values()])
    every = np.maximum(rows @ counted, 1.0)
    of_box = _mean(part * counted, counted * weights)
    return Loss(
        overall=float(rows @ of_box / rows.sum()),
        per_attribute=tuple((rows @ (part * counted) / every).tolist()),
        ncp=float(rows @ _mean(certainty * counted, counted * weights) / rows.sum()),
        penalty=float(rows @ (part * counted).sum(axis=1) / rows.sum()),
        rows=of_box[cell],
    )


def _mean(values: Floats, weights: Floats) -> Floats:
    whole = weights.sum(axis=1)
    lost = (values * weights).sum(axis=1)
    return np.asarray(np.divide(lost, whole, out=np.zeros(len(values)), where=whole > 0))


def _certainty(policy: Policy, lo: Floats, hi: Floats, ends: Floats) -> Floats:
    """Return the same as `parts`, but count categories and codes: 0 for a single one, else their share of all."""
    certainty = parts(policy, lo, hi, ends)
    for j, qi in enumerate(policy.quasi_identifiers.values()):
        if not isinstance(qi.geometry, Interval):
            leaves = hi[:, j] - lo[:, j] + 1.0
            share = np.where(leaves == 1.0, 0.0, leaves / (ends[j, 1] - ends[j, 0] + 1.0))
            certainty[:, j] = np.where(np.isnan(lo[:, j]), 1.0, share)
    return certainty


def diversity(box: Ints, codes: Ints, boxes: int) -> tuple[Ints, Floats]:
    """For each box, count the distinct values and compute the exponential of their entropy; 0 if it has no rows."""
    of, _, rows = _pairs(box, codes)
    size = np.bincount(of, rows, minlength=boxes)
    share = rows / size[of]
    entropy = np.bincount(of, -share * np.log(share), minlength=boxes)
    return np.bincount(of, minlength=boxes), np.where(size > 0, np.exp(entropy), 0.0)


def distances(box: Ints, codes: Ints, boxes: int, size: int | None) -> Floats:
    """For each box, compute the distance of its values from those of all rows; `size` is given for ordered values."""
    of, value, rows = _pairs(box, codes)
    share = rows / np.bincount(of, rows, minlength=boxes)[of]
    if size is None:
        _, value = np.unique(value, return_inverse=True)
        every = np.bincount(value, rows) / max(rows.sum(), 1)
        # Each value that a box lacks adds its whole share.
        off = np.abs(share - every[value]) - every[value]
        far = (1.0 + np.bincount(of, off, minlength=boxes)) / 2
        far[np.bincount(of, minlength=boxes) == 0] = 0.0
        return far
    every = np.bincount(value, rows, minlength=size) / max(rows.sum(), 1)
    far = np.zeros(boxes)
    ends = np.searchsorted(of, np.arange(boxes + 1))
    for group in np.flatnonzero(np.diff(ends)):
        part = slice(ends[group], ends[group + 1])
        here = np.bincount(value[part], share[part], minlength=size)
        far[group] = np.abs(np.cumsum(here - every)).sum() / max(size - 1, 1)
    return far


def _pairs(box: Ints, codes: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the distinct pairs of a box and a value, sorted by box, and the number of rows of each pair."""
    values, code = np.unique(codes, return_inverse=True)
    pairs, rows = np.unique(box.astype(np.int64) * max(len(values), 1) + code, return_counts=True)
    return pairs // max(len(values), 1), values[pairs % max(len(values), 1)] if len(pairs) else pairs, rows


def histogram_of_sizes(sizes: Ints, rows: Ints) -> list[dict[str, int]]:
    """Count the groups with at least `from` and fewer than `to` members, and the rows in them."""
    if not len(sizes):
        return []
    edges = np.rint(np.geomspace(max(sizes.min(), 1), sizes.max() + 1, _BINS + 1)).astype(np.int64)
    edges = np.unique(np.append(edges, sizes.min()))
    place = np.searchsorted(edges, sizes, side="right") - 1
    groups = np.bincount(place, minlength=len(edges) - 1)
    of_rows = np.bincount(place, rows, minlength=len(edges) - 1).astype(np.int64)
    ends = zip(edges[:-1].tolist(), edges[1:].tolist(), groups.tolist(), of_rows.tolist(), strict=True)
    return [{"from": lo, "to": hi, "groups": count, "rows": rows} for lo, hi, count, rows in ends]


def histogram(values: Floats, most: float) -> list[dict[str, Any]]:
    """Count the rows with a value of at least `from` and below `to`; the last bin includes its end."""
    counts, edges = np.histogram(values, bins=_BINS, range=(0.0, max(most, 1e-9)))
    ends: Sequence[float] = [rounded(edge) for edge in edges.tolist()]
    bins = zip(ends[:-1], ends[1:], counts.tolist(), strict=True)
    return [{"from": lo, "to": hi, "rows": rows} for lo, hi, rows in bins]


def rounded(value: float) -> float:
    """Round to six significant digits, which is more than anyone reads."""
    return float(f"{value:.6g}")
