"""FedPer (Arivazhagan et al. 2019): a shared base, and a last layer that each client keeps to itself.

The last layer never leaves the client: it is neither clipped nor noised nor reported. It starts at zero, once, or in
every round (`fedper-memoryless`).
"""

from dataclasses import replace
from functools import partial

import numpy as np

from rrcluster.engine.protocol import train
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Method, Tools, Trained, only_cluster, trained_from
from rrcluster.types import Array, Models

_EPOCHS_FROM_ZERO = 50  # as in training alone


def train_base_and_head(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
    """Train base and own last layer together; report the base, remember the last layer."""
    start = _with_heads(models, clients, clusters, tools.split)
    trained = trained_from(start, clients, tools=tools)
    return Trained(tools.split.report(trained - start), trained[:, tools.split.personal])


def train_with_fresh_head(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
    """Fit a last layer to the released base, from zero; train both, report the base, and forget the last layer."""
    start = fit_head(models, clients, clusters, tools=tools)
    trained = trained_from(start, clients, tools=tools)
    return Trained(tools.split.report(trained - start), clients.memory)


def fit_head(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
    """The released base with the client's last layer, fitted once more to the client's own data."""
    moving = np.zeros(tools.split.num_parameters, dtype=bool)
    moving[tools.split.personal] = True
    start = _with_heads(models, clients, clusters, tools.split)
    return train(tools.engine, start, clients.cohort, local=tools.local, key=tools.key, trainable=moving)


def fit_fresh_head(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
    """As `fit_head`, in 50 epochs from zero, since no earlier round has trained this last layer."""
    longer = replace(tools.local, local_epochs=_EPOCHS_FROM_ZERO)
    return fit_head(models, clients, clusters, tools=replace(tools, local=longer))


def _with_heads(models: Models, clients: Clients, clusters: Array, split: Split) -> Array:
    start = split.vectors(models, clusters)
    if clients.memory.shape[1]:
        start[:, split.personal] = np.where(clients.known[:, None], clients.memory, 0.0)
    return start


FEDPER = Method(
    "fedper",
    split=partial(Split.with_head, head="personal"),
    scores=only_cluster,
    local=train_base_and_head,
    own_models=fit_head,
    memory_width=lambda model: len(Split.with_head(model, head="personal").personal),
    one_model=True,
)

# Nothing is kept between rounds, which `identifier` requires: the last layer is fitted anew in each.
FEDPER_MEMORYLESS = Method(
    "fedper-memoryless",
    split=FEDPER.split,
    scores=only_cluster,
    local=train_with_fresh_head,
    own_models=fit_fresh_head,
    one_model=True,
)
