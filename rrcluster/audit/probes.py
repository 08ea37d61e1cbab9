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
from rrcluster.privacy.reports import MessageSum, Reports, as_numpy
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
    """A mechanism that records every round: `raw` and `reported`, and in `log` when each release was made.

    Hosts in this process hand it parts of a cohort, which it joins. What is sent is summed first: a second sum of the
    same clients is that of honest reports, for diagnostics. `totals` holds the sums that were released.
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
        self.totals: list[Array] = []
        self._parts: dict[frozenset[Any], Reports] = {}
        if cohorts is not None:
            self.sampler = GivenCohorts(cohorts, mechanism.sampler.expected_size)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the mechanism's own."""
        return getattr(self._mechanism, name)

    def sum_messages(self, reports: Reports, *, round_index: int) -> Array:
        """Sum as the mechanism does, and record the part."""
        self._parts.setdefault(frozenset(np.asarray(reports.client_ids).tolist()), reports)
        total: Array = self._mechanism.sum_messages(reports, round_index=round_index)
        return total

    def release_total(self, exact: MessageSum, *, rng: Rng) -> Release:
        """Release a sum as the mechanism does, and record it with the reports of all parts."""
        reports = _joined([*self._parts.values()])
        self._parts.clear()
        self.totals.append(np.array(exact.total))
        return self.released(reports, lambda: self._mechanism.release_total(exact, rng=rng))

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Release as the mechanism does, and record the call."""
        return self.released(reports, lambda: self._mechanism.release(reports, rng=rng))

    def released(self, reports: Reports, release: Callable[[], Release]) -> Release:
        """Release, or take the next of the given releases, and record it."""
        self.log.append("release")
        made = self._canned[min(len(self.raw), len(self._canned) - 1)] if self._canned else release()
        self.raw.append((reports, made))
        return made

    @property
    def reported(self) -> list[Reported]:
        """The rounds so far, as arrays."""
        return [_as_arrays(reports, made) for reports, made in self.raw]


def _joined(parts: list[Reports]) -> Reports:
    """The reports of all parts of a cohort, in their order; none where other processes summed them."""
    if len(parts) < 2:
        return parts[0] if parts else Reports([], [], client_ids=[])
    columns: dict[str, Any] = {}
    for name in ("updates", "choices", "destinations", "client_ids", "evaluations"):
        values = [as_numpy(getattr(part, name)) for part in parts]
        columns[name] = None if values[0] is None else [row for value in values for row in value]
    return Reports(**columns)


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
