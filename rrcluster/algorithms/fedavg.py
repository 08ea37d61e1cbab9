"""FedAvg (McMahan et al. 2017): one model for everybody; the mean of the clients' updates moves it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rrcluster.algorithms.algorithm import train_from_cluster
from rrcluster.algorithms.split import Split
from rrcluster.data.federated import Cohort
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models


@dataclass(frozen=True)
class FedAvg:
    """All coordinates shared, no choice to make."""

    name: str = "fedavg"

    def num_clusters(self, asked: int) -> int:  # noqa: ARG002 - one model, whatever is asked
        """Always 1."""
        return 1

    def split(self, model: Model) -> Split:
        """Everything is shared."""
        return Split.all_shared(model.num_parameters)

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """One random model."""
        return self.split(model).models(np.stack([model.init(rng=rng) for _ in range(num_clusters)]))

    def scores(self, models: Models, cohort: Cohort, **_: Any) -> Array:  # noqa: ARG002
        """There is one cluster."""
        return np.zeros((len(cohort.clients), 1))

    local = staticmethod(train_from_cluster)
