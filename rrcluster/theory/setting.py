"""Everything the bounds read, under our names; the paper's letter stands beside each."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One round of RR-Cluster (IFCA) with every client in it, as the theory sees it.

    Nothing is refused here: `assumptions.failed_round` says which assumption a setting breaks, by name.
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
        """M / k, clients in a cluster on average."""
        return self.num_clients / self.num_clusters
