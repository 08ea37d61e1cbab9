"""The joint mechanism: one Gaussian release of everything a round needs (Theorem 1 of docs/privacy.md)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.privacy.clip import GRID_BITS, check_clip, check_sums_fit, clip_to_grid, coarsen, grid_step
from rrcluster.privacy.events import ADD_REMOVE, PoissonGaussian
from rrcluster.privacy.mechanism import SIZE_NOISE, Description, MechanismKind, PlanInputs
from rrcluster.privacy.relation import joint_sensitivity
from rrcluster.privacy.reports import CheckedReports, MessageSum, NoisySum, Reports, check_distinct, check_reports
from rrcluster.privacy.sampling import PoissonSampler
from rrcluster.privacy.slots import ONE_SLOT, Slots
from rrcluster.privacy.sums import cluster_sums, grid_noise, make_release, on_host, split_columns
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
    Messages are whole numbers, so their sum is exact in any order and any grouping: parts of a cohort may be summed
    wherever they are, by this same code.
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
    evaluation_loss_bound: float = 1.0  # upper clip of a reported loss
    exact_noise: bool = False  # discrete Gaussian on the messages' grid, from the operating system
    grid_bits: int = GRID_BITS  # of the messages: fewer where sums must fit the words of a secure aggregation

    name: ClassVar[str] = "joint"
    adjacency: ClassVar[str] = ADD_REMOVE
    slots: ClassVar[Slots] = ONE_SLOT
    sums: ClassVar[bool] = True
    private: ClassVar[bool] = True  # Theorem 1
    covers_memory: ClassVar[bool] = True  # Theorem 1 covers whatever a client remembers of its own rounds

    def __post_init__(self) -> None:
        checks.in_full_precision(self)
        checks.count(num_clusters=self.num_clusters)
        check_clip(self.update_clip)
        for name in ("count_weight", "noise_multiplier", "size_floor", "evaluation_weight"):
            checks.non_negative(**{name: getattr(self, name)})
        checks.positive(evaluation_loss_bound=self.evaluation_loss_bound)
        if not 1 <= checks.count(grid_bits=self.grid_bits) <= GRID_BITS:
            raise ConfigError(f"grid_bits = {self.grid_bits} must lie between 1 and {GRID_BITS}.")
        least, most = self.step, 16 * self.update_clip  # whole steps, and sums that fit 64 bits
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

    def _check_sums_fit(self, num_messages: int, *, as_float: bool = False) -> None:
        largest = max(self.update_clip, self.count_weight, self.evaluation_weight / 2)
        check_sums_fit(num_messages, largest=largest, update_clip=self.update_clip, as_float=as_float)

    @property
    def step(self) -> float:
        """The step of the messages' grid."""
        return grid_step(self.update_clip, self.grid_bits)

    @property
    def count_units(self) -> int:
        """The count weight in grid steps, rounded down, which only shortens messages."""
        return int(self.count_weight / self.step)

    @cached_property
    def sampler(self) -> PoissonSampler:
        """The law of the cohorts."""
        return PoissonSampler(self.sample_rate, self.num_clients, secure=self.exact_noise)

    @cached_property
    def event(self) -> PoissonGaussian:
        """The cost of one participation."""
        return PoissonGaussian(self.noise_multiplier, self.sample_rate)

    @property
    def loss_bound(self) -> float | None:
        """The clip of clients' losses; None without evaluation."""
        return self.evaluation_loss_bound if self.evaluation_weight > 0 else None

    @property
    def sensitivity(self) -> float:
        """The sensitivity S."""
        return joint_sensitivity(
            update_clip=self.update_clip,
            count_weight=self.count_weight,
            evaluation_weight=self.evaluation_weight,
        )

    @property
    def noise_std(self) -> float:
        """Std of the noise on every coordinate, counts and evaluations too."""
        return self.noise_multiplier * self.sensitivity

    @property
    def flips_coins(self) -> bool:
        """With B above 0 a client's own coin may send its update to another cluster."""
        return self.min_cluster_size > 0

    @property
    def message_width(self) -> int:
        """Coordinates of a message: shared, k blocks, k counts, and two of the evaluation."""
        return self.coordinates.shared + self.num_clusters * (self.coordinates.clustered + 1) + 2

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Validate, clip, sum and add noise: the only look at raw reports."""
        return self.release_total(MessageSum(self.sum_messages(reports)), rng=rng)

    def release_total(self, exact: MessageSum, *, rng: Rng) -> Release:
        """Add noise to the exact sum of a cohort's messages: the only look at it."""
        noise = grid_noise(
            self.message_width, noise_std=self.noise_std, step=self.step, exact=self.exact_noise, rng=rng
        )
        return self.release_sum(NoisySum(exact.total + noise))

    def message(self, update: Any, choice: Any, *, destination: Any = None, evaluation: Any = None) -> Array:
        """(message_width,) one client's message in grid units: zero if anything about the report is invalid.

        Guarantee: its norm times the grid's step is at most S. The sum of the messages of a cohort is `sum_messages`.
        """
        moved, judged = (None if value is None else [value] for value in (destination, evaluation))
        return self.sum_messages(Reports([update], [choice], moved, evaluations=judged, unique=True))

    def sum_messages(self, reports: Reports, *, round_index: int | None = None) -> Array:  # noqa: ARG002 (all alike)
        """(message_width,) exact sum of messages in grid units, as whole numbers: of a cohort, or of a part of it."""
        self._check_complete(reports)
        checked = self._checked(reports)
        messages = clip_to_grid(checked.updates, update_clip=self.update_clip, known=checked.norms)
        shared, clustered = split_columns(coarsen(messages, GRID_BITS - self.grid_bits), self.coordinates)
        by_cluster = cluster_sums(clustered, checked.destinations, num_clusters=self.num_clusters)
        alone, sums, lengths = on_host(shared.sum(axis=0), by_cluster, checked.norms)
        checked = checked.with_norms(lengths)
        self._check_sums_fit(len(checked.valid))
        counts = np.bincount(checked.choices[checked.valid], minlength=self.num_clusters)
        return np.concatenate([alone, sums.ravel(), counts * self.count_units, self._evaluation_units(checked)])

    def release_sum(self, noisy_sum: NoisySum) -> Release:
        """The release made of a noisy sum of messages, by post-processing."""
        step, k, d = self.step, self.num_clusters, self.coordinates
        total = np.asarray(noisy_sum.total)
        if total.shape != (self.message_width,) or total.dtype.kind not in "fiu" or not np.isfinite(total).all():
            raise ConfigError(f"the sum must hold {self.message_width} finite numbers, a message's coordinates.")
        shared, sums, count_row, evaluation_row = np.split(total, np.cumsum([d.shared, k * d.clustered, k]))
        sizes = self._sizes(count_row)
        return make_release(
            shared * step,
            sums.reshape(k, d.clustered) * step,
            sizes,
            evaluation=self._evaluation(evaluation_row * step, sizes),
            size_floor=self.size_floor,
            min_cluster_size=self.min_cluster_size,
            sum_noise_std=self.noise_std,
            size_noise_std=self._size_noise_std,
        )

    def clipped_sums(self, exact: MessageSum) -> tuple[Array, Array]:
        """(shared, per cluster) exact sums of clipped updates, for diagnostics."""
        k, d = self.num_clusters, self.coordinates
        shared, sums, _ = np.split(exact.total, np.cumsum([d.shared, k * d.clustered]))
        return shared * self.step, sums.reshape(k, d.clustered) * self.step

    def describe(self) -> Description:
        """The entry of the statement."""
        counted = "one noisy size" if self.num_clusters == 1 else f"{self.num_clusters} noisy cluster sizes"
        sizes = counted if self.count_weight else "no cluster sizes"
        if self.evaluation_weight:
            sizes += ", and the noisy mean accuracy and clipped loss of earlier models on the cohort's own samples"
        noise_per_part = {"sum noise std / clip": self.noise_std / self.update_clip}
        if self.count_weight:
            noise_per_part[SIZE_NOISE] = self.noise_std / self.count_weight
        if self.evaluation_weight:
            noise_per_part["accuracy noise std x clients"] = self.noise_std / self.evaluation_weight
        return Description(
            released=(sizes,),
            noise={
                "noise_multiplier": self.noise_multiplier,
                "sensitivity": self.sensitivity,
                "noise_std": self.noise_std,
                "update_clip": self.update_clip,
                "count_weight": self.count_weight,
                "evaluation_weight": self.evaluation_weight,
            },
            noise_per_part=noise_per_part,
        )

    def _checked(self, reports: Reports) -> CheckedReports:
        return check_reports(reports, width=self.coordinates.width, num_clusters=self.num_clusters, on_device=True)

    @property
    def _size_noise_std(self) -> float:
        return self.noise_std / (self.count_units * self.step) if self.count_weight else 0.0

    def _evaluation_units(self, reports: CheckedReports) -> Array:
        """(2,) exact sum over the valid reports of u (evaluation - 1/2), in grid steps, each rounded towards zero."""
        scale = self.evaluation_weight / self.step
        return np.asarray(np.trunc((reports.evaluations[reports.valid] - 0.5) * scale).astype(np.int64).sum(axis=0))

    def _evaluation(self, noisy: Array, sizes: Array) -> NoisyEvaluation | None:
        """The evaluation from noisy sums and sizes; None where u = 0."""
        if self.evaluation_weight == 0:
            return None
        return NoisyEvaluation(
            sums=noisy / self.evaluation_weight,
            clients=float(sizes.sum()),
            sum_noise_std=self.noise_std / self.evaluation_weight,
            clients_noise_std=self._size_noise_std * math.sqrt(self.num_clusters),
            loss_bound=self.evaluation_loss_bound,
            least_clients=max(self.num_clusters * self.size_floor, 1.0),
        )

    def _check_complete(self, reports: Reports) -> None:
        if self.flips_coins and reports.destinations is None:
            raise ConfigError(
                f"min_cluster_size (B) = {self.min_cluster_size} needs the destinations of clients' coins, "
                "but none were given; pass those of flip_coins, or build the plan with B = 0."
            )
        if self.exact_noise:
            check_distinct(reports)
        given = reports.evaluations is not None
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


