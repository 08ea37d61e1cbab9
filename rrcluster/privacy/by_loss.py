"""Choices made private on clipped losses: the exact worst case of the exponential mechanism and of permute-and-flip.

Both read a client's k losses above its least one, clipped and scaled to c in [0, 1]^k. Whatever the losses are, the
law of the answer is a mixture of *corner laws*, those of c in {0, 1}^k (Theorem 5 of docs/privacy.md), which give one
probability to each of the s clusters at 0 and another to each of the rest. Divergences are jointly convex, so the worst
pair of neighbours is a pair of corners. All that can be worst are enumerated; nothing here is a bound on a bound.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from rrcluster import checks
from rrcluster.privacy.events import LOSS_RULES
from rrcluster.privacy.profiles import Array, gaussian_delta

_ROUNDING = 1e-15  # in delta: a pair that exceeds another by less is taken for dominated


@dataclass(frozen=True)
class Pair:
    """Two laws on finitely many answers: masses of the first, and the privacy loss ln(first / second) of each."""

    masses: tuple[float, ...]
    losses: tuple[float, ...]

    def delta(self, epsilon: Array, noise_multiplier: float) -> Array:
        """Profile of this pair followed by a Gaussian release: sum of mass x G(epsilon - loss)."""
        parts = [
            m * gaussian_delta(epsilon - loss, noise_multiplier)
            for m, loss in zip(self.masses, self.losses, strict=True)
        ]
        return np.asarray(sum(parts))

    def rdp(self, orders: ArrayLike) -> Array:
        """Renyi divergence, for finite orders greater than 1."""
        a = np.asarray(orders, dtype=np.float64)[..., None]
        moment = np.logaddexp.reduce(np.log(self.masses) + (a - 1) * np.asarray(self.losses), axis=-1)
        return np.asarray(np.maximum(moment, 0.0) / (a[..., 0] - 1))

    def alone(self, epsilon: Array) -> Array:
        """Profile of this pair without any other release."""
        gaps = np.subtract.outer(np.asarray(self.losses), epsilon)
        return np.asarray((np.asarray(self.masses)[:, None] * -np.expm1(-np.maximum(gaps, 0.0))).sum(axis=0))


def corner_law(rule: str, epsilon: float, num_clusters: int, at_zero: int) -> tuple[float, float]:
    """(log A, log B): of one given cluster of the `at_zero` at loss 0, and of one given other at the loss bound.

    Exponential mechanism: in the ratio exp(epsilon / 2) to 1. Permute-and-flip (McKenna, Sheldon 2020): clusters at 0
    say yes when asked and the others with probability exp(-epsilon / 2); asked in random order, i.e. at uniform times
    x, the first yes is the answer, so A = integral of (1 - x)^(s-1) (1 - lx)^(k-s) and B = l (1 - x)^s (1 -
    lx)^(k-s-1). The integrands are polynomials of degree k - 1 without a sign, exact under Gauss-Legendre.
    """
    k, s, half = num_clusters, at_zero, epsilon / 2
    if rule == "exponential":
        total = np.logaddexp(math.log(s) + half, math.log(k - s))
        return float(half - total), float(-total)
    yes = math.exp(-half)
    nodes, weights = np.polynomial.legendre.leggauss(k // 2 + 1)
    x, w = (nodes + 1) / 2, weights / 2
    inside = (w * (1 - x) ** (s - 1) * (1 - yes * x) ** (k - s)).sum()
    outside = (w * (1 - x) ** s * (1 - yes * x) ** (k - s - 1)).sum()
    return math.log(inside), math.log(outside) - half


@lru_cache(maxsize=64)
def worst_pairs(rule: str, epsilon: float, num_clusters: int) -> tuple[Pair, ...]:
    """The pairs of corner laws that no other pair dominates; the worst case at every order is among them.

    For given s and s' the fewer clusters are at 0 in both, the worse (Theorem 5), so there are (k - 1)^2 candidates.
    Dropped is one whose profile is nowhere above another's: then it is post-processing of that one (Blackwell), and
    stays so after any further release. Profiles are linear in exp(epsilon) between losses, so comparing them at all
    losses compares them everywhere.
    """
    checks.one_of(LOSS_RULES, rule=rule)
    k = checks.count(num_clusters=num_clusters, at_least=2)
    laws = {s: corner_law(rule, epsilon, k, s) for s in range(1, k)}
    pairs = [_pair(laws[s], laws[t], _cells(k, s, t)) for s in laws for t in laws]
    knots = np.unique([loss for pair in pairs for loss in pair.losses])
    profiles = np.stack([pair.alone(knots) for pair in pairs])
    kept: list[int] = []
    for place in np.argsort(-profiles.sum(axis=1), kind="stable"):  # whoever dominates comes first
        if not any((profiles[place] <= profiles[other] + _ROUNDING).all() for other in kept):
            kept.append(int(place))
    return tuple(pairs[place] for place in kept)


def by_loss_gaussian_delta(
    epsilon: ArrayLike, noise_multiplier: float, *, rule: str, identifier_epsilon: float, num_clusters: int
) -> Array:
    """Profile of a choice by loss followed by a Gaussian release, under replace-one. Exact (Theorem 5)."""
    eps = np.asarray(epsilon, dtype=np.float64)
    pairs = worst_pairs(rule, identifier_epsilon, num_clusters)
    return np.asarray(np.max([pair.delta(eps, noise_multiplier) for pair in pairs], axis=0))


def by_loss_rdp(orders: ArrayLike, rule: str, identifier_epsilon: float, num_clusters: int) -> Array:
    """RDP of a choice by loss under replace-one, exact, for finite orders greater than 1 (Theorem 5)."""
    pairs = worst_pairs(rule, identifier_epsilon, num_clusters)
    return np.asarray(np.max([pair.rdp(orders) for pair in pairs], axis=0))


def largest_loss(rule: str, identifier_epsilon: float, num_clusters: int) -> float:
    """Largest privacy loss of one answer: the pure epsilon that the choice really has, at most `identifier_epsilon`."""
    return max(max(pair.losses) for pair in worst_pairs(rule, identifier_epsilon, num_clusters))


def clear_choice_kept(rule: str, identifier_epsilon: float, num_clusters: int) -> float:
    """Probability that a choice whose loss is lower than all others by the whole bound is the answer."""
    return math.exp(corner_law(rule, identifier_epsilon, num_clusters, 1)[0])


def _cells(k: int, s: int, t: int) -> tuple[int, int, int, int]:
    """How many clusters are at 0 in both corners, in the first alone, in the second alone, in neither."""
    both = max(0, s + t - k)
    return both, s - both, t - both, k - s - t + both


def _pair(one: tuple[float, float], two: tuple[float, float], counts: tuple[int, int, int, int]) -> Pair:
    first, second = (one[0], one[0], one[1], one[1]), (two[0], two[1], two[0], two[1])
    cells = [(n * math.exp(p), p - q) for n, p, q in zip(counts, first, second, strict=True) if n]
    return Pair(tuple(mass for mass, _ in cells), tuple(loss for _, loss in cells))
