"""The floor and the ceiling: every client alone, and every client in its true cluster."""

from dataclasses import replace
from functools import partial

import numpy as np

from rrcluster.data.federated import FederatedData
from rrcluster.engine.protocol import train
from rrcluster.errors import ConfigError
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Method, Tools, Trained, only_cluster
from rrcluster.types import Array, Models

_LOCAL_EPOCHS = 50
_FAR = 1e9  # more than any price


def report_nothing(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:  # noqa: ARG001
    """Report a zero update."""
    return Trained(np.zeros((len(clusters), tools.split.coordinates.width)), clients.memory)


def train_alone(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
    """50 epochs on the client's own data from the common random start."""
    local = replace(tools.local, local_epochs=_LOCAL_EPOCHS, proximal=0.0)
    return train(tools.engine, tools.split.vectors(models, clusters), clients.cohort, local=local, key=tools.key)


def true_cluster(groups: Array, models: Models, clients: Clients, *, tools: Tools) -> Array:  # noqa: ARG001
    """A score of zero for the client's true cluster: group g modulo k."""
    k = models.num_clusters
    return np.asarray(_FAR * (1.0 - np.eye(k)[groups[clients.cohort.clients] % k]))


def _unknown_groups(models: Models, clients: Clients, *, tools: Tools) -> Array:  # noqa: ARG001
    raise ConfigError("algorithm = oracle needs the true groups of the clients, which this data does not have.")


def _with_true_groups(method: Method, data: FederatedData) -> Method:
    """The method with the true groups, which no other method may read."""
    return method if data.num_groups == 0 else replace(method, scores=partial(true_cluster, data.groups))


# No federation at all: nothing is reported, so there is nothing to protect, and only `mechanism = none` applies.
LOCAL = Method(
    "local",
    split=Split.all_shared,
    scores=only_cluster,
    local=report_nothing,
    own_models=train_alone,
    one_model=True,
    reports=False,
)

# A model per cluster, and every client knows its true one: the upper bound for clustered methods.
ORACLE = Method("oracle", scores=_unknown_groups, compares_models=False, for_population=_with_true_groups)
