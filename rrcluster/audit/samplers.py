"""Check 5: cohorts follow the law that the event names."""

import math

import numpy as np

from rrcluster.audit.finding import Finding
from rrcluster.audit.statistics import SIGNIFICANCE, binomial_p_value, normal_p_value, smallest
from rrcluster.audit.targets import AuditSetting, Mechanism, Target
from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.sampling import Sampler
from rrcluster.rng import Rng
from rrcluster.types import Array

DRAWS = 3000
POPULATION, SAMPLE_RATE = 60, 0.2


def check_sampler(target: Target, *, rng: Rng) -> Finding:
    """Tests of the mechanism's own sampler against its own event."""
    mechanism: Mechanism = target.make(AuditSetting(num_clients=POPULATION, sample_rate=SAMPLE_RATE))
    law = mechanism.event.sampling
    generator = target.generator(rng)
    name, p_value = smallest(sampling_p_values(mechanism.sampler, mechanism.event, rng=generator))
    holds = p_value >= SIGNIFICANCE
    measured = f"no deviation (least p-value {p_value:.2g})" if holds else f"another law: {name} (p = {p_value:.2g})"
    return Finding(target.name, "sampler", f"{law} cohorts", measured, holds)


def sampling_p_values(sampler: Sampler, event: RoundEvent, *, rng: Rng, draws: int = DRAWS) -> dict[str, float]:
    """P-values of: ids in range and distinct, inclusion, batch size, pairwise independence, rounds independent.

    Under a fixed size, "independence" means the covariance of draws without replacement. Exact binomial tests for
    inclusion, corrected for the number of clients; normal approximations for the others.
    """
    cohorts = [np.asarray(sampler.draw(POPULATION, rng=rng)) for _ in range(draws)]
    if any(len(np.unique(ids)) != len(ids) or not set(ids) <= set(range(POPULATION)) for ids in cohorts):
        return {"ids out of range or repeated": 0.0}
    member = np.zeros((draws, POPULATION))
    for row, ids in zip(member, cohorts, strict=True):
        row[ids] = 1.0
    poisson, rate = event.sampling == "Poisson", event.sample_rate
    each = [binomial_p_value(int(count), draws, rate) for count in member.sum(axis=0)]
    return {
        "inclusion of a client": min(1.0, POPULATION * min(each)),
        "size of the cohort": _sizes_p_value(member.sum(axis=1), rate, poisson),
        "two clients together": _pairs_p_value(member, rate, poisson),
        "two rounds together": _rounds_p_value(member, rate, poisson),
    }


def _sizes_p_value(sizes: Array, rate: float, poisson: bool) -> float:
    """Binomial(M, q): its mean exactly, its variance by the variance of a sample variance. Fixed: the same always."""
    if not poisson:
        return float((sizes == round(rate * POPULATION)).all())
    variance = POPULATION * rate * (1 - rate)
    fourth = variance * (1 + 3 * variance * (1 - 2 / POPULATION))  # central moment of a binomial
    spread = math.sqrt((fourth - variance**2) / len(sizes))
    measured = float(((sizes - POPULATION * rate) ** 2).mean())
    mean = binomial_p_value(int(sizes.sum()), len(sizes) * POPULATION, rate)
    return min(mean, normal_p_value((measured - variance) / spread))


def _pairs_p_value(member: Array, rate: float, poisson: bool) -> float:
    """Every pair of clients: how often both are in. Corrected for the number of pairs."""
    size = round(rate * POPULATION)
    both = rate**2 if poisson else rate * (size - 1) / (POPULATION - 1)
    together = (member.T @ member)[np.triu_indices(POPULATION, 1)]
    extremes = (int(together.min()), int(together.max()))
    return min(1.0, len(together) * min(binomial_p_value(count, len(member), both) for count in extremes))


def _rounds_p_value(member: Array, rate: float, poisson: bool) -> float:
    """How many clients of a round are in the next one too: hypergeometric or binomial, summed over disjoint pairs."""
    again = (member[:-1:2] * member[1::2]).sum(axis=1)
    mean = POPULATION * rate**2
    size = round(rate * POPULATION)
    fixed = size * (1 - rate) ** 2 * rate * POPULATION / (POPULATION - 1)
    variance = POPULATION * rate**2 * (1 - rate**2) if poisson else fixed
    return normal_p_value(float(again.sum() - mean * len(again)) / math.sqrt(variance * len(again)))
