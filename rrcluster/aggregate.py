"""What the server makes of releases: smoothed sizes, shrinkage, the step of the models, their average.

All of it is post-processing: it reads releases and public settings, never a raw value, and costs no privacy.
"""

from dataclasses import dataclass, replace

import numpy as np

from rrcluster import checks
from rrcluster.clusters.rebalancing import expected_sizes
from rrcluster.privacy.mixture import centres_of
from rrcluster.types import Array, Models, Release

_FORGETTING = 0.6  # power of the round with which statistics of projections forget: between a mean and the last value


@dataclass(frozen=True)
class ServerSettings:
    """How the server moves the models."""

    server_lr: float = 1.0
    server_momentum: float = 0.0
    memory: float = 0.9  # of the running averages of released sizes and sums
    average_last: float = 0.5  # the models handed out are the mean over this last part of the rounds; 0: the last ones
    exploration: float = 1.0  # how strongly early rounds tell clusters apart (clusters/choice.py); 0 is the base method
    init: str = "independent"  # how the k models come to differ (clusters/schedule.py)
    init_rounds: int = 0  # rounds of the plan that `init` takes; 0 where it takes none

    def __post_init__(self) -> None:
        checks.positive(server_lr=self.server_lr)
        checks.fraction(server_momentum=self.server_momentum)
        checks.fraction(memory=self.memory)
        checks.non_negative(exploration=self.exploration)
        if self.average_last != 1:
            checks.fraction(average_last=self.average_last)


@dataclass(frozen=True)
class RunningMean:
    """An exponential moving average with its weight, so that early values are not biased towards zero."""

    total: Array
    weight: float = 0.0

    def updated(self, value: Array, *, memory: float) -> "RunningMean":
        """Forget by `memory`, then take `value` in."""
        return RunningMean(memory * self.total + (1 - memory) * value, memory * self.weight + (1 - memory))

    @property
    def empty(self) -> bool:
        """Nothing seen yet."""
        return self.weight == 0

    @property
    def mean(self) -> Array:
        """The average so far."""
        return np.asarray(self.total / self.weight)


@dataclass(frozen=True)
class ServerState:
    """All the server remembers between rounds. Made of releases only, hence public."""

    models: Models
    velocity: Models
    average: Models  # mean of the models of the last rounds
    num_averaged: int
    sizes: RunningMean  # (k,) natural sizes
    sums: RunningMean  # (k, d_c) cluster sums, for shrinkage
    round_index: int = 0
    projections: RunningMean | None = None  # (k, p + 1) statistics of noisy projections, where identifiers are such

    @property
    def centres(self) -> Array | None:
        """(k, p) centres of the projections released so far; None before the first."""
        return None if self.projections is None else centres_of(self.projections.mean)

    @classmethod
    def fresh(cls, models: Models) -> "ServerState":
        """The state before the first round."""
        zero = Models(np.zeros_like(models.shared), np.zeros_like(models.clustered))
        return cls(
            models=models,
            velocity=zero,
            average=models,
            num_averaged=0,
            sizes=RunningMean(np.zeros(models.num_clusters)),
            sums=RunningMean(np.zeros_like(models.clustered)),
        )


def remember(state: ServerState, release: Release, *, memory: float, sums: bool) -> ServerState:
    """Take the release's sizes and projections into the running averages, and its sums where they will be needed."""
    projections = state.projections
    if release.projections is not None:
        projections = projections or RunningMean(np.zeros_like(release.projections))
        kept = 1 - (state.round_index + 1) ** -_FORGETTING
        projections = projections.updated(release.projections, memory=kept)
    return replace(
        state,
        projections=projections,
        sizes=state.sizes.updated(release.sizes, memory=memory),
        sums=state.sums.updated(release.cluster_sums, memory=memory) if sums else state.sums,
    )


def smooth_sizes(
    release: Release, sizes: RunningMean, transition: Array, *, least: float, size_floor: float
) -> Release:
    """Replace one round's noisy denominators by those of the running average of released sizes.

    Block j' is divided by the public expectation of its size after the coins, at least `least`; shared coordinates
    by the sum of sizes, at least k times `size_floor`. With the identity transition (B = 0) no coin is expected to
    move.
    """
    natural = np.maximum(sizes.mean, 0.0)
    return replace(
        release,
        denominators=np.maximum(expected_sizes(natural, transition), max(least, 1.0)),
        shared_denominator=float(max(len(natural) * size_floor, natural.sum(), 1.0)),
    )


def shrink(release: Release, sums: RunningMean, *, memory: float) -> Release:
    """Shrink each noisy cluster mean towards the pooled mean of the others, by as much as its known noise calls for.

    theta_j = (1 - a) Y_j + a Y_-j with a = V_j / (V_j + V_-j + b_j^2): the least mean squared error for the noise
    variances V and the squared distance b_j^2 of the true means, since Y_j and Y_-j have independent noise. Over many
    rounds noise averages out and bias does not, so V is divided by the horizon R = (1 + memory) / (1 - memory), and
    b_j^2 is estimated, without bias before truncation at zero, from the running average of the noisy sums.
    Section "Shrinkage" of docs/privacy.md. With one cluster nothing changes.
    """
    k, width = release.cluster_sums.shape
    if k == 1 or width == 0:
        return release
    n = release.denominators
    others = n.sum() - n
    horizon = (1 + memory) / (1 - memory)
    variance = width * release.sum_noise_std**2 / n**2 / horizon
    pooled_variance = (k - 1) * width * release.sum_noise_std**2 / others**2 / horizon
    steady = sums.mean
    gap = steady / n[:, None] - (steady.sum(axis=0) - steady) / others[:, None]
    distance = np.maximum(0.0, (gap**2).sum(axis=1) - variance - pooled_variance)
    weight = variance / (variance + pooled_variance + distance)
    means = release.cluster_sums / n[:, None]
    pooled = (release.cluster_sums.sum(axis=0) - release.cluster_sums) / others[:, None]
    shrunk = (1 - weight)[:, None] * means + weight[:, None] * pooled
    return replace(release, cluster_sums=shrunk * n[:, None])


def advance(state: ServerState, release: Release, *, server: ServerSettings, num_rounds: int) -> ServerState:
    """Move the models by the release's means (with momentum if asked) and average those of the last rounds."""
    means = Models(release.shared_mean, release.cluster_means)
    velocity = means.plus(state.velocity, server.server_momentum) if server.server_momentum else means
    models = state.models.plus(velocity, server.server_lr)
    in_average = state.round_index + 1 > num_rounds * (1 - server.average_last)
    count = state.num_averaged + 1 if in_average else 0
    step = Models(models.shared - state.average.shared, models.clustered - state.average.clustered)
    return replace(
        state,
        models=models,
        velocity=velocity,
        average=state.average.plus(step, 1 / count) if count > 1 else models,
        num_averaged=count,
        round_index=state.round_index + 1,
    )