def _maker(given: PlanInputs) -> Callable[[float], JointMechanism]:
    """Noise multiplier -> the mechanism of a plan."""
    settings, clip = given.settings, given.settings.update_clip
    if settings.count_weight == 0 and given.min_cluster_size:
        raise ConfigError(
            f"min_cluster_size (B) = {given.min_cluster_size} needs released sizes; set count_weight above 0 (0.25 is "
            "the default)."
        )
    kind: Callable[..., JointMechanism] = JointMechanism
    if settings.num_slots > 1:
        from rrcluster.privacy.slotted import SlottedMechanism

        kind = partial(SlottedMechanism, slots=given.slots, correlation=given.correlation)
    return lambda noise_multiplier: kind(
        coordinates=given.coordinates,
        num_clusters=given.num_clusters,
        update_clip=clip,
        count_weight=settings.count_weight * clip,
        noise_multiplier=noise_multiplier,
        sample_rate=settings.slot_rate,
        num_clients=given.num_clients,
        size_floor=given.expected_floor,
        min_cluster_size=given.min_cluster_size,
        evaluation_weight=settings.private_evaluation * clip,
        evaluation_loss_bound=settings.evaluation_loss_bound,
        exact_noise=settings.secure,
    )


JOINT = MechanismKind("joint", _maker, rebalancing="coin", participations=("poisson", "schedule", "everybody"))
