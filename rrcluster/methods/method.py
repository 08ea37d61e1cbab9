"""The interface of methods: a record of small functions, without privacy or rebalancing code.

FedAvg has no choice to make, FedProx changes only `local`, FedPer keeps its last layer on the client, IFCA and FeSEM
differ in `scores`, FedCAM has a shared and a clustered part. Every field has the default that most methods share.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.engine.protocol import Engine, LocalSettings, Updates, changes, measure, train
from rrcluster.errors import ConfigError
from rrcluster.methods.coordinate_split import Split
from rrcluster.mixed.questions import Form
from rrcluster.models.model import Model
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, Models


@dataclass(frozen=True, repr=False)
class Clients:
    """The clients' side of one round: their own data, and their memory of their own earlier rounds. Private."""

    cohort: Cohort  # their samples
    memory: Array  # (n, m)
    known: Array  # (n,) bool: whether the client remembers anything

    @classmethod
    def without_memory(cls, cohort: Cohort, width: int = 0) -> "Clients":
        """Clients without memory yet."""
        n = len(cohort.clients)
        return cls(cohort, np.zeros((n, width), dtype=np.float32), np.zeros(n, dtype=bool))


@dataclass(frozen=True)
class Tools:
    """Tools for methods: the coordinate split, an engine, and the clients' training settings in this round."""

    split: Split  # which coordinates are shared, clustered, personal
    engine: Engine  # computes clients
    local: LocalSettings  # steps, batches and rate
    key: tuple[int, int]  # for the draws of this round
    _vectors: list[tuple[Models, Array]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Cache of the models and their vectors."""

    def vectors(self, models: Models) -> Array:
        """`split.vectors` of the models, computed once for choosing and training."""
        if not self._vectors or self._vectors[0][0] is not models:
            self._vectors[:] = [(models, self.split.vectors(models))]
        return self._vectors[0][1]

    def measure(self, models: Models, clients: Clients) -> tuple[Array, Array]:
        """Loss and accuracy of every model on each client's own data, both (n, k)."""
        return measure(self.engine, self.vectors(models), clients.cohort)


@dataclass(frozen=True, repr=False)
class Trained:
    """The result of local training: a client's raw update and its memory. Private."""

    updates: Updates  # (n, d_s + d_c)
    memory: Array  # (n, m)


class Scores(Protocol):
    """How badly each cluster suits each client."""

    def __call__(self, models: Models, clients: Clients, *, tools: Tools) -> Array:
        """(n, k) scores; the client chooses the least."""


class LocalTraining(Protocol):
    """Local training: clients' updates and memory."""

    def __call__(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
        """Trained from the model of the client's cluster."""


class OwnModels(Protocol):
    """The final model of each client, where that is not its cluster's."""

    def __call__(self, models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
        """(n, d)."""


def cluster_losses(models: Models, clients: Clients, *, tools: Tools) -> Array:
    """F(theta_j, D_i), the loss of every model on the client's own data (the paper's Algorithm 2)."""
    return tools.measure(models, clients)[0]


def only_cluster(models: Models, clients: Clients, *, tools: Tools) -> Array:  # noqa: ARG001
    """Choose the only cluster."""
    return np.zeros((len(clients.cohort.clients), 1))


def trained_from(start: Array, clients: Clients, *, tools: Tools) -> Array:
    """(n, d) the clients' models after plain local training, each from its own row of `start`."""
    local = replace(tools.local, proximal=0.0)
    return train(tools.engine, start, clients.cohort, local=local, key=tools.key)


def train_from_cluster(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:
    """Start at the cluster's model, run SGD, report the change: the local training of most methods."""
    local = replace(tools.local, proximal=0.0) if tools.local.proximal else tools.local
    updates = changes(tools.engine, tools.vectors(models), clusters, clients.cohort, local=local, key=tools.key)
    return Trained(tools.split.report(updates), clients.memory)


@dataclass(frozen=True)
class Method:
    """The decisions of a method. After local training it only ever sees releases, through the server's step.

    A field that is left out has the default that most methods share, so a method states only its differences. This one
    is IFCA for clients that leave the first cluster only where another one is clearly better:

        def cautious(models, clients, *, tools):
            losses, accuracies = tools.measure(models, clients)  # (n, k) each: a client's own
            losses[:, 1:] += 0.1
            return losses  # the least is chosen

        rr.register("method", "cautious", rr.Method("cautious", scores=cautious))
        rr.run(algorithm="cautious", epsilon=4)

    `scores`, `local` and `own_models` get many clients at once, so that an engine can batch them, but treat every
    client alone: its actions may depend on its own data, memory and coins and on released models, on nothing else, as
    Theorem 1 of docs/privacy.md requires.
    """

    name: str  # as `--algorithm` takes it
    split: Callable[[Model], Split] = Split.all_clustered  # which coordinates are shared, clustered, personal
    scores: Scores = cluster_losses  # how badly each of the k models suits a client; it chooses the least
    local: LocalTraining = train_from_cluster  # a client's training, which gives its update
    own_models: OwnModels | None = None  # None: clients end up with their cluster's model
    pick: Scores | None = None  # how clients pick among models that are handed out; None: as in a round
    adapt: Callable[[Model], Model] = lambda model: model  # the network it trains, made from the one asked for
    memory_width: Callable[[Model], int] = lambda _: 0  # how many numbers a client remembers between its rounds
    one_model: bool = False  # it has no clusters, however many are asked for
    chooses_by_loss: bool = False  # its scores are losses, which exploration may price and soften
    compares_models: bool = True  # clients need all k models to choose; otherwise their own alone
    asks: bool = False  # clients answer questions on their columns in every round, and train nothing
    reports: bool = True  # clients report updates; otherwise there is nothing to protect
    for_population: Callable[["Method", FederatedData], "Method"] = lambda method, _: method  # what it must know of it

    def coordinates(self, model: Model) -> Coordinates:
        """The coordinates of a client's report: its update, or its answer, which is all shared."""
        if not self.asks:
            return self.split(model).coordinates
        form = self.form(model)
        if form is None:
            raise ConfigError(f"algorithm = {self.name} asks about a table's columns; use model = table-linear (auto).")
        return Coordinates(form.width, 0)

    def form(self, model: Model) -> Form | None:
        """The questionnaire of a run of this model; None if clients train."""
        return model.form if self.asks else None

    @property
    def personal(self) -> bool:
        """Whether clients end up with models of their own."""
        return self.own_models is not None

    def final_scores(self, models: Models, cohort: Cohort, *, tools: Tools) -> Array:
        """(n, k) how badly each released model suits each client, judged without memory."""
        return (self.pick or self.scores)(models, Clients.without_memory(cohort), tools=tools)

    def num_clusters(self, requested: int) -> int:
        """The number of clusters of this method when `requested` are requested."""
        return 1 if self.one_model else requested

    def init(self, model: Model, *, num_clusters: int, rng: Rng) -> Models:
        """The models before the first round: random, or given and perturbed, which tells the clusters apart."""
        return self.split(model).models(model.starts(num_clusters, rng=rng))
