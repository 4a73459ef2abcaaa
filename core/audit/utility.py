"""Utility: how far off counts are that are asked of the published rows, and not of the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit.measures import rounded
from crenel.audit.queries import Axis, Boxes, workload_error
from crenel.audit.view import View
from crenel.policy.geometry import Interval

__all__ = ["Workload", "utility"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: The most windows, and the least rows of one: of few rows, few queries have an answer.
_WINDOWS, _LEAST = 10, 1000


@dataclass(frozen=True)
class Workload:
    """How queries are drawn."""

    queries: int = 500
    theta: float = 0.1
    seed: int = 1


def utility(view: View, workload: Workload) -> dict[str, Any] | None:
    """The error of a workload, as in the document; None if there is nothing to compare with.

    With the trace, rows are compared window by window, as they came; otherwise the whole stream is one.
    """
    given = view.given.input
    if given is None or not len(given) or not len(view.out) or not workload.queries:
        return None
    paired = view.exact is not None and bool(np.all(view.exact.rows >= 0))
    rows = view.exact.rows if view.exact is not None and paired else np.arange(len(given))
    if paired:  # in the order of arrival, so that a window is one of the stream
        order = np.argsort(given.rows.time[rows], kind="stable")
    axes, points, lo, hi, of = _columns_asked(view)
    if not axes:
        return None
    judged = workload_error(
        axes,
        points[rows[order]] if paired else points,
        Boxes(lo, hi, of[order] if paired else of),
        window=len(rows) // min(max(len(rows) // _LEAST, 1), _WINDOWS) if paired else None,
        theta=workload.theta,
        queries=workload.queries,
        seed=workload.seed,
        answered=True,
        scale=1.0 if paired else 1.0 / float(view.policy.parameter("beta_sample", 1.0)),
    )
    return {
        "theta": workload.theta,
        "queries": workload.queries,
        "windows": judged.windows,
        "error": rounded(judged.error) if np.isfinite(judged.error) else None,
        "seed": workload.seed,
        "empty": rounded(judged.empty),
    }


def _columns_asked(view: View) -> tuple[list[Axis], Floats, Floats, Floats, Ints]:
    """The axes of queries; the input's points; the different boxes of the published rows, and which each has."""
    given = view.given.input
    if given is None:
        raise AssertionError
    axes, columns = [], []
    for j, qi in enumerate(view.policy.quasi_identifiers.values()):
        lo, hi = view.ends[j]
        if lo < hi:
            geometry = Interval(float(lo), float(hi)) if isinstance(qi.geometry, Interval) else qi.geometry
            values = given.rows.qi[:, j]
            axes.append(Axis(geometry, whole=bool(np.all(np.isnan(values) | (np.floor(values) == values)))))
            columns.append(j)
    box, points = view.out.box.astype(np.int64), given.rows.qi[:, columns]
    ends = view.ends[columns]
    lo = np.clip(np.where(np.isnan(view.out.lo), -np.inf, view.out.lo)[:, columns], ends[:, 0], ends[:, 1])
    hi = np.clip(np.where(np.isnan(view.out.hi), np.inf, view.out.hi)[:, columns], ends[:, 0], ends[:, 1])
    if view.policy.sensitive:
        values, codes = np.unique(given.rows.sensitive[:, 0], return_inverse=True)
        if len(values) > 1:
            axes.append(Axis(Interval(0.0, len(values) - 1.0)))
            points = np.column_stack([points, codes])
            seen = np.minimum(np.searchsorted(values, view.out.sensitive[:, 0]), len(values) - 1)
            cells, box = np.unique(box * len(values) + seen, return_inverse=True)
            code = (cells % len(values)).astype(np.float64)
            lo, hi = (np.column_stack([end[cells // len(values)], code]) for end in (lo, hi))
    return axes, points, lo, hi, box
