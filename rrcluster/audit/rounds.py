"""Checks 6, 7 and 8 on real training: the inputs of a release, its charge, and its use."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from torch import nn

from rrcluster import registry
from rrcluster.audit.statistics import SIGNIFICANCE, correlation_p_value
from rrcluster.audit.targets import CLIP, AuditSetting, Finding, Recorder, Reported, Target, WatchedLedger, plan_of
from rrcluster.data.federated import FederatedData
from rrcluster.data.synthetic import linear_regression
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.entropy import SecureStreams
from rrcluster.errors import ConfigError
from rrcluster.methods import METHODS
from rrcluster.models import Model, from_module, make_model
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Streams, stream
from rrcluster.server import survey
from rrcluster.settings import LocalSettings, ServerSettings
from rrcluster.simulation.simulate import Checkpoint, RoundRecord
from rrcluster.types import Array, Release

Simulate = Callable[..., Iterator[RoundRecord]]  # rrcluster.simulation.simulate.simulate, or a stand-in
Init = Literal["independent", "survey"]
NUM_CLIENTS, NUM_ROUNDS, DIMENSION = 40, 4, 30
PART = 8  # clients computed at a time: cohorts of these checks have several parts


@dataclass(frozen=True)
class Training:
    """A small training run of one method under one mechanism, with its simulator."""

    target: Target
    simulate: Simulate
    method: str = "ifca"
    seed: int = 0

    def plan(self) -> PrivacyPlan:
        """A plan whose mechanism is the one under audit, with rebalancing where the method has clusters."""
        method = METHODS[self.method]
        model = method.adapt(_model(self.method))
        k = method.num_clusters(2)
        setting = AuditSetting(
            noise_multiplier=1.0,
            shared=method.split(model).coordinates.shared,
            clustered=method.split(model).coordinates.clustered,
            num_clusters=k,
            min_cluster_size=6 if k > 1 else 0,
            sample_rate=0.5,
            num_clients=NUM_CLIENTS,
        )
        mechanism = self.target.make(setting)
        changes = {"mechanism": mechanism.name, "secure": self.target.secure, "accountant": "rdp"}  # rdp is the fastest
        return replace(plan_of(setting, num_rounds=NUM_ROUNDS, **changes), mechanism=mechanism)

    def run(self, plan: PrivacyPlan, *, data: FederatedData | None = None, **changes: Any) -> list[RoundRecord]:
        """The records of all rounds of the plan."""
        return list(self.simulate(**(self.arguments(plan, data or small_population(0)) | changes)))

    def arguments(self, plan: PrivacyPlan, data: FederatedData) -> dict[str, Any]:
        """The arguments for the simulator."""
        method = METHODS[self.method].for_population(METHODS[self.method], data)
        model = method.adapt(_model(self.method))
        return {
            "data": data,
            "model": model,
            "method": method,
            "plan": plan,
            "engine": ReferenceEngine(model) if model.own else BatchedEngine(model, capacity=PART),
            "streams": SecureStreams() if self.target.secure else Streams(self.seed),
            "local": LocalSettings(0.05, 1, 10),
        }

    @property
    def subject(self) -> str:
        """The subject of the findings."""
        return f"{self.target.name}, {self.method}"


def check_ledger(training: Training) -> Finding:
    """Events charged = releases made = rounds accounted; each charge precedes its release, also for an empty cohort.

    Deterministic. The charged event is the mechanism's, and the plan's epsilon is that of this event over the actual
    number of releases.
    """
    plan = training.plan()
    cohorts = [np.arange(20), np.arange(20 * (training.target.adjacency == "replace-one")), np.arange(10, 30)]
    surveyed = METHODS[training.method].chooses_by_loss and _fits_survey(plan)
    for limit, init in ((plan.num_rounds, "independent"), (2, "independent"), *(((6, "survey"),) if surveyed else ())):
        log: list[Any] = []
        probe = Recorder(plan.mechanism, log=log, cohorts=cohorts)
        ledger = WatchedLedger(log)
        try:
            server = ServerSettings(init=init)
            training.run(
                around(plan, probe, num_rounds=max(limit, plan.num_rounds), max_releases=limit),
                ledger=ledger,
                server=server,
            )
        except Exception as error:  # an empty cohort must not stop a run
            return Finding(training.subject, "ledger", _LEDGER, f"stopped by {type(error).__name__}", False)
        releases, draws = log.count("release"), len(probe.sampler.drawn)
        expected = [entry for t in range(limit) for entry in ((t, plan.mechanism.event), "release")]
        accounted = epsilon(plan.mechanism.event, num_rounds=releases, delta=plan.delta, accountant="rdp")
        stated = replace(plan, num_rounds=max(limit, plan.num_rounds), max_releases=limit).epsilon()
        measured = f"{ledger.num_charged} charged, {releases} released, epsilon {stated:.3g} of {accounted:.3g}"
        if log != expected or ledger.num_charged != releases or abs(stated - accounted) >= 1e-9:
            return Finding(training.subject, "ledger", _LEDGER, f"{measured}; order: {log[:4]}", False)
        if draws != releases:
            return Finding(training.subject, "ledger", _LEDGER, f"{draws} cohorts drawn for {releases} releases", False)
    return Finding(training.subject, "ledger", _LEDGER, measured, True)


_LEDGER = "charged first = released = accounted"


def check_messages(training: Training) -> Finding:
    """A client's report does not depend on other participants: Theorem 1's condition on choices, coins and updates.

    Deterministic. From the same released state, one round with and one without a client: everybody else must report the
    same, to float32 rounding. Catches coins or prices from raw sizes of this round, assignments that look at others,
    statistics shared between clients. Tried after one and after three releases, leaving out each of four clients.
    """
    plan, everyone = training.plan(), np.arange(20)
    records = training.run(plan)
    worst = 0.0
    for state in (records[0].state, records[2].state):
        complete = _one_round(training, plan, everyone, state)
        for absent in (0, 7, 12, 19):
            without = _one_round(training, plan, np.delete(everyone, absent), state)
            worst = max(worst, difference(complete, without, absent))
    measured = "holds" if worst < 1e-4 else f"reports of others change ({worst:.2g} of the clip)"
    return Finding(training.subject, "messages", "a report depends on its client alone", measured, worst < 1e-4)


def _fits_survey(plan: PrivacyPlan) -> bool:
    """Whether a survey's answers fit into an update."""
    try:
        survey.survey_size(plan.mechanism.coordinates.clustered, plan.mechanism.num_clusters)
    except ConfigError:
        return False
    return True


