"""The query workload of the CASTLE paper (section 5.2): how well counts survive anonymization.

    SELECT COUNT(*) WHERE pred(q_1) AND ... AND pred(q_n) AND pred(sensitive)

A predicate on a number is an interval that covers a share `theta ** (1 / (n + 1))` of its domain, placed at random. A
predicate on a category is a node of the hierarchy with about this share of the leaves: one of the nodes whose share is
nearest. A predicate on a code is a prefix. If values are whole numbers, the width of a range is the number of values in
it, just as the width of a node is the number of its leaves.

Counts over published rows are estimates: a row satisfies a predicate to the degree that its range lies within the
predicate's range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crenel.policy.geometry import Geometry, Interval, Radix, Tree

__all__ = ["Axis", "Boxes", "Queries", "WorkloadError", "workload_error"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: How many pairs of a query and a row are compared at once. This bounds the memory.
_CELLS = 1 << 21

#: Whole numbers of this size and above do not fit into int64: they are drawn as floats.
_TOO_LARGE = 2.0**63


@dataclass(frozen=True)
class Axis:
    """A column that queries restrict."""

    #: Its geometry. An interval must have a declared domain: a learned one has no share to take.
    geometry: Geometry
    #: Whether its values are whole numbers. Codes and leaves always are.
    whole: bool = True

    @property
    def unit(self) -> float:
        """The width of a range that holds a single value."""
        return 1.0 if self.whole or not isinstance(self.geometry, Interval) else 0.0


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries, one per row, with one column per axis."""

    lo: Floats
    hi: Floats

    def __len__(self) -> int:
        return len(self.lo)

    def chunks(self, others: int) -> Iterator[Queries]:
        """Yield a few queries at a time, each to be compared with `others` rows."""
        size = max(_CELLS // max(others, 1), 1)
        for start in range(0, len(self), size):
            yield Queries(self.lo[start : start + size], self.hi[start : start + size])


@dataclass(frozen=True, eq=False)
class Boxes:
    """Published rows: the distinct boxes, with one column per axis, and the box of each row."""

    lo: Floats
    hi: Floats
    of: Ints

    @classmethod
    def distinct(cls, lo: Floats, hi: Floats) -> Boxes:
        """Build the boxes from rows that have one box each."""
        boxes, of = np.unique(np.hstack([lo, hi]), axis=0, return_inverse=True)
        least, most = np.hsplit(boxes, 2)
        return cls(least, most, of.reshape(-1))


@dataclass(frozen=True)
class WorkloadError:
    """The paper's figure of merit."""

    #: Mean over the windows of the median relative error of a window's queries.
    error: float
    windows: int
    #: Share of the queries that no row answers. If they count, their error is infinite, or 0 if the estimate is 0.
    empty: float


def draw(axes: Sequence[Axis], theta: float, count: int, rng: np.random.Generator) -> Queries:
    """Draw queries over all axes."""
    share = theta ** (1 / len(axes))
    ranges = [_ranges(axis, share, count, rng) for axis in axes]
    return Queries(np.stack([lo for lo, _ in ranges], axis=1), np.stack([hi for _, hi in ranges], axis=1))


def actual(queries: Queries, points: Floats) -> Floats:
    """Count the original rows that satisfy each query."""
    columns = np.ascontiguousarray(points.T)
    counts = []
    for part in queries.chunks(len(points)):
        fits = np.ones((len(part), len(points)), dtype=np.bool_)
        for j, values in enumerate(columns):
            fits &= part.lo[:, j, None] <= values
            fits &= values <= part.hi[:, j, None]
        counts.append(np.count_nonzero(fits, axis=1))
    return np.concatenate(counts).astype(np.float64)


def estimated(queries: Queries, axes: Sequence[Axis], boxes: Boxes) -> Floats:
    """Estimate the counts from the published boxes."""
    there, rows = np.unique(boxes.of, return_counts=True)
    lo, hi = boxes.lo[there].T.copy(), boxes.hi[there].T.copy()
    totals = np.empty(len(queries))
    for query, (least, most) in enumerate(zip(queries.lo, queries.hi, strict=True)):
        left, expected = np.arange(len(there)), rows.astype(np.float64)
        # The last axis first: it is the sensitive column, which rules out most boxes.
        for j in range(len(axes) - 1, -1, -1):
            chance = _shared(lo[j, left], hi[j, left], least[j], most[j], axes[j].unit)
            met = np.flatnonzero(chance)
            left, expected = left[met], expected[met] * chance[met]
        totals[query] = expected.sum()
    return totals


def _shared(lo: Floats, hi: Floats, least: float, most: float, unit: float) -> Floats:
    """Return the share of each range that lies within the predicate's range."""
    first, last, width = np.maximum(lo, least), np.minimum(hi, most), hi - lo + unit
    if unit:
        return np.asarray(np.maximum(last - first + unit, 0.0) / width)
    # A range of one number lies within the predicate's range or outside of it.
    point = width == 0
    return np.asarray(np.where(point, first <= last, np.maximum(last - first, 0.0) / np.where(point, 1.0, width)))


def relative_errors(act: Floats, est: Floats) -> Floats:
    """Return the error of each estimate relative to the actual count."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(act == est, 0.0, np.abs(act - est) / act)


def workload_error(
    axes: Sequence[Axis],
    points: Floats,
    boxes: Boxes,
    *,
    window: int | None,
    theta: float,
    queries: int = 5_000,
    seed: int = 0,
    scale: float = 1.0,
    answered: bool = False,
) -> WorkloadError:
    """Measure the error over the published stream, window by window of its input.

    A window is `window` consecutive arrivals, compared with their published form whenever that left. Suppressed rows
    count with their widest box. Rows at the end that do not fill a window are left out.

    Args:
        axes: The quasi-identifiers and, last, the sensitive column, if there is one.
        points: All rows of the input, one column per axis.
        boxes: The published form of each row. The box of a sensitive value is that value.
        window: Rows per window; None takes all rows as one window, and `boxes` may then be in any order.
        theta: The expected selectivity of a query.
        queries: The number of queries per window.
        seed: The seed that draws the queries.
        scale: A factor on the estimates: the number of rows that each row stands for, if the method samples.
        answered: Whether to count only queries that some row answers. The error is NaN if there are none.
    """
    rng = np.random.default_rng(seed)
    parts = [slice(None)]
    if window is not None:
        parts = [slice(start, start + window) for start in range(0, len(points) - window + 1, window)]
    errors, empty = [], []
    for part in parts:
        drawn = draw(axes, theta, queries, rng)
        act = actual(drawn, points[part])
        est = scale * estimated(drawn, axes, Boxes(boxes.lo, boxes.hi, boxes.of[part]))
        counted = act > 0 if answered else np.ones(len(act), np.bool_)
        errors.append(np.median(relative_errors(act, est)[counted]) if counted.any() else np.nan)
        empty.append(np.mean(act == 0.0))
    return WorkloadError(float(np.mean(errors)), len(errors), float(np.mean(empty)))


def _ranges(axis: Axis, share: float, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    geometry = axis.geometry
    if isinstance(geometry, Tree):
        leaves = geometry.last - geometry.first + 1
        off = np.abs(leaves / len(geometry.leaf) - share)
        node = rng.choice(np.flatnonzero(off == off.min()), size=count)
        return geometry.first[node].astype(np.float64), geometry.last[node].astype(np.float64)
    if isinstance(geometry, Radix):
        sizes = float(geometry.base) ** np.arange(geometry.length + 1)
        size = sizes[np.argmin(np.abs(sizes / sizes[-1] - share))]
        block = size * rng.integers(0, int(sizes[-1] // size), size=count)
        return block, block + size - 1.0
    least, most = geometry.widest()
    if not axis.unit:
        lo = rng.uniform(least, most - (most - least) * share, size=count)
        return lo, lo + (most - least) * share
    size = most - least + 1.0
    length = max(1.0, round(size * share))
    first = _whole_numbers(least, most - length + 1.0, count, rng)
    return first, first + length - 1.0


def _whole_numbers(least: float, most: float, count: int, rng: np.random.Generator) -> Floats:
    if max(abs(least), abs(most)) < _TOO_LARGE:
        return rng.integers(int(least), int(most), size=count, endpoint=True).astype(np.float64)
    return np.rint(rng.uniform(least, most, size=count))
