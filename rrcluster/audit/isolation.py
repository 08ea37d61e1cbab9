"""One extreme client among others: their choices, updates and evaluations do not depend on it."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rrcluster.audit.histories import RepeatedStreams
from rrcluster.audit.rounds import Training, around, difference
from rrcluster.audit.targets import AuditSetting, Finding, Recorder, Reported, plan_of, refused
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.pick_engine import pick_engine
from rrcluster.entropy import SecureStreams
from rrcluster.errors import PrivacyError
from rrcluster.methods import METHODS
from rrcluster.models import from_module, make_model
from rrcluster.models.probe import fitted
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import stream
from rrcluster.types import Array

NUM_CLIENTS, DIMENSION = 24, 6
STRANGER = NUM_CLIENTS - 1
# the stranger's inputs: name -> (scale, number of samples)
EXTREMES = {
    "inputs of zero": (0.0, 5),
    "one large sample": (1e3, 1),
    "many small samples": (1e-3, 200),
    "huge inputs": (1e30, 3),
}


def check_strangers(training: Training) -> Finding:
    """A round with and without an extreme client, same state and draws: nobody else's answer changes.

    Deterministic. Clients of different sizes, classes and scales; the stranger's losses are far from everybody's, so a
    minimum, mean or scale over all clients moves with it. Evaluations are included where the mechanism has them.
    """
    worst, where = 0.0, ""
    for name, (scale, samples) in EXTREMES.items():
        data, plan = _population(training.seed, scale, samples), _plan(training)
        with np.errstate(all="ignore"):
            with_stranger = _one_round(training, plan, data, np.arange(NUM_CLIENTS))
            without = _one_round(training, plan, data, np.arange(STRANGER))
        change = max(difference(with_stranger, without, STRANGER), _evaluations_apart(with_stranger, without))
        if not change <= worst:
            worst, where = change, name
    measured = "holds" if worst < 1e-4 else f"answers of others change ({worst:.2g}) beside {where}"
    return Finding(training.subject, "strangers", "answers do not depend on an extreme client", measured, worst < 1e-4)


def _plan(training: Training) -> PrivacyPlan:
    evaluated = 0.5 if training.target.adjacency == "add-remove" else 0.0
    setting = AuditSetting(
        noise_multiplier=1.0,
        clustered=3 * (DIMENSION + 1),
        num_clusters=2,
        sample_rate=0.5,
        num_clients=NUM_CLIENTS,
        evaluation_weight=evaluated,
    )
    mechanism = training.target.make(setting)
    return replace(plan_of(setting, mechanism=mechanism.name), mechanism=mechanism)


def _one_round(training: Training, plan: PrivacyPlan, data: FederatedData, cohort: Array) -> Reported:
    model = make_model("linear", input_shape=(DIMENSION,), num_classes=3)
    mechanism = plan.mechanism
    if training.target.adjacency == "replace-one":
        mechanism = replace(mechanism, cohort_size=NUM_CLIENTS)  # type: ignore[type-var]
    recorder = Recorder(mechanism, cohorts=[cohort])
    changes: dict[str, Any] = {"model": model, "engine": BatchedEngine(model), "method": METHODS["ifca"]}
    training.run(around(plan, recorder), data=data, **changes)
    return recorder.reported[0]


def _evaluations_apart(with_stranger: Reported, without: Reported) -> float:
    if with_stranger.evaluations is None or without.evaluations is None:
        return 0.0 if with_stranger.evaluations is without.evaluations else np.inf
    return float(np.abs(with_stranger.evaluations[:STRANGER] - without.evaluations).max())


def _population(seed: int, scale: float, samples: int) -> FederatedData:
    """Three classes; clients with 1 to 12 samples, of scales 0.5 to 2, and the stranger."""
    rng = stream(seed, "strangers")
    sizes, scales = 1 + np.arange(NUM_CLIENTS) % 12, np.linspace(0.5, 2.0, NUM_CLIENTS)
    sizes[STRANGER], scales[STRANGER] = samples, scale
    inputs = [
        times * rng.standard_normal((size, DIMENSION)) for size, times in zip(sizes.tolist(), scales, strict=True)
    ]
    targets = [rng.integers(3, size=size) for size in sizes.tolist()]
    return from_arrays(inputs, targets, num_classes=3, name="strangers")


class KeepingLoss:
    """A loss relative to a running mean that it updates while it trains."""

    def __init__(self) -> None:
        """Start without a mean."""
        self.mean = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(s,) losses of the samples."""
        losses = (outputs[:, 0] - targets) ** 2
        if not outputs.requires_grad:
            return losses
        self.mean = 0.5 * self.mean + 0.5 * float(losses.detach().mean())
        return losses / self.mean


