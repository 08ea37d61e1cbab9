"""The quantities of the bounds, and the misassignment lemma: how likely a client ends up in another's cluster.

The lemma has three factors, each in two forms: `*_printed` is the paper's formula as it stands (its lemma and the proof
in the appendix), the plain name is the one proved in docs/theory.md. Every bound is at most 1 where the corrected form
is meant.
"""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One round of RR-Cluster (IFCA) with every client in it, in the terms of the theory.

    Nothing is refused here: `convergence.failed_round` names the assumptions that a setting breaks.
    """

    num_clients: int  # M
    num_clusters: int  # k
    min_cluster_size: int  # B
    num_coordinates: int  # d
    strong_convexity: float  # lambda, of every cluster's expected loss
    smoothness: float  # L
    server_lr: float  # gamma
    separation: float  # Delta, the smallest distance of two optima
    largest_separation: float  # the largest one, which the paper takes to be Delta as well
    margin: float  # beta (alpha_0 at the start): how far inside the region of reliable choices, see `radius`
    loss_std: float  # eta, of one client's loss at a fixed model
    gradient_std: float  # v, root of the expected squared distance of one client's gradient from its mean
    cluster_size_std: float  # mu, root mean squared distance of a cluster's size from M / k, before rebalancing
    identifier_noise_multiplier: float  # sigma_s, noise std on a one-hot identifier of length 1
    noise_std: float  # 2 C_theta sigma_theta, of every coordinate of every cluster's sum
    failure_probability: float  # delta_c

    @property
    def radius(self) -> float:
        """The distance from the optimum that the lemma and the theorem assume of every model."""
        return (0.5 - self.margin) * math.sqrt(self.strong_convexity / self.smoothness) * self.separation

    @property
    def average_size(self) -> float:
        """M / k, the average number of clients in a cluster."""
        return self.num_clients / self.num_clusters


@dataclass(frozen=True)
class Misassignment:
    """tau and its three parts."""

    choice: float  # the client's own loss misleads it
    identifier: float  # noise on the identifier changes the choice
    rebalance: float  # rebalancing moves the client

    @property
    def total(self) -> float:
        """tau: their sum, not capped."""
        return self.choice + self.identifier + self.rebalance


def misassignment_printed(setting: Setting) -> Misassignment:
    """tau as printed."""
    choice, identifier, rebalance = _arguments(setting)
    return Misassignment(
        choice_error_printed(**choice), identifier_error_printed(**identifier), rebalance_error_printed(**rebalance)
    )


def misassignment(setting: Setting) -> Misassignment:
    """tau as corrected (Lemma 1 of docs/theory.md)."""
    choice, identifier, rebalance = _arguments(setting)
    return Misassignment(choice_error(**choice), identifier_error(**identifier), rebalance_error(**rebalance))


def _arguments(setting: Setting) -> tuple[dict[str, Any], ...]:
    """Arguments for the bounds on the three errors: choice, identifier, rebalancing."""
    names = (
        ("loss_std", "margin", "strong_convexity", "separation", "num_clusters"),
        ("identifier_noise_multiplier", "num_clusters"),
        ("cluster_size_std", "num_clients", "num_clusters", "min_cluster_size"),
    )
    return tuple({name: getattr(setting, name) for name in part} for part in names)


def choice_error_printed(
    *, loss_std: float, margin: float, strong_convexity: float, separation: float, num_clusters: int
) -> float:
    """8 k eta^2 / (beta^2 lambda^2 Delta^4): the paper's factor 1. It holds (one display of its proof lacks a 1/2)."""
    eta, k = loss_std, num_clusters
    return 8 * eta**2 * k / loss_gap(margin=margin, strong_convexity=strong_convexity, separation=separation) ** 2


def choice_error(
    *, loss_std: float, margin: float, strong_convexity: float, separation: float, num_clusters: int
) -> float:
    """(k - 1) 4 eta^2 / (4 eta^2 + gap^2): Cantelli on the *difference* of two losses, whose std is at most 2 eta."""
    eta, k = loss_std, num_clusters
    gap = loss_gap(margin=margin, strong_convexity=strong_convexity, separation=separation)
    return min(1.0, (k - 1) * _share(4 * eta**2, gap**2))


