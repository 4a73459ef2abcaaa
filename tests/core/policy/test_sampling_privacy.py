"""Theorems 1 and 2 of the CASTLEGUARD paper, compared with values computed in other ways."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crenel.policy.sampling_privacy import delta, least_epsilon, moves_less, phi

scipy_stats = pytest.importorskip("scipy.stats", reason="the independent values are scipy's")


def by_scipy(k: int, beta: float, epsilon: float, most: int) -> float:
    """Compute the maximum over every n up to `most`, tail by tail."""
    gamma = (math.exp(epsilon) - 1 + beta) / math.exp(epsilon)
    n = np.arange(math.ceil(k / gamma - 1 - 1e-9), most)
    # If gamma * n is an integer except for rounding, the tail begins above that integer.
    return float(scipy_stats.binom.sf(np.floor(gamma * n + 1e-9), n, beta).max())


@pytest.mark.parametrize("k", [2, 5, 20, 100, 1000])
@pytest.mark.parametrize("beta", [0.01, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("times", [1.0, 1.5, 4.0])
def test_theorem_2_is_the_maximum_of_the_binomial_tails(k: int, beta: float, times: float):
    epsilon = times * least_epsilon(beta)
    gamma = 1 - (1 - beta) * math.exp(-epsilon)
    expected = by_scipy(k, beta, epsilon, most=int(20 * k / gamma) + 200)
    assert delta(k, beta, epsilon) == pytest.approx(expected, rel=1e-8, abs=1e-300)


@settings(max_examples=60, deadline=None)
@given(
    k=st.integers(2, 60),
    beta=st.floats(0.02, 0.95),
    more=st.floats(1.001, 5.0),
)
def test_theorem_2_over_all_parameters(k: int, beta: float, more: float):
    epsilon = more * least_epsilon(beta)
    gamma = 1 - (1 - beta) * math.exp(-epsilon)
    expected = by_scipy(k, beta, epsilon, most=int(20 * k / gamma) + 200)
    assert delta(k, beta, epsilon) == pytest.approx(expected, rel=1e-6)


def by_hand(k: int, beta: Fraction, gamma: Fraction, most: int) -> Fraction:
    """Compute the same value without floats."""
    worst = Fraction(0)
    for n in range(math.ceil(k / gamma - 1), most):
        tail = sum(
            (math.comb(n, j) * beta**j * (1 - beta) ** (n - j) for j in range(math.floor(gamma * n) + 1, n + 1)),
            Fraction(0),
        )
        worst = max(worst, tail)
    return worst


@pytest.mark.parametrize(("k", "beta"), [(3, Fraction(1, 2)), (5, Fraction(1, 4)), (8, Fraction(4, 5))])
def test_theorem_2_in_fractions(k: int, beta: Fraction):
    """At the least epsilon, gamma is rational, and the theorem's strict inequality holds exactly."""
    gamma = 1 - (1 - beta) ** 2
    exact = by_hand(k, beta, gamma, most=60)
    assert delta(k, float(beta), least_epsilon(float(beta))) == pytest.approx(float(exact), rel=1e-12)


def test_the_promise_of_theorem_2_holds():
    """For two streams that differ by one row, the published counts of its cell are (epsilon, delta)-close."""
    k, beta = 5, 0.3
    for epsilon in (least_epsilon(beta), 0.6, 1.0):
        promised = delta(k, beta, epsilon)
        worst = 0.0
        for n in range(80):
            with_it, without = (truncated(rows, k, beta) for rows in (n + 1, n))
            for one, other in ((with_it, without), (without, with_it)):
                size = max(len(one), len(other))
                p, q = np.pad(one, (0, size - len(one))), np.pad(other, (0, size - len(other)))
                worst = max(worst, float(np.maximum(p - math.exp(epsilon) * q, 0).sum()))
        # The theorem adds up all outcomes that are too likely, which is more than necessary, but never less.
        assert 0 < worst <= promised


def truncated(rows: int, k: int, beta: float) -> np.ndarray:
    """Return the probabilities of 0, k, k + 1, ... published rows in a cell; fewer than k rows are not published."""
    chances = scipy_stats.binom.pmf(np.arange(rows + 1), rows, beta)
    return np.concatenate([[chances[:k].sum()], chances[k:]])


def test_delta_falls_with_more_persons_and_with_more_epsilon():
    assert delta(100, 0.5, 1.0) < delta(50, 0.5, 1.0) < delta(10, 0.5, 1.0)
    assert delta(20, 0.5, 2.0) < delta(20, 0.5, 1.0) < delta(20, 0.5, 0.7)
    assert 0 <= delta(1000, 0.001, 9.0) < 1e-300
    assert delta(1, 0.999, least_epsilon(0.999)) <= 1


@pytest.mark.parametrize(
    ("k", "beta", "epsilon", "said"),
    [
        (0, 0.5, 1.0, "k must be an integer of at least 1, not 0"),
        (True, 0.5, 1.0, "k must be an integer of at least 1"),
        (5, 0.0, 1.0, "beta must be a number above 0 and below 1, not 0.0"),
        (5, 1.0, 1.0, "beta must be a number above 0 and below 1, not 1.0"),
        (5, math.nan, 1.0, "beta must be a number above 0 and below 1"),
        (
            5,
            0.5,
            0.69,
            r"epsilon must be a number of at least 0.693147 \(-ln\(1 - beta\), of a beta of 0.5\), not 0.69",
        ),
        (5, 0.5, math.inf, "epsilon must be"),
        (5, 0.5, math.nan, "epsilon must be"),
    ],
)
def test_arguments_out_of_range_are_refused(k: int, beta: float, epsilon: float, said: str):
    with pytest.raises(ValueError, match=said):
        delta(k, beta, epsilon)


@pytest.mark.parametrize("r", [0.001, 0.01, 0.5, 2.0])
@pytest.mark.parametrize("probability", [0.01, 0.5, 0.99, 0.999999])
def test_theorem_1(probability: float, r: float):
    found = phi(probability, r)
    laplace = scipy_stats.laplace(scale=1 / found)
    assert laplace.cdf(r) - laplace.cdf(-r) == pytest.approx(probability, rel=1e-9)
    assert moves_less(found, r) == pytest.approx(probability, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: phi(1.0, 0.1), "probability must be a number above 0 and below 1, not 1.0"),
        (lambda: phi(0.5, 0.0), "r must be a number above 0, not 0.0"),
        (lambda: moves_less(0.0, 0.1), "phi must be a number above 0, not 0.0"),
        (lambda: moves_less(math.inf, 0.1), "phi must be a number above 0"),
    ],
)
def test_theorem_1_refuses_arguments_out_of_range(call: object, said: str):
    with pytest.raises(ValueError, match=said):
        call()  # type: ignore[operator]
