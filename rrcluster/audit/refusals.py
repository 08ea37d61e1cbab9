"""Combinations that must be refused because their stated guarantee would not hold."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.audit.rounds import Training
from rrcluster.audit.run_folders import small_experiment
from rrcluster.audit.targets import AuditSetting, Finding, identifier_target, joint_target, plan_of, refused
from rrcluster.entropy import SecureStreams
from rrcluster.methods import METHODS
from rrcluster.models import make_model
from rrcluster.privacy.identifier import NoIdentifier
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.reports import NoisySum, Reports
from rrcluster.rng import Streams
from rrcluster.runs.run import resume, start
from rrcluster.server.server import run_rounds
from rrcluster.server.state import ServerState
from rrcluster.settings import ServerSettings
from rrcluster.simulation.simulate import make_server, simulate

_SECURE = AuditSetting(secure=True, num_clients=40)


def check_refusals() -> Finding:
    """Each of these must raise an error of this package. Deterministic."""
    with tempfile.TemporaryDirectory() as folder:
        accepted = [name for name, call in _refused_calls(Path(folder)).items() if not refused(call)]
    measured = f"accepted: {', '.join(accepted)}" if accepted else "holds"
    return Finding("refusals", "refusals", "combinations without a guarantee are refused", measured, not accepted)


def _refused_calls(folder: Path) -> dict[str, Callable[[], object]]:
    setting = AuditSetting(num_clients=40)
    joint, identifier = joint_target().make(setting), identifier_target().make(setting)
    pair = Reports(np.zeros((2, 2)), [0, 1])
    return {
        "delta above 1/M": lambda: plan_of(setting, delta=0.03),
        "noise for mechanism none": lambda: plan_of(setting, mechanism="none"),
        "evaluations with identifier": lambda: plan_of(setting, mechanism="identifier", private_evaluation=0.5),
        "choices without noise": lambda: replace(identifier, identifier=NoIdentifier()),
        "rebalancing without released sizes": lambda: plan_of(replace(setting, count_weight=0.0, min_cluster_size=1)),
        "evaluations that the plan lacks": lambda: joint.release(
            replace(pair, evaluations=np.zeros((2, 2))), rng=np.random.default_rng(0)
        ),
        "identifier from a sum": lambda: identifier.release_sum(NoisySum(np.zeros(6))),
        "a secure release of clients without ids": lambda: plan_of(_SECURE).mechanism.release(pair, rng=_rng()),
        "a secure plan with a seeded ledger": lambda: _rounds(ledger=Ledger()),
        "a secure plan with seeded streams": lambda: _rounds(streams=Streams(0)),
        "a round that was not charged": lambda: _rounds(charged=False),
        "guidance of another round": _other_guidance,
        "identifier with clients that remember": lambda: _training("fesem"),
        "a seed in a secure run": lambda: small_experiment(folder / "a", secure=True, seed=1),
        "times in a secure run": lambda: small_experiment(folder / "b", secure=True, tensorboard=True),
        "raw evaluation in a secure run": lambda: small_experiment(folder / "c", secure=True, evaluate_every=1),
        "two processes in one folder": lambda: _two_in_one(folder / "d"),
        "more epsilon than the target": lambda: _over_target(folder / "e"),
    }


def _rng() -> Any:
    return SecureStreams()("release")


def _training(method: str) -> None:
    training = Training(identifier_target(), simulate, method)
    training.run(training.plan())


def _rounds(*, ledger: Ledger | None = None, streams: Any = None, charged: bool = True) -> None:
    """One round of a secure plan with an empty cohort."""
    plan = plan_of(_SECURE)
    nobody = Reports(np.zeros((0, 2)), np.zeros(0, dtype=np.int64), client_ids=np.zeros(0, dtype=np.int64))
    server = _server(plan)

    def collect(guidance: Any, charge: Any) -> Reports:  # noqa: ARG001
        if charged:
            charge()
        return nobody

    rounds = run_rounds(
        server,
        collect,
        state=server.first_state(),
        ledger=ledger or Ledger(secure=True),
        streams=streams or SecureStreams(),
    )
    for _ in rounds:
        pass


def _server(plan: Any) -> Any:
    arguments: dict[str, Any] = {"model": _linear(), "method": METHODS["ifca"], "settings": ServerSettings()}
    return make_server(plan=plan, streams=SecureStreams() if plan.secure else Streams(0), **arguments)


def _linear() -> Any:
    return make_model("linear", input_shape=(1,), num_classes=0)  # a weight and a bias


def _other_guidance() -> None:
    plan = plan_of(AuditSetting(num_clients=40), num_rounds=3)
    server = _server(plan)
    state: ServerState = server.first_state()
    later = replace(state, round_index=1)
    server.finish(later, server.tell(state), Reports(np.zeros((1, 2)), [0]), rng=np.random.default_rng(0))


def _two_in_one(path: Path) -> None:
    running = start(small_experiment(path))
    try:
        resume(path)
    finally:
        running.folder.release()


def _over_target(path: Path) -> None:
    """An experiment with less noise than its target needs."""
    experiment = small_experiment(path, noise_multiplier=None, epsilon=2.0, sample_rate=1.0)
    less = replace(experiment.plan.mechanism, noise_multiplier=0.5)  # type: ignore[type-var]
    start(replace(experiment, plan=replace(experiment.plan, mechanism=less)))
