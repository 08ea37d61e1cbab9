"""Randomness: independent named streams, and secure draws from the operating system that follow their laws."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from rrcluster.audit.probes import entropy_from
from rrcluster.audit.sensitivity import Round
from rrcluster.audit.statistics import (
    SIGNIFICANCE,
    all_distinct,
    binomial_p_value,
    gaussian_law_p_value,
    repeats_p_value,
    smallest,
)
from rrcluster.audit.targets import AuditSetting, Finding, Target, as_reports
from rrcluster.entropy import SecureStreams, below, secure_rng
from rrcluster.privacy.discrete import discrete_gaussian, grid_sigma
from rrcluster.rng import Streams, client_uniforms
from rrcluster.types import Array

DRAWS = 6000
_NAMES = ("cohort", "release", "init", "choice", "coin", "batches", "combination", "run")


def check_streams(seed: int) -> Finding:
    """Streams of another seed, name or position share nothing, and a client's draws follow from its id alone.

    128 bits of each are compared; two agree by chance with probability below 1e-30.
    """
    streams = {
        (other, name, key): source(name, *key).integers(2**63, size=2).tobytes()
        for other in (seed, seed + 1)
        for source in (Streams(other),)
        for name in _NAMES
        for key in ((), (0,), (1,), (2,), (0, 1))
    }
    keys = {(other, name, t): Streams(other).client_key(name, t) for other, name, t in _positions(seed)}
    ids = np.array([0, 1, 2, 57, 2**31, 2**32, 2**32 + 1, 2**40])
    draws = client_uniforms(Streams(seed).client_key("coin", 3), ids, 6)
    wrong = ""
    if len(set(streams.values())) < len(streams) or len(set(keys.values())) < len(keys):
        wrong = "two streams are the same"
    elif not all_distinct(draws):
        wrong = "two clients share their draws"
    elif not np.array_equal(client_uniforms(Streams(seed).client_key("coin", 3), ids[::-1], 6), draws[::-1]):
        wrong = "a client's draws depend on its place"
    claim = "every seed, name, round and client has draws of its own"
    return Finding("streams", "streams", claim, wrong or "so", not wrong)


def check_entropy(target: Target) -> Finding:
    """Noise, cohorts, identifiers, first models and clients' keys come from the operating system's generator alone.

    Deterministic. What it is asked for is counted (8 bytes for each coordinate of noise, a byte for each client of the
    population), and replaced: the same bytes must give the same draws, and others other draws.
    """
    wrong, read = "", 0
    for name, least, draw in _drawn_securely(target):
        rng, asked = np.random.default_rng(0), list[int]()

        def counted(count: int, rng: Any = rng, asked: list[int] = asked) -> bytes:
            asked.append(count)
            return bytes(rng.bytes(count))

        with entropy_from(counted):
            one = draw()
        with entropy_from(np.random.default_rng(0).bytes):
            two = draw()
        with entropy_from(np.random.default_rng(1).bytes):
            three = draw()
        read += sum(asked)
        if sum(asked) < least:
            wrong = f"{name}: {sum(asked)} bytes were read, not {least}"
        elif not np.array_equal(one, two):
            wrong = f"{name}: drawn from elsewhere too"
        elif np.array_equal(one, three):
            wrong = f"{name}: the same for other bytes"
    claim = "secure draws read the operating system, and nothing else"
    return Finding(target.name, "entropy", claim, wrong or f"so ({read} bytes)", not wrong)


def _drawn_securely(target: Target) -> Iterator[tuple[str, int, Any]]:
    mechanism = target.make(AuditSetting(shared=3, clustered=20, num_clients=300, sample_rate=0.2))
    cohort = Round(np.zeros((40, 23)), np.arange(40) % 3)
    reports = as_reports(mechanism, cohort)
    streams = SecureStreams()
    yield "noise", 8 * 63, lambda: mechanism.release(reports, rng=secure_rng()).cluster_sums
    yield "cohorts", 300, lambda: mechanism.sampler.draw(300, rng=secure_rng())
    yield "first models", 8 * 50, lambda: streams("init").standard_normal(50)
    yield "clients' keys", 8, lambda: np.array(streams.client_key("coin", 0))
    if target.adjacency == "replace-one":
        yield "sizes", 8 * 40, lambda: mechanism.release(reports, rng=secure_rng()).sizes


def check_secure_draws() -> Finding:
    """Uniforms, whole numbers, subsets, orders, coins and counts of coins have their laws: exact binomial tests."""
    rng = secure_rng()
    uniforms = rng.random(20_000)
    orders = np.array([int("".join(map(str, rng.permutation(3)))) for _ in range(DRAWS)])
    pairs = np.array([sum(2 ** rng.choice(4, size=2, replace=False)) for _ in range(DRAWS)])
    tosses = np.array([rng.geometric(0.3) for _ in range(DRAWS)])
    coins = np.array([rng.binomial(6, 0.3) for _ in range(DRAWS)])
    logarithmic = np.array([rng.logseries(0.7) for _ in range(DRAWS)])
    p_values = {
        "uniforms": _cells((uniforms * 16).astype(int), dict.fromkeys(range(16), 1 / 16)),
        "bits of uniforms": repeats_p_value(uniforms, 2.0**52 / math.sqrt(4 * math.pi)),
        "whole numbers": _cells(rng.integers(10, size=DRAWS), dict.fromkeys(range(10), 0.1)),
        "large whole numbers": _cells(below(3 * 2**60, 5 * DRAWS) >> 60, dict.fromkeys(range(3), 1 / 3)),
        "orders": _cells(orders, dict.fromkeys((12, 21, 102, 120, 201, 210), 1 / 6)),
        "subsets": _cells(pairs, dict.fromkeys((3, 5, 6, 9, 10, 12), 1 / 6)),
        "coins": _cells(coins, {i: math.comb(6, i) * 0.3**i * 0.7 ** (6 - i) for i in range(7)}),
        "tosses": _cells(tosses, {i: 0.3 * 0.7 ** (i - 1) for i in range(1, 9)}),
        "logarithmic": _cells(logarithmic, {i: 0.7**i / (i * -math.log(0.3)) for i in range(1, 9)}),
        "normal draws": gaussian_law_p_value(rng.standard_normal(20_000), 1.0),
    }
    name, p_value = smallest(p_values)
    holds = p_value >= SIGNIFICANCE
    measured = f"no deviation (least p-value {p_value:.2g})" if holds else f"another law: {name} (p = {p_value:.2g})"
    return Finding("secure randomness", "secure draws", "secure draws have their laws", measured, holds)


def check_discrete_gaussian() -> Finding:
    """The discrete Gaussian at small sigma, value by value; and the whole sigma that stands for a noise std.

    By Proposition 4 of docs/privacy.md the square of sigma must exceed that of the std, in grid steps, by 8^2 at least.
    """
    p_values = {}
    for sigma in (1, 2, 7):
        weights = {x: math.exp(-x * x / (2 * sigma**2)) for x in range(-12 * sigma, 12 * sigma + 1)}
        total = sum(weights.values())
        inner = {x: weight / total for x, weight in weights.items() if abs(x) <= 2 * sigma}
        p_values[f"sigma = {sigma}"] = _cells(discrete_gaussian(sigma, 10 * DRAWS), inner)
    name, p_value = smallest(p_values)
    wrong = f"another law at {name} (p = {p_value:.2g})" if p_value < SIGNIFICANCE else ""
    for std, step in ((0.7, 2.0**-31), (1.0, 2.0**-31), (math.pi, 2.0**-29), (1e-3, 2.0**-40)):
        if grid_sigma(std, step) ** 2 - 64 < (Fraction(std) / Fraction(step)) ** 2:
            wrong = wrong or f"a std of {std:g} is rounded to less noise"
    claim = "secure noise is a discrete Gaussian of at least the std claimed"
    return Finding("secure randomness", "discrete Gaussian", claim, wrong or "so", not wrong)


def _cells(values: Array, probabilities: dict[int, float]) -> float:
    """Exact binomial test of each value's frequency, corrected for the number of values."""
    n = len(values)
    each = [binomial_p_value(int((values == value).sum()), n, p) for value, p in probabilities.items()]
    rest = 1 - sum(probabilities.values())
    outside = int((~np.isin(values, list(probabilities))).sum())
    each.append(binomial_p_value(outside, n, max(rest, 0.0)) if rest > 1e-9 else float(outside == 0))
    return min(1.0, len(each) * min(each))


def _positions(seed: int) -> Iterator[tuple[int, str, int]]:
    return ((other, name, t) for other in (seed, seed + 1) for name in _NAMES for t in range(4))
