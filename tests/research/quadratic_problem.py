"""A strongly convex problem whose every constant is known in closed form, and rounds of RR-Cluster (IFCA) on it.

A client of group j draws z ~ N(optimum_j, data_std^2 I); its loss is f(theta; z) = 1/2 sum_c a_jc (theta_c - z_c)^2.
Its expectation is strongly convex with min a_j and smooth with max a_j. Around its mean, the gradient has the expected
square data_std^2 sum_c a_jc^2 at *every* theta; the loss has a variance that grows with the distance from the optimum,
so it is bounded on a ball only, which is all that the proofs need.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from rrcluster_research.lemma import Setting, choice_error, identifier_error

from rrcluster.privacy.rebalancing import rebalance
from rrcluster.rng import Rng
from rrcluster.types import Array


@dataclass(frozen=True)
class Problem:
    """k groups of clients with quadratic losses."""

    optima: Array  # (k, d)
    curvature: Array  # (k, d), the second derivatives, all positive
    group_sizes: Array  # (k,) int
    data_std: float

    @property
    def groups(self) -> Array:
        """(M,) the group of each client: its ground truth."""
        return np.repeat(np.arange(len(self.group_sizes)), self.group_sizes)

    @property
    def separations(self) -> Array:
        """The distances between optima, each pair once, in increasing order."""
        gaps = np.linalg.norm(self.optima[:, None] - self.optima[None, :], axis=2)
        return np.sort(gaps[np.triu_indices(len(gaps), 1)])

    @property
    def gradient_std(self) -> float:
        """v, the same at every model."""
        return float(self.data_std * np.sqrt((self.curvature**2).sum(axis=1).max()))

    def loss_std(self, distance: float) -> float:
        """eta, at every model within `distance` of a group's optimum."""
        slope = self.data_std * self.curvature.max() * distance
        spread = self.data_std**2 * np.sqrt((self.curvature**2).sum(axis=1).max() / 2)
        return math.hypot(slope, spread)

    def draw(self, *, rng: Rng) -> Array:
        """(M, d) fresh data, one point per client."""
        noise = rng.standard_normal((int(self.group_sizes.sum()), self.optima.shape[1]))
        return np.asarray(self.optima[self.groups] + self.data_std * noise)

    def losses(self, models: Array, data: Array) -> Array:
        """(M, k) each client's loss at each model."""
        gaps = models[None, :, :] - data[:, None, :]
        return np.asarray((self.curvature[self.groups][:, None, :] * gaps**2).sum(axis=2) / 2)


@dataclass(frozen=True)
class RoundSettings:
    """How a round is played."""

    min_cluster_size: int
    server_lr: float
    identifier_noise_multiplier: float
    noise_std: float  # of every coordinate of every cluster's sum


@dataclass(frozen=True)
class PlayedRound:
    """The models after a round, and the true value of each term that the theorem bounds: (k,) norms."""

    models: Array  # (k, d)
    progress: Array  # of the error after the step on the cluster's own expected gradient
    own_noise: Array
    bias: Array
    wrong_noise: Array
    privacy_noise: Array
    wrong_share: Array  # (k,) the share of members that belong elsewhere


def setting_of(problem: Problem, settings: RoundSettings, *, margin: float, failure_probability: float) -> Setting:
    """What the bounds read, all of it in closed form."""
    separations, r = problem.separations, settings
    known = Setting(
        num_clients=int(problem.group_sizes.sum()),
        num_clusters=len(problem.optima),
        min_cluster_size=r.min_cluster_size,
        num_coordinates=problem.optima.shape[1],
        strong_convexity=float(problem.curvature.min()),
        smoothness=float(problem.curvature.max()),
        server_lr=r.server_lr,
        separation=float(separations[0]),
        largest_separation=float(separations[-1]),
        margin=margin,
        loss_std=0.0,
        gradient_std=problem.gradient_std,
        cluster_size_std=0.0,
        identifier_noise_multiplier=r.identifier_noise_multiplier,
        noise_std=r.noise_std,
        failure_probability=failure_probability,
    )
    known = replace(known, loss_std=problem.loss_std(known.largest_separation + known.radius))
    return replace(known, cluster_size_std=_cluster_size_std(problem, known))


def play_round(problem: Problem, models: Array, settings: RoundSettings, *, rng: Rng) -> PlayedRound:
    """One round with every client in it: choose, privatise, rebalance, sum, add noise, step.

    The gradient uses data of its own, not those that the choice was made on, as the theorem needs.
    """
    k, d = models.shape
    identifiers = np.eye(k)[problem.losses(models, problem.draw(rng=rng)).argmin(axis=1)]
    noisy = identifiers + settings.identifier_noise_multiplier * rng.standard_normal(identifiers.shape)
    assignment = rebalance(noisy.argmax(axis=1), num_clusters=k, min_cluster_size=settings.min_cluster_size, rng=rng)
    noise = settings.noise_std * rng.standard_normal((k, d))
    return _stepped(problem, models, assignment, problem.draw(rng=rng), noise, settings.server_lr)


def _stepped(
    problem: Problem, models: Array, assignment: Array, data: Array, noise: Array, server_lr: float
) -> PlayedRound:
    k, groups = len(models), problem.groups
    curvature, theta = problem.curvature[groups], models[assignment]
    expected = curvature * (theta - problem.optima[groups])  # (M, d) each client's mean gradient
    around = curvature * (problem.optima[groups] - data)
    own = (groups == assignment)[:, None]
    members = np.eye(k)[assignment]  # (M, k)
    steps = server_lr / np.maximum(members.sum(axis=0), 1)[:, None]  # (k, 1)

    def pulled(gradients: Array) -> Array:
        return np.asarray(steps * (members.T @ gradients))

    right, own_noise = pulled(expected * own), pulled(around * own)
    bias, wrong_noise = pulled(expected * ~own), pulled(around * ~own)
    privacy = steps * noise
    return PlayedRound(
        models=models - right - own_noise - bias - wrong_noise - privacy,
        progress=_norms(models - problem.optima - right),
        own_noise=_norms(own_noise),
        bias=_norms(bias),
        wrong_noise=_norms(wrong_noise),
        privacy_noise=_norms(privacy),
        wrong_share=members.T @ ~own[:, 0] / np.maximum(members.sum(axis=0), 1),
    )


def _norms(rows: Array) -> Array:
    return np.asarray(np.linalg.norm(rows, axis=1))


def _cluster_size_std(problem: Problem, setting: Setting) -> float:
    """mu: imbalance of the groups plus what W wrong choices can add, E W^2 <= M p + (M p)^2 for independent clients."""
    p = choice_error(
        loss_std=setting.loss_std,
        margin=setting.margin,
        strong_convexity=setting.strong_convexity,
        separation=setting.separation,
        num_clusters=setting.num_clusters,
    ) + identifier_error(
        identifier_noise_multiplier=setting.identifier_noise_multiplier, num_clusters=setting.num_clusters
    )
    expected = setting.num_clients * min(1.0, p)
    imbalance = float(np.abs(problem.group_sizes - setting.average_size).max())
    return imbalance + math.sqrt(expected + expected**2)
