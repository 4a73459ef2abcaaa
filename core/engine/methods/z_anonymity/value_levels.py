"""The levels of a quasi-identifier: from the exact value to the whole domain, and none depends on the data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from crenel.engine.methods.sdgs import depth
from crenel.engine.methods.sdgs.sdgs_grid import axis_of
from crenel.policy.geometry import Interval, Radix
from crenel.policy.quasi_identifiers import QuasiIdentifier

__all__ = ["Levels"]

Floats = NDArray[np.float64]


class Levels:
    """The levels of a quasi-identifier, the finest first.

    A range of numbers or moments is the exact value (its cell, with a step), then the domain in `bins` parts, half as
    many, and so on. A code loses its last character at each level, and a category goes up its hierarchy.

    Args:
        qi: The quasi-identifier. Its domain is declared.
        bins: The parts of the finest level above an exact number.
    """

    def __init__(self, qi: QuasiIdentifier, bins: int) -> None:
        self._axes = [axis_of(qi, fineness) for fineness in _finenesses(qi, bins)]
        self._widest = qi.geometry.widest()

    def spans(self, column: Floats) -> list[list[tuple[float, float]]]:
        """Return, level by level, the span of each coordinate."""
        exact = column.tolist()
        found = [list(zip(exact, exact, strict=True))]
        for place, lows, highs in self._axes:
            found.append([(float(lows[at]), float(highs[at])) for at in place(column).tolist()])
        return [*found, [self._widest] * len(exact)]


def _finenesses(qi: QuasiIdentifier, bins: int) -> Iterator[int]:
    """Yield how fine the levels between the exact value and the whole domain are."""
    geometry = qi.values
    if isinstance(geometry, Interval):
        if geometry.cells and geometry.lo is not None and geometry.hi is not None:
            bins = min(bins, int(geometry.hi - geometry.lo) + 1)
        while bins > 1:
            yield bins
            bins //= 2
        return
    most = geometry.length if isinstance(geometry, Radix) else depth(geometry)
    yield from range(most - 1, 0, -1)
