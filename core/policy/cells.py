"""Divides a line into cells of equal width, which a quasi-identifier with a `step` publishes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from crenel.policy.geometry import EXACT, Interval

__all__ = ["Cells"]

Floats = NDArray[np.float64]

#: Up to this number, neighbouring multiples of any step are different floats, even after rounding.
_MOST = 2**50


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The cells `[i * step, (i + 1) * step)` of a line, numbered by `i`.

    The step is `numerator / denominator`. A multiple of the step is the float nearest to the exact product: 3 times 0.1
    is 0.3. With a domain, the first and the last cell end where the domain ends, and the last cell includes that end.
    """

    numerator: int
    denominator: int = 1

    #: The ends of the domain, if there is one.
    domain: tuple[float, float] | None = None

    #: No cell reaches farther from 0 than this.
    limit: int

    @cached_property
    def first(self) -> int:
        """The number of the first cell."""
        return -self._most if self.domain is None else self._number(self.domain[0])

    @cached_property
    def last(self) -> int:
        """The number of the last cell."""
        return self._most - 1 if self.domain is None else self._below(self.domain[1])

    @property
    def too_fine(self) -> bool:
        """Whether the domain reaches beyond the cells that floats can distinguish."""
        if self.domain is None:
            return self._most < 1
        return max(abs(Fraction(end)) for end in self.domain) > self._most * self._step

    @cached_property
    def geometry(self) -> Interval:
        """The interval of cell numbers; learned from the stream if there is no domain."""
        if self.domain is None:
            return Interval(cells=True)
        return Interval(float(self.first), float(self.last), cells=True)

    def numbers(self, values: Floats) -> Floats:
        """Return the number of each value's cell; NaN for NaN and for values in no cell."""
        numbers = self._numbers(values)
        if self.domain is not None:
            np.minimum(numbers, self.last, out=numbers, where=values == self.domain[1])
        with np.errstate(invalid="ignore"):
            numbers[(numbers < self.first) | (numbers > self.last)] = np.nan
        return numbers

    def ends(self, lo: Floats, hi: Floats) -> tuple[Floats, Floats]:
        """Return where ranges of cells begin and end, given the numbers of their first and last cells.

        Infinite ends and NaN are kept.
        """
        begin, end = self._multiples(lo), self._multiples(hi + 1.0)
        if self.domain is not None:
            begin, end = np.maximum(begin, self.domain[0]), np.minimum(end, self.domain[1])
        return begin, end

    def between(self, begin: Floats, end: Floats) -> tuple[Floats, Floats]:
        """Return the first and the last cells of ranges, given where they begin and end: the inverse of `ends`.

        Raises:
            ValueError: No range of cells begins and ends there.
        """
        lo, hi = self._numbers(begin), self._numbers(end)
        with np.errstate(invalid="ignore"):
            hi -= self._multiples(hi) == end
            known = np.isfinite(begin) & np.isfinite(end)
            lo, hi = np.where(known, lo, begin), np.where(known, hi, end)
            again = self.ends(lo, hi)
            right = (again[0] == begin) & (again[1] == end) & (lo <= hi)
            inside = (self.first <= lo) & (hi <= self.last)
            nowhere = np.isnan(begin) & np.isnan(end)
            everywhere = np.isinf(lo) & np.isinf(hi) & (self.domain is None)
        if not np.all(right & (inside | everywhere) | nowhere):
            message = "a range must end at multiples of the step, or where the domain ends."
            raise ValueError(message)
        return lo, hi

    @property
    def _step(self) -> Fraction:
        return Fraction(self.numerator, self.denominator)

    @property
    def _most(self) -> int:
        """The number of cells on each side of 0."""
        # Integer multiples are exact up to EXACT, however small the step.
        exact = EXACT // self.numerator if self.denominator == 1 else 0
        return min(max(_MOST, exact), int(self.limit / self._step))

    def _number(self, value: float) -> int:
        """Return the number of a value's cell, as if there were no domain."""
        return int(self._numbers(np.array([value]))[0])

    def _below(self, value: float) -> int:
        """Return the number of the cell that a value ends, or that it lies in."""
        number = self._number(value)
        return number - 1 if self._multiple(number) == value else number

    def _numbers(self, values: Floats) -> Floats:
        # Dividing floats may round across a multiple, by at most one cell.
        with np.errstate(invalid="ignore", over="ignore"):
            numbers = np.floor(values / (self.numerator / self.denominator)) + 0.0
            numbers[~(np.abs(numbers) <= 2.0 * EXACT)] = np.nan  # in no cell
            numbers -= self._multiples(numbers) > values
            numbers += self._multiples(numbers + 1.0) <= values
        return numbers

    def _multiple(self, number: int) -> float:
        return number * self.numerator / self.denominator  # integers, so that it is rounded only once

    def _multiples(self, numbers: Floats) -> Floats:
        products = numbers * float(self.numerator)
        multiples = products / float(self.denominator) + 0.0
        if self.denominator > EXACT:
            inexact = np.isfinite(numbers)
        else:
            inexact = np.isfinite(numbers) & (np.abs(products) >= EXACT)
        for place in np.flatnonzero(inexact).tolist():
            multiples[place] = self._multiple(int(numbers[place]))
        return multiples
