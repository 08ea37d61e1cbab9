"""The paper's mechanism, restated so that it is sound: noisy identifiers, exact rebalancing, noisy means at 2C.

How one client's choice of a cluster is made private under `identifier`: two kinds, each with its own theorem.

Both read the choice alone. An invalid report always gets a uniform draw.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np

from rrcluster import checks
from rrcluster.errors import PrivacyError
from rrcluster.privacy.clip import check_clip, clip_to_grid, grid_step
from rrcluster.privacy.events import FOLDED, REPLACE_ONE, Choice, FixedSize, KaryChoice
from rrcluster.privacy.mechanism import Description, MechanismKind, PlanInputs
from rrcluster.privacy.profiles import keep_probability
from rrcluster.privacy.rebalancing import rebalance
from rrcluster.privacy.relation import identifier_sensitivity, update_sensitivity
from rrcluster.privacy.reports import CheckedReports, NoisySum, Reports, check_distinct, check_reports
from rrcluster.privacy.sampling import FixedSizeSampler
from rrcluster.privacy.slots import ONE_SLOT, Slots
from rrcluster.privacy.sums import cluster_sums, grid_noise, make_release, split_columns
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, Release


@dataclass(frozen=True)
class NoIdentifier:
    """The identifier for a single cluster, without a choice to privatise."""

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:  # noqa: ARG002
        """Everybody is in the first cluster."""
        return np.zeros(len(choices), dtype=np.int64)

    def cost(self, update_multiplier: float, num_clusters: int) -> tuple[float, Choice]:  # noqa: ARG002
        """Return the multiplier unchanged: the choice costs nothing."""
        return update_multiplier, FOLDED

    def describe(self) -> dict[str, Any]:
        """The entry of the statement."""
        return {"kind": "none needed"}


@dataclass(frozen=True)
class GaussianIdentifier:
    """argmax of the one-hot choice plus N(0, noise_multiplier^2) per entry (Algorithm 2 of the paper).

    `noise_multiplier` is relative to the one-hot's length 1 (the paper's sigma_s; its clip C_s scales both and
    cancels). Replace-one: RDP order / sigma_s^2, since the sensitivity is sqrt(2). An invalid report is the zero
    vector.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.positive(identifier_noise_multiplier=self.noise_multiplier)

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:
        """Noisy assignment (n,)."""
        identifiers = np.eye(num_clusters)[choices] * valid[:, None]
        noisy_identifiers = identifiers + self.noise_multiplier * rng.standard_normal(identifiers.shape)
        return np.asarray(noisy_identifiers.argmax(axis=1))

    def cost(self, update_multiplier: float, num_clusters: int) -> tuple[float, Choice]:  # noqa: ARG002
        """Two Gaussian releases on one cohort fold into one: 1/z^2 = 1/z_s^2 + 1/z_theta^2."""
        relative = self.noise_multiplier / identifier_sensitivity()
        return (relative**-2 + update_multiplier**-2) ** -0.5, FOLDED

    def describe(self) -> dict[str, Any]:
        """Its kind and noise, for the statement."""
        return {"kind": "GaussianIdentifier", "noise_multiplier": self.noise_multiplier}


@dataclass(frozen=True)
class KaryIdentifier:
    """k-ary randomised response: the true choice with probability p, each other one with (1 - p) / (k - 1).

    Equals the exponential mechanism with 0/1 utility, and the law of `GaussianIdentifier`'s output at equal p
    (Theorem 3 of docs/privacy.md). An invalid report is a uniform draw, a mixture of valid ones.
    """

    keep_probability: float

    def __post_init__(self) -> None:
        checks.rate(keep_probability=self.keep_probability)

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:
        """Noisy assignment (n,)."""
        keep = rng.random(len(choices)) < self.keep_probability
        others = rng.integers(1, num_clusters, size=len(choices)) if num_clusters > 1 else np.zeros_like(choices)
        uniform = rng.integers(num_clusters, size=len(choices))
        responses = np.where(keep, choices, (choices + others) % num_clusters)
        return np.asarray(np.where(valid, responses, uniform))

    def cost(self, update_multiplier: float, num_clusters: int) -> tuple[float, Choice]:
        """A randomised response before the updates' Gaussian."""
        return update_multiplier, KaryChoice(self.keep_probability, num_clusters)

    def describe(self) -> dict[str, Any]:
        """Its kind and probability, for the statement."""
        return {"kind": "KaryIdentifier", "keep_probability": self.keep_probability}


# Privatises one cluster choice per client, and says what that costs, given the noise multiplier of the updates.
Identifier = NoIdentifier | GaussianIdentifier | KaryIdentifier


