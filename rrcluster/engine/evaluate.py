"""How good the models are, measured on raw client data: a diagnostic, never part of a release.

Protocol: each client picks the model with the least loss on its own *training* data; its accuracy is that model's on
the client's test set (its group's, or its own). Means are over all clients. Where a population has no true groups, the
clustering accuracy is NaN and there are no group accuracies.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from rrcluster.algorithms.algorithm import Algorithm, Clients, Tools
from rrcluster.algorithms.split import Split
from rrcluster.contract import Engine, LocalSettings
from rrcluster.data.federated import FederatedData
from rrcluster.engine.memory import ClientMemory
from rrcluster.types import Array, Models

_CLIENTS_AT_ONCE = 512
_PERSONAL_CLIENTS, _PERSONAL_SAMPLES = 200, 500


@dataclass(frozen=True)
class Evaluation:
    """Diagnostics of one set of models. Computed from raw client data: not private."""

    accuracy: float  # mean over clients; NaN for regression
    loss: float
    clustering_accuracy: float  # under the best one-to-one matching of clusters to groups; NaN without groups
    worst_decile: float  # mean accuracy of the tenth of clients that fare worst
    group_accuracy: tuple[float, ...]  # mean over the clients of each true group
    choice_sizes: tuple[int, ...]  # clients per chosen cluster
    confusion: tuple[tuple[int, ...], ...] = ()  # clients by true group (rows) and chosen cluster


def evaluate(
    models: Models,
    data: FederatedData,
    *,
    algorithm: Algorithm,
    split: Split,
    engine: Engine,
    local: LocalSettings | None = None,
    memory: ClientMemory | None = None,
) -> Evaluation:
    """Evaluate models on every client of the population.

    Where clients end up with models of their own (`algorithm.personal`), each first makes its own from what it
    remembers; then the first 200 clients are tested, on 500 test samples each, since nothing can be shared between
    them.
    """
    tools = Tools(split, engine, local or LocalSettings(), key=(0, 0))
    ids = np.arange(min(data.num_clients, _PERSONAL_CLIENTS) if algorithm.personal else data.num_clients)
    choices = _choices(models, data, ids, algorithm=algorithm, tools=tools)
    if algorithm.personal:
        recalled = memory or ClientMemory(0)
        loss, accuracy = _own_models(models, choices, data, ids, algorithm=algorithm, tools=tools, memory=recalled)
    else:
        loss, accuracy = _cluster_models(models, choices, data, split=split, engine=engine)
    groups = data.groups[ids]
    return Evaluation(
        accuracy=float(accuracy.mean()),
        loss=float(loss.mean()),
        clustering_accuracy=clustering_accuracy(choices, groups, models.num_clusters, data.num_groups),
        worst_decile=float(np.sort(accuracy)[: max(1, len(accuracy) // 10)].mean()),
        group_accuracy=tuple(_mean(accuracy[groups == group]) for group in range(data.num_groups)),
        choice_sizes=tuple(int(size) for size in np.bincount(choices, minlength=models.num_clusters)),
        confusion=tuple(
            tuple(int(size) for size in np.bincount(choices[groups == group], minlength=models.num_clusters))
            for group in range(data.num_groups)
        ),
    )


def choose_all(models: Models, data: FederatedData, *, algorithm: Algorithm, split: Split, engine: Engine) -> Array:
    """(M,) the cluster every client of the population would choose now, without exploration."""
    tools = Tools(split, engine, LocalSettings(), key=(0, 0))
    return _choices(models, data, np.arange(data.num_clients), algorithm=algorithm, tools=tools)


def _choices(models: Models, data: FederatedData, ids: Array, *, algorithm: Algorithm, tools: Tools) -> Array:
    parts = [
        algorithm.scores(models, Clients.without_memory(data.cohort(part)), tools=tools).argmin(axis=1)
        for part in np.array_split(ids, -(-len(ids) // _CLIENTS_AT_ONCE))
    ]
    return np.concatenate(parts)


def _cluster_models(
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


def _own_models(
    models: Models,
    choices: Array,
    data: FederatedData,
    ids: Array,
    *,
    algorithm: Algorithm,
    tools: Tools,
    memory: ClientMemory,
) -> tuple[Array, Array]:
    """Loss and accuracy of each client's own model on the first samples of its test set."""
    loss, accuracy = np.full(len(ids), np.nan), np.full(len(ids), np.nan)
    own = algorithm.own_models(models, memory.recall(data.cohort(ids)), choices, tools=tools)
    for index, tests in enumerate(data.test_sets):
        mine = np.flatnonzero(data.test_of[ids] == index)
        if len(mine):
            loss[mine], accuracy[mine] = tools.engine.test(own[mine], tests.first(_PERSONAL_SAMPLES))
    return loss, accuracy


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else float("nan")


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
