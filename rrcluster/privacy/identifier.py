"""The paper's mechanism, restated so that it is sound: noisy identifiers, exact rebalancing, noisy means at 2C."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rrcluster import checks
from rrcluster.clusters.rebalancing import rebalance
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.base_round import FixedSizeEvent
from rrcluster.privacy.clip import check_clip, clip_to_grid, grid_step
from rrcluster.privacy.events import REPLACE_ONE, FixedSizeByLoss, FixedSizeGaussian, FixedSizeKary
from rrcluster.privacy.identifier_noise import (
    AnyIdentifier,
    ByLossIdentifier,
    GaussianIdentifier,
    KaryIdentifier,
    ProjectionIdentifier,
)
from rrcluster.privacy.relation import update_sensitivity
from rrcluster.privacy.reports import Reports, check_reports
from rrcluster.privacy.sampling import FixedSizeSampler
from rrcluster.privacy.sums import cluster_sums, grid_noise, make_release, split_columns
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, Release


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
    identifier: AnyIdentifier | None  # None only for k = 1
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
                "must be privatised. Use one of privacy/identifier_noise.py."
            )

    @property
    def sampler(self) -> FixedSizeSampler:
        """Who takes part."""
        return FixedSizeSampler(self.cohort_size, self.num_clients)

    @property
    def score_width(self) -> int:
        """How many numbers beside its choice a client must report: its k losses, its projection, or none."""
        if isinstance(self.identifier, ByLossIdentifier):
            return self.num_clusters
        return self.identifier.width if isinstance(self.identifier, ProjectionIdentifier) else 0

    @property
    def event(self) -> FixedSizeEvent:
        """What one round costs, identifiers and updates together."""
        k, cohort, clients = self.num_clusters, self.cohort_size, self.num_clients
        if isinstance(self.identifier, KaryIdentifier):
            return FixedSizeKary(self.noise_multiplier, self.identifier.keep_probability, k, cohort, clients)
        if isinstance(self.identifier, ByLossIdentifier):
            rule, epsilon = self.identifier.rule, self.identifier.epsilon
            return FixedSizeByLoss(self.noise_multiplier, rule, epsilon, k, cohort, clients)
        checks.positive(noise_multiplier=self.noise_multiplier)
        whole_round = (_inverse_square(self.identifier) + self.noise_multiplier**-2) ** -0.5
        return FixedSizeGaussian(whole_round, cohort, clients)

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
        scores: Any = None,
        centres: Array | None = None,
    ) -> Release:
        """Algorithm 1 of the paper, from privatising identifiers to the noisy means.

        `scores` (n, score_width) are raw: what the identifiers read beside the choice, where they do. `centres` are
        public: those of projections released in earlier rounds, None in the first.
        """
        if evaluations is not None:
            raise PrivacyError("private evaluation belongs to `joint`; `identifier` has no room for it in its event.")
        if destinations is not None:
            raise PrivacyError("coins belong to `joint`; `identifier` rebalances by itself. Leave destinations out.")
        self._check_scores(scores)
        reports = check_reports(
            updates,
            choices,
            width=self.coordinates.width,
            num_clusters=self.num_clusters,
            client_ids=client_ids,
            scores=scores,
            score_width=self.score_width,
        )
        if len(reports.valid) > self.cohort_size:
            raise PrivacyError(
                f"more clients reported than the cohort of {self.cohort_size} has; sample with plan.sampler, and give "
                "client_ids so that a second report of a client is left out."
            )
        reports = reports.padded(self.cohort_size)
        step = grid_step(self.update_clip)
        noise = self._noise(step, rng)
        noisy, statistics = self._assigned(reports, centres, rng)
        assignment = rebalance(noisy, num_clusters=self.num_clusters, min_cluster_size=self.min_cluster_size, rng=rng)
        messages = clip_to_grid(reports.updates, update_clip=self.update_clip, known=reports.norms)
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
            projections=statistics,
        )

    def _check_scores(self, scores: Any) -> None:
        if self.score_width and scores is None:
            raise ConfigError(
                f"these identifiers are made from {self.score_width} scores per client, and none were given; pass "
                f"scores, an (n, {self.score_width}) array, or use identifier = kary, which needs the choice alone."
            )
        if not self.score_width and scores is not None:
            raise ConfigError("these identifiers are made from the choice alone; leave scores out.")

    def _assigned(self, reports: Reports, centres: Array | None, rng: Rng) -> tuple[Array, Array | None]:
        """(n,) the private assignment and, by projection, its statistics; given these the partition is fixed."""
        if isinstance(self.identifier, ByLossIdentifier):
            return self.identifier.assign(reports.scores, reports.valid, rng=rng), None
        if isinstance(self.identifier, ProjectionIdentifier):
            noisy = self.identifier.noisy(reports.scores, exact=self.exact_noise, rng=rng)
            return self.identifier.cluster(noisy, centres, num_clusters=self.num_clusters, rng=rng)
        return self._noisy_choices(reports.choices, reports.valid, rng), None

    def _noisy_choices(self, choices: Array, valid: Array, rng: Rng) -> Array:
        if self.identifier is None:
            return np.zeros(len(choices), dtype=np.int64)
        assert not isinstance(self.identifier, (ByLossIdentifier, ProjectionIdentifier))
        return self.identifier.assign(choices, valid, num_clusters=self.num_clusters, rng=rng)

    def _noise(self, step: float, rng: Rng) -> Array:
        width = self.coordinates.shared + self.num_clusters * self.coordinates.clustered
        return grid_noise(width, noise_std=self.noise_std, step=step, exact=self.exact_noise, rng=rng)


def _sizes(assignment: Array, num_clusters: int) -> Array:
    return np.bincount(assignment, minlength=num_clusters).astype(float)


def _inverse_square(identifier: AnyIdentifier | None) -> float:
    """1/z^2 of identifiers that are a Gaussian release; nothing for none."""
    if isinstance(identifier, GaussianIdentifier):
        return identifier.effective_multiplier**-2
    return identifier.noise_multiplier**-2 if isinstance(identifier, ProjectionIdentifier) else 0.0
