"""The plug point: a method is a handful of small functions. Privacy and rebalancing belong to none of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeGuard

import numpy as np

from rrcluster.data.federated import Cohort
from rrcluster.engine import calls
from rrcluster.engine.protocol import Engine, LocalSettings, Updates
from rrcluster.methods.coordinate_split import Split
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Models


@dataclass(frozen=True)
class Clients:
    """The clients' side of one round: their own data, and what each remembers from its own earlier rounds. Private."""

    cohort: Cohort
    memory: Array  # (n, m)
    known: Array  # (n,) bool: whether the client remembers anything
    projections: Array | None = None  # (n, p) a few numbers about its data, in methods that cluster by them

    @classmethod
    def without_memory(cls, cohort: Cohort) -> "Clients":
        """Clients that remember nothing."""
        n = len(cohort.clients)
        return cls(cohort, np.zeros((n, 0), dtype=np.float32), np.zeros(n, dtype=bool))


@dataclass(frozen=True)
class Tools:
    """What a method works with: the split of its coordinates, an engine, and how clients train this round."""

    split: Split
    engine: Engine
    local: LocalSettings
    key: tuple[int, int]
    centres: Array | None = None  # (k, p) of released projections so far; public


@dataclass(frozen=True)
class Trained:
    """What local training gives: the raw update a client reports, and what it will remember. Private."""

    updates: Updates  # (n, d_s + d_c)
    memory: Array  # (n, m)


class Algorithm(Protocol):
    """What a method decides. After local training it only ever sees releases, through the server's step.

    | method | runs on | what it does |
    | --- | --- | --- |
    | `num_clusters` | anyone | how many clusters the method really has when k are asked for |
    | `adapt`, `split` | anyone | the network it trains; which coordinates are shared, clustered, personal |
    | `memory_width` | anyone | how many numbers a client remembers between its rounds |
    | `init` | server | the first models, from random numbers alone |
    | `scores` | clients | how well each cluster suits each client; the least is chosen |
    | `local` | clients | the update each reports |
    | `own_models` | clients | the model each ends up with, where that is not its cluster's |

    `scores`, `local` and `own_models` get many clients at once, so that an engine can batch them, but treat every
    client alone: what a client does may depend on its own data, memory and coins and on released models, on nothing
    else.
    """

    @property
    def name(self) -> str:
        """The name it is chosen by."""

    @property
    def explores(self) -> bool:
        """Whether its scores are losses, which early rounds may price and soften (clusters/choice.py)."""

    @property
    def personal(self) -> bool:
        """Whether clients end up with models of their own (`own_models`)."""

    def num_clusters(self, asked: int) -> int:
        """How many clusters this method has when `asked` are asked for."""

    def adapt(self, model: Model) -> Model:
        """The network the method trains, made from the one asked for."""

    def split(self, model: Model) -> Split:
        """Which coordinates of the adapted model are shared, clustered and personal."""

    def memory_width(self, model: Model) -> int:
        """Numbers a client remembers; 0 for a method without memory."""

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """The models before the first round."""

    def scores(self, models: Models, clients: Clients, *, tools: Tools) -> Array:
        """(n, k) how badly each cluster suits each client: the choice is the least."""

    def local(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
        """The raw update of each client, trained from the model of its cluster."""

    def own_models(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
        """(n, d) the model each client ends up with."""


class Projects(Protocol):
    """A method that tells the server a few numbers about each client's data, to be clustered once they are private."""

    def project(self, clients: Clients, *, tools: Tools) -> Array:
        """(n, p) of each client, from its own data alone."""


def projects(algorithm: object) -> TypeGuard[Projects]:
    """Whether the method, or what stands for it, makes projections."""
    return hasattr(algorithm, "project")


# The parts most methods share, as plain functions.


def as_asked(asked: int) -> int:
    """As many clusters as asked."""
    return asked


def one_cluster(asked: int) -> int:  # noqa: ARG001 - one model, whatever is asked
    """Always 1."""
    return 1


def unchanged(model: Model) -> Model:
    """The network asked for."""
    return model


def no_memory(model: Model) -> int:  # noqa: ARG001
    """A client remembers nothing."""
    return 0


def only_cluster(models: Models, clients: Clients, *, tools: Tools) -> Array:  # noqa: ARG001
    """There is one cluster."""
    return np.zeros((len(clients.cohort.clients), 1))


def cluster_losses(models: Models, clients: Clients, *, tools: Tools) -> Array:
    """F(theta_j, D_i), the loss of every model on the client's own data (the paper's Algorithm 2)."""
    return calls.losses(tools.engine, tools.split.vectors(models), clients.cohort)


def cluster_models(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:  # noqa: ARG001
    """The client's model is its cluster's."""
    return tools.split.vectors(models, clusters)


def train_from_cluster(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
    """Local training as most methods do it: start at the cluster's model, run SGD, report the change."""
    local = replace(tools.local, proximal=0.0)
    vectors = tools.split.vectors(models)
    changes = calls.changes(tools.engine, vectors, clusters, clients.cohort, local=local, key=tools.key)
    return Trained(tools.split.report(changes), clients.memory)


def random_models(split: Split, model: Model, *, num_clusters: int, rng: Rng) -> Models:
    """k independent random models: what tells the clusters apart at first."""
    return split.models(np.stack([model.init(rng=rng) for _ in range(num_clusters)]))


def names(algorithms: Sequence[Algorithm]) -> dict[str, Algorithm]:
    """A registry by name."""
    return {algorithm.name: algorithm for algorithm in algorithms}
