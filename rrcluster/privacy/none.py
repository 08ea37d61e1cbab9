"""No privacy at all: exact means, for baselines. It has no event, so nobody can print an epsilon for it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np

from rrcluster import checks
from rrcluster.errors import PrivacyError
from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.mechanism import Description, MechanismKind, PlanInputs
from rrcluster.privacy.rebalancing import rebalance
from rrcluster.privacy.reports import MessageSum, NoisySum, Reports, check_reports
from rrcluster.privacy.sampling import FixedSizeSampler
from rrcluster.privacy.slots import ONE_SLOT, Slots
from rrcluster.privacy.sums import cluster_sums, make_release, split_columns
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, Release


@dataclass(frozen=True)
class NoneMechanism:
    """Exact sums and sizes of valid reports, unclipped, after exact rebalancing. Guarantees nothing."""

    coordinates: Coordinates
    num_clusters: int
    cohort_size: int
    num_clients: int
    size_floor: float
    min_cluster_size: int = 0

    name: ClassVar[str] = "none"
    slots: ClassVar[Slots] = ONE_SLOT
    noise_std: ClassVar[float] = 0.0
    private: ClassVar[bool] = False
    flips_coins: ClassVar[bool] = False
    covers_memory: ClassVar[bool] = True
    loss_bound: ClassVar[None] = None
    update_clip: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        checks.count(num_clusters=self.num_clusters)
        checks.non_negative(size_floor=self.size_floor)

    @property
    def sampler(self) -> FixedSizeSampler:
        """The law of the cohorts."""
        return FixedSizeSampler(self.cohort_size, self.num_clients)

    @property
    def event(self) -> RoundEvent:
        """Raise PrivacyError: without noise there is no event."""
        raise PrivacyError("mechanism none adds no noise: it has no epsilon. Use `joint` or `identifier` for one.")

    @property
    def sums(self) -> bool:
        """Whether sums suffice: not with rebalancing, which reads every choice."""
        return self.min_cluster_size == 0

    def sum_messages(self, reports: Reports, *, round_index: int = 0) -> Array:  # noqa: ARG002 (all rounds alike)
        """Shared sum, cluster sums and sizes of the valid reports, in float64: parts are added in their order."""
        rows, choices = self._valid(reports)
        shared, clustered = split_columns(rows, self.coordinates)
        sums = cluster_sums(clustered, choices, num_clusters=self.num_clusters)
        sizes = np.bincount(choices, minlength=self.num_clusters)
        return np.concatenate([shared.sum(axis=0), sums.ravel(), sizes])

    def release_total(self, exact: MessageSum, *, rng: Rng) -> Release:  # noqa: ARG002 (there is no noise)
        """Exact means."""
        k, d = self.num_clusters, self.coordinates
        shared, sums, sizes = np.split(exact.total, np.cumsum([d.shared, k * d.clustered]))
        return self._released(shared, sums.reshape(k, d.clustered), sizes, sizes)

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Exact means of the valid reports, rebalanced, in a fixed order."""
        rows, choices = self._valid(reports)
        least = min(self.min_cluster_size, len(rows) // self.num_clusters)
        assignment = rebalance(choices, num_clusters=self.num_clusters, min_cluster_size=least, rng=rng)
        shared, clustered = split_columns(rows, self.coordinates)
        sums = cluster_sums(clustered, assignment, num_clusters=self.num_clusters)
        sizes, blocks = (np.bincount(of, minlength=self.num_clusters).astype(float) for of in (choices, assignment))
        return self._released(shared.sum(axis=0), sums, sizes, blocks)

    def _valid(self, reports: Reports) -> tuple[Array, Array]:
        """Updates in float64 and choices of the valid reports."""
        if reports.evaluations is not None:
            raise PrivacyError("private evaluation belongs to `joint`; `none` releases nothing privately.")
        if reports.destinations is not None:
            raise PrivacyError("only `joint` uses coins; `none` rebalances exactly. Leave destinations out.")
        checked = check_reports(reports, width=self.coordinates.width, num_clusters=self.num_clusters)
        return checked.updates[checked.valid].astype(np.float64), checked.choices[checked.valid]

    def _released(self, shared: Array, sums: Array, sizes: Array, blocks: Array) -> Release:
        return make_release(
            shared,
            sums,
            sizes,
            block_sizes=blocks,
            size_floor=self.size_floor,
            min_cluster_size=0,
            sum_noise_std=0.0,
            size_noise_std=0.0,
        )

    def release_sum(self, noisy_sum: NoisySum) -> NoReturn:  # noqa: ARG002
        """Raise PrivacyError: it takes no noisy sums."""
        raise PrivacyError("mechanism none cannot use a noisy sum; use mechanism = joint.")

    def clipped_sums(self, collected: Any) -> None:
        """None: nothing is clipped."""

    def describe(self) -> Description:
        """The entry of the statement."""
        return Description(("exact cluster sizes",), {}, {})


def _maker(given: PlanInputs) -> Callable[[float], NoneMechanism]:
    """The mechanism for any noise multiplier, which it ignores."""
    settings = given.settings
    has_budget = settings.epsilon is not None or settings.noise_multiplier is not None
    if has_budget or settings.secure or settings.reserve_rounds:
        raise PrivacyError(
            "mechanism = none adds no noise, so epsilon, noise_multiplier, secure and reserve_rounds do not "
            "apply; leave them out, or use mechanism = joint."
        )
    if settings.private_evaluation:
        raise PrivacyError(
            f"private_evaluation = {settings.private_evaluation:g} with mechanism = none: it releases nothing "
            "privately, and diagnostics.jsonl has the exact values; set it to 0, or use mechanism = joint."
        )
    floor = 1.0 if given.size_floor is None else given.size_floor  # exact means need no floor
    return lambda _: NoneMechanism(
        given.coordinates, given.num_clusters, given.cohort_size, given.num_clients, floor, given.min_cluster_size
    )


NONE = MechanismKind("none", _maker, rebalancing="exact", noisy=False)
