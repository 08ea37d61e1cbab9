"""The paper's mechanism, restated so that it is sound: noisy identifiers, exact rebalancing, noisy means at 2C."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from rrcluster import checks
from rrcluster.errors import PrivacyError
from rrcluster.privacy.clip import check_clip, clip_to_grid, grid_step
from rrcluster.privacy.events import REPLACE_ONE, FixedSizeGaussian, FixedSizeKary
from rrcluster.privacy.relation import identifier_sensitivity, update_sensitivity
from rrcluster.privacy.reports import check_reports
from rrcluster.privacy.sampling import FixedSizeSampler
from rrcluster.privacy.sums import cluster_sums, grid_noise, make_release, split_columns
from rrcluster.rebalancing import rebalance
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, Release


class Identifier(Protocol):
    """Privatises one cluster choice per client."""

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:
        """Noisy assignment (n,); an invalid report gets a uniform draw."""


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

    @property
    def effective_multiplier(self) -> float:
        """Noise std / sensitivity under replace-one."""
        return self.noise_multiplier / identifier_sensitivity(adjacency=REPLACE_ONE)

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:
        """Noisy assignment (n,)."""
        identifiers = np.eye(num_clusters)[choices] * valid[:, None]
        noisy_identifiers = identifiers + self.noise_multiplier * rng.standard_normal(identifiers.shape)
        return np.asarray(noisy_identifiers.argmax(axis=1))


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


@dataclass(frozen=True)
class IdentifierMechanism:
    """Noisy identifiers -> assignment -> exact rebalancing -> noisy means.

    Guarantee (replace-one, cohorts of fixed size): given the noisy identifiers and the rebalancing coins the partition
    is fixed, so one client's update moves one block (and the shared sum) by at most 2C. The two releases are made on
    the same cohort and fold into one event. Sizes depend on noisy identifiers and coins only. Every cohort has exactly
    `cohort_size` rows: a client that dropped out or sent nonsense stays, with a zero update and a random identifier.
    Findings 5, 6 and 14 of docs/privacy.md say how the paper's own statement differs.
    """

    coordinates: Coordinates
    num_clusters: int
    update_clip: float
    noise_multiplier: float  # of the updates: noise std / (2 C), the paper's sigma_theta
    identifier: GaussianIdentifier | KaryIdentifier | None  # None only for k = 1
    cohort_size: int
    num_clients: int
    size_floor: float
    min_cluster_size: int = 0
    exact_noise: bool = False  # discrete Gaussian on the messages' grid, from the operating system

    name: ClassVar[str] = "identifier"
    adjacency: ClassVar[str] = REPLACE_ONE

    def __post_init__(self) -> None:
        checks.count(num_clusters=self.num_clusters)
        check_clip(self.update_clip)
        checks.non_negative(noise_multiplier=self.noise_multiplier)
        checks.non_negative(size_floor=self.size_floor)
        if self.identifier is None and self.num_clusters > 1:
            raise PrivacyError(
                "identifier = None would use raw choices to split the cohort; with more than one cluster the choices "
                "must be privatised. Use a GaussianIdentifier or a KaryIdentifier."
            )

    @property
    def sampler(self) -> FixedSizeSampler:
        """Who takes part."""
        return FixedSizeSampler(self.cohort_size, self.num_clients)

    @property
    def event(self) -> FixedSizeGaussian | FixedSizeKary:
        """What one round costs, identifiers and updates together."""
        if isinstance(self.identifier, KaryIdentifier):
            return FixedSizeKary(
                noise_multiplier=self.noise_multiplier,
                keep_probability=self.identifier.keep_probability,
                num_clusters=self.num_clusters,
                cohort_size=self.cohort_size,
                num_clients=self.num_clients,
            )
        checks.positive(noise_multiplier=self.noise_multiplier)
        identifiers = 0.0 if self.identifier is None else self.identifier.effective_multiplier**-2
        whole_round = (identifiers + self.noise_multiplier**-2) ** -0.5
        return FixedSizeGaussian(whole_round, self.cohort_size, self.num_clients)

    @property
    def sensitivity(self) -> float:
        """Of the update sums, given the assignment: 2C."""
        return update_sensitivity(update_clip=self.update_clip, adjacency=self.adjacency)

    @property
    def noise_std(self) -> float:
        """Std of the noise on every coordinate of every update sum."""
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
        """Algorithm 1 of the paper, from privatising identifiers to the noisy means."""
        if evaluations is not None:
            raise PrivacyError("private evaluation belongs to `joint`; `identifier` has no room for it in its event.")
        if destinations is not None:
            raise PrivacyError("coins belong to `joint`; `identifier` rebalances by itself. Leave destinations out.")
        reports = check_reports(
            updates,
            choices,
            width=self.coordinates.width,
            num_clusters=self.num_clusters,
            client_ids=client_ids,
        )
        if len(reports.valid) > self.cohort_size:
            raise PrivacyError(
                f"more clients reported than the cohort of {self.cohort_size} has; sample with plan.sampler, and give "
                "client_ids so that a second report of a client is left out."
            )
        reports = reports.padded(self.cohort_size)
        step = grid_step(self.update_clip)
        noise = self._noise(step, rng)
        noisy = self._noisy_choices(reports.choices, reports.valid, rng)
        assignment = rebalance(noisy, num_clusters=self.num_clusters, min_cluster_size=self.min_cluster_size, rng=rng)
        messages = clip_to_grid(reports.updates, update_clip=self.update_clip)
        shared, clustered = split_columns(messages, self.coordinates)
        sums = cluster_sums(clustered, assignment, num_clusters=self.num_clusters)
        return make_release(
            (shared.sum(axis=0) + noise[: self.coordinates.shared]) * step,
            (sums + noise[self.coordinates.shared :].reshape(sums.shape)) * step,
            _sizes(noisy, self.num_clusters),
            block_sizes=_sizes(assignment, self.num_clusters),
            size_floor=self.size_floor,
            min_cluster_size=self.min_cluster_size,
            sum_noise_std=self.noise_std,
            size_noise_std=0.0,
        )

    def _noisy_choices(self, choices: Array, valid: Array, rng: Rng) -> Array:
        if self.identifier is None:
            return np.zeros(len(choices), dtype=np.int64)
        return self.identifier.assign(choices, valid, num_clusters=self.num_clusters, rng=rng)

    def _noise(self, step: float, rng: Rng) -> Array:
        width = self.coordinates.shared + self.num_clusters * self.coordinates.clustered
        return grid_noise(width, noise_std=self.noise_std, step=step, exact=self.exact_noise, rng=rng)


def _sizes(assignment: Array, num_clusters: int) -> Array:
    return np.bincount(assignment, minlength=num_clusters).astype(float)


def split_budget(whole_round: float, *, identifier_share: float) -> tuple[float, float]:
    """(sigma_s, sigma_theta) whose fold is `whole_round`: 1/z^2 = 2/sigma_s^2 + 1/sigma_theta^2.

    `identifier_share` of 1/z^2 goes to the identifiers; 0.5 is the equal split.
    """
    checks.fraction(identifier_share=identifier_share)
    sensitivity = identifier_sensitivity(adjacency=REPLACE_ONE)
    identifier = math.inf if identifier_share == 0 else sensitivity * whole_round / math.sqrt(identifier_share)
    return identifier, whole_round / math.sqrt(1 - identifier_share)
