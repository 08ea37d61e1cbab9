"""Probes that record a simulation from inside: what went into the mechanism, what came out, and when.

A probe delegates to the mechanism it stands for, so that plan, server and simulator run unchanged around it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rrcluster.audit.targets import Mechanism
from rrcluster.errors import RRClusterError
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
    expected_size: float  # a public constant, whatever the cohorts are
    drawn: list[int] = field(default_factory=list)

    def check_population(self, population: int) -> None:
        """Any."""

    def draw(
        self,
        population: int,
        *,
        rng: Rng,  # noqa: ARG002
        round_index: int | None = None,  # noqa: ARG002
        names: tuple[str, ...] = (),  # noqa: ARG002
    ) -> Array:
        """The next cohort."""
        self.drawn.append(population)
        return self.cohorts[min(len(self.drawn), len(self.cohorts)) - 1]


class Recorder:
    """A mechanism that records every call: `raw` and `reported`, and in `log` when each release was made.

    `cohorts` replaces the sampler; `canned` replaces the releases by given ones, whatever is reported; the last one
    repeats.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        log: list[Any] | None = None,
        cohorts: list[Array] | None = None,
        canned: Sequence[Release] = (),
    ) -> None:
        """Watch `mechanism`."""
        self._mechanism, self._canned = mechanism, canned
        self.log: list[Any] = [] if log is None else log
        self.raw: list[tuple[Reports, Release]] = []
        if cohorts is not None:
            self.sampler = GivenCohorts(cohorts, mechanism.sampler.expected_size)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the mechanism's own."""
        return getattr(self._mechanism, name)

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Release as the mechanism does, and record the call."""
        self.log.append("release")
        if self._canned:
            made: Release = self._canned[min(len(self.raw), len(self._canned) - 1)]
        else:
            made = self._mechanism.release(reports, rng=rng)
        self.raw.append((reports, made))
        return made

    @property
    def reported(self) -> list[Reported]:
        """The rounds so far, as arrays."""
        return [_as_arrays(reports, made) for reports, made in self.raw]


def _as_arrays(reports: Reports, made: Release) -> Reported:
    moved = np.array(reports.choices if reports.destinations is None else reports.destinations)
    updates, choices, ids = (np.array(part) for part in (reports.updates, reports.choices, reports.client_ids))
    judged = None if reports.evaluations is None else np.array(reports.evaluations)
    return Reported(updates, choices, moved, ids, made, judged)


class WatchedLedger(Ledger):
    """A ledger that writes each charge into the same log as the releases."""

    def __init__(self, log: list[Any], *, secure: bool = False) -> None:
        """Start empty."""
        super().__init__(secure=secure)
        self.log = log

    def charge(self, round_index: int, event: Event | None) -> None:
        """Charge, and record when and for what."""
        super().charge(round_index, event)
        self.log.append((round_index, event))


def refused(call: Callable[[], object], *kinds: type[Exception]) -> bool:
    """Whether a call raises one of these errors; by default, any error of this package."""
    errors = kinds or (RRClusterError,)
    try:
        call()
    except errors:
        return True
    return False


@contextmanager
def entropy_from(source: Callable[[int], bytes]) -> Iterator[None]:
    """The operating system's generator, replaced: secure runs can be repeated, and their reads counted."""
    own = os.urandom
    os.urandom = source
    try:
        yield
    finally:
        os.urandom = own
