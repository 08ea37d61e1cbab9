"""The joint mechanism: one Gaussian release of everything a round needs (Theorem 1 of docs/privacy.md)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.privacy.clip import GRID_BITS, check_clip, check_sums_fit, clip_to_grid, coarsen, grid_step
from rrcluster.privacy.correlation import FINER, INDEPENDENT, Correlation, PastNoise, after
from rrcluster.privacy.discrete import grid_sigma
from rrcluster.privacy.events import ADD_REMOVE, PoissonGaussian
from rrcluster.privacy.mechanism import SIZE_NOISE, Description, MechanismKind, PlanInputs
from rrcluster.privacy.relation import joint_sensitivity
from rrcluster.privacy.reports import CheckedReports, NoisySum, Reports, check_distinct, check_reports, only_from_slot
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
    With b slots a client may take part once in b rounds, and the noise of rounds is correlated: then T rounds are
    dominated by ceil(T / b) such Gaussians (Theorem 5). A report from outside of the round's slot is the zero message.
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
    evaluation_loss_bound: float = 1.0  # a loss of this or more is reported as this
    exact_noise: bool = False  # discrete Gaussian on the messages' grid, from the operating system
    slots: Slots = ONE_SLOT  # who may take part when
    correlation: Correlation = INDEPENDENT  # of the noise over rounds
    grid_bits: int = GRID_BITS  # of the messages: fewer where sums must fit the words of a secure aggregation

    name: ClassVar[str] = "joint"
    adjacency: ClassVar[str] = ADD_REMOVE

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
        self._check_slots()

    def _check_sums_fit(self, num_messages: int) -> None:
        largest = max(self.update_clip, self.count_weight, self.evaluation_weight / 2)
        check_sums_fit(num_messages, largest=largest, update_clip=self.update_clip, as_float=self._finer > 1)

    def _check_slots(self) -> None:
        self.slots.check_filled(self.num_clients)
        self.correlation.check_applies(slots=self.slots.count, width=self.message_width)

    def check_fits(self) -> None:
        """Refuse exact correlated noise that 64 bits cannot hold."""
        if self._finer > 1:
            self.correlation.check_fits(grid_sigma(self.fresh_noise_std, self.step / FINER))

    @property
    def _finer(self) -> int:
        """How many steps of the noise's grid are in one of the messages'."""
        return FINER if self.exact_noise and len(self.correlation.parts) > 1 else 1

    @property
    def step(self) -> float:
        """The step of the messages' grid."""
        return grid_step(self.update_clip, self.grid_bits)

    @property
    def count_units(self) -> int:
        """The count weight in grid steps, rounded down: messages only get shorter by it."""
        return int(self.count_weight / self.step)

    @property
    def sampler(self) -> PoissonSampler:
        """Who takes part."""
        return PoissonSampler(self.sample_rate, self.num_clients, secure=self.exact_noise, slots=self.slots)

    @property
    def event(self) -> PoissonGaussian:
        """What one participation costs."""
        return PoissonGaussian(self.noise_multiplier, self.sample_rate)

    @property
    def loss_bound(self) -> float | None:
        """The loss at which clients clip what they say; None where nothing is evaluated."""
        return self.evaluation_loss_bound if self.evaluation_weight > 0 else None

    @property
    def sensitivity(self) -> float:
        """S."""
        return joint_sensitivity(
            update_clip=self.update_clip,
            count_weight=self.count_weight,
            evaluation_weight=self.evaluation_weight,
        )

    @property
    def noise_std(self) -> float:
        """Std of the noise on every coordinate, counts and evaluations too; correlated noise: in the last round."""
        return self.noise_multiplier * self.sensitivity * self.correlation.spread

    @property
    def fresh_noise_std(self) -> float:
        """Std of the independent noise that is drawn in a round."""
        return self.noise_std * (self.correlation.lengthening / self.correlation.spread)

    @property
    def private(self) -> bool:
        """Theorem 1."""
        return True

    @property
    def flips_coins(self) -> bool:
        """With B above 0 a client's own coin may send its update to another cluster."""
        return self.min_cluster_size > 0

    @property
    def covers_memory(self) -> bool:
        """Theorem 1 covers whatever a client remembers of its own rounds."""
        return True

    @property
    def message_width(self) -> int:
        """Coordinates of a message: shared, k blocks, k counts, and two of the evaluation."""
        return self.coordinates.shared + self.num_clusters * (self.coordinates.clustered + 1) + 2

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Validate, clip, sum and add noise: the only look at raw reports. PrivacyError with several slots."""
        self.slots.check_alone()
        return self.release_sum(self.noisy_sum(reports, self.first_past(), rng=rng)[0])

    def first_past(self) -> PastNoise:
        """None, before the first round."""
        return self.correlation.first_past(self.message_width, exact=self.exact_noise)

    def check_past(self, past: PastNoise | None, round_index: int) -> PastNoise:
        """The noise that a round builds on; PrivacyError where it is lost, or that of another round."""
        return self.correlation.check_past(past, round_index, width=self.message_width, exact=self.exact_noise)

    def noisy_sum(self, reports: Reports, past: PastNoise, *, rng: Rng) -> tuple[NoisySum, PastNoise]:
        """(noisy sum of round `past.round_index`, what the next one needs): the look at raw reports of `release`.

        The noise is drawn first: it depends on no report, and a device may still be computing them.
        """
        step, exact = self.step / self._finer, self.exact_noise
        fresh = grid_noise(self.message_width, noise_std=self.fresh_noise_std, step=step, exact=exact, rng=rng)
        noise = self.correlation.next_noise(fresh, past)
        messages = self.sum_messages(only_from_slot(reports, self.slots, past.round_index))
        total = messages + (noise / self._finer if self._finer > 1 else noise)  # exact, and a new array
        return NoisySum(total), after(past, noise)

    def message(self, update: Any, choice: Any, *, destination: Any = None, evaluation: Any = None) -> Array:
        """(message_width,) one client's message in grid units: zero if anything about the report is invalid.

        Guarantee: its norm times the grid's step is at most S. The sum of the messages of a cohort is `sum_messages`.
        """
        moved, judged = (None if value is None else [value] for value in (destination, evaluation))
        return self.sum_messages(Reports([update], [choice], moved, evaluations=judged, unique=True))

    def sum_messages(self, reports: Reports) -> Array:
        """(message_width,) exact sum of the cohort's messages in grid units, as whole numbers."""
        self._check_complete(reports)
        checked, shared, sums = self._sums(self._checked(reports))
        self._check_sums_fit(len(checked.valid))
        reports.clipped[self._clipping] = shared, sums
        counts = np.bincount(checked.choices[checked.valid], minlength=self.num_clusters)
        return np.concatenate([shared, sums.ravel(), counts * self.count_units, self._evaluation_units(checked)])

    def release_sum(self, noisy_sum: NoisySum) -> Release:
        """The release that a noisy sum of messages makes: post-processing of it."""
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

    def clipped_sums(self, reports: Reports) -> tuple[Array, Array]:
        """(shared, per cluster) exact sums of clipped updates: those of the release, where it was made of `reports`."""
        if self._clipping not in reports.clipped:
            reports.clipped[self._clipping] = self._sums(self._checked(reports))[1:]
        shared, sums = reports.clipped[self._clipping]
        return shared * self.step, sums * self.step

    def describe(self) -> Description:
        """For the statement."""
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
            correlation=self.correlation.describe(),
        )

    @property
    def _clipping(self) -> tuple[Any, ...]:
        """What sums of clipped updates depend on, besides the reports."""
        return self.update_clip, self.grid_bits, self.coordinates, self.num_clusters

    def _checked(self, reports: Reports) -> CheckedReports:
        return check_reports(reports, width=self.coordinates.width, num_clusters=self.num_clusters, on_device=True)

    def _sums(self, checked: CheckedReports) -> tuple[CheckedReports, Array, Array]:
        """The reports, once norms are known, and sums of clipped updates: shared, per cluster."""
        messages = clip_to_grid(checked.updates, update_clip=self.update_clip, known=checked.norms)
        shared, clustered = split_columns(coarsen(messages, GRID_BITS - self.grid_bits), self.coordinates)
        sums = cluster_sums(clustered, checked.destinations, num_clusters=self.num_clusters)
        alone, by_cluster, lengths = on_host(shared.sum(axis=0), sums, checked.norms)
        return checked.with_norms(lengths), alone, by_cluster

    @property
    def _size_noise_std(self) -> float:
        return self.noise_std / (self.count_units * self.step) if self.count_weight else 0.0

    def _evaluation_units(self, reports: CheckedReports) -> Array:
        """(2,) exact sum over the valid reports of u (evaluation - 1/2), in grid steps, each rounded towards zero."""
        scale = self.evaluation_weight / self.step
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
            loss_bound=self.evaluation_loss_bound,
            least_clients=max(self.num_clusters * self.size_floor, 1.0),
        )

    def _check_complete(self, reports: Reports) -> None:
        if self.flips_coins and reports.destinations is None:
            raise ConfigError(
                f"min_cluster_size (B) = {self.min_cluster_size} sends updates where clients' coins say, and no "
                "destinations were given; pass those of flip_coins, or build the plan with B = 0."
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
    slots, correlation = given.slots, given.correlation
    return lambda noise_multiplier: JointMechanism(
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
        slots=slots,
        correlation=correlation,
    )


JOINT = MechanismKind(
    "joint", _maker, rebalancing="coin", participations=("poisson", "schedule", "within-slot", "everybody")
)
