"""Check 5: cohorts follow the law that the event names, small, secure and undeclared populations included."""

import math

import numpy as np

from rrcluster.audit.probes import Recorder
from rrcluster.audit.rounds import Training, around
from rrcluster.audit.statistics import SIGNIFICANCE, binomial_p_value, normal_p_value, smallest
from rrcluster.audit.targets import AuditSetting, Finding, Mechanism, Target
from rrcluster.entropy import secure_rng
from rrcluster.errors import PrivacyError
from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.sampling import Sampler
from rrcluster.rng import Rng
from rrcluster.types import Array

FEW, RATE = 5, 0.05
DECLARED = 60


def check_small_cohorts(target: Target, *, rng: Rng) -> Finding:
    """M = 5 and q = 0.05: three in four Poisson cohorts are empty, and fixed-size cohorts have exactly one client.

    Exact binomial tests of how many cohorts are empty, how many have one client, and of all clients drawn.
    """
    sampler = target.make(AuditSetting(num_clients=FEW, num_clusters=1, sample_rate=RATE)).sampler
    sizes = _sizes(sampler, FEW, target.generator(rng))
    if target.adjacency == "replace-one":
        holds = bool((sizes == 1).all())
        return Finding(target.name, "small cohorts", "one of 5, always", "so" if holds else "other sizes", holds)
    empty = (1 - RATE) ** FEW
    name, p_value = smallest(
        {
            f"{(sizes == 0).mean():.3f} are empty": binomial_p_value(int((sizes == 0).sum()), DRAWS, empty),
            f"{(sizes == 1).mean():.3f} have one client": binomial_p_value(
                int((sizes == 1).sum()), DRAWS, FEW * RATE * (1 - RATE) ** (FEW - 1)
            ),
            f"{sizes.mean():.3f} clients on average": binomial_p_value(int(sizes.sum()), DRAWS * FEW, RATE),
        }
    )
    holds = p_value >= SIGNIFICANCE
    measured = f"{name} (p = {p_value:.2g})"
    return Finding(target.name, "small cohorts", f"{empty:.3f} of the cohorts of 5 at 0.05 are empty", measured, holds)


def check_population(target: Target, *, rng: Rng) -> Finding:
    """Poisson cohorts follow a population below its bound; one beyond it is refused, and at fixed size any other."""
    sampler = target.make(AuditSetting(num_clients=DECLARED, num_clusters=1, sample_rate=0.2)).sampler
    fixed, wrong = target.adjacency == "replace-one", ""
    for population in (DECLARED // 3, 3 * DECLARED):
        try:
            sizes = _sizes(sampler, population, target.generator(rng))
        except PrivacyError:
            bounded = fixed or population > DECLARED
            wrong = wrong or ("" if bounded else f"a population of {population} is refused")
            continue
        likely = binomial_p_value(int(sizes.sum()), DRAWS * population, 0.2) >= SIGNIFICANCE
        if fixed or population > DECLARED or not likely:
            wrong = f"cohorts of {sizes.mean():.2f} from a population of {population}"
    claim = (
        "a population that was not declared is refused" if fixed else "cohorts follow the population, up to its bound"
    )
    return Finding(target.name, "population", claim, wrong or "so", not wrong)


def check_secure_sampler(target: Target) -> Finding:
    """A secure sampler refuses seeded generators, and no cohort of 100 of 200 repeats (by chance: below 1e-50)."""
    sampler = target.make(AuditSetting(num_clients=200, num_clusters=1, sample_rate=0.5)).sampler
    wrong = ""
    for name, seeded in {"PCG64": np.random.default_rng(0), "Philox": np.random.Generator(np.random.Philox(1))}.items():
        try:
            sampler.draw(200, rng=seeded)
            wrong = f"a seeded generator ({name}) is accepted"
        except PrivacyError:
            pass
    drawn = [tuple(sampler.draw(200, rng=secure_rng()).tolist()) for _ in range(10)]
    if len(set(drawn)) < len(drawn):
        wrong = "two secure cohorts are the same"
    claim = "secure cohorts take no seed and never repeat"
    return Finding(target.name, "secure sampler", claim, wrong or "so", not wrong)


def check_round_cohorts(training: Training) -> Finding:
    """The cohorts of two real runs: none repeats (by chance: below 1e-9).

    Seeded runs have different seeds; secure runs share nothing.
    """
    plan, seen = training.plan(), []
    for seed in (training.seed, training.seed + 1):
        recorder = Recorder(plan.mechanism)
        Training(training.target, training.simulate, training.algorithm, seed).run(around(plan, recorder))
        seen += [tuple(np.sort(one.client_ids).tolist()) for one in recorder.reported]
    again = len(seen) - len(set(seen))
    measured = f"{again} of {len(seen)} cohorts are repeated" if again else "so"
    return Finding(training.subject, "cohorts of rounds", "every round has a cohort of its own", measured, not again)


def _sizes(sampler: Sampler, population: int, rng: Rng) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([len(sampler.draw(population, rng=rng)) for _ in range(DRAWS)], dtype=np.int64)


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