def split_budget(whole_round: float, *, identifier_share: float) -> tuple[float, float]:
    """(sigma_s, sigma_theta) whose fold is `whole_round`: 1/z^2 = 2/sigma_s^2 + 1/sigma_theta^2.

    `identifier_share` of 1/z^2 goes to the identifiers; 0.5 is the equal split.
    """
    checks.fraction(identifier_share=identifier_share)
    sensitivity = identifier_sensitivity()
    identifier = math.inf if identifier_share == 0 else sensitivity * whole_round / math.sqrt(identifier_share)
    return identifier, whole_round / math.sqrt(1 - identifier_share)


IDENTIFIERS: dict[str, Callable[[float, int], Identifier]] = {
    "gaussian": lambda sigma_s, _: GaussianIdentifier(sigma_s),
    "kary": lambda sigma_s, k: KaryIdentifier(keep_probability(sigma_s, k)),  # keeps a choice with the same probability
}


@dataclass(frozen=True)
class IdentifierMechanism:
    """Noisy identifiers -> assignment -> exact rebalancing -> noisy means.

    Guarantee (replace-one, cohorts of fixed size): given the noisy identifiers and the rebalancing coins the partition
    is fixed, so one client's update moves one block (and the shared sum) by at most 2C. The two releases are made on
    the same cohort and fold into one event. Sizes depend on noisy identifiers and coins only. Every cohort has exactly
    `cohort_size` rows: a client that dropped out or sent an invalid report stays, with a zero update and a random
    identifier. Findings 5, 6 and 14 of docs/paper.md explain the differences from the paper's own statement.
    """

    coordinates: Coordinates
    num_clusters: int
    update_clip: float
    noise_multiplier: float  # of the updates: noise std / (2 C), the paper's sigma_theta
    identifier: Identifier  # NoIdentifier only for k = 1
    cohort_size: int
    num_clients: int
    size_floor: float
    min_cluster_size: int = 0
    exact_noise: bool = False  # discrete Gaussian on the messages' grid, from the operating system

    name: ClassVar[str] = "identifier"
    slots: ClassVar[Slots] = ONE_SLOT
    adjacency: ClassVar[str] = REPLACE_ONE
    private: ClassVar[bool] = True
    flips_coins: ClassVar[bool] = False
    covers_memory: ClassVar[bool] = False  # under fixed-size sampling participation is correlated: docs/privacy.md
    loss_bound: ClassVar[None] = None

    def __post_init__(self) -> None:
        checks.in_full_precision(self)
        checks.count(num_clusters=self.num_clusters)
        check_clip(self.update_clip)
        checks.non_negative(noise_multiplier=self.noise_multiplier)
        checks.non_negative(size_floor=self.size_floor)
        if self.identifier == NoIdentifier() and self.num_clusters > 1:
            raise PrivacyError(
                "with more than one cluster the choices must be privatised; use an identifier of privacy/identifier.py."
            )

    @property
    def sampler(self) -> FixedSizeSampler:
        """The law of the cohorts."""
        return FixedSizeSampler(self.cohort_size, self.num_clients, secure=self.exact_noise)

    @property
    def event(self) -> FixedSize:
        """The cost of one round, identifiers and updates together."""
        checks.positive(noise_multiplier=self.noise_multiplier)
        whole_round, choice = self.identifier.cost(self.noise_multiplier, self.num_clusters)
        return FixedSize(whole_round, self.cohort_size, self.num_clients, choice)

    @property
    def sensitivity(self) -> float:
        """Sensitivity of the update sums given the assignment: 2C."""
        return update_sensitivity(update_clip=self.update_clip)

    @property
    def noise_std(self) -> float:
        """Std of the noise on every coordinate of every update sum."""
        return self.noise_multiplier * self.sensitivity

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Algorithm 1 of the paper, from privatising identifiers to the noisy means."""
        if reports.evaluations is not None:
            raise PrivacyError("private evaluation needs `joint`; the event of `identifier` does not cover it.")
        if reports.destinations is not None:
            raise PrivacyError("only `joint` uses coins; `identifier` rebalances exactly. Leave destinations out.")
        if self.exact_noise:
            check_distinct(reports)
        checked = check_reports(reports, width=self.coordinates.width, num_clusters=self.num_clusters)
        if len(checked.valid) > self.cohort_size:
            raise PrivacyError(
                f"more clients reported than the cohort of {self.cohort_size} has; sample with plan.sampler, and give "
                "client_ids so that a second report of a client is left out."
            )
        checked = checked.padded(self.cohort_size)
        step = grid_step(self.update_clip)
        noise = self._noise(step, rng)
        noisy = self.identifier.assign(checked.choices, checked.valid, num_clusters=self.num_clusters, rng=rng)
        assignment = rebalance(noisy, num_clusters=self.num_clusters, min_cluster_size=self.min_cluster_size, rng=rng)
        shared, sums = self._sums(checked, assignment)
        return make_release(
            (shared + noise[: self.coordinates.shared]) * step,
            (sums + noise[self.coordinates.shared :].reshape(sums.shape)) * step,
            _sizes(noisy, self.num_clusters),
            block_sizes=_sizes(assignment, self.num_clusters),
            size_floor=self.size_floor,
            min_cluster_size=self.min_cluster_size,
            sum_noise_std=self.noise_std,
            size_noise_std=0.0,
        )

    def release_sum(self, noisy_sum: NoisySum) -> NoReturn:  # noqa: ARG002
        """Raise PrivacyError: the mechanism needs every client's own row."""
        raise PrivacyError("identifier privatises every client's choice separately and cannot use a sum; use joint.")

    def clipped_sums(self, reports: Reports) -> tuple[Array, Array]:
        """(shared, per cluster) exact sums of clipped updates in the chosen clusters; for diagnostics."""
        checked = check_reports(reports, width=self.coordinates.width, num_clusters=self.num_clusters)
        shared, sums = self._sums(checked, checked.choices)
        step = grid_step(self.update_clip)
        return shared * step, sums * step

    def describe(self) -> Description:
        """The entry of the statement."""
        several = self.num_clusters > 1
        kind = self.identifier.describe()
        named = {"noise_multiplier": "identifier noise std", "keep_probability": "identifier keep probability"}
        noise_per_part = {"sum noise std / clip": self.noise_std / self.update_clip}
        noise_per_part |= {named[name]: value for name, value in kind.items() if name in named}
        return Description(
            released=("cluster sizes by privatised identifiers" if several else "the fixed cohort size",),
            noise={
                "noise_multiplier": self.noise_multiplier,
                "sensitivity": self.sensitivity,
                "noise_std": self.noise_std,
                "update_clip": self.update_clip,
                "identifier": kind,
            },
            noise_per_part=noise_per_part,
        )

    def _sums(self, checked: CheckedReports, assignment: Array) -> tuple[Array, Array]:
        """(shared, per cluster) sums of clipped updates, in grid steps."""
        messages = clip_to_grid(checked.updates, update_clip=self.update_clip, known=checked.norms)
        shared, clustered = split_columns(messages, self.coordinates)
        return shared.sum(axis=0), cluster_sums(clustered, assignment, num_clusters=self.num_clusters)

    def _noise(self, step: float, rng: Rng) -> Array:
        width = self.coordinates.shared + self.num_clusters * self.coordinates.clustered
        return grid_noise(width, noise_std=self.noise_std, step=step, exact=self.exact_noise, rng=rng)


