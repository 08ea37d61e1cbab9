"""Private evaluations as plain data of a run folder, and their average over the last rounds. Released values only."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from rrcluster.types import NoisyEvaluation

LAST_PART = 0.25  # of the rounds: what a private evaluation is averaged over


def describe_evaluation(evaluation: NoisyEvaluation) -> dict[str, Any]:
    """What was released, and the means it amounts to."""
    return {
        "sums": evaluation.sums.tolist(),
        "clients": evaluation.clients,
        "sum_noise_std": evaluation.sum_noise_std,
        "clients_noise_std": evaluation.clients_noise_std,
        "loss_bound": evaluation.loss_bound,
        "least_clients": evaluation.least_clients,
        "accuracy": evaluation.accuracy,
        "accuracy_noise_std": evaluation.accuracy_noise_std,
        "loss": evaluation.loss,
        "loss_noise_std": evaluation.loss_noise_std,
    }


def read_evaluation(described: dict[str, Any]) -> NoisyEvaluation:
    """The inverse of `describe_evaluation`."""
    return NoisyEvaluation(
        sums=np.array(described["sums"]),
        clients=described["clients"],
        sum_noise_std=described["sum_noise_std"],
        clients_noise_std=described["clients_noise_std"],
        loss_bound=described["loss_bound"],
        least_clients=described["least_clients"],
    )


def average(evaluations: Sequence[NoisyEvaluation], *, num_rounds: int) -> NoisyEvaluation | None:
    """The last rounds' evaluations together (a quarter of the run's rounds, at least one); None where there is none.

    Averaging is post-processing and costs nothing.
    """
    last = evaluations[-max(1, round(LAST_PART * num_rounds)) :]
    return reduce(NoisyEvaluation.plus, last) if last else None
