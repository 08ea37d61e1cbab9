"""IFCA (Ghosh et al. 2020): k models; a client belongs to the one with the least loss on its own data."""

from dataclasses import dataclass

from rrcluster.methods import method as parts
from rrcluster.methods.coordinate_split import Split
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Models


@dataclass(frozen=True)
class IFCA:
    """A whole model per cluster, or (weight sharing, section 5 of their paper) a shared base and a head per cluster."""

    name: str = "ifca"
    share_base: bool = False
    personal: bool = False
    explores: bool = True

    num_clusters = staticmethod(parts.as_asked)
    adapt = staticmethod(parts.unchanged)
    memory_width = staticmethod(parts.no_memory)
    scores = staticmethod(parts.cluster_losses)
    local = staticmethod(parts.train_from_cluster)
    own_models = staticmethod(parts.cluster_models)

    def split(self, model: Model) -> Split:
        """All clustered; with weight sharing all but the last layer shared."""
        if self.share_base:
            return Split.with_head(model, head="clustered")
        return Split.all_clustered(model.num_parameters)

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """k independent random models."""
        return parts.random_models(self.split(model), model, num_clusters=num_clusters, rng=rng)
