"""IFCA (Ghosh et al. 2020): k models; a client belongs to the one with the least loss on its own data."""

from dataclasses import dataclass

import numpy as np

from rrcluster.algorithms.algorithm import train_from_cluster
from rrcluster.algorithms.split import Split
from rrcluster.contract import Engine
from rrcluster.data.federated import Cohort
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models


@dataclass(frozen=True)
class IFCA:
    """All coordinates clustered. Paper: Algorithm 2, the part of the clients."""

    name: str = "ifca"

    def num_clusters(self, asked: int) -> int:
        """As many as asked."""
        return asked

    def split(self, model: Model) -> Split:
        """A whole model per cluster."""
        return Split.all_clustered(model.num_parameters)

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """k independent random models: what tells the clusters apart at first."""
        return self.split(model).models(np.stack([model.init(rng=rng) for _ in range(num_clusters)]))

    def scores(self, models: Models, cohort: Cohort, *, split: Split, engine: Engine) -> Array:
        """F(theta_j, D_i), the loss of every model on the client's own data (the paper's Algorithm 2)."""
        return engine.losses(split.vectors(models), cohort)

    local = staticmethod(train_from_cluster)
