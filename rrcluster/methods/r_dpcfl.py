"""R-DPCFL (Malekmohammadi, Taik, Farnadi 2025), at client level: clusters by noisy projections of updates."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rrcluster.engine import calls
from rrcluster.methods import method as parts
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Tools
from rrcluster.models.model import Model
from rrcluster.rng import Rng, stream
from rrcluster.types import Array, Models

PROJECTION_WIDTH = 8
_PUBLIC_SEED = 0  # of the projection and of the reference model: the same in every round of every run
_WHOLE = 2**31 - 1  # more samples than a client has: one batch


@dataclass(frozen=True)
class RDPCFL:
    """A client takes one full-batch step from a fixed public model and sends its direction, projected to 8 numbers.

    The numbers are clipped and noised by the mechanism (`identifier = projection`), and the server clusters the noisy
    ones (privacy/mixture.py). The client trains the model of the released centre that its own numbers are nearest to,
    so one round is one message: one row of numbers and one update. Before the first centres, and at the end, when all
    models are known, it chooses by loss; the first models are copies of one, so that clusters part by clustering alone.
    """

    name: str = "r-dpcfl"
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
        """k copies of one random model."""
        return self.split(model).models(np.tile(model.init(rng=rng), (num_clusters, 1)))

    def scores(self, models: Models, clients: Clients, *, tools: Tools) -> Array:
        """Squared distance of the client's own projection to each released centre; the loss where there are none."""
        if clients.projections is None or tools.centres is None:
            return parts.cluster_losses(models, clients, tools=tools)
        gaps = clients.projections[:, None, :] - tools.centres[None]
        return np.asarray((gaps**2).sum(axis=2))

    def project(self, clients: Clients, *, tools: Tools) -> Array:
        """(n, 8) direction of one full-batch step from the public reference model, in a public random subspace."""
        n, width = len(clients.cohort.clients), tools.split.num_parameters
        start = np.tile(_reference(width), (n, 1))
        step = replace(tools.local, local_epochs=1, batch_size=_WHOLE, proximal=0.0)
        moved = calls.train(tools.engine, start, clients.cohort, local=step, key=tools.key) - start
        rows = moved.astype(np.float64) @ _subspace(width)
        return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))


@lru_cache(maxsize=2)
def _subspace(num_parameters: int) -> Array:
    """(d, 8) orthonormal columns, uniformly random and public."""
    drawn = stream(_PUBLIC_SEED, "projection", num_parameters).standard_normal((num_parameters, PROJECTION_WIDTH))
    return np.asarray(np.linalg.qr(drawn)[0])


@lru_cache(maxsize=2)
def _reference(num_parameters: int) -> Array:
    """(d,) the public model that all steps start from: small random numbers."""
    return np.asarray(0.05 * stream(_PUBLIC_SEED, "reference", num_parameters).standard_normal(num_parameters)).astype(
        np.float32
    )
