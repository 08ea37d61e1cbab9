"""FedCAM (Ma et al. 2023): a shared network plus one per cluster, summed at the output.

F_i(x) = h(x; shared) + f(x; cluster). Both changes are one update under **one** clip: one client moves one cluster sum
and the shared sum by a joint norm of at most C, the sensitivity of a single release.
"""

from dataclasses import replace

import numpy as np

from rrcluster.engine.protocol import train
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.fesem import relative_distances
from rrcluster.methods.method import Clients, Method, Tools, Trained, cluster_losses
from rrcluster.models.model import Model
from rrcluster.models.networks import additive
from rrcluster.types import Array, Models


def two_networks(model: Model) -> Split:
    """The split into two networks: the first shared, the second clustered."""
    half = model.num_parameters // 2
    return Split(np.arange(half), np.arange(half, 2 * half), np.zeros(0, dtype=np.int64))


def train_both(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
    """Train the cluster's network first, on the residual of the shared one, then the shared one, the other frozen."""
    start = tools.split.vectors(models, clusters)
    local = replace(tools.local, proximal=0.0)
    trained = start
    for part in (tools.split.clustered, tools.split.shared):
        moving = np.isin(np.arange(tools.split.num_parameters), part)
        trained = train(tools.engine, trained, clients.cohort, local=local, key=tools.key, trainable=moving)
    remembered = trained[:, tools.split.clustered] if clients.memory.shape[1] else clients.memory
    return Trained(tools.split.report(trained - start), remembered)


def distance_or_loss(models: Models, clients: Clients, *, tools: Tools) -> Array:
    """The loss of the summed networks; for clients with memory, the relative distance of their cluster part."""
    scores = cluster_losses(models, clients, tools=tools)
    if clients.known.any():
        scores[clients.known] = relative_distances(clients.memory[clients.known], models.clustered)
    return scores


FEDCAM = Method("fedcam", split=two_networks, adapt=additive, local=train_both, chooses_by_loss=True)

# The choice is by the distance of the remembered cluster part to the released ones, as in FeSEM.
FEDCAM_FESEM = Method(
    "fedcam-fesem",
    split=two_networks,
    adapt=additive,
    scores=distance_or_loss,
    local=train_both,
    memory_width=lambda model: model.num_parameters // 2,
)
