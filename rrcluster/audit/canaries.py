"""End to end: a real, short training run with canary clients, and how much of their presence it gave away.

One-run audit of Steinke, Nasr, Jagielski 2023 (arXiv 2305.08846). Informative, not a gate: a valid lower bound on
epsilon, far below the claim even for exact code, because one run of moderate size cannot show more.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rrcluster.audit.finding import Finding
from rrcluster.audit.rounds import Simulate
from rrcluster.audit.targets import CLIP, AuditSetting, Target, plan_of
from rrcluster.data.synthetic import linear_regression
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.methods import ALGORITHMS, Clients, Method, Tools, Trained
from rrcluster.models import make_model
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Rng, Streams, stream
from rrcluster.settings import LocalSettings, ServerSettings
from rrcluster.simulation.simulate import RoundRecord
from rrcluster.types import Array, Models

CANARIES, OTHERS, ROUNDS = 1000, 200, 10
NOISE_MULTIPLIER = 3.0  # a claim of about 2.4, below what this attack could show if the noise were missing
CONFIDENCE = 0.95


def with_canaries(method: Method, signs: Array) -> Method:
    """The method, except that each canary client reports one coordinate of its own, far above the clip.

    `signs` (canaries,): +1 or -1 decides the direction. Canaries all prefer the first cluster.
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
    """A sampler for a population that lacks some clients: exact for Poisson cohorts, where each has its own coin."""

    sampler: Any
    absent: Array

    def draw(self, population: int, *, rng: Rng, round_index: int | None = None) -> Array:
        """The cohort, less the absent."""
        drawn = self.sampler.draw(population, rng=rng, round_index=round_index)
        return np.asarray(drawn[~np.isin(drawn, self.absent)])


class Depopulated:
    """A mechanism whose sampler knows that some clients are not there."""

    def __init__(self, mechanism: Any, absent: Array) -> None:
        """Stand for `mechanism`."""
        self._mechanism = mechanism
        self.sampler = Without(mechanism.sampler, absent)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the mechanism's own."""
        return getattr(self._mechanism, name)


def audit_end_to_end(target: Target, simulate: Simulate, *, algorithm: str = "ifca", seed: int = 0) -> Finding:
    """Train with 1000 canaries, guess a secret bit of each from the releases, and bound epsilon from the guesses.

    Add-remove: the bit is whether the canary is in the population at all. Replace-one: which of two opposite updates
    its data make it send.
    """
    rng = stream(seed, "canaries")
    bits = rng.random(CANARIES) < 0.5
    method = ALGORITHMS[algorithm]
    plan = _plan(target, method)
    add_remove = target.adjacency == "add-remove"
    signs = np.ones(CANARIES) if add_remove else np.where(bits, 1.0, -1.0)
    absent = np.flatnonzero(~bits) if add_remove else np.zeros(0, dtype=np.int64)
    planted = with_canaries(method, signs)
    records = _train(simulate, replace(plan, mechanism=Depopulated(plan.mechanism, absent)), planted, seed)  # type: ignore[arg-type]
    scores = _scores(records, first_block=add_remove)
    scores = scores - (np.median(scores) if add_remove else 0.0)
    found, guesses, right = best_bound(scores, bits, delta=plan.delta)
    return Finding(
        f"{target.name}, {algorithm}",
        "end to end, canaries",
        f"epsilon <= {plan.epsilon():.3g} at delta {plan.delta:g} ({ROUNDS} rounds)",
        f"epsilon >= {found:.3g} ({right} of {guesses} guesses right){_alarm(found, plan)}",
        None,
    )


def _alarm(found: float, plan: PrivacyPlan) -> str:
    """A bound at 95% is no gate, but one above the claim deserves a second run with another seed."""
    return ", ABOVE THE CLAIM: repeat with other seeds" if found > plan.epsilon() else ""


def best_bound(scores: Array, bits: Array, *, delta: float) -> tuple[float, int, int]:
    """(epsilon, guesses, right): guess the most extreme scores; the number of guesses is chosen among five.

    The confidence is shared among the five, so choosing costs nothing but that.
    """
    order = np.argsort(-np.abs(scores))
    tried = [int(part * len(scores)) for part in (0.05, 0.1, 0.2, 0.4, 1.0)]
    results = []
    for guesses in tried:
        chosen = order[:guesses]
        right = int(((scores[chosen] > 0) == bits[chosen]).sum())
        failure = (1 - CONFIDENCE) / len(tried)
        bound = one_run_epsilon(len(scores), guesses, right, delta=delta, failure_probability=failure)
        results.append((bound, guesses, right))
    return max(results)


def one_run_epsilon(canaries: int, guesses: int, right: int, *, delta: float, failure_probability: float) -> float:
    """Lower bound on epsilon from `right` of `guesses` right guesses (Steinke et al. 2023, Theorem 5.2, Method 2).

    Valid with probability 1 - failure_probability for any (epsilon, delta)-DP algorithm and any way of guessing.
    """
    low, high = 0.0, 20.0
    if one_run_p_value(canaries, guesses, right, epsilon=low, delta=delta) > failure_probability:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        refuted = one_run_p_value(canaries, guesses, right, epsilon=middle, delta=delta) < failure_probability
        low, high = (middle, high) if refuted else (low, middle)
    return low


def one_run_p_value(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    """The probability, at most, that an (epsilon, delta)-DP algorithm lets this many guesses be right."""
    from scipy.stats import binom

    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, accuracy))
    below = np.cumsum(binom.pmf(right - np.arange(1, right + 1), guesses, accuracy))
    worst = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, tail + 2 * canaries * delta * worst)


def _plan(target: Target, method: Method) -> PrivacyPlan:
    coordinates = method.split(_model()).coordinates
    setting = AuditSetting(
        noise_multiplier=NOISE_MULTIPLIER,
        shared=coordinates.shared,
        clustered=coordinates.clustered,
        num_clusters=method.num_clusters(2),
        size_floor=50.0,
        sample_rate=0.5,
        num_clients=CANARIES + OTHERS,
    )
    mechanism = target.make(setting)
    changes = {"mechanism": mechanism.name, "delta": 1e-5, "identifier": target.identifier}
    return replace(plan_of(setting, num_rounds=ROUNDS, **changes), mechanism=mechanism)


def _train(simulate: Simulate, plan: PrivacyPlan, method: Method, seed: int) -> list[RoundRecord]:
    model, rng = _model(), stream(seed, "audit")
    data = linear_regression(
        num_clients=CANARIES + OTHERS, rng=rng, ratio=(1, 1), dimension=CANARIES, samples_per_client=2
    ).data
    return list(
        simulate(
            data=data,
            model=model,
            algorithm=method,
            plan=plan,
            engine=BatchedEngine(model),
            streams=Streams(seed),
            local=LocalSettings(0.001, 1, 2),
            server=ServerSettings(exploration=0.0),
        )
    )


def _scores(records: list[RoundRecord], *, first_block: bool) -> Array:
    """What all releases together say of each canary's coordinate: shared, and in the blocks it may have gone to."""
    total = np.zeros(CANARIES)
    for release in (record.release for record in records):
        if release.shared_sum.size:
            total += release.shared_sum[:CANARIES]
        if release.cluster_sums.size:
            total += (release.cluster_sums[:1] if first_block else release.cluster_sums).sum(axis=0)[:CANARIES]
    return total


def _model() -> Any:
    return make_model("linear", input_shape=(CANARIES,), num_classes=0)
