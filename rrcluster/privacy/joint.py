"""The joint mechanism: one Gaussian release of everything a round needs (Theorem 1 of docs/privacy.md)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.privacy.clip import check_clip, clip_to_grid, grid_step
from rrcluster.privacy.events import ADD_REMOVE, PoissonGaussian
from rrcluster.privacy.relation import joint_sensitivity
from rrcluster.privacy.reports import Reports, check_reports
from rrcluster.privacy.sampling import PoissonSampler
from rrcluster.privacy.sums import cluster_sums, gaussian_noise, make_release, split_columns
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, NoisyEvaluation, Release

_EVALUATION_GRID = 2.0**-32  # evaluations are rounded to multiples of this, so that their sum is exact too


@dataclass(frozen=True)
class JointMechanism:
    """Client i sends (shared, destination x clustered, choice x w, u x evaluation); the sum gets Gaussian noise.

    (shared, clustered) is under one clip C; the evaluation is (accuracy - 1/2, loss / loss_bound - 1/2), each within
    half of zero whatever the client says, and absent at u = 0.
    Guarantee (add-remove, Poisson cohorts): one message has norm at most S = sqrt(C^2 + w^2 + u^2 / 2) whatever blocks
    it occupies, so T rounds are dominated by T Poisson-subsampled Gaussians with multiplier `noise_multiplier`. The
    choice needs no noise of its own. All k blocks and counts are always released, for empty clusters and empty cohorts
    too. An invalid report is the zero message, count and evaluation included: the client is as if absent.
    `noise_multiplier = 0` is for tests of the sensitivity; it has no event and so no epsilon.
    """

    coordinates: Coordinates
    num_clusters: int
    update_clip: float
    count_weight: float  # w, absolute
    noise_multiplier: float
    sample_rate: float
    num_clients: int
    size_floor: float
    min_cluster_size: int = 0
    evaluation_weight: float = 0.0  # u, absolute
    loss_bound: float = 1.0  # a loss of this or more is reported as this

    name: ClassVar[str] = "joint"
    adjacency: ClassVar[str] = ADD_REMOVE

    def __post_init__(self) -> None:
        checks.count(num_clusters=self.num_clusters)
        check_clip(self.update_clip)
        checks.non_negative(count_weight=self.count_weight)
        checks.non_negative(noise_multiplier=self.noise_multiplier)
        checks.non_negative(size_floor=self.size_floor)
        checks.non_negative(evaluation_weight=self.evaluation_weight)
        checks.positive(loss_bound=self.loss_bound)

    @property
    def sampler(self) -> PoissonSampler:
        """Who takes part."""
        return PoissonSampler(self.sample_rate, self.num_clients)

    @property
    def event(self) -> PoissonGaussian:
        """What one round costs."""
        return PoissonGaussian(self.noise_multiplier, self.sample_rate)

    @property
    def sensitivity(self) -> float:
        """S."""
        return joint_sensitivity(
            update_clip=self.update_clip,
            count_weight=self.count_weight,
            evaluation_weight=self.evaluation_weight,
            adjacency=self.adjacency,
        )

    @property
    def noise_std(self) -> float:
        """Std of the noise on every coordinate of every sum, counts and evaluations (in units of w and u) too."""
        return self.noise_multiplier * self.sensitivity

    def release(
        self,
        updates: Any,
        choices: Any,
        *,
        rng: Rng,
        destinations: Any = None,
        client_ids: Any = None,
        evaluations: Any = None,
    ) -> Release:
        """Validate, clip, sum and add noise: the only look at raw reports."""
        self._check_evaluated(evaluations is not None)
        reports = check_reports(
            updates,
            choices,
            width=self.coordinates.width,
            num_clusters=self.num_clusters,
            destinations=destinations,
            client_ids=client_ids,
            evaluations=evaluations,
        )
        step = grid_step(self.update_clip)
        messages = clip_to_grid(reports.updates, update_clip=self.update_clip)
        shared, clustered = split_columns(messages, self.coordinates)
        sums = cluster_sums(clustered, reports.destinations, num_clusters=self.num_clusters)
        counts = np.bincount(reports.choices[reports.valid], minlength=self.num_clusters)
        shared_noise, noise, count_noise, evaluation_noise = self._noise(rng)
        sizes = self._sizes(counts * self.count_weight + count_noise)
        return make_release(
            shared.sum(axis=0) * step + shared_noise,
            sums * step + noise,
            sizes,
            evaluation=self._evaluation(_centred_sum(reports), evaluation_noise, sizes),
            size_floor=self.size_floor,
            min_cluster_size=self.min_cluster_size,
            sum_noise_std=self.noise_std,
            size_noise_std=self._size_noise_std,
        )

    @property
    def _size_noise_std(self) -> float:
        return self.noise_std / self.count_weight if self.count_weight else 0.0

    def _noise(self, rng: Rng) -> tuple[Array, Array, Array, Array]:
        """For the shared sum, the cluster sums, the count row, and last (not to shift the others) the evaluation."""
        k, d_s, d_c = self.num_clusters, self.coordinates.shared, self.coordinates.clustered
        noise = gaussian_noise((d_s + k * (d_c + 1) + 2,), noise_std=self.noise_std, rng=rng)
        shared, clustered, counts, evaluation = np.split(noise, np.cumsum([d_s, k * d_c, k]))
        return shared, clustered.reshape(k, d_c), counts, evaluation

    def _evaluation(self, sums: Array, noise: Array, sizes: Array) -> NoisyEvaluation | None:
        """From the exact sums of evaluations, their noise, and the noisy sizes; nothing where u = 0."""
        if self.evaluation_weight == 0:
            return None
        return NoisyEvaluation(
            sums=(sums * self.evaluation_weight + noise) / self.evaluation_weight,
            clients=float(sizes.sum()),
            sum_noise_std=self.noise_std / self.evaluation_weight,
            clients_noise_std=self._size_noise_std * math.sqrt(self.num_clusters),
            loss_bound=self.loss_bound,
            least_clients=max(self.num_clusters * self.size_floor, 1.0),
        )

    def _check_evaluated(self, given: bool) -> None:
        if given != (self.evaluation_weight > 0):
            raise ConfigError(
                f"evaluations were {'' if given else 'not '}given, but the plan has private_evaluation "
                f"{'off' if given else 'on'}; the two must agree."
            )

    def _sizes(self, count_row: Array) -> Array:
        """Sizes from the noisy count row; without one (w = 0) the public expectation, a constant."""
        if self.count_weight == 0:
            return np.full(self.num_clusters, self.sampler.expected_size / self.num_clusters)
        return count_row / self.count_weight


def _centred_sum(reports: Reports) -> Array:
    """(2,) exact sum over the valid reports of evaluations in [0, 1], each moved to [-1/2, 1/2]."""
    centred = np.trunc((reports.evaluations[reports.valid] - 0.5) / _EVALUATION_GRID).astype(np.int64)
    return np.asarray(centred.sum(axis=0) * _EVALUATION_GRID)
