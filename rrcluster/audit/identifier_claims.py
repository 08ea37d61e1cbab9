"""Are choices privatised as much as the event of `identifier` says? Part of check 2."""

import math

import numpy as np

from rrcluster.audit.finding import Finding
from rrcluster.audit.statistics import SIGNIFICANCE, binomial_p_value, smallest
from rrcluster.audit.targets import AuditSetting, Mechanism, Target
from rrcluster.privacy.reports import Reports
from rrcluster.rng import Rng

_CLIENTS = 4000


def check_identifiers(target: Target, *, rng: Rng) -> Finding:
    """How often a choice is kept, and each other one answered, against what the event leaves for the identifiers.

    The whole cohort makes one choice, as clear as can be and beyond every clip; the released sizes then count the
    answers: exact binomial tests. The event says what the law must be, whatever the code says it is: for Gaussians by
    its fold 1/z^2 = 2/sigma_s^2 + 1/sigma_theta^2. Three pairs of releases that all agree share their noise: chance has
    it with probability below 1e-9.
    """
    mechanism = target.make(AuditSetting(noise_multiplier=1.0, num_clients=2 * _CLIENTS, sample_rate=0.5))
    k, keep = mechanism.num_clusters, claimed_keep_probability(mechanism)
    p_values, kept, repeated = {}, 0, 0
    for choice in range(k):
        choices = np.full(_CLIENTS, choice)
        reports = Reports(np.zeros((_CLIENTS, 2)), choices)
        release = mechanism.release(reports, rng=rng)
        repeated += np.array_equal(release.sizes, mechanism.release(reports, rng=rng).sizes)
        kept += int(release.sizes[choice])
        for answer in range(k):
            expected = keep if answer == choice else (1 - keep) / (k - 1)
            p_values[f"{answer} for {choice}"] = binomial_p_value(int(release.sizes[answer]), _CLIENTS, expected)
    holds = smallest(p_values)[1] >= SIGNIFICANCE and repeated < k
    claim = f"a choice is kept with probability {keep:.4f}"
    measured = f"{kept / (k * _CLIENTS):.4f}" if repeated < k else "the same answers in every release"
    return Finding(target.name, "identifier noise", claim, measured, holds)


def claimed_keep_probability(mechanism: Mechanism) -> float:
    """Probability that the noisy identifier is a choice as clear as can be, by the event alone."""
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
