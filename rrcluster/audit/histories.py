"""Whole runs with and without other clients: given the same releases, nobody's reports change in any round.

Theorem 1 of docs/privacy.md requires this of clients over all rounds: their memory, their choices under every
initialisation and exploration, and their failures. Clients are computed one by one, so that reports are equal to the
bit.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from rrcluster.audit.rounds import Init, Training, around, surveys_find_groups
from rrcluster.audit.targets import AuditSetting, Finding, Recorder, Target, plan_of
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.entropy import SecureStreams, secure_rng
from rrcluster.methods import METHODS
from rrcluster.models import from_module
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import Reports, as_numpy
from rrcluster.rng import Rng, Streams, stream
from rrcluster.settings import FaultSettings, LocalSettings, ServerSettings
from rrcluster.simulation.clients import Faults
from rrcluster.types import Array, Release

NUM_CLIENTS, DIMENSION, ROUNDS = 12, 4, 5
_FAULTS = Faults(FaultSettings(dropout=0.25, hostile=0.2))


@dataclass(frozen=True)
class Scene:
    """A training setup: the method, the initialisation and the strength of exploration."""

    method: str
    init: Init = "independent"
    exploration: float = 1.0

    @property
    def num_rounds(self) -> int:
        """Enough rounds for the scene; a survey adds some."""
        return ROUNDS + 3 if self.init == "survey" else ROUNDS

    def __str__(self) -> str:
        return f"{self.method}, init = {self.init}, exploration = {self.exploration:g}"


class RepeatedStreams(SecureStreams):
    """Secure streams with repeatable client keys, so that clients draw the same numbers in two runs."""

    def __init__(self, seed: int) -> None:
        """As `Streams(seed)`, except for the noise."""
        self._streams = Streams(seed)

    def __call__(self, name: str, *key: int) -> Rng:
        """Fresh noise; seeded streams for everything else."""
        return secure_rng() if name == "release" else self._streams(name, *key)

    def client_key(self, name: str, round_index: int) -> tuple[int, int]:
        """The same key again."""
        return self._streams.client_key(name, round_index)


WITHOUT_MEMORY = (
    Scene("ifca", exploration=0.0),
    Scene("ifca"),
    Scene("ifca", "survey"),
)
MEMORYLESS = (Scene("fesem-memoryless"), Scene("fedper-memoryless"))
WITH_MEMORY = (
    Scene("fesem"),
    Scene("fesem-last"),
    Scene("fedcam-fesem"),
    Scene("fedper"),
    Scene("mr-mtl"),
)


def check_histories(training: Training) -> Finding:
    """Runs in which half of the clients are gone or have other data: the other half reports the same, bit for bit.

    Deterministic. Releases and cohorts are fixed beforehand and the draws are the same; some clients drop out, some are
    hostile. Where the guarantee does not cover memory, clients must report the same as in their first round.
    """
    target, wrong = training.target, ""
    for scene in _scenes(target):
        plan, data = _plan(target, scene), _population(training.seed)
        for way in (nullcontext(), surveys_find_groups()) if scene.init == "survey" else (nullcontext(),):
            with way:
                wrong = wrong or _influence(training, scene, plan, _run(training, scene, plan, data))
    claim = "given the releases, a client's reports over a run depend on itself alone"
    return Finding(target.name, "histories", claim, wrong or "holds, to the last bit", not wrong)


def _influence(training: Training, scene: Scene, plan: PrivacyPlan, first: Recorder) -> str:
    """The first report that changes with other clients, given the releases of `first`; empty if none does."""
    seed, everyone, releases = training.seed, np.arange(NUM_CLIENTS), [release for _, release in first.raw]
    even, odd = everyone[::2], everyone[1::2]

    def rerun(data: FederatedData, **changes: Any) -> Recorder:
        return _run(training, scene, plan, data, releases, **changes)

    variants = {
        "half of the clients are gone": (even, 0, rerun(_population(seed), absent=odd)),
        "every second client has other data": (even, 0, rerun(_population(seed, odd))),
        "every other client has other data": (odd, 0, rerun(_population(seed, even))),
    }
    if not _covers_memory(training.target):
        last = scene.num_rounds - 1
        variants["nobody took part before"] = (everyone, last, rerun(_population(seed), first_round=last))
    for how, (same, since, recorder) in variants.items():
        if changed := _changed(_answers(first), _answers(recorder), same, since):
            return f"{changed} when {how} ({scene})"
    return ""


def _scenes(target: Target) -> tuple[Scene, ...]:
    if _covers_memory(target):
        return WITHOUT_MEMORY[1:] if target.secure else WITHOUT_MEMORY + WITH_MEMORY
    return WITHOUT_MEMORY[1:] + MEMORYLESS


def _covers_memory(target: Target) -> bool:
    return target.adjacency == "add-remove"


def _plan(target: Target, scene: Scene) -> PrivacyPlan:
    method = METHODS[scene.method]
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
    plan = plan_of(setting, num_rounds=scene.num_rounds, mechanism=mechanism.name, secure=target.secure)
    return replace(plan, mechanism=mechanism)


def _model(scene: Scene) -> Any:
    network = nn.Sequential(nn.Linear(DIMENSION, 2), nn.Tanh(), nn.Linear(2, 3))
    return METHODS[scene.method].adapt(from_module(network, fresh=True))


def _run(
    training: Training,
    scene: Scene,
    plan: PrivacyPlan,
    data: FederatedData,
    canned: Sequence[Release] = (),
    *,
    absent: Array | None = None,
    first_round: int = 0,
) -> Recorder:
    """All rounds, with fixed cohorts of nine clients less the absent ones; nobody takes part before `first_round`."""
    full_cohorts = [np.sort(np.roll(np.arange(NUM_CLIENTS), 4 * t)[:9]) for t in range(scene.num_rounds)]
    cohorts = full_cohorts if absent is None else [np.setdiff1d(ids, absent) for ids in full_cohorts]
    cohorts = [ids if t >= first_round else ids[:0] for t, ids in enumerate(cohorts)]
    recorder = Recorder(plan.mechanism, cohorts=cohorts, canned=canned)
    secure, model = training.target.secure, _model(scene)
    records = training.simulate(
        data=data,
        model=model,
        method=METHODS[scene.method],
        plan=around(plan, recorder),
        engine=ReferenceEngine(model),
        streams=RepeatedStreams(training.seed) if secure else Streams(training.seed),
        local=LocalSettings(0.1, 1, 50),
        server=ServerSettings(init=scene.init, exploration=scene.exploration),
        faults=_FAULTS,
    )
    for _ in records:
        pass
    return recorder


Answers = list[dict[int, list[Any]]]  # for each round: client -> its messages


def _answers(recorder: Recorder) -> Answers:
    return [_sent(reports) for reports, _ in recorder.raw]


def _sent(reports: Reports) -> dict[int, list[Any]]:
    answers: dict[int, list[Any]] = {}
    for place, client in enumerate(np.asarray(reports.client_ids).tolist()):
        parts = (reports.updates, reports.choices, reports.destinations, reports.evaluations)
        answers.setdefault(client, []).append([None if part is None else _plain(part[place]) for part in parts])
    return answers


def _plain(value: Any) -> Any:
    """A value as bytes, where it is an array of numbers, so that NaN equals itself."""
    array = np.asarray(as_numpy(value))
    return repr(value) if array.dtype == object else (str(array.dtype), array.tobytes())


def _changed(whole: Answers, other: Answers, same: Array, since: int) -> str:
    """The first client of `same` whose reports differ from round `since` on, and the round."""
    for t, (one, two) in enumerate(zip(whole, other, strict=True)):
        for client in same.tolist():
            if t >= since and one.get(client) != two.get(client):
                return f"client {client} reports differently in round {t}"
    return ""


def _population(seed: int, others: Array | None = None) -> FederatedData:
    """Three classes; clients of 1 to 5 samples. Clients in `others` have other scales, classes and numbers."""
    rng = stream(seed, "histories", 1)
    sizes = 1 + np.arange(NUM_CLIENTS) % 5
    inputs = [rng.standard_normal((size, DIMENSION)) for size in sizes.tolist()]
    targets = [rng.integers(3, size=size) for size in sizes.tolist()]
    for client in [] if others is None else others.tolist():
        scale = (30.0, 0.1, 3.0)[client % 3]
        inputs[client] = np.tile(scale * inputs[client], (1 + client % 2, 1))
        targets[client] = (np.tile(targets[client], 1 + client % 2) + 1) % 3
    return from_arrays(inputs, targets, num_classes=3, name="histories")
