"""End to end: a short real run with canary clients, and a lower bound on what its releases reveal about them.

One run, many canaries, each with a secret bit, which is guessed for those whose releases show it most clearly (Steinke,
Nasr, Jagielski 2023, arXiv 2305.08846). The bound uses the claim's own trade-off curve instead of one (epsilon, delta),
as in Mahloujifar, Melis, Chaudhuri 2024 (arXiv 2410.22235): for Gaussian releases a bound from epsilon alone stays far
below the claim. It is valid however the releases depend on each other, and tighter with more canaries.

All canaries together test the claim: noise that is independent between coordinates, as claimed, makes their guesses
independent.

Everybody takes part in every round, so that the claim is exactly that of T Gaussians; sampling has checks of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rrcluster.audit.accountants import gaussian_epsilon
from rrcluster.audit.rounds import Simulate
from rrcluster.audit.statistics import SIGNIFICANCE
from rrcluster.audit.targets import CLIP, AuditSetting, Finding, Target, plan_of
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.entropy import SecureStreams
from rrcluster.methods import METHODS, Clients, Method, Tools, Trained
from rrcluster.models import make_model
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.statement import statement
from rrcluster.rng import Rng, Streams, stream
from rrcluster.settings import LocalSettings, ServerSettings
from rrcluster.simulation.simulate import RoundRecord
from rrcluster.types import Array, Models

CANARIES, OTHERS, ROUNDS = 4000, 30, 2
NOISE_MULTIPLIER, DELTA = math.sqrt(2), 1e-5  # two rounds: mu = 1, epsilon = 4.4
GUESSED = 0.1  # share of the canaries that are guessed: the clearest
CONFIDENCE = 0.95  # of the bound; the claim itself is refuted at SIGNIFICANCE


def with_canaries(method: Method, signs: Array) -> Method:
    """The method, except that each canary client reports a single coordinate, far above the clip.

    `signs` (canaries,): +1 or -1 sets the direction. Canaries all prefer the first cluster.
    """

    def scores(models: Models, clients: Clients, *, tools: Tools) -> Array:
        changed = np.array(method.scores(models, clients, tools=tools))
        changed[clients.cohort.clients < len(signs)] = np.arange(changed.shape[1])
        return changed

    def local(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
        trained = method.local(models, clients, clusters, tools=tools)
        updates = np.array(trained.updates)
        places = np.flatnonzero(clients.cohort.clients < len(signs))
        ids = clients.cohort.clients[places]
        updates[places] = 0.0
        updates[places, ids] = 10 * CLIP * signs[ids]
        return Trained(updates, trained.memory)

    return replace(method, scores=scores, local=local)


@dataclass(frozen=True)
class Without:
    """A sampler that omits some clients: exact for Poisson cohorts, where clients join independently."""

    sampler: Any
    absent: Array

    def check_population(self, population: int) -> None:
        """Refuse the populations that the sampler refuses."""
        self.sampler.check_population(population)

    def draw(self, population: int, *, rng: Rng, round_index: int | None = None) -> Array:
        """The cohort, without the absent clients."""
        cohort = self.sampler.draw(population, rng=rng, round_index=round_index)
        return np.asarray(cohort[~np.isin(cohort, self.absent)])


class Depopulated:
    """A mechanism whose sampler omits absent clients."""

    def __init__(self, mechanism: Any, absent: Array) -> None:
        """Wrap `mechanism`."""
        self._mechanism = mechanism
        self.sampler = Without(mechanism.sampler, absent)

    def __getattr__(self, name: str) -> Any:
        """Delegate all other attributes to the mechanism."""
        return getattr(self._mechanism, name)


def audit_end_to_end(
    target: Target, simulate: Simulate, *, method: str = "ifca", seed: int = 0, canaries: int = CANARIES
) -> Finding:
    """Train with canaries, guess a secret bit of each from the releases, and compare with the stated guarantee.

    Add-remove: the bit is whether the canary is in the population at all. Replace-one: the bit is which of two opposite
    updates the canary sends. Under the claim every guess is right with probability Phi(mu
    2) at most.
    """
    from scipy.special import ndtr
    from scipy.stats import binom

    bits = stream(seed, "canaries").random(canaries) < 0.5
    base = METHODS[method]
    plan = _plan(target, base, canaries)
    claimed = statement(plan)["epsilon"]
    joins = target.adjacency == "add-remove"
    signs = np.ones(canaries) if joins else np.where(bits, 1.0, -1.0)
    absent = np.flatnonzero(~bits) if joins else np.zeros(0, dtype=np.int64)
    watched = replace(plan, mechanism=Depopulated(plan.mechanism, absent))  # type: ignore[arg-type]
    records = _train(simulate, watched, with_canaries(base, signs), target, seed)
    scores = _scores(records, canaries, first_block=joins) - (ROUNDS * CLIP / 2 if joins else 0.0)
    correct = (scores > 0) == bits
    clearest = correct[np.argsort(-np.abs(scores))[: int(GUESSED * canaries)]]
    bound = one_run_mu(canaries, len(clearest), int(clearest.sum()), failure_probability=1 - CONFIDENCE)
    p_value = float(binom.sf(int(correct.sum()) - 1, canaries, ndtr(mu_of(claimed, plan.delta) / 2)))
    lower_bound = gaussian_epsilon(1 / bound, plan.delta) if bound > 0 else 0.0
    return Finding(
        f"{target.name}, {method}",
        "end to end, canaries",
        f"epsilon <= {claimed:.3g} at delta {plan.delta:g} ({ROUNDS} rounds)",
        f"epsilon >= {lower_bound:.3g} at {CONFIDENCE:.0%} ({int(clearest.sum())} of {len(clearest)} guesses right; "
        f"{int(correct.sum())} of all {canaries}, p = {p_value:.2g})",
        p_value >= SIGNIFICANCE,
    )


def mu_of(epsilon: float, delta: float) -> float:
    """The mu of Gaussian DP that has exactly this epsilon at delta."""
    return _largest(lambda mu: gaussian_epsilon(1 / mu, delta) <= epsilon)


def one_run_mu(canaries: int, guesses: int, right: int, *, failure_probability: float) -> float:
    """Lower bound on mu from `right` of `guesses` right guesses, valid with probability 1 - failure_probability.

    For any mu-Gaussian-DP mechanism and any choice of which of the canaries' uniform bits to guess, and how.
    """
    if 2 * right <= guesses:
        return 0.0

    def refuted(mu: float) -> bool:
        return not is_possible(canaries, guesses, right, mu=mu, probability=failure_probability)

    return _largest(refuted) if refuted(_LEAST) else 0.0


def is_possible(canaries: int, guesses: int, right: int, *, mu: float, probability: float) -> bool:
    """Whether a mu-Gaussian-DP mechanism may let at least `right` of g guesses be right with this probability.

    Let p_i be the probability that exactly i of the g guesses are right, the m bits uniform. Take a canary at random.
    With its bit flipped, an output that guessed it rightly with at least i right in total is one that guesses it
    wrongly with at least i - 1 right. So for every i

        sum over j >= i of j p_j / m  <=  G(sum over j >= i - 1 of (g - j) p_j / m),

    where G(x) is the largest power of a test at level x, Phi(Phi^-1(x) + mu), concave, so that averages over the other
    bits keep the inequality. Given the mass at `right`, the least masses below it follow one by one, and together they
    may not exceed 1.
    """
    from scipy.special import ndtr, ndtri

    m, g = canaries, guesses
    rights, wrongs = probability * right / m, probability * (g - right) / m
    for i in range(right - 1, -1, -1):
        least = max(wrongs, float(ndtr(ndtri(rights) - mu)))
        rights += i / (g - i) * (least - wrongs)
        wrongs = least
        if rights + wrongs > g / m:
            return False
    return True


_LEAST = 1e-3  # smallest mu of interest


def _largest(holds: Callable[[float], bool], high: float = 12.0) -> float:
    """The largest number up to `high` that satisfies `holds`, a monotone condition."""
    low = _LEAST
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _plan(target: Target, method: Method, canaries: int) -> PrivacyPlan:
    coordinates = method.split(_model(canaries)).coordinates
    setting = AuditSetting(
        noise_multiplier=NOISE_MULTIPLIER,
        shared=coordinates.shared,
        clustered=coordinates.clustered,
        num_clusters=method.num_clusters(2),
        size_floor=50.0,
        sample_rate=1.0,
        num_clients=canaries + OTHERS,
        secure=target.secure,
    )
    mechanism = target.make(setting)
    changes = {"mechanism": mechanism.name, "delta": DELTA, "identifier": target.identifier}
    return replace(plan_of(setting, num_rounds=ROUNDS, **changes), mechanism=mechanism)


def _train(simulate: Simulate, plan: PrivacyPlan, method: Method, target: Target, seed: int) -> list[RoundRecord]:
    canaries = plan.mechanism.num_clients - OTHERS
    model = _model(canaries)
    return list(
        simulate(
            data=_population(canaries, seed),
            model=model,
            method=method,
            plan=plan,
            engine=BatchedEngine(model),
            streams=SecureStreams() if target.secure else Streams(seed),
            local=LocalSettings(0.001, 1, 2),
            server=ServerSettings(exploration=0.0),
        )
    )


def _population(canaries: int, seed: int) -> FederatedData:
    """One sample per client: canaries report their own coordinate, the others train."""
    rng = stream(seed, "audit")
    inputs = [rng.standard_normal((1, canaries)).astype(np.float32) for _ in range(canaries + OTHERS)]
    return from_arrays(inputs, [rng.standard_normal(1) for _ in inputs], num_classes=0, name="canaries")


def _scores(records: list[RoundRecord], canaries: int, *, first_block: bool) -> Array:
    """Each canary's coordinate summed over all releases: the shared part, and the blocks it may have gone to."""
    total = np.zeros(canaries)
    for release in (record.release for record in records):
        if release.shared_sum.size:
            total += release.shared_sum[:canaries]
        if release.cluster_sums.size:
            total += (release.cluster_sums[:1] if first_block else release.cluster_sums).sum(axis=0)[:canaries]
    return total


def _model(canaries: int) -> Any:
    return make_model("linear", input_shape=(canaries,), num_classes=0)
