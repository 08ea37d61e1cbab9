"""The joint mechanism: one Gaussian release of everything a round needs (Theorem 1 of docs/privacy.md)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.privacy.clip import check_clip, check_sums_fit, clip_to_grid, grid_step
from rrcluster.privacy.events import ADD_REMOVE, PoissonGaussian
from rrcluster.privacy.relation import joint_sensitivity
from rrcluster.privacy.reports import Reports, as_numpy, check_reports
from rrcluster.privacy.sampling import PoissonSampler
from rrcluster.privacy.sums import cluster_sums, grid_noise, make_release, split_columns
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, NoisyEvaluation, Release


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
    exact_noise: bool = False  # discrete Gaussian on the messages' grid, from the operating system

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
        least, most = grid_step(self.update_clip), 16 * self.update_clip  # whole steps, and sums that fit 64 bits
        if self.count_weight > 0 and not least <= self.count_weight <= most:
            raise ConfigError(
                f"count_weight = {self.count_weight:g} is below the grid of the messages or far above them; use 0 (no "
                f"count row), or from {least:g} to {most:g} (16 clips)."
            )
        if self.evaluation_weight > most:
            raise ConfigError(
                f"private_evaluation = {self.evaluation_weight:g} is above {most:g} (16 clips); lower it."
            )
        self._check_sums_fit(self.num_clients)

    def _check_sums_fit(self, num_messages: int) -> None:
        largest = max(self.update_clip, self.count_weight, self.evaluation_weight / 2)
        check_sums_fit(num_messages, largest=largest, update_clip=self.update_clip)

    @property
    def count_units(self) -> int:
        """The count weight in grid steps, rounded down: messages only get shorter by it."""
        return int(self.count_weight / grid_step(self.update_clip))

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
        """Validate, clip, sum and add noise: the only look at raw reports.

        The noise is drawn first: it depends on no report, and a device may still be computing them.
        """
        self._check_evaluated(evaluations is not None)
        step, blocks = grid_step(self.update_clip), self.num_clusters * self.coordinates.clustered
        ends = np.cumsum([self.coordinates.shared, blocks, self.num_clusters])
        noise = grid_noise(int(ends[-1]) + 2, noise_std=self.noise_std, step=step, exact=self.exact_noise, rng=rng)
        reports = check_reports(
            updates,
            choices,
            width=self.coordinates.width,
            num_clusters=self.num_clusters,
            destinations=destinations,
            client_ids=client_ids,
            evaluations=evaluations,
            on_device=True,
        )
        self._check_sums_fit(len(reports.valid))
        messages = clip_to_grid(reports.updates, update_clip=self.update_clip, known=reports.norms)
        shared, clustered = split_columns(messages, self.coordinates)
        sums = cluster_sums(clustered, reports.destinations, num_clusters=self.num_clusters)
        counts = np.bincount(reports.choices[reports.valid], minlength=self.num_clusters)
        totals = noise  # fresh, and ours: the sums are added in place
        totals[: ends[0]] += as_numpy(shared.sum(axis=0)) if ends[0] else 0
        totals[ends[0] : ends[1]] += sums.ravel()
        totals[ends[1] : ends[2]] += counts * self.count_units
        totals[ends[2] :] += self._evaluation_units(reports)
        noisy_shared, noisy_sums, count_row, evaluation_row = np.split(totals, ends)
        sizes = self._sizes(count_row)
        return make_release(
            noisy_shared * step,
            noisy_sums.reshape(sums.shape) * step,
            sizes,
            evaluation=self._evaluation(evaluation_row * step, sizes),
            size_floor=self.size_floor,
            min_cluster_size=self.min_cluster_size,
            sum_noise_std=self.noise_std,
            size_noise_std=self._size_noise_std,
        )

    @property
    def _size_noise_std(self) -> float:
        return self.noise_std / (self.count_units * grid_step(self.update_clip)) if self.count_weight else 0.0

    def _evaluation_units(self, reports: Reports) -> Array:
        """(2,) exact sum over the valid reports of u (evaluation - 1/2), in grid steps, each rounded towards zero."""
        scale = self.evaluation_weight / grid_step(self.update_clip)
        return np.asarray(np.trunc((reports.evaluations[reports.valid] - 0.5) * scale).astype(np.int64).sum(axis=0))

    def _evaluation(self, noisy: Array, sizes: Array) -> NoisyEvaluation | None:
        """From the noisy sums of weighted evaluations and the noisy sizes; nothing where u = 0."""
        if self.evaluation_weight == 0:
            return None
        return NoisyEvaluation(
            sums=noisy / self.evaluation_weight,
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
        """Sizes from the noisy count row, in grid steps; without one (w = 0) the public expectation, a constant."""
        if self.count_weight == 0:
            return np.full(self.num_clusters, self.sampler.expected_size / self.num_clusters)
        return count_row / self.count_units
