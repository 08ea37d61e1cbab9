"""Cluster noisy points: a mixture of k Gaussians of one common variance and equal weights, fitted by EM.

Everything here reads points that are private already and public statistics of earlier ones: post-processing.
"""

import math
from dataclasses import dataclass

import numpy as np

from rrcluster.rng import Rng
from rrcluster.types import Array

_ITERATIONS, _STARTS = 30, 10
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class Mixture:
    """Centres (k, p) and the variance of every coordinate around them."""

    centres: Array
    variance: float

    def responsibilities(self, points: Array) -> Array:
        """(n, k) probability of each centre given the point."""
        scores = -_squares(points, self.centres) / (2 * self.variance)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def assign(self, points: Array) -> Array:
        """(n,) the most probable centre: with equal weights, the nearest."""
        return np.asarray(_squares(points, self.centres).argmin(axis=1))

    def statistics(self, points: Array) -> Array:
        """(k, p + 1) sums of the points of each cluster, weighted by responsibility, and of the weights."""
        weights = self.responsibilities(points)
        return np.hstack([weights.T @ points, weights.sum(axis=0)[:, None]])


def centres_of(statistics: Array) -> Array:
    """(k, p) from (k, p + 1) sums and weights; a cluster without weight is at 0."""
    return np.asarray(statistics[:, :-1] / np.maximum(statistics[:, -1:], 1e-9))


def from_centres(centres: Array, points: Array, *, noise_std: float) -> Mixture:
    """The mixture around given centres; its variance is that of the points around the nearest, at least the noise's."""
    return Mixture(centres, _variance(points, centres, noise_std))


def fit(points: Array, *, num_clusters: int, noise_std: float, rng: Rng) -> Mixture:
    """EM from several random starts, the likeliest result; for the first round, when no centres are known.

    Starts are points far from one another (k-means++). `noise_std` is what each coordinate is known to have at least.
    """
    candidates = [_em(points, _spread(points, num_clusters, rng), noise_std) for _ in range(_STARTS)]
    return max(candidates, key=lambda found: _likelihood(points, found))


def _em(points: Array, centres: Array, noise_std: float) -> Mixture:
    found = from_centres(centres, points, noise_std=noise_std)
    for _ in range(_ITERATIONS):
        found = from_centres(centres_of(found.statistics(points)), points, noise_std=noise_std)
    return found


def _spread(points: Array, num_clusters: int, rng: Rng) -> Array:
    chosen = [points[int(rng.integers(len(points), size=1)[0])]]
    for draw in rng.random(num_clusters - 1):
        gaps = _squares(points, np.stack(chosen)).min(axis=1)
        place = int(np.searchsorted(np.cumsum(gaps), draw * gaps.sum()))
        chosen.append(points[min(place, len(points) - 1)])
    return np.stack(chosen)


def _likelihood(points: Array, found: Mixture) -> float:
    scores = -_squares(points, found.centres) / (2 * found.variance)
    width = int(points.shape[1])
    return float(np.logaddexp.reduce(scores, axis=1).sum()) - len(points) * width / 2 * math.log(found.variance)


def _variance(points: Array, centres: Array, noise_std: float) -> float:
    around = float(_squares(points, centres).min(axis=1).mean()) / int(points.shape[1])
    return max(around, noise_std**2, _LEAST_VARIANCE)


def _squares(points: Array, centres: Array) -> Array:
    return np.asarray(((points[:, None, :] - centres[None]) ** 2).sum(axis=2))
