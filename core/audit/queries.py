"""The query workload of the CASTLE paper (section 5.2): how well counts survive anonymization.

    SELECT COUNT(*) WHERE pred(q_1) AND ... AND pred(q_n) AND pred(sensitive)

A predicate on a number is an interval of a share `theta ** (1 / (n + 1))` of its domain, placed at
random; one on a category is a node of the hierarchy that has about this share of the leaves (the
nearest share there is; drawn, where several have it), one on a code a prefix. Where numbers are
whole, a range is as wide as the whole numbers in it, as a node is as wide as its leaves.

On the published rows the count is estimated: a row satisfies a predicate with the share of its
range that lies in the predicate's.
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

#: Queries times rows that are looked at at once: what bounds the memory.
_CELLS = 1 << 21


@dataclass(frozen=True)
class Axis:
    """What is asked of one column."""

    #: With a declared domain: an interval that is learned has no share to take.
    geometry: Geometry
    #: Whether its values are whole numbers. Codes and leaves always are.
    whole: bool = True

    @property
    def unit(self) -> float:
        """What a range of one value is wide."""
        return 1.0 if self.whole or not isinstance(self.geometry, Interval) else 0.0


@dataclass(frozen=True, eq=False)
class Queries:
    """One query a row, a column for each axis."""

    lo: Floats
    hi: Floats

    def __len__(self) -> int:
        return len(self.lo)

    def chunks(self, others: int) -> Iterator[Queries]:
        """A few at a time, where each is compared with so many others."""
        size = max(_CELLS // max(others, 1), 1)
        for start in range(0, len(self), size):
            yield Queries(self.lo[start : start + size], self.hi[start : start + size])


@dataclass(frozen=True, eq=False)
class Boxes:
    """Published rows: the different boxes, a column for each axis, and which of them each row has."""

    lo: Floats
    hi: Floats
    of: Ints

    @classmethod
    def distinct(cls, lo: Floats, hi: Floats) -> Boxes:
        """The boxes of rows that have one each."""
        boxes, of = np.unique(np.hstack([lo, hi]), axis=0, return_inverse=True)
        least, most = np.hsplit(boxes, 2)
        return cls(least, most, of.reshape(-1))


@dataclass(frozen=True)
class WorkloadError:
    """The paper's figure of merit."""

    #: Mean over the windows of the median relative error of a window's queries.
    error: float
    windows: int
    #: Share of the queries that no row answers: if they count, their error is infinite, or 0 if estimated at 0.
    empty: float


def draw(axes: Sequence[Axis], theta: float, count: int, rng: np.random.Generator) -> Queries:
    """Draw queries over all axes."""
    share = theta ** (1 / len(axes))
    ranges = [_ranges(axis, share, count, rng) for axis in axes]
    return Queries(np.stack([lo for lo, _ in ranges], axis=1), np.stack([hi for _, hi in ranges], axis=1))


def actual(queries: Queries, points: Floats) -> Floats:
    """The counts over the rows as they were."""
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
    """The counts to be expected of rows that were published in these boxes."""
    there, rows = np.unique(boxes.of, return_counts=True)
    lo, hi = boxes.lo[there].T.copy(), boxes.hi[there].T.copy()
    totals = np.empty(len(queries))
    for query, (least, most) in enumerate(zip(queries.lo, queries.hi, strict=True)):
        left, expected = np.arange(len(there)), rows.astype(np.float64)
        # The last first, which is the sensitive column: it leaves most boxes out. The others look at the rest.
        for j in range(len(axes) - 1, -1, -1):
            chance = _shared(lo[j, left], hi[j, left], least[j], most[j], axes[j].unit)
            met = np.flatnonzero(chance)
            left, expected = left[met], expected[met] * chance[met]
        totals[query] = expected.sum()
    return totals


def _shared(lo: Floats, hi: Floats, least: float, most: float, unit: float) -> Floats:
    """The share of each range that lies in a predicate's."""
    first, last, width = np.maximum(lo, least), np.minimum(hi, most), hi - lo + unit
    if unit:
        return np.asarray(np.maximum(last - first + unit, 0.0) / width)
    # A range of one number lies in the predicate's or does not.
    point = width == 0
    return np.asarray(np.where(point, first <= last, np.maximum(last - first, 0.0) / np.where(point, 1.0, width)))


def relative_errors(act: Floats, est: Floats) -> Floats:
    """How far each estimate is off, as a part of the actual count."""
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
    """Judge the published stream, window by window of its input.

    A window is `window` rows that arrived in a row, as they were and as they were published,
    whenever that was; suppressed ones count with their widest box. What is left over at the end and
    does not fill a window is not judged.

    Args:
        axes: The quasi-identifiers and, last, the sensitive column, if there is one.
        points: The rows, none of them left out, a column for each axis.
        boxes: What they became, row by row; of a sensitive value, a box of that one.
        window: The rows of a window; None: all of them, and the boxes need not be in the order of the rows.
        theta: The selectivity that is expected of a query.
        queries: For each window.
        seed: Of the queries.
        scale: What an estimate is multiplied by: where a method samples, what a row stands for.
        answered: Only queries that some row answers count; NaN if there are none.
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
    first = rng.integers(int(least), int(most - length + 1.0), size=count, endpoint=True).astype(np.float64)
    return first, first + length - 1.0
