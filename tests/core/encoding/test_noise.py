"""Noise from bits: of the right distribution, and on a grid that does not tell values apart."""

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
def test_sampling_has_its_chance(chance: float):
    """Five standard deviations, at a fixed seed."""
    assert abs(noise.sampled(bits(), chance).mean() - chance) < 5 * math.sqrt(chance * (1 - chance) / N)


def test_sampling_at_its_ends():
    extremes = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert noise.sampled(extremes, 1.0).all()
    assert noise.sampled(extremes, 2.0**-53).tolist() == [True, False]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e9])
def test_laplace_is_laplace(scale: float):
    drawn = noise.laplace(bits(), scale)
    assert scipy_stats.kstest(drawn, scipy_stats.laplace(scale=scale).cdf).pvalue > 0.001
    gridded = noise.on_grid(17.0 + drawn, scale) - 17.0
    assert scipy_stats.kstest(gridded, scipy_stats.laplace(scale=scale).cdf).pvalue > 0.001


@pytest.mark.parametrize("r", [0.1, 0.5, 1.0, 4.0])
def test_theorem_1_holds_of_what_is_drawn(r: float):
    expected = 1 - math.exp(-r)
    share = np.mean(np.abs(noise.laplace(bits(), 1.0)) < r)
    assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / N)


def test_no_bits_make_it_infinite():
    ends = np.array([0, 1, 2, 2**64 - 1, 2**64 - 2], dtype=np.uint64)
    drawn = noise.laplace(ends, 1.0)
    assert np.isfinite(drawn).all()
    assert abs(drawn[0]) == pytest.approx(63 * math.log(2))
    assert drawn[3] == 0
    assert (noise.laplace(ends, 0.0) == 0).all()


def test_every_value_leaves_on_the_same_grid():
    """Which floats a sum can be would tell the value that noise was added to (Mironov, 2012)."""
    scale = 0.37
    step = 2.0 ** (math.frexp(scale)[1] - 20)
    seen = []
    for value in (0.1, 1 / 3, 54321.123456789):
        out = noise.on_grid(value + noise.laplace(bits(1000), scale), scale)
        assert (out / step == np.rint(out / step)).all()
        seen.append(set(np.rint((out - out.min()) / step).tolist()))
    assert step <= scale * 2**-19
    # What has no noise, as the first value of a range that is learned, stays as it is.
    assert noise.on_grid(np.array([0.1]), np.array([0.0])).tolist() == [0.1]
    assert noise.on_grid(np.array([5.0]), 1e-305).tolist() == [5.0]


def test_naive_sums_do_tell():
    """The attack that the grid is there for, so that it is known to be one."""
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
    # The definition of local differential privacy: no answer is more than e**budget times likelier for one truth.
    assert truth / ((1 - truth) / (size - 1)) == pytest.approx(math.exp(budget))
    assert noise.randomized(codes, bits(), bits(), 1, budget) is codes
