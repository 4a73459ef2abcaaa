"""What numbers and moments share: values on a line, perhaps in cells, and perhaps with missing ones beyond its end."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crenel.errors import Rejected
from crenel.policy import columns
from crenel.policy.cells import Cells
from crenel.policy.checks import Problems, as_number
from crenel.policy.columns import Reasons
from crenel.policy.geometry import Interval
from crenel.policy.kinds.gap_rules import Missing, interval_and_missing


class OnALine(Protocol):
    """A quasi-identifier whose values lie on a line."""

    @property
    def domain(self) -> Any:
        """The ends that were declared."""

    @property
    def step(self) -> Any:
        """The step that was declared."""

    @property
    def missing(self) -> Any:
        """What becomes of missing values."""

    @property
    def missing_at(self) -> float | None:
        """The coordinate of missing values."""

    @property
    def cells(self) -> Cells | None:
        """The cells of the step."""

    @property
    def values(self) -> Interval:
        """The geometry, without missing values."""


def bounds(problems: Problems, given: Any, rule: str, read: Any) -> tuple[float, float] | None:
    """Return the two ends of a domain, each read by `read`; None, and a problem, if they are none."""
    if isinstance(given, (list, tuple)) and len(given) == 2:
        lo, hi = read(given[0]), read(given[1])
        if lo is not None and hi is not None:
            if lo < hi:
                return (lo, hi)
            rule += ", the first less than the second"
    problems.must("domain", rule, given)
    return None


def bound(value: Any) -> float | None:
    """Return the end of a domain of numbers; None if it is none."""
    try:
        return columns.number(value)
    except Rejected:
        return None


def moment_bound(value: Any) -> float | None:
    """Return the end of a domain of moments; None if it is none."""
    if as_number(value) is not None:  # 2020 more likely means the year than a second of 1970
        return None
    try:
        return columns.moment(value)
    except Rejected:
        return None


def inside(domain: Interval, coordinate: float) -> float:
    """Return the coordinate, if it is in the domain."""
    lo, hi = domain.widest()
    if not lo <= coordinate <= hi:
        raise Rejected(columns.OUTSIDE)
    return coordinate


def all_inside(domain: Interval, found: NDArray[np.float64], reasons: Reasons) -> tuple[NDArray[np.float64], Reasons]:
    """Reject the coordinates outside the domain."""
    if domain.lo is None or domain.hi is None:
        return found, reasons
    outside = (found < domain.lo) | (found > domain.hi)
    if outside.any():
        reasons = columns.mark(reasons, outside, columns.OUTSIDE)
        columns.blank(found, reasons)
    return found, reasons


def celled(cells: Cells | None, coordinate: float, reason: str) -> float:
    """Return the cell of a coordinate; one beyond the outermost cells gets this reason."""
    found, reasons = all_celled(cells, np.array([coordinate]), None, reason)
    if reasons is not None:
        raise Rejected(reason)
    return float(found[0])


def all_celled(
    cells: Cells | None, found: NDArray[np.float64], reasons: Reasons, reason: str
) -> tuple[NDArray[np.float64], Reasons]:
    """Return the cells of the coordinates. Coordinates beyond the outermost cells get this reason."""
    if cells is None:
        return found, reasons
    numbers = cells.numbers(found)
    return numbers, columns.mark(reasons, np.isnan(numbers) & ~np.isnan(found), reason)


def check_missing(qi: OnALine) -> None:
    """Refuse missing values as a category where they have no place beyond the others."""
    problems = Problems()
    if qi.missing is Missing.CATEGORY and qi.domain is None:
        problems.add("missing", "needs a domain: as a category, missing values lie beyond its end. Declare the domain.")
    elif qi.missing is Missing.CATEGORY:
        try:
            qi.values  # noqa: B018 - is computed, or fails
        except ValueError:
            problems.must("step", "greater, because missing values have no place beyond cells so far from 0", qi.step)
    problems.raise_if_any(type(qi).__name__)


def with_missing(qi: OnALine, values: Interval) -> Interval:
    """Return the geometry, with a place for missing values if they are a category."""
    return interval_and_missing(values) if qi.missing is Missing.CATEGORY else values


def ends(qi: OnALine, lo: float, hi: float) -> tuple[float, float]:
    """Return where a range begins and ends; it has no upper end if it reaches to missing values."""
    begin, end = lo, hi
    if qi.cells is not None:
        begin, end = (float(found[0]) for found in qi.cells.ends(np.array([lo]), np.array([hi])))
    return begin, math.inf if hi == qi.missing_at else end
