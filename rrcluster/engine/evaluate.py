"""How good the models are, measured on raw client data: a diagnostic, never part of a release.

Protocol: each client picks the model with the least loss on its own *training* data; its accuracy is that model's on
the client's test set (its group's, or its own). Means are over all clients. Where a population has no true groups, the
clustering accuracy is NaN and there are no group accuracies.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from rrcluster.algorithms.algorithm import Algorithm
from rrcluster.algorithms.split import Split
from rrcluster.contract import Engine
from rrcluster.data.federated import FederatedData
from rrcluster.types import Array, Models

_CLIENTS_AT_ONCE = 512


@dataclass(frozen=True)
class Evaluation:
    """Diagnostics of one set of models. Computed from raw client data: not private."""

    accuracy: float  # mean over clients; NaN for regression
    loss: float
    clustering_accuracy: float  # under the best one-to-one matching of clusters to groups; NaN without groups
    worst_decile: float  # mean accuracy of the tenth of clients that fare worst
    group_accuracy: tuple[float, ...]  # mean over the clients of each true group
    choice_sizes: tuple[int, ...]  # clients per chosen cluster


def evaluate(models: Models, data: FederatedData, *, algorithm: Algorithm, split: Split, engine: Engine) -> Evaluation:
    """Evaluate models on every client of the population."""
    choices = choose_all(models, data, algorithm=algorithm, split=split, engine=engine)
    loss, accuracy = _on_own_test_set(models, choices, data, split=split, engine=engine)
    worst = np.sort(accuracy)[: max(1, len(accuracy) // 10)]
    return Evaluation(
        accuracy=float(accuracy.mean()),
        loss=float(loss.mean()),
        clustering_accuracy=clustering_accuracy(choices, data.groups, models.num_clusters, data.num_groups),
        worst_decile=float(worst.mean()),
        group_accuracy=tuple(float(accuracy[data.groups == group].mean()) for group in range(data.num_groups)),
        choice_sizes=tuple(int(size) for size in np.bincount(choices, minlength=models.num_clusters)),
    )


def _on_own_test_set(
    models: Models, choices: Array, data: FederatedData, *, split: Split, engine: Engine
) -> tuple[Array, Array]:
    """Loss and accuracy (M,) of each client's chosen model on its test set; NaN for clients without one."""
    losses, accuracies = (np.full(data.num_clients, np.nan) for _ in range(2))
    vectors = split.vectors(models)
    for place, tests in enumerate(data.test_sets):
        owners = np.flatnonzero(data.test_of == place)
        chosen, back = np.unique(choices[owners], return_inverse=True)  # only models that one of them has chosen
        if len(owners):
            loss, accuracy = engine.test(vectors[chosen], tests)
            losses[owners], accuracies[owners] = loss[back], accuracy[back]
    return losses, accuracies


def choose_all(models: Models, data: FederatedData, *, algorithm: Algorithm, split: Split, engine: Engine) -> Array:
    """(M,) the cluster every client of the population would choose now."""
    parts = [
        algorithm.choose(
            models,
            data.cohort(np.arange(first, min(first + _CLIENTS_AT_ONCE, data.num_clients))),
            split=split,
            engine=engine,
        )
        for first in range(0, data.num_clients, _CLIENTS_AT_ONCE)
    ]
    return np.concatenate(parts)


def clustering_accuracy(choices: Array, groups: Array, num_clusters: int, num_groups: int) -> float:
    """Share of clients in the cluster matched to their group, under the best one-to-one matching.

    Clients of surplus clusters, which no group is matched to, count as wrong. NaN where there are no groups.
    """
    if not num_groups:
        return float("nan")
    table = np.zeros((num_clusters, num_groups))
    np.add.at(table, (choices, groups), 1)
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / len(choices))
