"""FeSEM (Long et al. 2023): a client belongs to the cluster whose model is nearest to the model it last trained.

The client keeps its last trained model to itself and compares it with *released* centres; no server caches it. A client
in its first round has no memory and chooses by loss. `fesem-memoryless` keeps nothing between rounds.
"""

from dataclasses import replace

import numpy as np

from rrcluster.methods.method import Clients, Method, Tools, Trained, cluster_losses, trained_from
from rrcluster.types import Array, Models


def relative_distances(remembered: Array, centres: Array) -> Array:
    """(n, k) squared distances in units of their mean over the clusters: of the order of 1, as losses are."""
    gaps = remembered[:, None, :] - centres[None]
    distances = np.einsum("nkd,nkd->nk", gaps, gaps, dtype=np.float64)
    return np.asarray(distances / np.maximum(distances.mean(axis=1, keepdims=True), 1e-300))


def distance_to_centres(models: Models, clients: Clients, *, tools: Tools) -> Array:
    """Relative squared distance from the remembered model to each centre; the loss for clients without memory."""
    scores = np.zeros((len(clients.known), models.num_clusters))
    if not clients.known.all():
        scores = cluster_losses(models, clients, tools=tools)
    if clients.known.any():
        centres = tools.split.vectors(models)[:, -clients.memory.shape[1] :]  # the last layer ends the vector
        scores[clients.known] = relative_distances(clients.memory[clients.known], centres)
    return scores


def train_and_remember(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
    """Train from the centre, report the change, and remember the trained model."""
    start = tools.split.vectors(models, clusters)
    trained = trained_from(start, clients, tools=tools)
    return Trained(tools.split.report(trained - start), trained[:, -clients.memory.shape[1] :])


def distance_of_a_fresh_fit(models: Models, clients: Clients, *, tools: Tools) -> Array:
    """(n, k) squared distance, by direction, of a freshly fitted model to each centre.

    The fit starts at the mean of the released centres, which favours none of them. A few epochs move it far less than
    the distance between centres, so the nearest centre would always be the one nearest to that mean: fit and centres
    are compared by their directions from it, each of length one.
    """
    centres = tools.split.vectors(models)
    middle = centres.mean(axis=0, keepdims=True)
    start = np.repeat(middle, len(clients.cohort.clients), axis=0)
    fitted = trained_from(start, clients, tools=tools)
    cosines = np.einsum("nd,kd->nk", _directions(fitted - middle), _directions(centres - middle))
    return np.asarray(2.0 - 2.0 * cosines)


def _directions(rows: Array) -> Array:
    """Rows of length one; a row of zeros stays."""
    exact = rows.astype(np.float64)
    return np.asarray(exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-300))


FESEM = Method(
    "fesem", scores=distance_to_centres, local=train_and_remember, memory_width=lambda model: model.num_parameters
)

# distances over the last layer alone, as in the authors' code
FESEM_LAST = replace(FESEM, name="fesem-last", memory_width=lambda model: len(model.head))

# Nothing is kept between rounds, which `identifier` requires: the compared model is fitted afresh.
FESEM_MEMORYLESS = Method("fesem-memoryless", scores=distance_of_a_fresh_fit, pick=cluster_losses)
