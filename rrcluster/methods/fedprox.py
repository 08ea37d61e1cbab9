"""FedProx (Li et al. 2020): FedAvg whose clients are held near the server's model while they train."""

from dataclasses import replace

from rrcluster.engine.protocol import changes
from rrcluster.methods.fedavg import FEDAVG
from rrcluster.methods.method import Clients, Tools, Trained
from rrcluster.types import Array, Models

DEFAULT_PROXIMAL = 0.01


def train_nearby(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
    """Local objective F_i(w) + (mu / 2) ||w - w_t||^2; mu is the setting `proximal`, 0.01 unless given."""
    local = replace(tools.local, proximal=tools.local.proximal or DEFAULT_PROXIMAL)
    vectors = tools.split.vectors(models)
    updates = changes(tools.engine, vectors, clusters, clients.cohort, local=local, key=tools.key)
    return Trained(tools.split.report(updates), clients.memory)


FEDPROX = replace(FEDAVG, name="fedprox", local=train_nearby)
