"""Noise against bias for a given B: a model of one run that reads public quantities only (docs/theory.md).

Sizes are expectations. A small cluster is filled up to B by strangers; a donor gives in proportion to its surplus. A
cluster whose noise hides the separation loses its own clients too: choices by loss follow the least noisy model.
"""

from dataclasses import dataclass

import numpy as np

from rrcluster.types import Array

_DEVIATIONS = 4.0  # standard deviations between a choice and a draw for it to be reliable in every round


@dataclass(frozen=True)
class Case:
    """What the trade-off depends on, apart from B."""

    sizes: Array  # (k,) expected clients of each group
    noise: float  # expected squared norm of the noise on one sum: d noise_std^2
    num_coordinates: int
    horizon: float  # rounds that noise is averaged over
    size_floor: float  # no sum is divided by less
    separation: float  # between the mean updates of any two groups, in the unit of the noise


@dataclass(frozen=True)
class Tradeoff:
    """What becomes of each cluster at one B, (k,) each; errors are expected squared distances of the final models."""

    noise: Array
    bias: Array  # squared, at most
    strangers: Array  # share of members that belong elsewhere
    starved: Array  # bool: its own clients choose another cluster

    @property
    def error(self) -> float:
        """Expected squared error, averaged over clusters."""
        return float((self.noise + self.bias).mean())


def trade_off(case: Case, *, min_cluster_size: int) -> Tradeoff:
    """Noise and squared bias of each cluster's model at this B.

    Noise is `noise` / (horizon size^2), size after rebalancing and at least `size_floor`; over `horizon` rounds noise
    averages out and bias does not. A cluster with nobody (B = 0 only) is pulled by nothing: its noise adds up instead.
    A share s of strangers moves the mean by at most s times the separation.
    """
    chosen, wrong = _settled(case, min_cluster_size)
    after = filled(chosen, min_cluster_size=min_cluster_size)
    arrived = np.maximum(min_cluster_size - chosen, 0.0)
    share = np.divide(arrived, after, out=np.zeros_like(after), where=after > 0)
    share += np.divide(wrong, chosen, out=np.zeros_like(after), where=chosen > 0)
    share = np.where((chosen == 0) & (case.sizes > 0), 1.0, np.minimum(share, 1.0))
    per_round = _per_round(case, after)
    return Tradeoff(
        noise=np.where(after > 0, per_round / case.horizon, per_round * case.horizon),
        bias=(share * case.separation) ** 2,
        strangers=share,
        starved=(chosen == 0) & (case.sizes > 0),
    )


def filled(sizes: Array, *, min_cluster_size: int) -> Array:
    """(k,) sizes after rebalancing to B."""
    need = np.maximum(min_cluster_size - sizes, 0.0)
    surplus = np.maximum(sizes - min_cluster_size, 0.0)
    given = surplus * min(1.0, need.sum() / surplus.sum()) if surplus.sum() > 0 else surplus
    return np.asarray(sizes + need - given)


def _settled(case: Case, min_cluster_size: int) -> tuple[Array, Array]:
    """(k,) clients that choose each cluster and (k,) how many of them belong elsewhere, once unreliable ones left."""
    chosen, wrong = case.sizes.astype(np.float64), np.zeros(len(case.sizes))
    for _ in range(len(chosen) - 1):
        room = _room(case, filled(chosen, min_cluster_size=min_cluster_size))
        room[chosen == 0] = np.inf
        worst = int(room.argmin())
        if room[worst] >= 0:
            break
        quietest = int(np.where(np.arange(len(chosen)) == worst, -1.0, chosen).argmax())
        moving = np.zeros(len(chosen))
        moving[[worst, quietest]] = -chosen[worst], chosen[worst]
        chosen, wrong = chosen + moving, wrong + np.maximum(moving, 0.0)
        wrong[worst] = 0.0
    return chosen, wrong


def _room(case: Case, sizes: Array) -> Array:
    """(k,) how far, in squared length, choices of each group are from following the noise; negative: they do.

    A client compares |e_j|^2, the noise of its own cluster's model, with separation^2 + |e_l|^2 + a cross term, for the
    least noisy model l. The means differ by separation^2 - V_j + V_l; each |e|^2 has the variance 2 V^2 / d, the cross
    term 4 separation^2 V_l / d.
    """
    variance = _per_round(case, sizes)
    least, square = variance.min(), case.separation**2
    spread = np.sqrt((2 * variance**2 + 2 * least**2 + 4 * square * least) / case.num_coordinates)
    return np.asarray(square - (variance - least) - _DEVIATIONS * spread)


def _per_round(case: Case, sizes: Array) -> Array:
    return np.asarray(case.noise / np.maximum(sizes, case.size_floor) ** 2)
