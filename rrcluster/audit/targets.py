"""The mechanism under audit, built as a plan builds it at any noise, shape and B; findings; and recording probes.

Claims are recomputed here from first principles, never read from the code under test: a wrong formula there must not
hide its own error.
Probes record a simulation from inside: the inputs of the mechanism, its outputs, and their order. A probe delegates to
the mechanism it wraps, so that plan, server and simulator run unchanged around it.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from rrcluster.entropy import secure_rng
from rrcluster.errors import RRClusterError
from rrcluster.privacy.events import Event
from rrcluster.privacy.identifier import IdentifierMechanism
from rrcluster.privacy.joint import JointMechanism
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import MessageSum, Reports, join_reports
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, Release

CLIP, COUNT_WEIGHT = 0.5, 0.25  # neither is 1, so that std, variance and multiplier differ
DELTA = 1e-4

# Anything with release(reports, rng=...), a sampler, an event, and the
# public constants of `JointMechanism` or `IdentifierMechanism` as fields.
Mechanism = Any


@dataclass(frozen=True)
class AuditSetting:
    """The public constants of a mechanism. `noise_multiplier` is that of the whole round; 0 switches noise off."""

    noise_multiplier: float = 1.7
    shared: int = 0
    clustered: int = 2
    num_clusters: int = 3
    min_cluster_size: int = 0
    size_floor: float = 0.0
    sample_rate: float = 0.1
    num_clients: int = 1000
    count_weight: float = COUNT_WEIGHT  # w / C
    evaluation_weight: float = 0.0  # u / C
    secure: bool = False  # exact noise and cohorts from the operating system


@dataclass(frozen=True)
class Target:
    """A mechanism under audit. `make(setting)` builds it as `PrivacyPlan.build` does."""

    name: str
    make: Callable[[AuditSetting], Mechanism]
    adjacency: str
    identifier: str = "gaussian"  # how choices are privatised under `identifier`
    counted: bool = True  # whether sizes are released; with w = 0 they are a public constant
    secure: bool = False  # whether it needs randomness from the operating system

    def generator(self, rng: Rng) -> Rng:
        """The generator for its releases: `rng`, or the operating system's where nothing else is accepted."""
        return secure_rng() if self.secure else rng


def varied(target: Target, name: str, **changes: Any) -> Target:
    """The same mechanism with other public constants (fields of `AuditSetting`) in every setting."""
    return replace(
        target,
        name=f"{target.name} ({name})",
        make=lambda setting: target.make(replace(setting, **changes)),
        counted=changes.get("count_weight", COUNT_WEIGHT) > 0,
        secure=changes.get("secure", False),
    )


@dataclass(frozen=True)
class GivenAssignment:
    """Replaces the noisy identifiers, on which the guarantee of `identifier` is conditional, by a fixed assignment."""

    assignment: Array

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:  # noqa: ARG002
        """The fixed assignment."""
        return self.assignment[: len(choices)]


def joint_target(kind: type[JointMechanism] = JointMechanism) -> Target:
    """The joint mechanism, or a variant of it."""
    return Target("joint", lambda setting: _made(kind, setting, mechanism="joint"), "add-remove")


def identifier_target(identifier: str = "gaussian", kind: type[IdentifierMechanism] = IdentifierMechanism) -> Target:
    """The paper's mechanism, or a variant of it."""

    def make(setting: AuditSetting) -> Mechanism:
        return _made(kind, setting, mechanism="identifier", identifier=identifier)

    return Target(f"identifier ({identifier})", make, "replace-one", identifier)


