"""The floor and the ceiling: every client alone, and every client in its true cluster."""

from dataclasses import dataclass, replace

import numpy as np

from rrcluster.engine import calls
from rrcluster.errors import ConfigError
from rrcluster.methods import method as parts
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Tools, Trained
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models

_LOCAL_EPOCHS = 50


@dataclass(frozen=True)
class LocalOnly:
    """No federation at all: at the end each client trains 50 epochs on its own data from the common random start.

    Nothing is reported (the update is zero), so there is nothing to protect; only `mechanism = none` applies.
    """

    name: str = "local"
    personal: bool = True
    explores: bool = False

    num_clusters = staticmethod(parts.one_cluster)
    adapt = staticmethod(parts.unchanged)
    memory_width = staticmethod(parts.no_memory)
    scores = staticmethod(parts.only_cluster)

    def split(self, model: Model) -> Split:
        """Nominally shared; it never moves."""
        return Split.all_shared(model.num_parameters)

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """One random model."""
        return parts.random_models(self.split(model), model, num_clusters=num_clusters, rng=rng)

    def local(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:  # noqa: ARG002
        """Report nothing."""
        return Trained(np.zeros((len(clusters), tools.split.coordinates.width)), clients.memory)

    def own_models(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
        """Training alone."""
        local = replace(tools.local, local_epochs=_LOCAL_EPOCHS, proximal=0.0)
        start = tools.split.vectors(models, clusters)
        return calls.train(tools.engine, start, clients.cohort, local=local, key=tools.key)


@dataclass(frozen=True, eq=False)
class Oracle:
    """A model per cluster, and every client is told its true one: the ceiling for clustered methods.

    `groups` (M,) is the truth that no other method may read; group g goes to cluster g modulo k.
    """

    name: str = "oracle"
    groups: Array | None = None
    personal: bool = False
    explores: bool = False

    num_clusters = staticmethod(parts.as_asked)
    adapt = staticmethod(parts.unchanged)
    memory_width = staticmethod(parts.no_memory)
    local = staticmethod(parts.train_from_cluster)
    own_models = staticmethod(parts.cluster_models)

    def split(self, model: Model) -> Split:
        """A whole model per cluster."""
        return Split.all_clustered(model.num_parameters)

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """k independent random models."""
        return parts.random_models(self.split(model), model, num_clusters=num_clusters, rng=rng)

    def scores(self, models: Models, clients: Clients, *, tools: Tools) -> Array:  # noqa: ARG002
        """Zero for the true cluster, more than any price for the others."""
        if self.groups is None:
            raise ConfigError("algorithm = oracle needs the true groups of the clients, which this data does not have.")
        k = models.num_clusters
        return np.asarray(1e9 * (1.0 - np.eye(k)[self.groups[clients.cohort.clients] % k]))