@contextmanager
def surveys_find_groups() -> Iterator[None]:
    """Let surveys open groups whether or not clients agree: the few clients here could not show agreement."""
    least_agreement = survey.least_agreement
    survey.least_agreement = lambda directions: -math.inf  # noqa: ARG005 (called by position, typed by name)
    try:
        yield
    finally:
        survey.least_agreement = least_agreement


def check_postprocessing(training: Training) -> Finding:
    """Models, denominators and all other server state are functions of releases: equal releases, equal state.

    Deterministic: every release is replaced by a fixed one, two different populations are trained on, and the records
    must agree to the last bit; with every initialisation of the method, with momentum and exploration.
    """
    plan, wrong = training.plan(), ""
    canned = [record.release for record in training.run(plan)]
    inits: list[Init] = ["independent"]
    inits += ["survey"] if METHODS[training.method].chooses_by_loss and _fits_survey(plan) else []
    ways: list[tuple[Init, AbstractContextManager[None]]] = [(init, nullcontext()) for init in inits]
    ways += [("survey", surveys_find_groups())] if "survey" in inits else []
    for init, way in ways:
        server = ServerSettings(init=init, server_momentum=0.3, average_last=0.5)
        times = 2 if init == "survey" else 1  # a survey needs more rounds, so the releases are used twice
        longer = replace(plan, num_rounds=times * plan.num_rounds)
        with way:
            one, two = (_canned_run(training, longer, seed, times * canned, server) for seed in (1, 2))
        if not all(_same(a, b) for a, b in zip(one, two, strict=True)):
            wrong = wrong or f"state or denominators change with raw data (init = {init})"
    claim = "models are functions of releases"
    return Finding(training.subject, "post-processing", claim, wrong or "holds", not wrong)


