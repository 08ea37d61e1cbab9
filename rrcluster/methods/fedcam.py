"""FedCAM (Ma et al. 2023): a shared network plus one per cluster, summed at the output."""

from dataclasses import dataclass, replace

import numpy as np

from rrcluster.engine import calls
from rrcluster.methods import method as parts
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Tools, Trained
from rrcluster.models.additive import additive
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models


@dataclass(frozen=True)
class FedCAM:
    """F_i(x) = h(x; shared) + f(x; cluster). A round trains the cluster part, then the shared one, the other frozen.

    Both changes are one update under **one** clip: one client moves one cluster sum and the shared sum by a joint
    norm of at most C, the sensitivity of a single release. The choice is by loss (as in IFCA), or by the distance of
    the remembered cluster part to the released ones (as in FeSEM).
    """

    name: str = "fedcam"
    by_distance: bool = False
    personal: bool = False

    num_clusters = staticmethod(parts.as_asked)
    adapt = staticmethod(additive)
    own_models = staticmethod(parts.cluster_models)

    @property
    def explores(self) -> bool:
        """Where it chooses by loss."""
        return not self.by_distance

    def split(self, model: Model) -> Split:
        """The first network is shared, the second clustered."""
        half = model.num_parameters // 2
        return Split(np.arange(half), np.arange(half, 2 * half), np.zeros(0, dtype=np.int64))

    def memory_width(self, model: Model) -> int:
        """The cluster part, where choices are by distance."""
        return model.num_parameters // 2 if self.by_distance else 0

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """Independent random networks."""
        return parts.random_models(self.split(model), model, num_clusters=num_clusters, rng=rng)

    def scores(self, models: Models, clients: Clients, *, tools: Tools) -> Array:
        """The loss of the summed networks; for who remembers one, the relative distance of its cluster part."""
        scores = parts.cluster_losses(models, clients, tools=tools)
        if clients.known.any():
            gaps = clients.memory[clients.known][:, None, :] - models.clustered[None]
            distances = (gaps**2).sum(axis=2)
            scores[clients.known] = distances / np.maximum(distances.mean(axis=1, keepdims=True), 1e-300)
        return scores

    def local(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
        """The cluster's part first (it fits what the shared one leaves), then the shared one."""
        start = tools.split.vectors(models, clusters)
        local = replace(tools.local, proximal=0.0)
        trained = start
        for part in (tools.split.clustered, tools.split.shared):
            moving = np.isin(np.arange(tools.split.num_parameters), part)
            trained = calls.train(tools.engine, trained, clients.cohort, local=local, key=tools.key, trainable=moving)
        remembered = trained[:, tools.split.clustered] if self.by_distance else clients.memory
        return Trained(tools.split.report(trained - start), remembered)
