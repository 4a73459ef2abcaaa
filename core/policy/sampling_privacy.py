"""The differential privacy that sampling provides: the two theorems of the CASTLEGUARD paper, computed.

Robinson et al.: *CASTLEGUARD: Anonymised Data Streams with Guaranteed Differential Privacy*, 2020.
`docs/differential-privacy.md` explains what theorem 2 promises, and for which methods it holds.
"""

from __future__ import annotations

import math

__all__ = ["SAMPLING", "delta", "epsilon_range", "least_epsilon", "moves_less", "phi"]

#: The rule for a sampling probability that provides a guarantee.
SAMPLING = "a number above 0 and below 1"

#: Numbers within this relative distance count as equal, because of rounding.
_ROUNDING = 1e-12

#: Terms of a tail below this share of its sum do not change it any more.
_NEGLIGIBLE = 1e-18


def least_epsilon(beta: float) -> float:
    """Return the least epsilon that theorem 2 covers: -ln(1 - beta)."""
    return -math.log1p(-beta)


def epsilon_range(beta: float) -> str:
    """Return the rule for an epsilon, as part of a sentence."""
    return f"a number of at least {least_epsilon(beta):.6g} (-ln(1 - beta), of a beta of {beta:g})"


def is_epsilon(epsilon: float, beta: float) -> bool:
    """Whether theorem 2 covers this epsilon."""
    return math.isfinite(epsilon) and epsilon >= least_epsilon(beta) * (1 - _ROUNDING)


def delta(k: int, beta: float, epsilon: float) -> float:
    """Theorem 2: return the delta for an epsilon, exact but for the rounding of floats.

    It is the maximum over n of the probability that more than gamma * n of n rows are sampled, where gamma is
    1 - (1 - beta) / e**epsilon and n is at least k / gamma - 1.

    Args:
        k: The least size of a published group, at least 1.
        beta: The probability that a row is sampled, above 0 and below 1.
        epsilon: At least -ln(1 - beta).

    Raises:
        ValueError: An argument is out of its range. The message says which.

    Example:
        >>> f"{delta(20, 0.2, 1.0):.3g}"
        '6.03e-09'
    """
    _check(k, beta, epsilon)
    gamma = 1.0 - (1.0 - beta) * math.exp(-epsilon)
    divergence = _divergence(gamma, beta)
    worst, threshold = 0.0, k
    while True:
        # The tail above gamma * n grows with n until gamma * n reaches the next integer: only these n can be the worst.
        n = _last_below(threshold, gamma)
        # The tails of this n and of all larger n are at most Chernoff's bound.
        if math.exp(-n * divergence) <= worst:
            return worst
        worst = max(worst, _tail(threshold, n, beta))
        threshold += 1


def moves_less(phi: float, r: float) -> float:
    """Theorem 1: return the probability that noise of scale range / phi moves a value by less than `r` of its range."""
    _check_positive("phi", phi)
    _check_positive("r", r)
    return -math.expm1(-r * phi)


def phi(probability: float, r: float) -> float:
    """Theorem 1, inverted: return the phi that moves a value by less than `r` of its range with this probability."""
    if not 0.0 < probability < 1.0:
        msg = f"probability must be {SAMPLING}, not {probability!r}."
        raise ValueError(msg)
    _check_positive("r", r)
    return -math.log1p(-probability) / r


def _check(k: int, beta: float, epsilon: float) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        msg = f"k must be an integer of at least 1, not {k!r}."
        raise ValueError(msg)
    if not 0.0 < beta < 1.0:
        msg = f"beta must be {SAMPLING}, not {beta!r}."
        raise ValueError(msg)
    if not is_epsilon(epsilon, beta):
        msg = f"epsilon must be {epsilon_range(beta)}, not {epsilon!r}."
        raise ValueError(msg)


def _check_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        msg = f"{name} must be a number above 0, not {value!r}."
        raise ValueError(msg)


def _last_below(threshold: int, gamma: float) -> int:
    """Return the largest n for which gamma * n is below the threshold."""
    quotient = threshold / gamma
    nearest = round(quotient)
    # At the least epsilon gamma is a round number, and gamma * n often equals the threshold: that is not below.
    if abs(quotient - nearest) <= _ROUNDING * quotient:
        return nearest - 1
    return math.ceil(quotient) - 1


def _tail(threshold: int, n: int, beta: float) -> float:
    """Return the probability that at least `threshold` of n rows are sampled."""
    if threshold > n:
        return 0.0
    log_first = (
        math.lgamma(n + 1)
        - math.lgamma(threshold + 1)
        - math.lgamma(n - threshold + 1)
        + threshold * math.log(beta)
        + (n - threshold) * math.log1p(-beta)
    )
    # The threshold is above the mean, so the terms only fall.
    odds = beta / (1.0 - beta)
    total, term = 0.0, 1.0
    for j in range(threshold, n + 1):
        total += term
        term *= (n - j) / (j + 1) * odds
        if term < total * _NEGLIGIBLE:
            break
    return min(math.exp(log_first) * total, 1.0)


def _divergence(gamma: float, beta: float) -> float:
    """Return the relative entropy of two probabilities, at which tails decay."""
    rest = 0.0 if gamma >= 1.0 else (1.0 - gamma) * math.log((1.0 - gamma) / (1.0 - beta))
    return gamma * math.log(gamma / beta) + rest
