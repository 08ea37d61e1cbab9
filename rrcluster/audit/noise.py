"""Checks 2 and 6: the noise is fresh, from the given generator, and has the claimed scale and law in every block.

The scale claimed is the event's multiplier times a sensitivity computed by the audit. Noise is measured as the
difference between a release and the same release with the noise off. Under `identifier` the choices have noise too.

Randomness: independent named streams, and secure draws from the operating system that follow their laws.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from rrcluster.audit.sensitivity import Round
from rrcluster.audit.statistics import (
    SIGNIFICANCE,
    all_distinct,
    binomial_p_value,
    columns_p_value,
    correlation_p_value,
    gaussian_law_p_value,
    repeats_p_value,
    scale_p_value,
    smallest,
)
from rrcluster.audit.targets import (
    CLIP,
    GRID_BITS,
    AuditSetting,
    Finding,
    Mechanism,
    Target,
    as_reports,
    claimed_sensitivity,
    entropy_from,
    given,
    noised,
    silenced,
)
from rrcluster.entropy import SecureStreams, below, secure_rng
from rrcluster.errors import PrivacyError
from rrcluster.privacy.discrete import discrete_gaussian, grid_sigma
from rrcluster.privacy.reports import Reports
from rrcluster.rng import Rng, Streams, client_uniforms, stream
from rrcluster.types import Array

RELEASES = 400
SHAPE = AuditSetting(noise_multiplier=1.7, shared=40, clustered=64)
COHORTS = {
    "nobody": np.zeros(0, dtype=np.int64),
    "two empty clusters": np.zeros(12, dtype=np.int64),
    "a crowd": np.repeat(np.arange(3), (30, 9, 1)),
}
Blocks = dict[str, Array]  # block -> (releases, coordinates) of noise
Samples = dict[str, tuple[Mechanism, Blocks]]  # by cohort


def check_noise(target: Target, *, rng: Rng, releases: int = RELEASES) -> list[Finding]:
    """400 releases for each of several cohorts: scale and law of the noise in every block."""
    samples = _samples(target, target.generator(rng), releases)
    return [_scale(target, samples), _law(target, samples)]


def _scale(target: Target, samples: Samples) -> Finding:
    """Chi-square test of every block: shared, each cluster, counts.

    Catches noise for half the sensitivity, missing noise in empty clusters, and noise that depends on the cohort. A
    block of 64 coordinates resolves 2.4% of the std; the count row of 3, 11%.
    """
    p_values, ratios = {}, {}
    for cohort, (mechanism, blocks) in samples.items():
        std = claimed_multiplier(mechanism) * claimed_sensitivity(mechanism)
        for block, noise in blocks.items():
            p_values[f"{block}, {cohort}"] = scale_p_value(noise, std)
            ratios[f"{block}, {cohort}"] = float(np.sqrt((noise**2).mean())) / std
    where, p_value = smallest(p_values)
    return Finding(
        target.name,
        "noise scale",
        "noise std = multiplier x sensitivity, in every block",
        f"{ratios[where]:.4f} of it at worst ({where})",
        p_value >= SIGNIFICANCE,
    )


def _law(target: Target, samples: Samples) -> Finding:
    """Gaussian (Kolmogorov-Smirnov), of full precision (no value twice), and independent between blocks."""
    wrong = ""
    for cohort, (mechanism, blocks) in samples.items():
        std = claimed_multiplier(mechanism) * claimed_sensitivity(mechanism)
        for block, noise in blocks.items():
            if gaussian_law_p_value(noise, std) < SIGNIFICANCE:
                wrong = f"another law ({block}, {cohort})"
            elif getattr(mechanism, "exact_noise", False):
                wrong = wrong or off_the_grid(noise, mechanism, block)
            elif not all_distinct(noise):
                wrong = f"repeated values: too few bits ({block}, {cohort})"
        for one, two in itertools.combinations(_clusters(blocks), 2):
            if correlation_p_value(blocks[one], blocks[two]) < SIGNIFICANCE:
                wrong = f"{one} and {two} share noise ({cohort})"
        if columns_p_value(np.hstack(list(blocks.values()))) < SIGNIFICANCE:
            wrong = wrong or f"two coordinates share noise ({cohort})"
    kind = "discrete Gaussian noise on the messages' grid" if target.secure else "Gaussian noise of full precision"
    claim = f"independent {kind}"
    return Finding(target.name, "noise law", claim, wrong or "no deviation", not wrong)


def off_the_grid(noise: Array, mechanism: Mechanism, block: str) -> str:
    """What is wrong with exact noise: off the grid, on a coarser grid, or with too many repeats; empty if nothing."""
    step = 2.0 ** (math.floor(math.log2(mechanism.update_clip)) - GRID_BITS)
    per_step = {"counts": "count_weight", "evaluation": "evaluation_weight"}.get(block)
    if per_step == "count_weight":  # sizes are in units of a weight, rounded down to the grid
        noise = noise * (math.floor(mechanism.count_weight / step) * step / mechanism.count_weight)
    steps = noise / step
    whole_steps = np.rint(steps)
    if not np.allclose(steps, whole_steps, rtol=0, atol=1e-3):
        return f"not on the grid ({block})"
    if binomial_p_value(int((whole_steps % 2).sum()), whole_steps.size, 0.5) < SIGNIFICANCE:
        return f"odd and even numbers of steps are not equally likely: a coarser grid ({block})"
    sigma = claimed_multiplier(mechanism) * claimed_sensitivity(mechanism) / step
    if repeats_p_value(whole_steps, sigma) < SIGNIFICANCE:
        return f"repeated values: too few bits ({block})"
    return ""


def check_noise_reuse(target: Target, *, seed: int) -> Finding:
    """Noise is never reused: not by the next release, for other data, nor under another seed.

    It comes from the given generator alone: the same generator on the same data gives the same release.
    """
    mechanism = target.make(replace(SHAPE, clustered=400))
    choices = np.zeros(12, dtype=np.int64)
    rng = stream(seed, "reuse", 1)
    first, second = noise_of(mechanism, choices, rng), noise_of(mechanism, choices[::-1] + 1, rng)
    elsewhere = noise_of(mechanism, choices, stream(seed, "reuse", 2))
    again = noise_of(mechanism, choices, stream(seed, "reuse", 1))
    wrong = [
        name
        for name, other in {"the next release": second, "another seed": elsewhere}.items()
        if correlation_p_value(first, other) < SIGNIFICANCE
    ]
    if not np.array_equal(first, again):
        wrong.append("the given generator does not determine the noise")
    measured = f"repeated: {', '.join(wrong)}" if wrong else "uncorrelated"
    return Finding(target.name, "noise reuse", "every release has fresh noise", measured, not wrong)


def claimed_multiplier(mechanism: Mechanism) -> float:
    """The ratio of noise std to sensitivity of the sums that the event must have meant.

    Under `joint` the event's own. Under `identifier` that of the sums, whose combination with the identifiers' is the
    event; `check_identifiers` tests the remaining part of the event's multiplier against the identifiers.
    """
    return float(mechanism.noise_multiplier if hasattr(mechanism, "identifier") else mechanism.event.noise_multiplier)


def _samples(target: Target, rng: Rng, releases: int) -> Samples:
    """As many noise values, from fewer and wider releases where exact noise is slow to draw."""
    mechanism = target.make(replace(SHAPE, clustered=8 * SHAPE.clustered) if target.secure else SHAPE)
    wide = releases // 8 if target.secure else releases
    return {name: (mechanism, _blocks(mechanism, choices, rng, wide)) for name, choices in COHORTS.items()}


def _blocks(mechanism: Mechanism, choices: Array, rng: Rng, releases: int) -> Blocks:
    noise = np.stack([noise_of(mechanism, choices, rng) for _ in range(releases)])
    d_s, d_c, k = mechanism.coordinates.shared, mechanism.coordinates.clustered, mechanism.num_clusters
    num_columns = d_s + k * d_c + (k if getattr(mechanism, "count_weight", 0.0) else 0)
    places = {
        "shared": slice(0, d_s),
        "counts": slice(d_s + k * d_c, num_columns),
        "evaluation": slice(num_columns, None),
    }
    places |= {f"cluster {j}": slice(d_s + j * d_c, d_s + (j + 1) * d_c) for j in range(k)}
    blocks = {name: noise[:, place] for name, place in places.items()}
    return {name: samples for name, samples in blocks.items() if samples.size}


def _clusters(blocks: Blocks) -> list[str]:
    return [name for name in blocks if name.startswith("cluster")]


def noise_of(mechanism: Mechanism, choices: Array, rng: Rng) -> Array:
    """The noise of one release of this cohort: the difference from the same release without noise."""
    updates = np.full((len(choices), mechanism.coordinates.width), CLIP / 100)
    fixed = given(mechanism, choices if len(choices) else np.zeros(12, dtype=np.int64))
    reports = as_reports(mechanism, Round(updates, choices))
    noisy = noised(fixed.release(reports, rng=rng), fixed)
    silent = silenced(fixed)
    return noisy - noised(silent.release(reports, rng=np.random.default_rng(0)), silent)


def check_secure_noise(target: Target) -> Finding:
    """Secure noise is fresh in every release, on the same data too, and no seeded generator is accepted for it."""
    mechanism = target.make(SHAPE)
    choices = np.zeros(12, dtype=np.int64)
    one, two = (noise_of(mechanism, choices, secure_rng()) for _ in range(2))

    shared = secure_rng()
    three, four = (noise_of(mechanism, choices, shared) for _ in range(2))
    pairs = ((one, two), (one, three), (three, four), (two, four))
    least = min(correlation_p_value(a, b) for a, b in pairs)
    wrong = "two releases share noise" if least < SIGNIFICANCE else ""
    try:
        noise_of(mechanism, choices, np.random.default_rng(0))
        wrong = wrong or "a seeded generator is accepted"
    except PrivacyError:
        pass
    claim = "secure noise is fresh and takes no seed"
    return Finding(target.name, "secure noise", claim, wrong or f"holds (least p-value {least:.2g})", not wrong)


_CLIENTS = 4000


def check_identifiers(target: Target, *, rng: Rng) -> Finding:
    """How often a choice is kept and each other one answered, against the event's share for identifiers.

    The whole cohort makes one choice; the released sizes then count the answers: exact binomial tests. The law follows
    from the event, whatever the code says: for Gaussians by 1/z^2 = 2/sigma_s^2 + 1/sigma_theta^2. Three pairs of
    releases that all agree share their noise: by chance with probability below 1e-9.
    """
    mechanism = target.make(AuditSetting(noise_multiplier=1.0, num_clients=2 * _CLIENTS, sample_rate=0.5))
    k, keep = mechanism.num_clusters, claimed_keep_probability(mechanism)
    p_values, num_kept, repeated = {}, 0, 0
    for choice in range(k):
        choices = np.full(_CLIENTS, choice)
        reports = Reports(np.zeros((_CLIENTS, 2)), choices)
        release = mechanism.release(reports, rng=rng)
        repeated += np.array_equal(release.sizes, mechanism.release(reports, rng=rng).sizes)
        num_kept += int(release.sizes[choice])
        for answer in range(k):
            expected = keep if answer == choice else (1 - keep) / (k - 1)
            p_values[f"{answer} for {choice}"] = binomial_p_value(int(release.sizes[answer]), _CLIENTS, expected)
    holds = smallest(p_values)[1] >= SIGNIFICANCE and repeated < k
    claim = f"a choice is kept with probability {keep:.4f}"
    measured = f"{num_kept / (k * _CLIENTS):.4f}" if repeated < k else "the same answers in every release"
    return Finding(target.name, "identifier noise", claim, measured, holds)


def claimed_keep_probability(mechanism: Mechanism) -> float:
    """Probability that the noisy identifier equals the choice, from the event alone."""
    event, k = mechanism.event, int(mechanism.num_clusters)
    if not event.choice.is_free:
        return float(event.choice.keep_probability)
    budget = event.noise_multiplier**-2 - mechanism.noise_multiplier**-2
    if budget <= 0:
        return 1 / k  # no budget remains: the answer must be a pure guess
    return gaussian_keep_probability(math.sqrt(2 / budget), k)


def gaussian_keep_probability(std: float, num_clusters: int) -> float:
    """P(argmax(one-hot + N(0, std^2)) is the choice) = integral of phi(x) Phi(x + 1/std)^(k-1), by quadrature."""
    from scipy.integrate import quad
    from scipy.special import ndtr

    def integrand(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * float(ndtr(x + 1 / std)) ** (num_clusters - 1)

    return float(quad(integrand, -12, 12, limit=200)[0])


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
        wrong = "a client's draws depend on its position"
    claim = "every seed, name, round and client has its own draws"
    return Finding("streams", "streams", claim, wrong or "holds", not wrong)


def check_entropy(target: Target) -> Finding:
    """Noise, cohorts, identifiers, first models and clients' keys come from the operating system's generator alone.

    Deterministic. The bytes read are counted (8 for each coordinate of noise, one for each client of the population),
    and replaced: the same bytes must give the same draws, and others other draws.
    """
    wrong, num_bytes = "", 0
    for name, lower_bound, draw in _drawn_securely(target):
        rng, counts = np.random.default_rng(0), list[int]()

        def counted(count: int, rng: Any = rng, counts: list[int] = counts) -> bytes:
            counts.append(count)
            return bytes(rng.bytes(count))

        with entropy_from(counted):
            one = draw()
        with entropy_from(np.random.default_rng(0).bytes):
            two = draw()
        with entropy_from(np.random.default_rng(1).bytes):
            three = draw()
        num_bytes += sum(counts)
        if sum(counts) < lower_bound:
            wrong = f"{name}: {sum(counts)} bytes were read, not {lower_bound}"
        elif not np.array_equal(one, two):
            wrong = f"{name}: other randomness is used too"
        elif np.array_equal(one, three):
            wrong = f"{name}: independent of the bytes"
    claim = "secure draws read the operating system, and nothing else"
    return Finding(target.name, "entropy", claim, wrong or f"holds ({num_bytes} bytes)", not wrong)


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
    """Uniforms, whole numbers, subsets, orders, coins and counts of coins follow their laws: exact binomial tests."""
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
    return Finding("secure randomness", "secure draws", "secure draws follow their laws", measured, holds)


def check_discrete_gaussian() -> Finding:
    """The discrete Gaussian at small sigma, value by value; and the integer sigma that stands for a noise std.

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
    return Finding("secure randomness", "discrete Gaussian", claim, wrong or "holds", not wrong)


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
