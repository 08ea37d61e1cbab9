"""FeSEM (Long et al. 2023): a client belongs to the cluster whose model is nearest to the model it last trained."""

from dataclasses import dataclass, replace

import numpy as np

from rrcluster.engine import calls
from rrcluster.methods import method as parts
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Tools, Trained
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models


@dataclass(frozen=True)
class FeSEM:
    """Distances are over all coordinates, or over the last layer alone as in the authors' code.

    The client keeps its last trained model to itself and compares it with *released* centres; no server caches it. A
    client in its first round remembers nothing and chooses by loss. Squared distances are in units of their mean
    over the clusters, so that they are of the order of 1 as losses are.
    """

    name: str = "fesem"
    last_layer: bool = False
    personal: bool = False
    explores: bool = False

    num_clusters = staticmethod(parts.as_asked)
    adapt = staticmethod(parts.unchanged)
    own_models = staticmethod(parts.cluster_models)

    def split(self, model: Model) -> Split:
        """A whole model per cluster."""
        return Split.all_clustered(model.num_parameters)

    def memory_width(self, model: Model) -> int:
        """The coordinates that distances are taken over."""
        return len(model.head) if self.last_layer else model.num_parameters

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """k independent random models, to break the symmetry."""
        return parts.random_models(self.split(model), model, num_clusters=num_clusters, rng=rng)

    def scores(self, models: Models, clients: Clients, *, tools: Tools) -> Array:
        """Relative squared distance from the remembered model to each centre; the loss for who remembers none."""
        scores = np.zeros((len(clients.known), models.num_clusters))
        if not clients.known.all():
            scores = parts.cluster_losses(models, clients, tools=tools)
        if clients.known.any():
            centres = tools.split.vectors(models)[:, -clients.memory.shape[1] :]  # the last layer ends the vector
            gaps = clients.memory[clients.known][:, None, :] - centres[None]
            distances = np.einsum("nkd,nkd->nk", gaps, gaps, dtype=np.float64)
            scores[clients.known] = distances / np.maximum(distances.mean(axis=1, keepdims=True), 1e-300)
        return scores

    def local(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
        """Train from the centre, report the change, remember where it led."""
        start = tools.split.vectors(models, clusters)
        local = replace(tools.local, proximal=0.0)
        trained = calls.train(tools.engine, start, clients.cohort, local=local, key=tools.key)
        return Trained(tools.split.report(trained - start), trained[:, -clients.memory.shape[1] :])
