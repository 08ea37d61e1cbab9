"""No privacy at all: exact means, for baselines. It has no event, so nobody can print an epsilon for it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rrcluster import checks
from rrcluster.clusters.rebalancing import rebalance
from rrcluster.errors import PrivacyError
from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.reports import check_reports
from rrcluster.privacy.sampling import FixedSizeSampler
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
    adjacency: ClassVar[None] = None
    noise_std: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        checks.count(num_clusters=self.num_clusters)
        checks.non_negative(size_floor=self.size_floor)

    @property
    def sampler(self) -> FixedSizeSampler:
        """Who takes part."""
        return FixedSizeSampler(self.cohort_size, self.num_clients)

    @property
    def event(self) -> RoundEvent:
        """There is none."""
        raise PrivacyError("mechanism none adds no noise: it has no epsilon. Use `joint` or `identifier` for one.")

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
        """Exact means of the valid reports, in a fixed order, in float64."""
        if evaluations is not None:
            raise PrivacyError("private evaluation belongs to `joint`; `none` releases nothing privately.")
        if destinations is not None:
            raise PrivacyError("coins belong to `joint`; `none` rebalances by itself. Leave destinations out.")
        reports = check_reports(
            updates,
            choices,
            width=self.coordinates.width,
            num_clusters=self.num_clusters,
            client_ids=client_ids,
        )
        rows = reports.updates[reports.valid].astype(np.float64)
        room = len(rows) // self.num_clusters
        assignment = rebalance(
            reports.choices[reports.valid],
            num_clusters=self.num_clusters,
            min_cluster_size=min(self.min_cluster_size, room),
            rng=rng,
        )
        shared, clustered = split_columns(rows, self.coordinates)
        return make_release(
            shared.sum(axis=0),
            cluster_sums(clustered, assignment, num_clusters=self.num_clusters),
            np.bincount(reports.choices[reports.valid], minlength=self.num_clusters).astype(float),
            block_sizes=np.bincount(assignment, minlength=self.num_clusters).astype(float),
            size_floor=self.size_floor,
            min_cluster_size=0,
            sum_noise_std=0.0,
            size_noise_std=0.0,
        )