def check_round_noise(training: Training) -> Finding:
    """No two rounds of a run share noise, nor does the same round on other data under another seed.

    Noise is the sum of all blocks minus the sum of clipped updates, clipped by the audit's own code. The same seed on
    other data does share it: seeded runs are reproducible, and for that reason not private.
    """
    plan = training.plan()
    noise = []
    for seed in (training.seed, training.seed + 1):
        recorder = Recorder(plan.mechanism)
        replace(training, seed=seed).run(around(plan, recorder), data=small_population(seed))
        noise += [_total_noise(one) for one in recorder.reported]
    pairs = [(i, j) for i in range(len(noise)) for j in range(i)]
    least = min((correlation_p_value(noise[i], noise[j]) for i, j in pairs), default=1.0)
    measured = f"uncorrelated (least p-value {least:.2g})" if least >= SIGNIFICANCE else "two rounds share noise"
    return Finding(training.subject, "noise of rounds", "every round has fresh noise", measured, least >= SIGNIFICANCE)


def small_population(seed: int) -> FederatedData:
    """Two groups of clients with a linear problem each."""
    rng = stream(seed, "audit")
    return linear_regression(
        num_clients=NUM_CLIENTS, rng=rng, ratio=(2, 1), dimension=DIMENSION, samples_per_client=10
    ).data


def _model(method: str) -> Model:
    """A linear model; two layers for methods that split off the last one."""
    if registry.METHODS.fact(method, "splits_network", False):
        return from_module(nn.Sequential(nn.Linear(DIMENSION, 2), nn.Tanh(), nn.Linear(2, 1)), fresh=True)
    return make_model("linear", input_shape=(DIMENSION,), num_classes=0)


def _one_round(training: Training, plan: PrivacyPlan, cohort: Array, state: Any) -> Reported:
    recorder = Recorder(plan.mechanism, cohorts=[cohort])
    training.run(around(plan, recorder, num_rounds=state.round_index + 1), checkpoint=Checkpoint(state))
    return recorder.reported[0]


def difference(whole: Reported, without: Reported, absent: int) -> float:
    """Largest change of anybody else's clipped update, relative to the clip; infinite if a choice or coin changed."""
    same_choices = np.array_equal(np.delete(whole.choices, absent), without.choices)
    if not same_choices or not np.array_equal(np.delete(whole.destinations, absent), without.destinations):
        return np.inf
    change = np.delete(_clipped(whole.updates), absent, axis=0) - _clipped(without.updates)
    return float(np.abs(change).max()) / CLIP


def _canned_run(
    training: Training, plan: PrivacyPlan, seed: int, canned: list[Release], server: ServerSettings
) -> list[RoundRecord]:
    """A run whose clients and cohorts follow `seed`, on fixed releases."""
    size = 20 if training.target.adjacency == "replace-one" else 15 + seed
    cohorts = [stream(seed, "audit", t).permutation(NUM_CLIENTS)[:size] for t in range(plan.num_rounds)]
    recorder = Recorder(plan.mechanism, cohorts=cohorts, canned=canned)
    return training.run(around(plan, recorder), data=small_population(seed), server=server)


def around(plan: PrivacyPlan, probe: Any, **changes: Any) -> PrivacyPlan:
    """The plan with a probe in place of its mechanism."""
    return replace(plan, mechanism=probe, **changes)


def _same(one: RoundRecord, two: RoundRecord) -> bool:
    def values(record: RoundRecord) -> list[Any]:
        state, release = record.state, record.release
        parts = (state.models, state.average, state.velocity)
        models = [array for part in parts for array in (part.shared, part.clustered)]
        sums = [release.shared_sum, release.cluster_sums, release.sizes, release.denominators]
        numbers = [release.shared_denominator, release.sum_noise_std, release.size_noise_std]
        counts = [state.sizes.weight, state.num_averaged, state.round_index]
        surveyed = [] if state.survey is None else list(state.survey.tensors().values())
        return [*models, *sums, numbers, state.sizes.total, counts, *surveyed]

    return all(np.array_equal(a, b) for a, b in zip(values(one), values(two), strict=True))


def _total_noise(reported: Reported) -> Array:
    release = reported.release
    total = np.concatenate([release.shared_sum, release.cluster_sums.sum(axis=0)])
    return np.asarray(total - _clipped(reported.updates).sum(axis=0))


def _clipped(updates: Array) -> Array:
    norms = np.linalg.norm(updates.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(updates * np.minimum(1.0, CLIP / np.maximum(norms, 1e-300)))