def _sizes(assignment: Array, num_clusters: int) -> Array:
    return np.bincount(assignment, minlength=num_clusters).astype(float)


def _maker(given: PlanInputs) -> Callable[[float], IdentifierMechanism]:
    """Noise multiplier of the whole round -> the mechanism, its budget split by `identifier_share`."""
    settings, k = given.settings, given.num_clusters
    share = settings.identifier_share if k > 1 else 0.0
    if k > 1 and share <= 0:
        raise PrivacyError(f"identifier_share = {share} leaves the choices unprotected; use a share between 0 and 1.")
    if settings.private_evaluation:
        raise PrivacyError(
            f"private_evaluation = {settings.private_evaluation:g} with mechanism = identifier: its event "
            "covers only noisy identifiers and sums, at sensitivity 2C; set it to 0, or use mechanism = "
            "joint."
        )

    def make(whole_round: float) -> IdentifierMechanism:
        sigma_s, sigma_theta = split_budget(whole_round, identifier_share=share)
        return IdentifierMechanism(
            coordinates=given.coordinates,
            num_clusters=k,
            update_clip=settings.update_clip,
            noise_multiplier=sigma_theta,
            identifier=IDENTIFIERS[settings.identifier](sigma_s, k) if k > 1 else NoIdentifier(),
            cohort_size=given.cohort_size,
            num_clients=given.num_clients,
            size_floor=given.expected_floor,
            min_cluster_size=given.min_cluster_size,
            exact_noise=settings.secure,
        )

    return make


IDENTIFIER = MechanismKind("identifier", _maker, rebalancing="exact", covers_memory=IdentifierMechanism.covers_memory)
