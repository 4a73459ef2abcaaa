"""What types on a `Radix` share: codes whose first digits are the coarser value, and a place for missing ones."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crenel.errors import Rejected
from crenel.policy import columns
from crenel.policy.checks import Problems
from crenel.policy.geometry import Radix
from crenel.policy.kinds.gap_rules import Missing, radix_and_missing
from crenel.policy.quasi_identifiers import QuasiIdentifier

__all__ = ["RadixValues", "rewritten"]


@dataclass(frozen=True, kw_only=True)
class RadixValues(QuasiIdentifier):
    """A quasi-identifier whose values have codes, and whose groups are published as the code's first digits.

    If missing values are a category, coordinates have one more digit than codes: only missing values begin with it.
    """

    PLACES_MISSING: ClassVar[bool] = True

    @property
    @abstractmethod
    def codes(self) -> Radix:
        """The codes, without missing values."""

    @abstractmethod
    def code(self, value: Any) -> int:
        """Return the code of a value that is not missing, or raise `Rejected`."""

    @abstractmethod
    def shown(self, first: int, digits: int) -> str:
        """Return what is published for the codes that share this many digits with the code `first`."""

    @abstractmethod
    def found(self, published: str) -> tuple[int, int]:
        """Return a code published as this text, and how many digits all such codes share; ValueError if none is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = Problems()
        try:
            self.geometry  # noqa: B018 - is computed, or fails
        except ValueError:
            problems.add("missing", "must be 'reject' or 'hole': there are too many codes for one more.")
        problems.raise_if_any(type(self).__name__)

    @cached_property
    def geometry(self) -> Radix:
        """The codes, and missing values if they are a category."""
        return radix_and_missing(self.codes) if self.missing is Missing.CATEGORY else self.codes

    def coordinate(self, value: Any) -> float:
        """Return the code, in the digits of the geometry."""
        if columns.is_missing(value):
            raise Rejected(columns.MISSING)
        return float(_rewritten(self.code(value), self.codes.base, self.geometry.base))

    def publish(self, lo: float, hi: float) -> str | None:
        """Return what the digits that all codes share say; None for missing values."""
        if lo == self.missing_at:
            return None
        digits = self.geometry.shared(lo, hi)
        kept = int(lo) // self.geometry.base ** (self.geometry.length - digits)
        first = _rewritten(kept, self.geometry.base, self.codes.base)
        return self.shown(first * self.codes.base ** (self.codes.length - digits), digits)

    def read(self, published: Any) -> tuple[float, float]:
        """Return the span of what was published."""
        code, digits = self.found(published)
        size = self.geometry.base ** (self.geometry.length - digits)
        first = _rewritten(code, self.codes.base, self.geometry.base) // size * size
        return float(first), float(first + size - 1)


def rewritten(numbers: NDArray[np.int64], codes: Radix, other: int) -> NDArray[np.int64]:
    """Read the digits that codes have in their base as digits in another."""
    found, place = np.zeros_like(numbers), 1
    for _ in range(codes.length):
        numbers, digit = np.divmod(numbers, codes.base)
        found, place = found + digit * place, place * other
    return found


def _rewritten(number: int, base: int, other: int) -> int:
    """Read the digits that a number has in one base as digits in another."""
    if base == other:
        return number
    found, place = 0, 1
    while number:
        number, digit = divmod(number, base)
        found, place = found + digit * place, place * other
    return found
