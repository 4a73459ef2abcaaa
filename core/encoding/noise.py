"""Noise from random bits: sampling, the Laplace distribution, randomized response.

The caller supplies the bits, 64 for each draw, and so can give the same row the same noise again.

A sum of floats reveals more than its value. Of the floats near it, only some can result from a given value and any
noise. An attacker who sees one of the others rules that value out (Mironov, 2012). `on_grid` therefore rounds sums to a
grid that is far coarser than floats, and the same for every value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["laplace", "on_grid", "randomized", "sampled", "truth_chance"]

Bits = NDArray[np.uint64]
Floats = NDArray[np.float64]

#: Grid steps per scale of noise, as a power of 2.
_FINENESS = 20


def sampled(bits: Bits, chance: float) -> NDArray[np.bool_]:
    """Return True with this probability, in steps of 2**-53."""
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53 < chance)


def laplace(bits: Bits, scale: Any) -> Floats:
    """Draw Laplace noise around 0; no noise if the scale is 0."""
    # 63 bits for the size, never 0 so that the logarithm is finite; and one bit for the sign.
    chance = ((bits >> np.uint64(1)) + np.uint64(1)).astype(np.float64) * 2.0**-63
    sign = np.where(bits & np.uint64(1), 1.0, -1.0)
    return np.asarray(sign * -np.log(chance) * scale)


def on_grid(values: Floats, scale: Any) -> Floats:
    """Round to multiples of a power of 2, at most 2**-19 of the scale; leave values unchanged if the scale is 0."""
    _, exponent = np.frexp(scale)
    step = np.ldexp(1.0, np.maximum(exponent - _FINENESS, -1000))
    return np.asarray(np.where(np.asarray(scale) > 0, np.rint(values / step) * step, values))


def truth_chance(budget: float, size: int) -> float:
    """Return the probability that randomized response over `size` values tells the truth."""
    return 1.0 / (1.0 + (size - 1) * math.exp(-budget))


def randomized(codes: NDArray[np.int64], bits: Bits, more: Bits, size: int, budget: float) -> NDArray[np.int64]:
    """Randomized response: keep the code, or replace it by any other with a probability that falls with the budget."""
    if size < 2:
        return codes
    # The modulo favours some codes by less than 2**-50, which is accepted.
    step = 1 + (more % np.uint64(size - 1)).astype(np.int64)
    return np.where(sampled(bits, truth_chance(budget, size)), codes, (codes + step) % size)
