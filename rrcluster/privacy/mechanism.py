"""The interface of mechanisms: the one object that sees raw reports, and the only one that knows its kind.

Sampler, noise, sensitivity and event of a mechanism come from the same fields, so they cannot disagree. Everything that
depends on the kind of mechanism is a method here; no other code asks for the kind.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.reports import MessageSum, NoisySum, Reports
from rrcluster.privacy.sampling import Sampler
from rrcluster.privacy.slots import ONE_SLOT, Correlation, Slots, make_correlation
from rrcluster.rng import Rng
from rrcluster.settings import PrivacySettings, ServerSettings
from rrcluster.types import Array, Coordinates, Release


class Mechanism(Protocol):
    """A round's release, the law of its cohort, and its cost."""

    @property
    def name(self) -> str:
        """The value of the setting `mechanism` that chooses it."""

    @property
    def coordinates(self) -> Coordinates:
        """Coordinates of one report."""

    @property
    def num_clusters(self) -> int:
        """Number of clusters (k)."""

    @property
    def num_clients(self) -> int:
        """Declared number of clients (M)."""

    @property
    def update_clip(self) -> float:
        """Largest norm of an update (C); infinite without privacy."""

    @property
    def size_floor(self) -> float:
        """Public lower bound of every denominator."""

    @property
    def min_cluster_size(self) -> int:
        """Minimum cluster size (B)."""

    @property
    def noise_std(self) -> float:
        """Std of the noise on every coordinate of every sum; 0 without privacy."""

    @property
    def private(self) -> bool:
        """Whether it has a guarantee, and so an event."""

    @property
    def sampler(self) -> Sampler:
        """The law of the cohorts."""

    @property
    def slots(self) -> Slots:
        """The slots in which clients may take part."""

    @property
    def event(self) -> RoundEvent:
        """The cost of one participation; PrivacyError without privacy."""

    @property
    def flips_coins(self) -> bool:
        """Whether clients toss coins, so that reports must include destinations."""

    @property
    def covers_memory(self) -> bool:
        """Whether the guarantee covers clients that remember their own earlier rounds."""

    @property
    def loss_bound(self) -> float | None:
        """The loss at which clients clip their evaluations; None without evaluation."""

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Validate, clip, sum and add noise: the only look at raw reports."""

    def release_sum(self, noisy_sum: NoisySum) -> Release:
        """The release made of a sum that is already noisy; PrivacyError where the mechanism cannot use one."""

    def clipped_sums(self, collected: Any) -> tuple[Array, Array] | None:
        """(shared, per cluster) exact sums of clipped updates, of reports or of their sum; None without a clip."""

    def describe(self) -> "Description":
        """The mechanism's entry in the privacy statement."""


class SummingMechanism(Mechanism, Protocol):
    """A mechanism that needs no single report, only the sum of messages, which any number of hosts may compute."""

    def sum_messages(self, reports: Reports, *, round_index: int) -> Array:
        """The sum of some clients' messages, exact in any order; a part of a cohort is added to the others."""

    def release_total(self, exact: MessageSum, *, rng: Rng) -> Release:
        """Add noise: the only look at the exact sum of a whole cohort."""


def adds_up(mechanism: Mechanism) -> bool:
    """Whether a mechanism releases a sum of messages (`SummingMechanism`) and needs no single reports."""
    return bool(getattr(mechanism, "sums", False))


SIZE_NOISE = "size noise std, clients"  # key in `Description.noise_per_part`


@dataclass(frozen=True)
class Description:
    """A mechanism in the words and numbers of the privacy statement."""

    released: tuple[str, ...]  # the values released in a round
    noise: dict[str, Any]  # multipliers, sensitivities and weights
    noise_per_part: dict[str, float]  # std of each released part, for a clip of 1
    correlation: dict[str, Any] = field(default_factory=dict)  # of noise over rounds, if any


@dataclass(frozen=True)
class PlanInputs:
    """The public inputs from which a plan builds a mechanism."""

    settings: PrivacySettings
    coordinates: Coordinates
    num_clusters: int
    num_clients: int
    min_cluster_size: int
    size_floor: float | None
    server: ServerSettings  # correlated noise is optimised for the released models

    @property
    def cohort_size(self) -> int:
        """Size of a fixed-size cohort."""
        return max(1, round(self.settings.sample_rate * self.num_clients))

    @property
    def expected_floor(self) -> float:
        """The floor of denominators: as given, or 0.6 of the expected cluster size."""
        if self.size_floor is not None:
            return self.size_floor
        return 0.6 * self.settings.cohort_share * self.num_clients / self.num_clusters

    @property
    def slots(self) -> Slots:
        """The slots in which clients may take part."""
        settings = self.settings
        several = settings.num_slots > 1
        return Slots(settings.num_slots, settings.slot_key, settings.num_rounds) if several else ONE_SLOT

    @property
    def correlation(self) -> Correlation:
        """Correlation of the noise over rounds."""
        return make_correlation(
            slots=self.settings.num_slots,
            num_rounds=self.settings.num_rounds,
            momentum=self.server.server_momentum,
            average_last=self.server.average_last,
        )


@dataclass(frozen=True)
class MechanismKind:
    """A mechanism as a plug point: the facts that a plan needs to build one."""

    name: str
    maker: Callable[[PlanInputs], Callable[[float], Mechanism]]  # noise multiplier of the whole round -> mechanism
    rebalancing: str  # how clusters below B are filled: "coin" or "exact"
    noisy: bool = True  # whether there is noise to calibrate
    covers_memory: bool = True  # whether the guarantee covers clients that remember their own earlier rounds
    # schemes with a proved guarantee; "poisson" is the mechanism's own law
    participations: tuple[str, ...] = ("poisson",)
