"""FedProx (Li et al. 2020): FedAvg whose clients are held near the server's model while they train."""

from dataclasses import dataclass, replace

from rrcluster.algorithms import algorithm as parts
from rrcluster.algorithms.algorithm import Clients, Tools, Trained
from rrcluster.algorithms.split import Split
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models

DEFAULT_PROXIMAL = 0.01


@dataclass(frozen=True)
class FedProx:
    """Local objective F_i(w) + (mu / 2) ||w - w_t||^2; mu is the setting `proximal`, 0.01 unless given."""

    name: str = "fedprox"
    personal: bool = False

    num_clusters = staticmethod(parts.one_cluster)
    adapt = staticmethod(parts.unchanged)
    memory_width = staticmethod(parts.no_memory)
    scores = staticmethod(parts.only_cluster)
    own_models = staticmethod(parts.cluster_models)

    def split(self, model: Model) -> Split:
        """Everything is shared."""
        return Split.all_shared(model.num_parameters)

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """One random model."""
        return parts.random_models(self.split(model), model, num_clusters=num_clusters, rng=rng)

    def local(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
        """SGD with the proximal term."""
        start = tools.split.vectors(models, clusters)
        local = replace(tools.local, proximal=tools.local.proximal or DEFAULT_PROXIMAL)
        trained = tools.engine.train(start, clients.cohort, local=local, key=tools.key)
        return Trained(tools.split.report(trained - start), clients.memory)