def loss_gap(*, margin: float, strong_convexity: float, separation: float) -> float:
    """beta lambda Delta^2: the least expected extra loss of a client at another cluster's model."""
    return margin * strong_convexity * separation**2


def identifier_error_printed(*, identifier_noise_multiplier: float, num_clusters: int) -> float:
    """k sigma_s / sqrt(pi) exp(-1 / (4 sigma_s^2)): the paper's factor 2. It holds; for k = 4 it passes 1 at 0.72."""
    sigma, k = identifier_noise_multiplier, num_clusters
    return 0.0 if sigma == 0 else k * sigma / math.sqrt(math.pi) * math.exp(-1 / (4 * sigma**2))


def identifier_error(*, identifier_noise_multiplier: float, num_clusters: int) -> float:
    """The exact probability that the largest entry of one-hot plus N(0, sigma_s^2) is another one.

    The integral over x of phi(x) (1 - Phi(x + 1 / sigma_s)^(k - 1)), by the trapezoidal rule: exact to rounding for an
    analytic integrand that dies off at both ends. Never above the printed bound.
    """
    sigma, k = identifier_noise_multiplier, num_clusters
    if k == 1 or sigma < 1 / 60:  # below, the probability is less than the smallest float
        return 0.0
    import numpy as np
    from scipy.special import log_ndtr

    step = 0.05
    x = np.arange(-10 - 1 / sigma, 10, step)
    lost = -np.expm1((k - 1) * log_ndtr(x + 1 / sigma)) * np.exp(-(x**2) / 2)
    return min(1.0, float(lost.sum()) * step / math.sqrt(2 * math.pi))


def large_cluster_probability_printed(
    *, cluster_size_std: float, num_clients: int, num_clusters: int, min_cluster_size: int
) -> float:
    """mu^2 / (M/k - B)^2, which the paper's proof takes for a bound on P(|S_j| > B). It bounds the other tail."""
    return _ratio(cluster_size_std**2, (num_clients / num_clusters - min_cluster_size) ** 2)


def small_cluster_probability(
    *, cluster_size_std: float, num_clients: int, num_clusters: int, min_cluster_size: int
) -> float:
    """A bound on P(|S_j| < B) for B < M/k: Markov on the squared distance from M/k, min(1, mu^2 / (M/k - B)^2).

    Cantelli's sharper bound needs M/k to be the *mean* of |S_j|, which the assumption on mu does not say.
    """
    room = num_clients / num_clusters - min_cluster_size
    return 1.0 if room <= 0 else min(1.0, _ratio(cluster_size_std**2, room**2))


def rebalance_error_printed(
    *, cluster_size_std: float, num_clients: int, num_clusters: int, min_cluster_size: int
) -> float:
    """k^2 mu^2 / (M/k - B)^2: the paper's factor 3. A step of its proof is wrong, the result holds (docs/theory.md)."""
    tail = large_cluster_probability_printed(
        cluster_size_std=cluster_size_std,
        num_clients=num_clients,
        num_clusters=num_clusters,
        min_cluster_size=min_cluster_size,
    )
    return num_clusters**2 * tail


def rebalance_error(*, cluster_size_std: float, num_clients: int, num_clusters: int, min_cluster_size: int) -> float:
    """P(another cluster is small) P(this client moves | sizes): a union over k - 1 times (k - 1) B / (M - B)."""
    M, k, B = num_clients, num_clusters, min_cluster_size
    if B == 0 or k == 1:
        return 0.0
    small = small_cluster_probability(
        cluster_size_std=cluster_size_std, num_clients=M, num_clusters=k, min_cluster_size=B
    )
    return min(1.0, (k - 1) * small) * min(1.0, _ratio((k - 1) * B, M - B))


def _ratio(top: float, bottom: float) -> float:
    """top / bottom, where 0 / 0 is 0 and anything else over 0 is infinite."""
    if bottom > 0:
        return top / bottom
    return 0.0 if top == 0 else math.inf


def _share(part: float, rest: float) -> float:
    """part / (part + rest); 1 where both are 0 or `rest` is 0."""
    return 1.0 if part + rest == 0 or rest == 0 else part / (part + rest)
