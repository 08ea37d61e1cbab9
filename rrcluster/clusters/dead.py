"""Clusters that nobody chooses any more, as far as released sizes can tell."""

import math

import numpy as np

from rrcluster.types import Array

_DEVIATIONS = 2.0  # a size below this many standard deviations of its noise cannot be told from zero
_ONE_CLIENT = 0.5  # nor can one that rounds to no client at all


def dead_clusters(sizes: Array, *, size_noise_std: float | None, memory: float, weight: float = 1.0) -> list[int]:
    """The clusters whose average released size cannot be told from zero; none where the noise would hide any cluster.

    `sizes` (k,) are running averages with `memory` over t rounds, `weight` = 1 - memory^t (1: very many). Their noise
    is that of one round, `size_noise_std`, times sqrt((1 - memory) / (1 + memory) (2 - weight) / weight). None: the
    mechanism does not say, and no cluster is called dead. Released values alone: post-processing.
    """
    if size_noise_std is None or len(sizes) < 2:
        return []
    spread = size_noise_std * math.sqrt((1 - memory) / (1 + memory) * (2 - weight) / weight)
    limit = max(_DEVIATIONS * spread, _ONE_CLIENT)
    if 2 * limit > np.maximum(sizes, 0.0).mean():  # a cluster of half the average size would look dead too
        return []
    return [int(cluster) for cluster in np.flatnonzero(sizes < limit)]
