"""What the rows of a trial would have lost: by column, and in queries over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crenel.audit import measures
from crenel.audit.queries import Axis, Boxes, workload_error
from crenel.pipelines.checking.engine_trial import Trial
from crenel.policy.columns import Floats
from crenel.policy.geometry import Interval

__all__ = ["ColumnCost", "by_column", "query_error"]

#: Queries that are asked, their selectivity, and the seed that draws them: those of `crenel audit`.
_QUERIES, _THETA, _SEED = 500, 0.1, 1


@dataclass(frozen=True)
class ColumnCost:
    """What a quasi-identifier loses, as means over the published rows."""

    name: str
    #: The share of its domain that a published range covers.
    loss: float
    #: The share of the sample's rows that a published range covers, and that a row's own value covers. A domain may be
    #: much wider than the data: then a range covers little of it, and nearly all rows.
    covered: float
    exact: float

    @property
    def blurred(self) -> float:
        """What the data could have told and do not: from 0 (as much as the exact value) to 1 (nothing)."""
        return (self.covered - self.exact) / (1 - self.exact) if self.exact < 1 else 0.0


def by_column(trial: Trial) -> list[ColumnCost]:
    """Measure what each quasi-identifier loses; empty if no row is published."""
    places, lo, hi = trial.published
    if not len(places):
        return []
    qi = trial.points.qi
    lo, hi = _widened(trial, lo, hi)
    shares = measures.parts(trial.policy, lo, hi, measures.domains(trial.policy, qi)).mean(axis=0)
    costs = []
    for j, name in enumerate(trial.policy.quasi_identifiers):
        values = np.sort(qi[:, j][~np.isnan(qi[:, j])])
        own = qi[places, j]
        shown = ~np.isnan(lo[:, j])
        covered = np.where(shown, _within(values, lo[:, j], hi[:, j]), 1.0)
        exact = _within(values, own, own)[~np.isnan(own)]
        costs.append(
            ColumnCost(name, float(shares[j]), float(covered.mean()), float(exact.mean()) if len(exact) else 1.0)
        )
    return costs


def query_error(trial: Trial) -> float | None:
    """Measure how far counts over the published rows are off: the median relative error; None if nothing can be asked.

    The counts are those of the rows that were tried, suppressed ones among them.
    """
    places, lo, hi = trial.published
    points, policy = trial.points, trial.policy
    if not len(places):
        return None
    lo, hi = _widened(trial, lo, hi)
    ends = measures.domains(policy, points.qi)
    lo, hi = (np.clip(_known(end, far), ends[:, 0], ends[:, 1]) for end, far in ((lo, -np.inf), (hi, np.inf)))
    chosen = [j for j in range(len(ends)) if ends[j, 0] < ends[j, 1]]
    axes = [_axis(trial, j, ends[j]) for j in chosen]
    asked, lo, hi = points.qi[:, chosen], lo[:, chosen], hi[:, chosen]
    if policy.sensitive:
        values, codes = np.unique(points.sensitive[:, 0], return_inverse=True)
        if len(values) > 1:
            axes.append(Axis(Interval(0.0, len(values) - 1.0)))
            asked = np.column_stack([asked, codes])
            lo, hi = (np.column_stack([end, codes[places]]) for end in (lo, hi))
    if not axes:
        return None
    found = workload_error(
        axes,
        asked,
        Boxes.distinct(lo, hi),
        window=None,
        theta=_THETA,
        queries=_QUERIES,
        seed=_SEED,
        scale=1.0 / float(policy.parameter("beta_sample", 1.0)),
        answered=True,
    )
    return found.error if np.isfinite(found.error) else None


def _known(ends: Floats, far: float) -> Floats:
    return np.where(np.isnan(ends), far, ends)


def _axis(trial: Trial, j: int, ends: Floats) -> Axis:
    geometry = list(trial.policy.quasi_identifiers.values())[j].geometry
    values = trial.points.qi[:, j]
    whole = bool(np.all(np.isnan(values) | (np.floor(values) == values)))
    return Axis(Interval(float(ends[0]), float(ends[1])) if isinstance(geometry, Interval) else geometry, whole=whole)


def _within(values: Floats, lo: Floats, hi: Floats) -> Floats:
    """Return the share of sorted values that lie in each range."""
    inside = np.searchsorted(values, hi, side="right") - np.searchsorted(values, lo, side="left")
    return np.asarray(inside / max(len(values), 1), np.float64)


def _widened(trial: Trial, lo: Floats, hi: Floats) -> tuple[Floats, Floats]:
    """Widen boxes to what is published: a common prefix, a category."""
    lo, hi = lo.copy(), hi.copy()
    for j, qi in enumerate(trial.policy.quasi_identifiers.values()):
        if isinstance(qi.geometry, Interval):
            continue
        shown = ~np.isnan(lo[:, j])
        boxes, of = np.unique(np.column_stack([lo[shown, j], hi[shown, j]]), axis=0, return_inverse=True)
        spans = np.array([qi.geometry.span(*box) for box in boxes], np.float64).reshape(-1, 2)
        lo[shown, j], hi[shown, j] = spans[of.reshape(-1)].T
    return lo, hi
