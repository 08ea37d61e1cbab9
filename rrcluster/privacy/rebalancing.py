"""Random rebalancing of small clusters: exact (the paper's), and by each client's own coin (ours).

B = `min_cluster_size`. B = 0 is exactly the base method in both.
"""

from typing import Any

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng
from rrcluster.types import Array


def rebalance(assignment: Any, *, num_clusters: int, min_cluster_size: int, rng: Rng) -> Any:
    """Move random clients from large clusters until every cluster has `min_cluster_size` (B).

    Guarantees: every cluster ends with at least B clients; a cluster that was small ends with exactly B; no client
    moves twice and no donor falls below B; B = 0 returns the input unchanged. Movers are a uniform draw, without
    replacement, from the pooled surplus (a cluster of size s > B offers s - B members, themselves a uniform draw).

    Privacy: reads no updates. Given noisy identifiers it is post-processing under replace-one; on raw choices under
    add-remove it is not private at this noise (Theorem 2 of docs/privacy.md), which is why `joint` uses coins.
    Paper: Algorithm 1, the rebalancing step. There a cluster is large from |S_j| >= B on, so a donor of size B can fall
    below it; here only the surplus of |S_j| > B is offered.

    `assignment` is (n,) numpy or torch; the answer is of the same kind. Raises ConfigError if num_clusters * B > n.
    """
    checks.count(num_clusters=num_clusters)
    checks.count(min_cluster_size=min_cluster_size, at_least=0)
    if hasattr(assignment, "detach"):
        moved = rebalance(
            assignment.detach().cpu().numpy(), num_clusters=num_clusters, min_cluster_size=min_cluster_size, rng=rng
        )
        return assignment.new_tensor(moved)
    assignment = _checked(assignment, num_clusters, min_cluster_size)
    if min_cluster_size == 0:
        return assignment.copy()
    sizes = np.bincount(assignment, minlength=num_clusters)
    slots = np.repeat(np.arange(num_clusters), np.maximum(min_cluster_size - sizes, 0))
    surplus = [
        rng.permutation(np.flatnonzero(assignment == cluster))[min_cluster_size:]
        for cluster in range(num_clusters)
        if sizes[cluster] > min_cluster_size
    ]
    moved = assignment.copy()
    if len(slots):
        moved[rng.choice(np.concatenate(surplus), size=len(slots), replace=False)] = slots
    return moved


def coin_transition(sizes: Array, *, min_cluster_size: int) -> Array:
    """(k, k) probabilities: row j says where the coin of a client that chose cluster j sends it.

    `sizes` are *released* natural sizes of earlier rounds, so the probabilities are public and a coin costs no privacy
    (corollary of Theorem 1, docs/privacy.md). As in the exact rule, movers come from the pooled surplus over B: cluster
    j is expected to give its share of the need, surplus_j / (sum of surpluses), and never more than its surplus.
    Guarantees, in expectation over the coins and for the given sizes: small clusters reach B whenever the surpluses
    suffice, no donor falls below B, and B = 0 gives the identity.
    """
    natural = np.maximum(np.asarray(sizes, dtype=np.float64), 0.0)
    need = np.maximum(min_cluster_size - natural, 0.0)
    surplus = np.maximum(natural - min_cluster_size, 0.0)
    if min_cluster_size == 0 or need.sum() == 0 or surplus.sum() == 0:
        return np.eye(len(natural))
    leaving = np.divide(surplus, natural, out=np.zeros_like(natural), where=natural > 0)
    leaving *= min(1.0, need.sum() / surplus.sum())
    return np.diag(1.0 - leaving) + np.outer(leaving, need / need.sum())


def flip_coins(choices: Array, transition: Array, *, uniforms: Array) -> Array:
    """Destinations (n,): client i leaves its choice for j' with probability transition[choice, j'].

    `uniforms` (n,) are each client's own draws in (0, 1), keyed by its id. A client that stays is decided first, so
    with the identity transition (B = 0) nobody moves whatever the draws.
    """
    k = len(transition)
    order = np.array([[j, *(i for i in range(k) if i != j)] for j in range(k)])  # staying comes first
    ladder = np.cumsum(np.take_along_axis(transition, order, axis=1), axis=1)[choices]
    step = np.minimum((uniforms[:, None] >= ladder).sum(axis=1), k - 1)
    return np.asarray(order[choices, step])


def expected_sizes(sizes: Array, transition: Array) -> Array:
    """(k,) expected sizes after the coins, from released natural sizes: a public denominator."""
    return np.maximum(np.asarray(sizes, dtype=np.float64), 0.0) @ transition


def _checked(assignment: Any, num_clusters: int, min_cluster_size: int) -> Array:
    clusters = np.asarray(assignment)
    if clusters.ndim != 1 or clusters.dtype.kind not in "iu":
        raise ConfigError(f"assignment must be a vector of whole numbers, not {clusters.ndim}-D {clusters.dtype}.")
    if len(clusters) and not 0 <= clusters.min() <= clusters.max() < num_clusters:
        raise ConfigError(f"assignment must lie in 0..{num_clusters - 1} for {num_clusters} clusters.")
    if num_clusters * min_cluster_size > len(clusters):
        raise ConfigError(
            f"min_cluster_size (B) = {min_cluster_size} needs {num_clusters * min_cluster_size} clients for "
            f"{num_clusters} clusters, but this round has {len(clusters)}; lower B or raise sample_rate."
        )
    return clusters
