"""FedAvg (McMahan et al. 2017): one model for everybody; the mean of the clients' updates moves it."""

from dataclasses import dataclass

from rrcluster.algorithms import algorithm as parts
from rrcluster.algorithms.split import Split
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Models


@dataclass(frozen=True)
class FedAvg:
    """All coordinates shared, no choice to make."""

    name: str = "fedavg"
    personal: bool = False

    num_clusters = staticmethod(parts.one_cluster)
    adapt = staticmethod(parts.unchanged)
    memory_width = staticmethod(parts.no_memory)
    scores = staticmethod(parts.only_cluster)
    local = staticmethod(parts.train_from_cluster)
    own_models = staticmethod(parts.cluster_models)

    def split(self, model: Model) -> Split:
        """Everything is shared."""
        return Split.all_shared(model.num_parameters)

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """One random model."""
        return parts.random_models(self.split(model), model, num_clusters=num_clusters, rng=rng)
