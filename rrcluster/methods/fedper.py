"""FedPer (Arivazhagan et al. 2019): a shared base, and a last layer that each client keeps to itself."""

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
class FedPer:
    """The head never leaves the client: it is neither clipped nor noised nor reported. It starts at zero.

    A client that is sampled trains base and head together and reports the base's change. At the end a client fits its
    head once more to its own data, with the base fixed.
    """

    name: str = "fedper"
    personal: bool = True
    explores: bool = False

    num_clusters = staticmethod(parts.one_cluster)
    adapt = staticmethod(parts.unchanged)
    scores = staticmethod(parts.only_cluster)

    def split(self, model: Model) -> Split:
        """The last layer is personal, all before it shared."""
        return Split.with_head(model, head="personal")

    def memory_width(self, model: Model) -> int:
        """The head."""
        return len(self.split(model).personal)

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """One random base."""
        return parts.random_models(self.split(model), model, num_clusters=num_clusters, rng=rng)

    def local(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
        """Train base and own head; report the base, remember the head."""
        start = _with_heads(models, clients, clusters, tools.split)
        local = replace(tools.local, proximal=0.0)
        trained = calls.train(tools.engine, start, clients.cohort, local=local, key=tools.key)
        return Trained(tools.split.report(trained - start), trained[:, tools.split.personal])

    def own_models(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
        """The released base with the client's head, fitted to the client's own data."""
        moving = np.zeros(tools.split.num_parameters, dtype=bool)
        moving[tools.split.personal] = True
        start = _with_heads(models, clients, clusters, tools.split)
        return calls.train(tools.engine, start, clients.cohort, local=tools.local, key=tools.key, trainable=moving)


def _with_heads(models: Models, clients: Clients, clusters: Array, split: Split) -> Array:
    start = split.vectors(models, clusters)
    start[:, split.personal] = np.where(clients.known[:, None], clients.memory, 0.0)
    return start
