"""Checks 2 and 6: the noise has the claimed scale and law in every block, is fresh, and comes from the generator given.

The scale claimed is the event's multiplier times a sensitivity computed by the audit. All noise is read off as the
difference between a release and the same release with the noise off. Under `identifier` the choices have noise too.
"""

import itertools
import math
from dataclasses import replace

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
    given,
    noised,
    silenced,
)
from rrcluster.entropy import secure_rng
from rrcluster.errors import PrivacyError
from rrcluster.privacy.reports import Reports
from rrcluster.rng import Rng, stream
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

    Catches noise for half the sensitivity, noise forgotten in empty clusters, noise that depends on the cohort. A block
    of 64 coordinates resolves 2.4% of the std; the count row of 3, 11%.
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
        f"{ratios[where]:.4f} of it at the worst ({where})",
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
                wrong = f"the same values again: too few bits ({block}, {cohort})"
        for one, two in itertools.combinations(_clusters(blocks), 2):
            if correlation_p_value(blocks[one], blocks[two]) < SIGNIFICANCE:
                wrong = f"{one} and {two} share noise ({cohort})"
        if columns_p_value(np.hstack(list(blocks.values()))) < SIGNIFICANCE:
            wrong = wrong or f"two coordinates share noise ({cohort})"
    kind = "discrete Gaussian noise on the messages' grid" if target.secure else "Gaussian noise of full precision"
    claim = f"independent {kind}"
    return Finding(target.name, "noise law", claim, wrong or "no deviation", not wrong)


def off_the_grid(noise: Array, mechanism: Mechanism, block: str) -> str:
    """What is wrong with exact noise: not whole numbers of steps, on a coarser grid, or the same values too often."""
    step = 2.0 ** (math.floor(math.log2(mechanism.update_clip)) - GRID_BITS)
    per_step = {"counts": "count_weight", "evaluation": "evaluation_weight"}.get(block)
    if per_step == "count_weight":  # sizes are in units of a weight that was rounded down to the grid
        noise = noise * (math.floor(mechanism.count_weight / step) * step / mechanism.count_weight)
    steps = noise / step
    whole = np.rint(steps)
    if not np.allclose(steps, whole, rtol=0, atol=1e-3):
        return f"no whole numbers of grid steps ({block})"
    if binomial_p_value(int((whole % 2).sum()), whole.size, 0.5) < SIGNIFICANCE:
        return f"odd and even numbers of steps are not equally likely: a coarser grid ({block})"
    sigma = claimed_multiplier(mechanism) * claimed_sensitivity(mechanism) / step
    if repeats_p_value(whole, sigma) < SIGNIFICANCE:
        return f"the same values again: too few bits ({block})"
    return ""


def check_noise_reuse(target: Target, *, seed: int) -> Finding:
    """Noise is never used twice: not by the next release, not for other data, not under another seed.

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
        wrong.append("the generator given does not decide the noise")
    measured = f"repeated: {', '.join(wrong)}" if wrong else "uncorrelated"
    return Finding(target.name, "noise reuse", "every release has fresh noise", measured, not wrong)


def claimed_multiplier(mechanism: Mechanism) -> float:
    """Noise std / sensitivity of the sums that the event must have meant.

    Under `joint` the event's own. Under `identifier` the sums' part, whose fold with the identifiers' is the event;
    `check_identifiers` tests what is left of the event's multiplier against the identifiers.
    """
    return float(mechanism.noise_multiplier if hasattr(mechanism, "identifier") else mechanism.event.noise_multiplier)


def _samples(target: Target, rng: Rng, releases: int) -> Samples:
    """As many numbers from fewer, wider releases where exact noise is slow to draw."""
    mechanism = target.make(replace(SHAPE, clustered=8 * SHAPE.clustered) if target.secure else SHAPE)
    wide = releases // 8 if target.secure else releases
    return {name: (mechanism, _blocks(mechanism, choices, rng, wide)) for name, choices in COHORTS.items()}


def _blocks(mechanism: Mechanism, choices: Array, rng: Rng, releases: int) -> Blocks:
    noise = np.stack([noise_of(mechanism, choices, rng) for _ in range(releases)])
    d_s, d_c, k = mechanism.coordinates.shared, mechanism.coordinates.clustered, mechanism.num_clusters
    counted = d_s + k * d_c + (k if getattr(mechanism, "count_weight", 0.0) else 0)
    places = {"shared": slice(0, d_s), "counts": slice(d_s + k * d_c, counted), "evaluation": slice(counted, None)}
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
    return Finding(target.name, "secure noise", claim, wrong or f"so (least p-value {least:.2g})", not wrong)


_CLIENTS = 4000


def check_identifiers(target: Target, *, rng: Rng) -> Finding:
    """How often a choice is kept, and each other one answered, against what the event leaves for the identifiers.

    The whole cohort makes one choice; the released sizes then count the answers: exact binomial tests. The event says
    what the law must be, whatever the code says it is: for Gaussians by its fold 1/z^2 = 2/sigma_s^2 + 1/sigma_theta^2.
    Three pairs of releases that all agree share their noise: by chance with probability below 1e-9.
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
    """Probability that the noisy identifier equals the choice, by the event alone."""
    event, k = mechanism.event, int(mechanism.num_clusters)
    if not event.choice.is_free:
        return float(event.choice.keep_probability)
    left = event.noise_multiplier**-2 - mechanism.noise_multiplier**-2
    if left <= 0:
        return 1 / k  # nothing is left: the answer must be a pure guess
    return gaussian_keep_probability(math.sqrt(2 / left), k)


def gaussian_keep_probability(std: float, num_clusters: int) -> float:
    """P(argmax(one-hot + N(0, std^2)) is the choice) = integral of phi(x) Phi(x + 1/std)^(k-1), by quadrature."""
    from scipy.integrate import quad
    from scipy.special import ndtr

    def integrand(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * float(ndtr(x + 1 / std)) ** (num_clusters - 1)

    return float(quad(integrand, -12, 12, limit=200)[0])
