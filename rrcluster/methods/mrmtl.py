"""MR-MTL (Liu et al. 2022): every client has its own model, held near the mean of all.

Local objective F_i(v) + (lambda
2) ||v - w||^2; lambda is the setting `proximal`, 1 unless given. v stays on the client; it reports v - w, whose mean
moves w.
"""

from dataclasses import replace

import numpy as np

from rrcluster.engine.protocol import train
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Method, Tools, Trained, only_cluster
from rrcluster.types import Array, Models

DEFAULT_PROXIMAL = 1.0


def train_own_model(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
    """The client's own model after further training (from the mean, the first time)."""
    mean = tools.split.vectors(models, clusters)
    start = np.where(clients.known[:, None], clients.memory, mean) if clients.memory.shape[1] else mean
    local = replace(tools.local, proximal=tools.local.proximal or DEFAULT_PROXIMAL)
    return train(tools.engine, start, clients.cohort, local=local, key=tools.key, anchor=mean)


def report_distance(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
    """Train the own model near the released mean; report its distance from it."""
    vectors = train_own_model(models, clients, clusters, tools=tools)
    return Trained(tools.split.report(vectors - tools.split.vectors(models, clusters)), vectors)


MRMTL = Method(
    "mr-mtl",
    split=Split.all_shared,
    scores=only_cluster,
    local=report_distance,
    own_models=train_own_model,
    memory_width=lambda model: model.num_parameters,
    one_model=True,
)
