"""Noise from random bits: sampling, Laplace's distribution, randomized response.

Whoever calls brings the bits, 64 for each draw, and so decides that the same row gets the same noise again.

A sum of floats shows more than its value: of the floats near it only some can come of a given value and any noise, and
who sees one of the others has excluded that value (Mironov, 2012). `on_grid` therefore rounds sums to a grid that is
far coarser than floats are, and the same for every value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["laplace", "on_grid", "randomized", "sampled", "truth_chance"]

Bits = NDArray[np.uint64]
Floats = NDArray[np.float64]

#: Steps of the grid in a scale of noise, as a power of 2.
_FINENESS = 20


def sampled(bits: Bits, chance: float) -> NDArray[np.bool_]:
    """True with this chance, of 2**-53 steps."""
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53 < chance)


def laplace(bits: Bits, scale: Any) -> Floats:
    """Noise of Laplace's distribution about 0; none where the scale is 0."""
    # 63 bits, of which none is log(0), for how far; and one for the direction.
    chance = ((bits >> np.uint64(1)) + np.uint64(1)).astype(np.float64) * 2.0**-63
    sign = np.where(bits & np.uint64(1), 1.0, -1.0)
    return np.asarray(sign * -np.log(chance) * scale)


def on_grid(values: Floats, scale: Any) -> Floats:
    """The nearest multiples of a power of 2, at most 2**-19 of the noise's scale; as they are where that is 0."""
    _, exponent = np.frexp(scale)
    step = np.ldexp(1.0, np.maximum(exponent - _FINENESS, -1000))
    return np.asarray(np.where(np.asarray(scale) > 0, np.rint(values / step) * step, values))


def truth_chance(budget: float, size: int) -> float:
    """The chance that randomized response tells the truth, of so many values."""
    return 1.0 / (1.0 + (size - 1) * math.exp(-budget))


def randomized(codes: NDArray[np.int64], bits: Bits, more: Bits, size: int, budget: float) -> NDArray[np.int64]:
    """Randomized response: the code itself, or with a chance that falls with the budget any other, each as likely."""
    if size < 2:
        return codes
    # The part below 2**-50 that makes some others likelier is left.
    step = 1 + (more % np.uint64(size - 1)).astype(np.int64)
    return np.where(sampled(bits, truth_chance(budget, size)), codes, (codes + step) % size)
