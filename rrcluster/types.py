"""The four kinds of values on the server: updates, choices, a release, and models. Fields state their shapes.

`n` clients in the round, `k` clusters, `d_s` shared and `d_c` clustered coordinates.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rrcluster import checks

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Coordinates:
    """The numbers of coordinates of a report: shared by all clients, and of one cluster.

    Personal coordinates are not counted: they never leave the client. A report is (shared, clustered), in this order.
    """

    shared: int  # of all clients
    clustered: int  # of one cluster's model

    def __post_init__(self) -> None:
        checks.count(shared=self.shared, at_least=0)
        checks.count(clustered=self.clustered, at_least=0)
        checks.count(reported_coordinates=self.width)

    @property
    def width(self) -> int:
        """Coordinates of one client's update."""
        return self.shared + self.clustered


@dataclass(frozen=True)
class Models:
    """The models for people: one shared vector and one vector per cluster."""

    shared: Array  # (d_s,)
    clustered: Array  # (k, d_c)

    @property
    def num_clusters(self) -> int:
        """k."""
        return int(self.clustered.shape[0])

    @property
    def rows(self) -> Array:
        """(k, d_s + d_c) one model per row: shared coordinates, then the cluster's own."""
        return np.concatenate([np.tile(self.shared, (self.num_clusters, 1)), self.clustered], axis=1)

    def plus(self, other: "Models", scale: float = 1.0) -> "Models":
        """self + scale * other, as new models."""
        return Models(self.shared + scale * other.shared, self.clustered + scale * other.clustered)


@dataclass(frozen=True)
class NoisyEvaluation:
    """Clients' evaluations of the models on their own data, summed with noise over one or several rounds.

    `sums` are of (accuracy - 1/2, loss
    loss_bound - 1/2), each clipped to [-1/2, 1/2] per client. A mean is a noisy sum over a noisy number of clients (at
    least `least_clients`, a public floor), plus 1/2; it is not clipped, so that averages of it stay unbiased. Noise
    stds are to first order in the noise of that number.
    """

    sums: Array  # (2,)
    clients: float
    sum_noise_std: float  # of each sum
    clients_noise_std: float
    loss_bound: float
    least_clients: float = 1.0

    def plus(self, other: "NoisyEvaluation") -> "NoisyEvaluation":
        """The sum of both, as of one larger cohort: evaluations are averaged over rounds this way."""
        return NoisyEvaluation(
            sums=self.sums + other.sums,
            clients=self.clients + other.clients,
            sum_noise_std=math.hypot(self.sum_noise_std, other.sum_noise_std),
            clients_noise_std=math.hypot(self.clients_noise_std, other.clients_noise_std),
            loss_bound=self.loss_bound,
            least_clients=self.least_clients + other.least_clients,
        )

    @property
    def accuracy(self) -> float:
        """Noisy mean accuracy."""
        return 0.5 + self._centred(0)

    @property
    def accuracy_noise_std(self) -> float:
        """Noise std of the mean accuracy."""
        return self._noise_std(0)

    @property
    def loss(self) -> float:
        """Noisy mean of the clipped loss."""
        return self.loss_bound * (0.5 + self._centred(1))

    @property
    def loss_noise_std(self) -> float:
        """Noise std of the mean loss."""
        return self.loss_bound * self._noise_std(1)

    def _centred(self, place: int) -> float:
        return float(self.sums[place]) / self._denominator

    @property
    def _denominator(self) -> float:
        return max(self.clients, self.least_clients)

    def _noise_std(self, place: int) -> float:
        through_clients = self._centred(place) * self.clients_noise_std
        return math.hypot(self.sum_noise_std, through_clients) / self._denominator


@dataclass(frozen=True)
class Release:
    """The output of a mechanism for one round. Everything here is public; nothing else is.

    `sizes` are the natural cluster sizes (before any rebalancing), noisy under `joint`, functions of noisy identifiers
    under `identifier`. `denominators` are public or made from noisy sizes, never raw counts. Under the mechanism `none`
    all of it is exact and nothing is private.
    """

    shared_sum: Array  # (d_s,)
    cluster_sums: Array  # (k, d_c)
    sizes: Array  # (k,)
    denominators: Array  # (k,)
    shared_denominator: float
    sum_noise_std: float  # of every coordinate of every sum
    size_noise_std: float  # of every size
    evaluation: NoisyEvaluation | None = None  # present if the plan has private evaluation
    step_factors: Array | float = 1.0  # (k,) factors by which a survey lengthened cluster sums, noise included

    @property
    def shared_mean(self) -> Array:
        """(d_s,) noisy mean of the shared coordinates."""
        return self.shared_sum / self.shared_denominator

    @property
    def cluster_means(self) -> Array:
        """(k, d_c) noisy means of the clustered coordinates."""
        return self.cluster_sums / self.denominators[:, None]

    @property
    def noise_std(self) -> Array:
        """(k,) noise std of each coordinate of each cluster mean."""
        return np.asarray(self.sum_noise_std * self.step_factors / self.denominators)

    @property
    def num_clusters(self) -> int:
        """k."""
        return int(self.sizes.shape[0])
