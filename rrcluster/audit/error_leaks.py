"""Failures in a secure run: no client can abort it, and an error reveals only that a round failed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrcluster.audit.rounds import NUM_CLIENTS, Training, around, small_population
from rrcluster.audit.targets import Finding, Recorder, WatchedLedger
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.errors import RoundError
from rrcluster.models import make_model
from rrcluster.privacy.reports import Reports
from rrcluster.types import Release

SECRET = "client 7 of 13"


@dataclass(frozen=True)
class FailingEngine:
    """An engine that fails for cohorts with one given client, or always."""

    engine: Any
    client: int | None

    def __getattr__(self, name: str) -> Any:
        """Delegate all other attributes to the engine."""
        return getattr(self.engine, name)

    def train(self, calls: Any) -> Any:
        """Train, or fail."""
        for call in calls:
            if self.client is None or self.client in call.cohort.clients:
                raise MemoryError(SECRET)
        return self.engine.train(calls)

    def measure(self, questions: Any) -> Any:
        """Measure as the engine does."""
        return self.engine.measure(questions)


class FailsAfterwards(Recorder):
    """A mechanism that fails once, after a release."""

    def released(self, reports: Reports, release: Callable[[], Release]) -> Release:
        """Release; the second time, fail afterwards."""
        result = super().released(reports, release)
        if len(self.raw) == 2:
            raise OverflowError(SECRET)
        return result


def check_discretion(training: Training) -> Finding:
    """A client whose computation fails sends nothing and the run goes on; all other errors have one fixed text.

    Deterministic. A failed round is not repeated under the same charge, and no raw report is retained.
    """
    wrong = _one_client_fails(training) or _everything_fails(training) or _release_fails(training)
    claim = "a failing client stops nothing, and errors reveal nothing about clients"
    return Finding(training.subject, "discretion", claim, wrong or "holds", not wrong)


def _one_client_fails(training: Training) -> str:
    plan = training.plan()
    everyone = np.arange(NUM_CLIENTS // 2)
    recorder = Recorder(plan.mechanism, cohorts=[everyone])
    try:
        records = training.run(around(plan, recorder), engine=_failing(client=int(everyone[3])))
    except Exception as error:
        return f"one client's failure stops the run ({type(error).__name__})"
    if any(record.collection.honest is not None for record in records):
        return "raw reports or sums are retained"
    others = np.delete(everyone, 3)
    complete = all(np.array_equal(np.sort(one.client_ids), others) for one in recorder.reported)
    return "" if complete else "one client's failure changes which other clients report"


def _everything_fails(training: Training) -> str:
    try:
        training.run(training.plan(), engine=_failing(client=None))
    except RoundError as error:
        return _revealed(error)
    except Exception as error:
        return f"{type(error).__name__} reaches the caller"
    return "a failed round is skipped"


def _release_fails(training: Training) -> str:
    plan, log = training.plan(), list[Any]()
    ledger = WatchedLedger(log, secure=True)
    try:
        training.run(around(plan, FailsAfterwards(plan.mechanism, log=log)), ledger=ledger)
    except RoundError as error:
        releases = log.count("release")
        return _revealed(error) or (
            "" if releases == ledger.num_charged else "a failed round is released again, uncharged"
        )
    except Exception as error:
        return f"{type(error).__name__} reaches the caller"
    return "a round that failed after its release is repeated under one charge"


def _revealed(error: BaseException) -> str:
    if SECRET in str(error) or any(part in str(error) for part in ("MemoryError", "OverflowError")):
        return "an error reveals why a round failed"
    carried = error.__cause__ is not None or error.__context__ is not None
    return "an error carries the reason for a failed round" if carried else ""


def _failing(*, client: int | None) -> FailingEngine:
    width = small_population(0).input_shape
    return FailingEngine(BatchedEngine(make_model("linear", input_shape=width, num_classes=0)), client)