class KeepingNetwork(nn.Module):
    """A network that subtracts a running mean of its inputs and adds numbers from three generators."""

    def __init__(self) -> None:
        """Start without a mean."""
        super().__init__()
        self.layer, self.mean, self.seen = nn.Linear(DIMENSION, 1), torch.zeros(DIMENSION), list[Tensor]()

    def forward(self, inputs: Tensor) -> Tensor:
        """(s, 1)."""
        if not self.training:
            return torch.as_tensor(self.layer(inputs))
        self.seen.append(inputs.detach().mean(0))
        self.mean = 0.5 * self.mean + 0.5 * self.seen[-1] + 0.1 * self.seen[0]
        noise = torch.rand(()) + float(np.random.random()) + random.random()  # noqa: NPY002
        return torch.as_tensor(self.layer(inputs - self.mean) + 0.1 * noise)


def check_own_networks(training: Training) -> list[Finding]:
    """Users' networks and losses with state: other clients' updates and losses do not change by a bit.

    Deterministic. The trial that every user's network goes through must refuse them as well, and so must a secure plan
    refuse the engine that computes all clients with one copy.
    """
    data = _population(training.seed, 1e3, 5)
    data = from_arrays(
        [data.store.client(client)[0] for client in range(NUM_CLIENTS)],
        [data.store.client(client)[1].astype(np.float32) for client in range(NUM_CLIENTS)],
        num_classes=0,
    )
    model = from_module(KeepingNetwork(), loss=KeepingLoss(), fresh=True)
    setting = AuditSetting(clustered=DIMENSION + 1, num_clusters=2, num_clients=NUM_CLIENTS, secure=True)
    plan = plan_of(setting, mechanism="joint", private_evaluation=0.0)
    everybody, sent = np.arange(NUM_CLIENTS), []
    for cohort in (everybody, everybody[:0:-1], everybody[::2]):
        recorder = Recorder(plan.mechanism, cohorts=[np.sort(cohort)])
        engine: Any = pick_engine("auto", model=model, device=torch.device("cpu"), alone=True)
        arguments = {"model": model, "engine": engine, "method": METHODS["ifca"], "streams": RepeatedStreams(0)}
        training.run(around(plan, recorder), data=data, **arguments)
        reports = recorder.reported[0]
        sent.append(
            dict(zip(reports.client_ids.tolist(), zip(reports.updates, reports.choices, strict=True), strict=True))
        )
    same = all(
        report[1] == sent[0][client][1] and np.array_equal(report[0], sent[0][client][0])
        for answers in sent[1:]
        for client, report in answers.items()
    )
    plain = from_module(nn.Linear(DIMENSION, 1), fresh=True)
    shared = {"model": plain, "engine": BatchedEngine(plain), "method": METHODS["ifca"], "streams": SecureStreams()}
    accepted = not refused(lambda: training.run(plan, data=data, **shared), PrivacyError)
    passes = [what for what, part in _KEPT.items() if not refused(lambda part=part: fitted(part(), data))]  # type: ignore[misc]
    claim = "no state of a network or loss reaches another client"
    measured = "holds, to the bit" if same and not accepted else "an update differs when others take part"
    trial = f"{', '.join(passes)} passes" if passes else "holds"
    return [
        Finding(training.subject, "own networks", claim, measured, same and not accepted),
        Finding(
            training.subject, "own networks, trial", "networks and losses with state are refused", trial, not passes
        ),
    ]


_KEPT = {
    "a network": lambda: from_module(KeepingNetwork(), fresh=True),
    "a loss": lambda: from_module(nn.Linear(DIMENSION, 1), loss=KeepingLoss()),
}
