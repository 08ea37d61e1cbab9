"""Stand-ins that watch a simulation from inside: what went into the mechanism, what came out, and when.

A probe delegates to the mechanism it stands for, so that plan, server and simulator run unchanged around it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rrcluster.audit.targets import Mechanism
from rrcluster.privacy.events import Event
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.reports import Reports
from rrcluster.rng import Rng
from rrcluster.types import Array, Release


@dataclass(frozen=True)
class Reported:
    """One round as the mechanism saw it."""

    updates: Array
    choices: Array
    destinations: Array  # the choices, where no coin was tossed
    client_ids: Array
    release: Release
    evaluations: Array | None = None


@dataclass(frozen=True)
class GivenCohorts:
    """A sampler whose cohorts are decided beforehand, in the order they are asked for; the last one repeats."""

    cohorts: list[Array]
    drawn: list[int] = field(default_factory=list)
    expected_size: float = 0.0

    def draw(self, population: int, *, rng: Rng, round_index: int | None = None) -> Array:  # noqa: ARG002
        """The next cohort."""
        self.drawn.append(population)
        return self.cohorts[min(len(self.drawn), len(self.cohorts)) - 1]


class Recorder:
    """A mechanism that remembers every call: `reported`, and in `log` when each release was made.

    `cohorts` replaces the sampler; `canned` replaces every release by a given one, whatever is reported.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        log: list[Any] | None = None,
        cohorts: list[Array] | None = None,
        canned: Release | None = None,
    ) -> None:
        """Watch `mechanism`."""
        self._mechanism, self._canned = mechanism, canned
        self.log: list[Any] = [] if log is None else log
        self.reported: list[Reported] = []
        if cohorts is not None:
            self.sampler = GivenCohorts(cohorts)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the mechanism's own."""
        return getattr(self._mechanism, name)

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Release as the mechanism does, and remember."""
        self.log.append("release")
        made: Release = self._canned or self._mechanism.release(reports, rng=rng)
        moved = np.array(reports.choices if reports.destinations is None else reports.destinations)
        updates, choices, ids = (np.array(part) for part in (reports.updates, reports.choices, reports.client_ids))
        judged = None if reports.evaluations is None else np.array(reports.evaluations)
        self.reported.append(Reported(updates, choices, moved, ids, made, judged))
        return made


class WatchedLedger(Ledger):
    """A ledger that writes each charge into the same log as the releases."""

    def __init__(self, log: list[Any]) -> None:
        """Start empty."""
        super().__init__()
        self.log = log

    def charge(self, round_index: int, event: Event | None) -> None:
        """Charge, and remember when and for what."""
        super().charge(round_index, event)
        self.log.append((round_index, event))
