"""One extreme client among others: their choices, updates and evaluations do not depend on it."""

from dataclasses import replace
from typing import Any

import numpy as np

from rrcluster.audit.rounds import Training, around, difference
from rrcluster.audit.targets import AuditSetting, Finding, Recorder, Reported, plan_of
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.methods import METHODS
from rrcluster.models import make_model
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import stream
from rrcluster.types import Array

NUM_CLIENTS, DIMENSION = 24, 6
STRANGER = NUM_CLIENTS - 1
# What the stranger's inputs look like: scale, number of samples
EXTREMES = {
    "inputs of zero": (0.0, 5),
    "one large sample": (1e3, 1),
    "many small samples": (1e-3, 200),
    "huge inputs": (1e30, 3),
}


def check_strangers(training: Training) -> Finding:
    """A round with and without an extreme client, same state, same draws: nobody else's answer changes.

    Deterministic. Clients of different sizes, classes and scales; the stranger's losses are far from everybody's, so a
    minimum, mean or scale over all clients moves with it. With evaluations where the mechanism has them.
    """
    worst, where = 0.0, ""
    for name, (scale, samples) in EXTREMES.items():
        data, plan = _population(training.seed, scale, samples), _plan(training)
        with np.errstate(all="ignore"):
            whole = _one_round(training, plan, data, np.arange(NUM_CLIENTS))
            without = _one_round(training, plan, data, np.arange(STRANGER))
        moved = max(difference(whole, without, STRANGER), _evaluations_apart(whole, without))
        if not moved <= worst:
            worst, where = moved, name
    measured = "so" if worst < 1e-4 else f"answers of others change ({worst:.2g}) beside {where}"
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


def _evaluations_apart(whole: Reported, without: Reported) -> float:
    if whole.evaluations is None or without.evaluations is None:
        return 0.0 if whole.evaluations is without.evaluations else np.inf
    return float(np.abs(whole.evaluations[:STRANGER] - without.evaluations).max())


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
