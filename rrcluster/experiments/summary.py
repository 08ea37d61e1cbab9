"""summary.json: how a run ended and what it released. Released values only."""

from collections.abc import Sequence
from typing import Any

from rrcluster.clusters.dead import dead_clusters
from rrcluster.data_settings import data_label
from rrcluster.experiments.released import average, describe_evaluation
from rrcluster.experiments.setup import Experiment
from rrcluster.privacy.mechanism import SIZE_NOISE
from rrcluster.server_state import ServerState
from rrcluster.types import NoisyEvaluation
from rrcluster.version import __version__


def summarise(
    experiment: Experiment,
    state: ServerState | None,
    *,
    status: str,
    epsilon: float | None,
    releases_charged: int,
    evaluations: Sequence[NoisyEvaluation],
) -> dict[str, Any]:
    """The summary of a run that is finished or was stopped."""
    config, plan = experiment.config, experiment.plan
    done = 0 if state is None else state.round_index
    judged = average(evaluations, num_rounds=plan.num_rounds)
    counted = state is not None and not state.sizes.empty
    return {
        "name": config.label,
        "status": status,
        "ended_by": None if status != "finished" else "rounds" if done == plan.num_rounds else "budget",
        "version": __version__,
        "data": data_label(config.data.data),
        "partition": None if config.data.whole else config.data.partition,
        "algorithm": config.method.algorithm,
        "model": config.method.model,
        "num_clusters": plan.mechanism.num_clusters,
        "min_cluster_size": config.method.min_cluster_size,
        "mechanism": config.privacy.mechanism,
        "epsilon": epsilon,
        "delta": plan.delta if plan.private else None,
        "noise_multiplier": plan.noise_multiplier,
        "num_rounds": plan.num_rounds,
        "rounds_done": done,
        "releases_charged": releases_charged,
        "secure": plan.secure,
        "seed": config.seed,
        "sizes": state.sizes.mean.tolist() if state is not None and counted else [],
        "dead_clusters": _dead(experiment, state) if state is not None and counted else [],
        "private_evaluation": None if judged is None else describe_evaluation(judged),
    }


def _dead(experiment: Experiment, state: ServerState) -> list[int]:
    mechanism = experiment.plan.mechanism
    noise = mechanism.describe().noise_per_part.get(SIZE_NOISE) if mechanism.private else 0.0
    memory, weight = experiment.server.memory, state.sizes.weight
    return dead_clusters(state.sizes.mean, size_noise_std=noise, memory=memory, weight=weight)
