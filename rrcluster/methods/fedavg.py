"""FedAvg (McMahan et al. 2017): one model for everybody; the mean of the clients' updates moves it."""

from dataclasses import dataclass, replace

from rrcluster.engine import calls
from rrcluster.methods import method as parts
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Tools, Trained
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models


@dataclass(frozen=True)
class FedAvg:
    """All coordinates shared, no choice to make. With `proximal` above 0 it is FedProx (fedprox.py)."""

    name: str = "fedavg"
    proximal: float = 0.0  # the pull towards the server's model, unless the setting says otherwise
    personal: bool = False
    explores: bool = False

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
        """SGD from the shared model, with the proximal term if there is one."""
        strength = (tools.local.proximal or self.proximal) if self.proximal else 0.0
        local = replace(tools.local, proximal=strength)
        changes = calls.changes(
            tools.engine, tools.split.vectors(models), clusters, clients.cohort, local=local, key=tools.key
        )
        return Trained(tools.split.report(changes), clients.memory)
