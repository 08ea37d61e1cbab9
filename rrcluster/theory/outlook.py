"""Signal to noise of each cluster, from a privacy plan alone: what a run can learn, before any data is touched."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.types import Array

HOPELESS, WEAK = 0.2, 0.6  # signal to noise over the run; what runs below them reached: docs/choosing.md


@dataclass(frozen=True)
class Outlook:
    """What noise leaves of each cluster if every client's update is as long as the clip and all of them agree.

    Both make it an upper bound: real updates point in different directions, and some are shorter. The clip itself
    cancels, because the noise is in units of it.
    """

    sizes: tuple[float, ...]  # (k,) expected clients of a cohort
    per_round: tuple[float, ...]  # (k,) norm of a cluster's sum over the norm of the noise on it, in one round
    over_run: tuple[float, ...]  # (k,) the same for the mean over the rounds that the models handed out average
    size_floor: float  # no sum is divided by less

    @property
    def hopeless(self) -> bool:
        """Whether some cluster cannot learn anything."""
        return min(self.over_run) < HOPELESS

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for who is about to start the run; none where every cluster has enough signal."""
        lines = []
        small = [size for size in self.sizes if size < self.size_floor]
        if small:
            lines.append(
                f"{len(small)} of {len(self.sizes)} clusters are expected to have fewer clients than the floor of "
                f"{self.size_floor:.3g} that sums are divided by: they learn more slowly, by up to a factor of "
                f"{self.size_floor / max(min(small), 1e-9):.2g}."
            )
        least = min(self.over_run)
        if least >= WEAK:
            return tuple(lines)
        what = "hopeless" if self.hopeless else "weak"
        lines.append(
            f"Warning: {what}. The smallest cluster has a signal-to-noise ratio of {least:.2g} over the whole run; "
            f"below {WEAK:g} groups are hardly told apart, below {HOPELESS:g} a cluster learns next to nothing. Use "
            "fewer clusters, a larger cohort (more clients or sample_rate), a smaller network, or a larger epsilon."
        )
        return tuple(lines)


def outlook(
    plan: PrivacyPlan, *, update_clip: float, shares: Array | None = None, average_last: float = 0.5
) -> Outlook:
    """The outlook of a plan; `shares` (k,) of the clients in each cluster are expectations (default: equal).

    Clustered coordinates count, or the shared ones where a method has no others. Noise that is correlated over rounds
    cancels in the models handed out: `over_run` counts what is left of it, where sizes are steady.
    """
    mechanism = plan.mechanism
    k, d = mechanism.num_clusters, mechanism.coordinates
    parts = np.full(k, 1.0 / k) if shares is None or not d.clustered else shares
    sizes = plan.sampler.expected_size * (parts if d.clustered else np.ones(k))
    noise = mechanism.noise_std * math.sqrt(d.clustered or d.shared)
    per_round = sizes * update_clip / noise if noise else np.full(k, np.inf)
    rounds = max(1.0, average_last * plan.num_rounds)
    return Outlook(
        sizes=tuple(sizes.tolist()),
        per_round=tuple(per_round.tolist()),
        over_run=tuple((per_round * math.sqrt(rounds) * _cancelling(plan)).tolist()),
        size_floor=mechanism.size_floor,
    )


def _cancelling(plan: PrivacyPlan) -> float:
    """How much less noise the models handed out have than if that of single rounds were independent; 1 if it is."""
    described = plan.mechanism.describe().correlation
    noise = described.get("noise_of_models_handed_out")
    return float(described["noise_of_a_round"] * noise["independent"] / noise["chosen"]) if noise else 1.0


def expected_shares(expected_ratio: Sequence[float] | None, num_clusters: int) -> Array:
    """(k,) shares of the clients, from the expected sizes of the groups relative to each other; equal by default."""
    ratio = np.ones(num_clusters) if expected_ratio is None else np.asarray(expected_ratio, dtype=np.float64)
    if ratio.shape != (num_clusters,) or not np.isfinite(ratio).all() or (ratio < 0).any() or ratio.sum() <= 0:
        raise ConfigError(
            f"expected_ratio = {expected_ratio} must hold {num_clusters} numbers of at least 0, one for each cluster "
            "and not all 0."
        )
    return np.asarray(ratio / ratio.sum())
