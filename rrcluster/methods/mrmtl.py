"""MR-MTL (Liu et al. 2022): every client has a model of its own, held near the mean of all."""

from dataclasses import dataclass, replace

import numpy as np

from rrcluster.engine import calls
from rrcluster.methods import method as parts
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Tools, Trained
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models

DEFAULT_PROXIMAL = 1.0


@dataclass(frozen=True)
class MRMTL:
    """Local objective F_i(v) + (lambda / 2) ||v - w||^2; lambda is the setting `proximal`, 1 unless given.

    v stays on the client; it reports v - w, whose mean moves w.
    """

    name: str = "mr-mtl"
    personal: bool = True
    explores: bool = False

    num_clusters = staticmethod(parts.one_cluster)
    adapt = staticmethod(parts.unchanged)
    scores = staticmethod(parts.only_cluster)

    def split(self, model: Model) -> Split:
        """The mean is shared."""
        return Split.all_shared(model.num_parameters)

    def memory_width(self, model: Model) -> int:
        """A whole model."""
        return model.num_parameters

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """One random model."""
        return parts.random_models(self.split(model), model, num_clusters=num_clusters, rng=rng)

    def local(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
        """Train the own model near the released mean; report its distance from it."""
        own = self.own_models(models, clients, clusters, tools=tools)
        return Trained(tools.split.report(own - tools.split.vectors(models, clusters)), own)

    def own_models(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
        """The own model after training from where it was (from the mean, the first time)."""
        mean = tools.split.vectors(models, clusters)
        start = np.where(clients.known[:, None], clients.memory, mean) if clients.memory.shape[1] else mean
        local = replace(tools.local, proximal=tools.local.proximal or DEFAULT_PROXIMAL)
        return calls.train(tools.engine, start, clients.cohort, local=local, key=tools.key, anchor=mean)
