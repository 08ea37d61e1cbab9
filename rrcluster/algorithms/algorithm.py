"""The plug point: a method is a handful of small functions. Privacy and rebalancing belong to none of them."""

from typing import Protocol

from rrcluster.algorithms.split import Split
from rrcluster.contract import Engine, LocalSettings
from rrcluster.data.federated import Cohort
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models


class Algorithm(Protocol):
    """What a method decides. After local training it only ever sees a release, through the server's step.

    | method | runs on | what it does |
    | --- | --- | --- |
    | `num_clusters` | anyone | how many clusters the method really has when k are asked for |
    | `split` | anyone | which coordinates are shared, clustered, personal |
    | `init` | server | the first models, from random numbers alone |
    | `scores` | clients | how well each cluster suits each client; the least is chosen |
    | `local` | clients | the update each reports |

    `scores` and `local` get a whole cohort, so that an engine can batch it, but treat every client alone: a client's
    scores and update may depend on its own data, on released models and on its own coins, on nothing else.
    """

    @property
    def name(self) -> str:
        """The name it is chosen by."""

    def num_clusters(self, asked: int) -> int:
        """How many clusters this method has when `asked` are asked for."""

    def split(self, model: Model) -> Split:
        """Which coordinates are shared, clustered and personal."""

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """The models before the first round."""

    def scores(self, models: Models, cohort: Cohort, *, split: Split, engine: Engine) -> Array:
        """(n, k) how badly each cluster suits each client: the choice is the least."""

    def local(
        self,
        models: Models,
        cohort: Cohort,
        clusters: Array,
        *,
        split: Split,
        engine: Engine,
        local: LocalSettings,
        key: tuple[int, int],
    ) -> Array:
        """(n, d_s + d_c) raw update of each client, trained from the model of its cluster."""


def train_from_cluster(
    models: Models,
    cohort: Cohort,
    clusters: Array,
    *,
    split: Split,
    engine: Engine,
    local: LocalSettings,
    key: tuple[int, int],
) -> Array:
    """Local training as most methods do it: start at the cluster's model, run SGD, report the change."""
    start = split.vectors(models, clusters)
    return split.report(engine.train(start, cohort, local=local, key=key) - start)