def plan_of(setting: AuditSetting, *, num_rounds: int = 1, **changes: Any) -> PrivacyPlan:
    """A plan with these constants; noise 0 becomes 1 (a plan refuses 0)."""
    settings: dict[str, Any] = {
        "coordinates": Coordinates(setting.shared, setting.clustered),
        "num_clusters": setting.num_clusters,
        "num_clients": setting.num_clients,
        "sample_rate": setting.sample_rate,
        "update_clip": CLIP,
        "count_weight": setting.count_weight,
        "private_evaluation": setting.evaluation_weight,
        "secure": setting.secure,
        "noise_multiplier": setting.noise_multiplier or 1.0,
        "min_cluster_size": setting.min_cluster_size,
        "size_floor": setting.size_floor,
        "delta": min(DELTA, 1 / setting.num_clients),
    }
    return PrivacyPlan.build(num_rounds=num_rounds, **(settings | changes))


def recast(mechanism: Mechanism, kind: Any) -> Mechanism:
    """The same settings in a mechanism of another kind."""
    return kind(**{field.name: getattr(mechanism, field.name) for field in fields(mechanism)})


def claimed_sensitivity(mechanism: Mechanism) -> float:
    """L2 sensitivity that the noise must be scaled to: sqrt(C^2 + w^2 + u^2 / 2) under `joint`, else 2C."""
    clip = float(mechanism.update_clip)
    weight, judged = getattr(mechanism, "count_weight", None), getattr(mechanism, "evaluation_weight", 0.0)
    return 2 * clip if weight is None else math.sqrt(clip * clip + weight * weight + judged * judged / 2)


def noised(release: Release, mechanism: Mechanism) -> Array:
    """All noisy values as one vector: shared sum, cluster sums and, in `joint`, counts and evaluations."""
    weight = getattr(mechanism, "count_weight", 0.0)
    counts = [release.sizes * weight] if weight else []
    judged = [] if release.evaluation is None else [release.evaluation.sums * mechanism.evaluation_weight]
    return np.concatenate([release.shared_sum, release.cluster_sums.ravel(), *counts, *judged])


def as_reports(mechanism: Mechanism, one: Any) -> Reports:
    """Reports of a cohort (`updates`, `choices`, `destinations`, `evaluations`), complete for this mechanism.

    Where evaluations are required but none are given, everybody reports the best one, which is the longest.
    """
    evaluations = one.evaluations
    if evaluations is None and getattr(mechanism, "evaluation_weight", 0.0) > 0:
        evaluations = np.ones((len(one.choices), 2))
    return Reports(one.updates, one.choices, one.destinations, evaluations=evaluations, unique=True)


def silenced(mechanism: Mechanism) -> Mechanism:
    """The same mechanism without noise, which takes any generator."""
    return replace(mechanism, noise_multiplier=0.0, exact_noise=False)


def given(mechanism: Mechanism, assignment: Array) -> Mechanism:
    """`identifier` with fixed noisy identifiers, and a cohort to match; `joint` as it is."""
    if not hasattr(mechanism, "identifier"):
        return mechanism
    return replace(mechanism, identifier=GivenAssignment(assignment), cohort_size=len(assignment))


def _made(kind: Any, setting: AuditSetting, **changes: Any) -> Mechanism:
    made = recast(plan_of(setting, **changes).mechanism, kind)
    return silenced(made) if setting.noise_multiplier == 0 else made


@dataclass(frozen=True)
class Finding:
    """One line of the audit. `holds` is None for a measurement that is informative only."""

    subject: str  # a mechanism, the accountants, a training run
    check: str
    claim: str
    measured: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """The verdict in one word."""
        return {True: "holds", False: "FAILS", None: "informative"}[self.holds]


def failures(findings: Iterable[Finding]) -> list[Finding]:
    """The findings whose claim failed."""
    return [finding for finding in findings if finding.holds is False]


GRID_BITS = 30  # the grid that the audit expects: steps of at most 2^-30 of the clip, a power of two


EVALUATED = varied(joint_target(), "evaluation", evaluation_weight=1.5)


SECURE = varied(joint_target(), "secure", secure=True, count_weight=1.0, evaluation_weight=0.5)


