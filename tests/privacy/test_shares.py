"""Noise shares: their sum is the noise that the plan claims, and no sum of messages wraps."""

import math

import numpy as np
import pytest
from scipy import stats

from rrcluster.errors import ConfigError
from rrcluster.privacy.discrete import bits_needed, discrete_gaussian, finest_grid, grid_sigma, share_sigma


@pytest.mark.parametrize("least_honest", [1, 2, 3, 7, 50, 999])
@pytest.mark.parametrize("noise_std", [0.31, 1.7, 12.0])
def test_the_shares_of_the_honest_have_the_variance_of_the_claim(least_honest, noise_std):
    step = 2.0**-20
    sigma = share_sigma(noise_std, step, least_honest=least_honest)
    claimed = grid_sigma(noise_std, step)
    assert least_honest * sigma**2 >= claimed**2 >= (noise_std / step) ** 2 + 64
    assert least_honest * (sigma - 1) ** 2 < claimed**2  # and no more than rounding asks for


def test_a_sum_of_shares_is_one_discrete_gaussian():
    """At a parameter so small that the difference could show, the law of two shares' sum, computed."""
    sigma, x = 3, np.arange(-200, 201)
    one = np.exp(-(x**2) / (2 * sigma**2))
    two = np.convolve(one / one.sum(), one / one.sum(), mode="same")
    whole = np.exp(-(x**2) / (4 * sigma**2))
    near = abs(x) < 40
    error = abs(np.log(two[near] / (whole / whole.sum())[near])).max()
    assert error <= 8 * math.exp(-(math.pi**2) * sigma**2) + 1e-11  # r^2 = sigma^2 / 2 in 4 exp(-2 pi^2 r^2)
    sigma = 0.5  # where the bound is not below the rounding of floats, and is met
    one = np.exp(-(x**2) / (2 * sigma**2))
    two = np.convolve(one / one.sum(), one / one.sum(), mode="same")
    whole = np.exp(-(x**2) / (4 * sigma**2))
    near = abs(x) < 5
    error = abs(np.log(two[near] / (whole / whole.sum())[near])).max()
    assert 1e-3 < error <= 8 * math.exp(-(math.pi**2) * sigma**2)


def test_drawn_shares_add_up_to_the_claimed_noise():
    step, least_honest, noise_std = 2.0**-16, 8, 1.3
    sigma = share_sigma(noise_std, step, least_honest=least_honest)
    total = sum(discrete_gaussian(sigma, 40_000) for _ in range(least_honest)) * step
    assert stats.kstest(total / noise_std, "norm").pvalue > 1e-9
    assert stats.kstest(total / noise_std / 0.9, "norm").pvalue < 1e-9
    assert stats.kstest(total / noise_std * 0.9, "norm").pvalue < 1e-9


def test_shares_that_are_too_coarse_are_refused():
    with pytest.raises(ConfigError, match=r"noise shares of \d+ grid steps are too coarse for 1000 clients"):
        share_sigma(1.0, 2.0**-10, least_honest=1000)


def test_bits_by_hand():
    assert bits_needed(num_messages=10, largest=100, sigma=0, num_shares=0) == 11  # 1000 < 2^10, and a sign
    assert bits_needed(num_messages=0, largest=0, sigma=64, num_shares=4) == 13  # 16 * 64 * 2 = 2048 = 2^11


@pytest.mark.parametrize("num_messages", [8, 100, 1000, 10_000])
def test_the_finest_grid_fits_and_the_next_one_would_not(num_messages):
    case = {"num_messages": num_messages, "longest": 1.0, "noise_std": 5.0, "least_honest": 6, "num_shares": 10}
    bits = finest_grid(**case)

    def needed(bits):
        sigma = share_sigma(5.0, 2.0 ** -(bits + 1), least_honest=6)
        return bits_needed(num_messages=num_messages, largest=2 ** (bits + 1), sigma=sigma, num_shares=10)

    assert needed(bits) <= 32
    assert bits == 20 or needed(bits + 1) > 32


def test_a_modulus_that_could_wrap_is_refused():
    with pytest.raises(ConfigError, match=r"sums of 100000 messages do not fit 32 bits on a grid of 14 bits or finer"):
        finest_grid(num_messages=100_000, longest=1.0, noise_std=5.0, least_honest=6, num_shares=10)
