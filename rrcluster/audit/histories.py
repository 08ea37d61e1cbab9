"""Whole runs with and without one client: given the same releases, nobody else's reports change in any round.

This is what Theorem 1 of docs/privacy.md asks of clients, over all rounds: what they remember, how they choose under
every initialisation and exploration, and who fails. Clients are computed one by one, so that equal means equal.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from torch import nn

from rrcluster.audit.finding import Finding
from rrcluster.audit.probes import Recorder, entropy_from
from rrcluster.audit.rounds import Training, around
from rrcluster.audit.targets import AuditSetting, Target, plan_of
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.entropy import SecureStreams
from rrcluster.methods import ALGORITHMS
from rrcluster.models import from_module
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import Reports, as_numpy
from rrcluster.rng import Streams, stream
from rrcluster.settings import FaultSettings, LocalSettings, ServerSettings
from rrcluster.simulation.clients import Faults
from rrcluster.types import Release

NUM_CLIENTS, DIMENSION, ROUNDS = 12, 4, 5
VICTIM = 3  # who is left out, or has other data
_FAULTS = Faults(FaultSettings(dropout=0.25, hostile=0.2))


Init = Literal["independent", "warm", "kmeans++"]


@dataclass(frozen=True)
class Scene:
    """One way to train: a method, how its models begin, and how strongly clients explore."""

    algorithm: str
    init: Init = "independent"
    exploration: float = 1.0

    def __str__(self) -> str:
        return f"{self.algorithm}, init = {self.init}, exploration = {self.exploration:g}"


WITHOUT_MEMORY = (
    Scene("ifca", exploration=0.0),
    Scene("ifca"),
    Scene("ifca", "warm"),
    Scene("ifca", "kmeans++"),
)
WITH_MEMORY = (
    Scene("fesem", "kmeans++"),
    Scene("fesem-last", "warm"),
    Scene("fedcam-fesem"),
    Scene("fedper"),
    Scene("mr-mtl"),
)


def check_histories(training: Training) -> Finding:
    """A run without one client, and one in which its data are others: the others report the same, bit by bit.

    Deterministic. Releases and cohorts are given beforehand and the draws are the same; clients drop out and lie.
    """
    target, wrong = training.target, ""
    for scene in _scenes(target):
        plan = _plan(target, scene)
        data = _population(training.seed)
        releases = [made for _, made in _run(training, scene, plan, data, []).raw]
        whole = _answers(_run(training, scene, plan, data, releases))
        others = {
            "without one client": _run(training, scene, plan, data, releases, absent=True),
            "with other data of one client": _run(training, scene, plan, _population(training.seed, 30.0), releases),
        }
        for how, recorder in others.items():
            changed = _changed(whole, _answers(recorder))
            wrong = wrong or (f"{changed} {how} ({scene})" if changed else "")
    claim = "given the releases, reports of a whole run depend on nobody else"
    return Finding(target.name, "histories", claim, wrong or "so, to the last bit", not wrong)


def _scenes(target: Target) -> tuple[Scene, ...]:
    covered = target.adjacency == "add-remove" and not target.secure
    return WITHOUT_MEMORY + WITH_MEMORY if covered else WITHOUT_MEMORY[1:]


def _plan(target: Target, scene: Scene) -> PrivacyPlan:
    method = ALGORITHMS[scene.algorithm]
    coordinates = method.split(_model(scene)).coordinates
    clusters = method.num_clusters(3)
    setting = AuditSetting(
        noise_multiplier=1.0,
        shared=coordinates.shared,
        clustered=coordinates.clustered,
        num_clusters=clusters,
        min_cluster_size=1 if clusters > 1 else 0,
        sample_rate=0.75,
        num_clients=NUM_CLIENTS,
    )
    mechanism = target.make(setting)
    plan = plan_of(setting, num_rounds=ROUNDS, mechanism=mechanism.name, secure=target.secure)
    return replace(plan, mechanism=mechanism)


def _model(scene: Scene) -> Any:
    network = nn.Sequential(nn.Linear(DIMENSION, 2), nn.Tanh(), nn.Linear(2, 3))
    return ALGORITHMS[scene.algorithm].adapt(from_module(network))


def _run(
    training: Training,
    scene: Scene,
    plan: PrivacyPlan,
    data: FederatedData,
    canned: list[Release],
    *,
    absent: bool = False,
) -> Recorder:
    """All rounds: most clients are in most of them, and the victim in every other one, from the first."""
    size = NUM_CLIENTS - NUM_CLIENTS // 4
    turns = [np.sort(np.roll(np.arange(NUM_CLIENTS), 2 * t)[:size]) for t in range(ROUNDS)]
    joined = [np.union1d(ids, [VICTIM])[:size] if t % 2 == 0 else ids[ids != VICTIM] for t, ids in enumerate(turns)]
    cohorts = [ids[ids != VICTIM] if absent else ids for ids in joined]
    recorder = Recorder(plan.mechanism, cohorts=cohorts, canned=canned)
    secure, model = training.target.secure, _model(scene)
    rng = stream(training.seed, "histories")
    with entropy_from(rng.bytes) if secure and canned else nullcontext():
        records = training.simulate(
            data=data,
            model=model,
            algorithm=ALGORITHMS[scene.algorithm],
            plan=around(plan, recorder),
            engine=ReferenceEngine(model),
            streams=SecureStreams() if secure else Streams(training.seed),
            local=LocalSettings(0.1, 1, 50),
            server=ServerSettings(init=scene.init, exploration=scene.exploration),
            faults=_FAULTS,
        )
        for _ in records:
            pass
    return recorder


Answers = list[dict[int, list[Any]]]  # by round: client -> what it sent


def _answers(recorder: Recorder) -> Answers:
    return [_sent(reports) for reports, _ in recorder.raw]


def _sent(reports: Reports) -> dict[int, list[Any]]:
    sent: dict[int, list[Any]] = {}
    for place, client in enumerate(np.asarray(reports.client_ids).tolist()):
        parts = (reports.updates, reports.choices, reports.destinations, reports.evaluations)
        sent.setdefault(client, []).append([None if part is None else _plain(part[place]) for part in parts])
    return sent


def _plain(value: Any) -> Any:
    """A value as bytes, where it is an array of numbers: NaN equals itself there."""
    array = np.asarray(as_numpy(value))
    return repr(value) if array.dtype == object else (str(array.dtype), array.tobytes())


def _changed(whole: Answers, other: Answers) -> str:
    for t, (one, two) in enumerate(zip(whole, other, strict=True)):
        for client in sorted({*one, *two} - {VICTIM}):
            if one.get(client) != two.get(client):
                return f"client {client} reports otherwise in round {t}"
    return ""


def _population(seed: int, scale: float = 1.0) -> FederatedData:
    """Three classes; clients of 1 to 5 samples; those of the victim are `scale` times as large and of other classes."""
    rng = stream(seed, "histories", 1)
    sizes = 1 + np.arange(NUM_CLIENTS) % 5
    inputs = [rng.standard_normal((size, DIMENSION)) for size in sizes.tolist()]
    targets = [rng.integers(3, size=size) for size in sizes.tolist()]
    if scale != 1:
        inputs[VICTIM], targets[VICTIM] = scale * inputs[VICTIM], (targets[VICTIM] + 1) % 3
    return from_arrays(inputs, targets, num_classes=3, name="histories")
