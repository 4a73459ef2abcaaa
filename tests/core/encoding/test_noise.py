"""Noise from random bits has the right distribution, and lies on a grid that reveals no value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from crenel.encoding import noise

scipy_stats = pytest.importorskip("scipy.stats", reason="the independent values are scipy's")

N = 100_000


def bits(count: int = N, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


@pytest.mark.parametrize("chance", [0.01, 0.25, 0.5, 0.9])
def test_sampling_keeps_its_probability(chance: float):
    """The share is within five standard deviations. The seed is fixed."""
    assert abs(noise.sampled(bits(), chance).mean() - chance) < 5 * math.sqrt(chance * (1 - chance) / N)


def test_sampling_with_probability_0_and_1():
    extremes = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert noise.sampled(extremes, 1.0).all()
    assert noise.sampled(extremes, 2.0**-53).tolist() == [True, False]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e9])
def test_laplace_noise_has_the_laplace_distribution(scale: float):
    drawn = noise.laplace(bits(), scale)
    assert scipy_stats.kstest(drawn, scipy_stats.laplace(scale=scale).cdf).pvalue > 0.001
    gridded = noise.on_grid(17.0 + drawn, scale) - 17.0
    assert scipy_stats.kstest(gridded, scipy_stats.laplace(scale=scale).cdf).pvalue > 0.001


@pytest.mark.parametrize("r", [0.1, 0.5, 1.0, 4.0])
def test_theorem_1_holds_for_the_noise(r: float):
    expected = 1 - math.exp(-r)
    share = np.mean(np.abs(noise.laplace(bits(), 1.0)) < r)
    assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / N)


def test_no_bits_give_infinite_noise():
    ends = np.array([0, 1, 2, 2**64 - 1, 2**64 - 2], dtype=np.uint64)
    drawn = noise.laplace(ends, 1.0)
    assert np.isfinite(drawn).all()
    assert abs(drawn[0]) == pytest.approx(63 * math.log(2))
    assert drawn[3] == 0
    assert (noise.laplace(ends, 0.0) == 0).all()


def test_every_noisy_value_lies_on_the_same_grid():
    """Off the grid, the possible floats of a sum would reveal the value below the noise (Mironov, 2012)."""
    scale = 0.37
    step = 2.0 ** (math.frexp(scale)[1] - 20)
    seen = []
    for value in (0.1, 1 / 3, 54321.123456789):
        out = noise.on_grid(value + noise.laplace(bits(1000), scale), scale)
        assert (out / step == np.rint(out / step)).all()
        seen.append(set(np.rint((out - out.min()) / step).tolist()))
    assert step <= scale * 2**-19
    # A value without noise stays unchanged, such as the first value of a learned range.
    assert noise.on_grid(np.array([0.1]), np.array([0.0])).tolist() == [0.1]
    assert noise.on_grid(np.array([5.0]), 1e-305).tolist() == [5.0]


def test_sums_off_the_grid_reveal_the_value():
    """The attack that the grid prevents works without it."""
    drawn = noise.laplace(bits(2000), 1.0)
    one, other = set((0.1 + drawn).tolist()), set((0.3 + drawn).tolist())
    naive = {x for x in one if (x - 0.1) + 0.1 == x} - other
    assert len(naive) > 1000
    gridded, again = (set(noise.on_grid(v + noise.laplace(bits(N, 3), 1e-4), 1e-4).tolist()) for v in (0.1, 0.1001))
    assert len(gridded & again) > 1000


@pytest.mark.parametrize("budget", [0.1, 1.0, 5.0])
def test_randomized_response(budget: float):
    size, codes = 4, np.full(N, 2)
    told = noise.randomized(codes, bits(), bits(seed=2), size, budget)
    truth = noise.truth_chance(budget, size)
    shares = np.bincount(told, minlength=size) / N
    for code in range(size):
        expected = truth if code == 2 else (1 - truth) / (size - 1)
        assert abs(shares[code] - expected) < 5 * math.sqrt(expected * (1 - expected) / N)
    # Local differential privacy: no answer is more than e**budget times as likely for one truth as for another.
    assert truth / ((1 - truth) / (size - 1)) == pytest.approx(math.exp(budget))
    assert noise.randomized(codes, bits(), bits(), 1, budget) is codes
