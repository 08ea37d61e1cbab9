"""The server's use of releases: smoothed sizes, the step of the models, their average.

All of it is post-processing: it reads releases and public settings, never a raw value, and costs no privacy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rrcluster.privacy.mechanism import Mechanism
from rrcluster.privacy.rebalancing import expected_sizes
from rrcluster.server.survey import Survey
from rrcluster.settings import ServerSettings
from rrcluster.types import Array, Models, Release

CATCH_UP = 3.0  # growth of steps after a survey where noise is small, in units of the share of rounds lost to it
RAMP = 0.5  # share of the rounds in which steps grow to full length, in a run that starts from trained models
QUIET = 0.35  # a cluster's signal to noise in a round above which steps grow after a survey


@dataclass(frozen=True)
class RunningMean:
    """An exponential moving average with its weight, so that early values are not biased towards zero."""

    total: Array
    weight: float = 0.0

    def updated(self, value: Array, *, memory: float) -> "RunningMean":
        """Decay by `memory`, then add `value`."""
        return RunningMean(memory * self.total + (1 - memory) * value, memory * self.weight + (1 - memory))

    @property
    def empty(self) -> bool:
        """Whether no value was added yet."""
        return self.weight == 0

    @property
    def mean(self) -> Array:
        """The average so far."""
        return np.asarray(self.total / self.weight)


@dataclass(frozen=True)
class ServerState:
    """The server's state between rounds. Made of releases only, hence public."""

    models: Models
    velocity: Models
    average: Models  # mean of the models of the last rounds
    num_averaged: int
    sizes: RunningMean  # (k,) natural sizes
    round_index: int = 0
    survey: Survey | None = None  # the survey's results, if the run has one
    # facts of a questionnaire, or the models the run started from
    learnt: Mapping[str, Array] = field(default_factory=dict)

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
        )

    @classmethod
    def going_on(cls, models: Models) -> "ServerState":
        """The state before the first round of a run that starts from another run's models, which it remembers."""
        learnt = {"start.shared": models.shared, "start.clustered": models.clustered}
        return replace(cls.fresh(models), learnt=learnt)

    @property
    def start(self) -> Models | None:
        """The initial models, from which clients train."""
        if "start.shared" not in self.learnt:
            return None
        return Models(self.learnt["start.shared"], self.learnt["start.clustered"])

    @property
    def hands_out_start(self) -> bool:
        """Whether the released models would be the run's initial ones."""
        return self.start is not None and np.array_equal(self.average.rows, self.start.rows)

    def judges_start(self, round_index: int, num_rounds: int) -> bool:
        """Whether private evaluation in a round judges the initial models: in round 0, and every second but the last.

        Initial and final models are thus judged on the same clients' rows, with similar noise.
        """
        return self.start is not None and (round_index == 0 or (num_rounds - round_index) % 2 == 0)

    def with_open(self, num_open: int) -> "ServerState":
        """The state with the first model in place of those of closed clusters."""
        places = np.arange(self.models.num_clusters)
        places[num_open:] = 0
        models, average = (Models(kind.shared, kind.clustered[places]) for kind in (self.models, self.average))
        return replace(self, models=models, average=average)


def only_first(sizes: Array, num_open: int) -> Array:
    """Sizes without those of closed clusters, which are pure noise."""
    return np.where(np.arange(len(sizes)) < num_open, sizes, 0.0)


def smooth_sizes(
    release: Release, sizes: RunningMean, transition: Array, mechanism: Mechanism, *, num_used: int
) -> Release:
    """Replace one round's noisy denominators by those of the running average of released sizes.

    Block j' is divided by the public expectation of its size after the coins, at least the floor and B; shared
    coordinates by the sum of sizes, at least k times the floor. With the identity transition (B = 0) no coin is
    expected to move. Where fewer than k clusters are used they are larger, and so is the floor.
    """
    natural = np.maximum(sizes.mean, 0.0)
    least = max(mechanism.size_floor * mechanism.num_clusters / num_used, mechanism.min_cluster_size, 1.0)
    return replace(
        release,
        denominators=np.maximum(expected_sizes(natural, transition), least),
        shared_denominator=float(max(len(natural) * mechanism.size_floor, natural.sum(), 1.0)),
    )


def lengthened(release: Release, mechanism: Mechanism, *, num_rounds: int, lost: int, found: bool) -> Release:
    """The release with longer steps, which make up for rounds `lost` to questions.

    Where noise is small, steps grow by the share of rounds lost, three times as much where the survey `found` groups,
    and at most to double length. Longer steps also carry more noise: clusters take a part s^4
    (s^4 + s0^4) of the growth, s their signal to noise in a round.
    """
    noise = release.sum_noise_std * np.sqrt(mechanism.coordinates.clustered)
    signal = release.denominators * mechanism.update_clip if noise else np.ones_like(release.denominators)
    part = signal**4 / (signal**4 + (QUIET * noise) ** 4)
    factors = 1 + part * min((CATCH_UP if found else 1.0) * lost / (num_rounds - lost), 1.0)
    return replace(release, cluster_sums=release.cluster_sums * factors[:, None], step_factors=factors)


def advance(state: ServerState, release: Release, *, settings: ServerSettings, num_rounds: int) -> ServerState:
    """Move the models by the release's means (with momentum if asked) and average those of the last rounds."""
    means = Models(release.shared_mean, release.cluster_means)
    velocity = means.plus(state.velocity, settings.server_momentum) if settings.server_momentum else means
    begins = 1.0 if settings.start_from is None else min((state.round_index + 1) / (RAMP * num_rounds), 1.0)
    models = state.models.plus(velocity, settings.server_lr * begins)
    in_average = state.round_index + 1 > num_rounds * (1 - settings.average_last)
    count = state.num_averaged + 1 if in_average else 0
    average = models
    if count > 1:
        step = Models(models.shared - state.average.shared, models.clustered - state.average.clustered)
        average = state.average.plus(step, 1 / count)
    return replace(
        state, models=models, velocity=velocity, average=average, num_averaged=count, round_index=state.round_index + 1
    )
