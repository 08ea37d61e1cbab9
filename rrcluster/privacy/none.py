"""No privacy at all: exact means, for baselines. It has no event, so nobody can print an epsilon for it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np

from rrcluster import checks
from rrcluster.clusters.rebalancing import rebalance
from rrcluster.errors import PrivacyError
from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.mechanism import Description, MechanismKind, PlanInputs
from rrcluster.privacy.reports import NoisySum, Reports, check_reports
from rrcluster.privacy.sampling import FixedSizeSampler
from rrcluster.privacy.slots import ONE_SLOT, Slots
from rrcluster.privacy.sums import cluster_sums, make_release, split_columns
from rrcluster.rng import Rng
from rrcluster.types import Coordinates, Release


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
        """Who takes part."""
        return FixedSizeSampler(self.cohort_size, self.num_clients)

    @property
    def event(self) -> RoundEvent:
        """PrivacyError: without noise there is no event."""
        raise PrivacyError("mechanism none adds no noise: it has no epsilon. Use `joint` or `identifier` for one.")

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Exact means of the valid reports, in a fixed order, in float64."""
        if reports.evaluations is not None:
            raise PrivacyError("private evaluation belongs to `joint`; `none` releases nothing privately.")
        if reports.destinations is not None:
            raise PrivacyError("coins belong to `joint`; `none` rebalances by itself. Leave destinations out.")
        checked = check_reports(reports, width=self.coordinates.width, num_clusters=self.num_clusters)
        rows = checked.updates[checked.valid].astype(np.float64)
        room = len(rows) // self.num_clusters
        assignment = rebalance(
            checked.choices[checked.valid],
            num_clusters=self.num_clusters,
            min_cluster_size=min(self.min_cluster_size, room),
            rng=rng,
        )
        shared, clustered = split_columns(rows, self.coordinates)
        return make_release(
            shared.sum(axis=0),
            cluster_sums(clustered, assignment, num_clusters=self.num_clusters),
            np.bincount(checked.choices[checked.valid], minlength=self.num_clusters).astype(float),
            block_sizes=np.bincount(assignment, minlength=self.num_clusters).astype(float),
            size_floor=self.size_floor,
            min_cluster_size=0,
            sum_noise_std=0.0,
            size_noise_std=0.0,
        )

    def release_sum(self, noisy_sum: NoisySum) -> NoReturn:  # noqa: ARG002
        """PrivacyError: it takes no noisy sums."""
        raise PrivacyError("mechanism none cannot use a noisy sum; use mechanism = joint.")

    def clipped_sums(self, reports: Reports) -> None:
        """Nothing is clipped."""

    def describe(self) -> Description:
        """For the statement."""
        return Description(("exact cluster sizes",), {}, {})


def _maker(given: PlanInputs) -> Callable[[float], NoneMechanism]:
    """The mechanism for any noise multiplier, which it ignores."""
    settings = given.settings
    has_budget = settings.epsilon is not None or settings.noise_multiplier is not None
    if has_budget or settings.secure or settings.reserve_rounds:
        raise PrivacyError(
            "mechanism = none adds no noise, so no epsilon or noise_multiplier can be asked of it, nor secure or "
            "reserve_rounds; leave them out, or use mechanism = joint."
        )
    if settings.private_evaluation:
        raise PrivacyError(
            f"private_evaluation = {settings.private_evaluation:g} with mechanism = none: it releases nothing "
            "privately, and diagnostics.jsonl has the exact values; set it to 0, or use mechanism = joint."
        )
    floor = 1.0 if given.size_floor is None else given.size_floor  # exact means need no floor
    return lambda _: NoneMechanism(
        given.coordinates,
        given.num_clusters,
        given.cohort_size,
        given.num_clients,
        floor,
        given.min_cluster_size,
    )


NONE = MechanismKind("none", _maker, rebalancing="exact", noisy=False)
