"""Utility: how far counts over the published rows deviate from counts over the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit.findings import Findings
from crenel.audit.measures import rounded
from crenel.audit.queries import Axis, Boxes, workload_error
from crenel.policy.geometry import Interval

__all__ = ["Workload", "utility"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: The largest number of windows, and the least rows in one: over few rows, few queries have an answer.
_WINDOWS, _LEAST = 10, 1000


@dataclass(frozen=True)
class Workload:
    """How the queries are drawn."""

    queries: int = 500
    theta: float = 0.1
    seed: int = 1


def utility(findings: Findings, workload: Workload) -> dict[str, Any] | None:
    """Measure the error of a workload for the document; None if there is nothing to compare.

    With the trace, rows are compared window by window in the order of arrival. Otherwise the whole stream is a window.
    """
    given = findings.given.input
    if given is None or not len(given) or not len(findings.out) or not workload.queries:
        return None
    paired = findings.exact is not None and bool(np.all(findings.exact.rows >= 0))
    rows = findings.exact.rows if findings.exact is not None and paired else np.arange(len(given))
    if paired:  # sort by arrival, so that a window is a part of the stream
        order = np.argsort(given.rows.time[rows], kind="stable")
    axes, points, lo, hi, of = _columns_asked(findings)
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
        scale=1.0 if paired else 1.0 / float(findings.policy.parameter("beta_sample", 1.0)),
    )
    return {
        "theta": workload.theta,
        "queries": workload.queries,
        "windows": judged.windows,
        "error": rounded(judged.error) if np.isfinite(judged.error) else None,
        "seed": workload.seed,
        "empty": rounded(judged.empty),
    }


def _columns_asked(findings: Findings) -> tuple[list[Axis], Floats, Floats, Floats, Ints]:
    """Return the queries' axes, the input's points, the distinct published boxes, and each row's box."""
    given = findings.given.input
    if given is None:
        raise AssertionError
    axes, columns = [], []
    for j, qi in enumerate(findings.policy.quasi_identifiers.values()):
        lo, hi = findings.ends[j]
        if lo < hi:
            geometry = Interval(float(lo), float(hi)) if isinstance(qi.geometry, Interval) else qi.geometry
            values = given.rows.qi[:, j]
            axes.append(Axis(geometry, whole=bool(np.all(np.isnan(values) | (np.floor(values) == values)))))
            columns.append(j)
    box, points = findings.out.box.astype(np.int64), given.rows.qi[:, columns]
    ends = findings.ends[columns]
    lo = np.clip(np.where(np.isnan(findings.out.lo), -np.inf, findings.out.lo)[:, columns], ends[:, 0], ends[:, 1])
    hi = np.clip(np.where(np.isnan(findings.out.hi), np.inf, findings.out.hi)[:, columns], ends[:, 0], ends[:, 1])
    if findings.policy.sensitive:
        values, codes = np.unique(given.rows.sensitive[:, 0], return_inverse=True)
        if len(values) > 1:
            axes.append(Axis(Interval(0.0, len(values) - 1.0)))
            points = np.column_stack([points, codes])
            seen = np.minimum(np.searchsorted(values, findings.out.sensitive[:, 0]), len(values) - 1)
            cells, box = np.unique(box * len(values) + seen, return_inverse=True)
            code = (cells % len(values)).astype(np.float64)
            lo, hi = (np.column_stack([end[cells // len(values)], code]) for end in (lo, hi))
    return axes, points, lo, hi, box
