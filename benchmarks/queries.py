"""The query workload of the CASTLE paper (section 5.2): how well counts survive anonymization.

    SELECT COUNT(*) WHERE pred(q_1) AND ... AND pred(q_n) AND pred(sensitive)

A predicate on a number is an interval of a share `theta ** (1 / (n + 1))` of its domain, placed at
random; one on a category is a node of the hierarchy that has about this share of the leaves (the
nearest share there is; drawn, where several have it). All numbers here are whole, so that a range
is as wide as the whole numbers in it, as a node is as wide as its leaves.

On the published rows the count is estimated: a row satisfies a predicate with the share of its
range that lies in the predicate's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crenel.engine import Releases
from crenel.geometry import Geometry, Tree
from crenel.rows import Rows

#: Queries answered at once: what bounds the memory of queries times rows.
_CHUNK = 250


@dataclass(frozen=True, eq=False)
class Queries:
    """One query a row; columns are the quasi-identifiers, and last the sensitive column."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.lo)

    def chunks(self) -> list[Queries]:
        return [Queries(self.lo[i : i + _CHUNK], self.hi[i : i + _CHUNK]) for i in range(0, len(self), _CHUNK)]


@dataclass(frozen=True)
class WorkloadError:
    """The paper's figure of merit."""

    #: Mean over the windows of the median relative error of a window's queries.
    error: float
    windows: int
    #: Share of the queries that no row answers: their error is infinite, or 0 if estimated at 0.
    empty: float


def draw(geometries: Sequence[Geometry], theta: float, count: int, rng: np.random.Generator) -> Queries:
    """Draw queries over the quasi-identifiers and, last, the sensitive column."""
    share = theta ** (1 / len(geometries))
    ranges = [_ranges(geometry, share, count, rng) for geometry in geometries]
    return Queries(np.stack([lo for lo, _ in ranges], axis=1), np.stack([hi for _, hi in ranges], axis=1))


def actual(queries: Queries, qi: NDArray[np.float64], sensitive: NDArray[np.int64]) -> NDArray[np.float64]:
    """The counts over the rows as they were."""
    columns = np.ascontiguousarray(np.column_stack([qi, sensitive]).T)
    counts = []
    for part in queries.chunks():
        fits = np.ones((len(part), len(qi)), dtype=np.bool_)
        for j, values in enumerate(columns):
            fits &= part.lo[:, j, None] <= values
            fits &= values <= part.hi[:, j, None]
        counts.append(np.count_nonzero(fits, axis=1))
    return np.concatenate(counts).astype(np.float64)


def estimated(
    queries: Queries,
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
    sensitive: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The counts to be expected of rows that were published in these boxes."""
    boxes, box = np.unique(np.hstack([lo, hi]), axis=0, return_inverse=True)
    lo, hi = np.hsplit(boxes, 2)
    # How often each sensitive value is under each box: equal rows are answered once.
    values = int(sensitive.max()) + 1
    counts = np.zeros((len(boxes), values))
    np.add.at(counts, (box.ravel(), sensitive), 1.0)
    numbers = np.arange(values)
    totals = []
    for part in queries.chunks():
        chance = np.ones((len(part), len(boxes)))
        for j in range(lo.shape[1]):
            first = np.maximum(part.lo[:, j, None], lo[:, j])
            last = np.minimum(part.hi[:, j, None], hi[:, j])
            chance *= np.maximum(last - first + 1.0, 0.0) / (hi[:, j] - lo[:, j] + 1.0)
        fits = (part.lo[:, -1:] <= numbers) & (numbers <= part.hi[:, -1:])
        totals.append(np.sum((chance @ counts) * fits, axis=1))
    return np.concatenate(totals)


def relative_errors(act: NDArray[np.float64], est: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(act == est, 0.0, np.abs(act - est) / act)


def workload_error(
    rows: Rows,
    releases: Releases,
    geometries: Sequence[Geometry],
    sensitive: NDArray[np.int64],
    *,
    window: int,
    theta: float,
    queries: int = 5_000,
    seed: int = 0,
) -> WorkloadError:
    """Judge the published stream, window by window of its input.

    A window is `window` rows that arrived in a row, as they were and as they were published,
    whenever that was; suppressed ones count with their widest box. What is left over at the end and
    does not fill a window is not judged.

    Args:
        rows: The rows, none of them left out.
        releases: What they became.
        geometries: Of the quasi-identifiers, and last of the sensitive column.
        sensitive: The sensitive value of each row.
        window: The rows of a window.
        theta: The selectivity that is expected of a query.
        queries: For each window.
        seed: Of the queries.
    """
    lo, hi = np.empty_like(rows.qi), np.empty_like(rows.qi)
    lo[releases.rows] = releases.per_row(releases.lo)
    hi[releases.rows] = releases.per_row(releases.hi)
    rng = np.random.default_rng(seed)
    errors, empty = [], []
    for start in range(0, len(rows) - window + 1, window):
        part = slice(start, start + window)
        drawn = draw(geometries, theta, queries, rng)
        act = actual(drawn, rows.qi[part], sensitive[part])
        est = estimated(drawn, lo[part], hi[part], sensitive[part])
        errors.append(np.median(relative_errors(act, est)))
        empty.append(np.mean(act == 0.0))
    return WorkloadError(float(np.mean(errors)), len(errors), float(np.mean(empty)))


def _ranges(
    geometry: Geometry, share: float, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if isinstance(geometry, Tree):
        leaves = geometry.last - geometry.first + 1
        off = np.abs(leaves / len(geometry.leaf) - share)
        node = rng.choice(np.flatnonzero(off == off.min()), size=count)
        return geometry.first[node].astype(np.float64), geometry.last[node].astype(np.float64)
    least, most = geometry.widest()
    size = most - least + 1.0
    length = max(1.0, round(size * share))
    lo = rng.integers(int(least), int(most - length + 1.0), size=count, endpoint=True)
    return lo.astype(np.float64), lo + length - 1.0