VARIANTS = {
    "joint": (
        varied(joint_target(), "w = 0", count_weight=0.0),
        varied(joint_target(), "w = C", count_weight=1.0),
        varied(joint_target(), "w = 16 C", count_weight=16.0),
        EVALUATED,
        SECURE,
    ),
    "identifier": (varied(identifier_target(), "secure", secure=True),),
}


# Canaries use sums alone: counts and evaluations, which share the noise, are as light as usual, or absent.
CANARY_RUNS = {
    "joint": ((varied(joint_target(), "secure", secure=True), "ifca"),),
    "identifier": ((varied(identifier_target(), "secure", secure=True), "fedavg"),),
}


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
    """A sampler with cohorts fixed beforehand, in order; the last one repeats."""

    cohorts: list[Array]
    expected_size: float  # a public constant, whatever the cohorts are
    drawn: list[int] = field(default_factory=list)

    def check_population(self, population: int) -> None:
        """Accept any population."""

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
    """A mechanism that records every round: `raw`, `reported`, the sums in `totals`, and the order of events in `log`.

    Hosts in this process pass it parts of a cohort, which it joins. Messages are summed before honest reports, which
    are summed a second time for diagnostics.
    `cohorts` replaces the sampler; `canned` replaces the releases by fixed ones, whatever is reported; the last one
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
        """Delegate all other attributes to the mechanism."""
        return getattr(self._mechanism, name)

    def __eq__(self, other: object) -> bool:
        """Equal to itself and to its mechanism, of which hosts in other processes have a copy."""
        return self is other or bool(self._mechanism == other)

    __hash__ = object.__hash__

    def sum_messages(self, reports: Reports, *, round_index: int) -> Array:
        """Sum as the mechanism does, and record the part."""
        self._parts.setdefault(frozenset(np.asarray(reports.client_ids).tolist()), reports)
        total: Array = self._mechanism.sum_messages(reports, round_index=round_index)
        return total

    def release_total(self, exact: MessageSum, *, rng: Rng) -> Release:
        """Release a sum as the mechanism does, and record it with the reports of all parts."""
        parts = [*self._parts.values()]  # none where other processes summed them
        reports = join_reports(parts) if parts else Reports([], [], client_ids=[])
        self._parts.clear()
        self.totals.append(np.array(exact.total))
        return self.released(reports, lambda: self._mechanism.release_total(exact, rng=rng))

    def release(self, reports: Reports, *, rng: Rng) -> Release:
        """Release as the mechanism does, and record the call."""
        return self.released(reports, lambda: self._mechanism.release(reports, rng=rng))

    def released(self, reports: Reports, release: Callable[[], Release]) -> Release:
        """Release, or take the next of the given releases, and record it."""
        self.log.append("release")
        result = self._canned[min(len(self.raw), len(self._canned) - 1)] if self._canned else release()
        self.raw.append((reports, result))
        return result

    @property
    def reported(self) -> list[Reported]:
        """The rounds so far, as arrays."""
        return [_as_arrays(reports, made) for reports, made in self.raw]


def _as_arrays(reports: Reports, release: Release) -> Reported:
    destinations = np.array(reports.choices if reports.destinations is None else reports.destinations)
    updates, choices, ids = (np.array(part) for part in (reports.updates, reports.choices, reports.client_ids))
    judged = None if reports.evaluations is None else np.array(reports.evaluations)
    return Reported(updates, choices, destinations, ids, release, judged)


class WatchedLedger(Ledger):
    """A ledger that writes each charge into the same log as the releases."""

    def __init__(self, log: list[Any], *, secure: bool = False) -> None:
        """Start empty."""
        super().__init__(secure=secure)
        self.log = log

    def charge(self, round_index: int, event: Event | None) -> None:
        """Charge, and record the time and the event."""
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
    """Replaces the operating system's generator, so that secure runs can be repeated and their reads counted."""
    urandom = os.urandom
    os.urandom = source
    try:
        yield
    finally:
        os.urandom = urandom
