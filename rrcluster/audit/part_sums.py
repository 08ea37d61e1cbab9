"""A round is a sum over parts of the cohort: every client counts exactly once, whichever host computed its part."""

from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

import numpy as np

from rrcluster.audit.histories import RepeatedStreams
from rrcluster.audit.rounds import NUM_CLIENTS, Training, around, small_population
from rrcluster.audit.targets import Finding, Recorder
from rrcluster.client import ClientSide
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.privacy.mechanism import adds_up
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import Reports, as_numpy
from rrcluster.simulation.clients import Faults
from rrcluster.simulation.hosts import Host, Hosts
from rrcluster.types import Array

COHORT = np.arange(NUM_CLIENTS // 4, NUM_CLIENTS * 3 // 4)  # more than two parts, the last of them smaller
_ROUNDS = 2


def check_parts(training: Training) -> Finding:
    """The sum over parts equals the sum client by client, also where hosts die and their parts are repeated.

    Deterministic: with hosts that die the releases are fixed, and clients draw the same. The messages of the recorded
    reports are added one by one, in whole numbers, and compared with the release. Mechanisms that need single reports
    must get one of every client.
    """
    plan = training.plan()
    here = Recorder(plan.mechanism, cohorts=[COHORT])
    _run(training, plan, here)
    wrong = _miscounted(here)
    if not wrong:
        elsewhere = Recorder(plan.mechanism, cohorts=[COHORT], canned=[made for _, made in here.raw])
        _run(training, plan, elsewhere, executor=MortalHosts(dying=(2, 5, 7, 9)))
        same = all(np.array_equal(*pair) for pair in zip(_released(here), _released(elsewhere), strict=True))
        wrong = "" if same else "the sum differs where hosts died and parts were repeated"
    claim = "every client of a cohort counts once, on whichever host"
    return Finding(training.subject, "parts", claim, wrong or "holds, exactly", not wrong)


class MortalHosts(Executor):
    """Runs tasks in this process; tasks numbered in `dying`, counted from 1, end their host instead."""

    def __init__(self, dying: tuple[int, ...]) -> None:
        """Start with no task submitted."""
        self.dying, self.submitted = dying, 0

    def submit(self, task: Any, /, *given: Any, **named: Any) -> "Future[Any]":
        """The finished task."""
        future: Future[Any] = Future()
        self.submitted += 1
        try:
            if self.submitted in self.dying:
                raise BrokenExecutor("a host died")
            future.set_result(task(*given, **named))
        except Exception as error:
            future.set_exception(error)
        return future


def _run(training: Training, plan: PrivacyPlan, recorder: Recorder, *, executor: Executor | None = None) -> None:
    """A few rounds: in this process, or through an executor, whose hosts have the mechanism itself."""
    arguments = training.arguments(around(plan, recorder, num_rounds=_ROUNDS), small_population(0))
    engine = ReferenceEngine(arguments["model"])  # clients one by one, so that their bits do not depend on their part
    hosts = None
    if executor is not None:
        method = arguments["method"]
        side = ClientSide(method, method.split(arguments["model"]), engine, arguments["local"], plan.mechanism)
        hosts = Hosts(Host(arguments["data"], side, Faults(), discreet=plan.secure), executor=executor)
    streams = RepeatedStreams(training.seed) if plan.secure else arguments["streams"]
    for _ in training.simulate(**(arguments | {"engine": engine, "hosts": hosts, "streams": streams})):
        pass


def _miscounted(recorder: Recorder) -> str:
    """What is wrong with how clients count in the rounds; empty if nothing."""
    for t, (reports, _) in enumerate(recorder.raw):
        if sorted(np.asarray(reports.client_ids).tolist()) != COHORT.tolist():
            return f"not every client of the cohort reports once in round {t}"
        if not adds_up(recorder):
            continue
        if recorder.totals[t].tolist() != _client_by_client(recorder, reports):
            return f"the sum of round {t} is not the sum of its clients' messages"
        if not recorder.totals[t].any():
            return f"the sum of round {t} is empty, so that this check shows nothing"
    return "" if len(recorder.raw) == _ROUNDS else f"{len(recorder.raw)} releases in {_ROUNDS} rounds"


def _client_by_client(mechanism: Any, reports: Reports) -> list[int]:
    """The sum of the clients' messages, added one by one as integers of any size."""
    updates, choices = as_numpy(reports.updates), np.asarray(reports.choices)
    columns = [[None] * len(choices) if part is None else part for part in (reports.destinations, reports.evaluations)]
    total = [0] * mechanism.message_width
    for row in zip(updates, choices, *columns, strict=True):
        update, choice, destination, evaluation = row
        message = mechanism.message(as_numpy(update), choice, destination=destination, evaluation=evaluation)
        total = [so_far + part for so_far, part in zip(total, message.tolist(), strict=True)]
    return total


def _released(recorder: Recorder) -> list[Array]:
    """The releases of all rounds: sums, or the updates in the order of the clients."""
    if adds_up(recorder):
        return recorder.totals
    return [
        np.array(as_numpy(reports.updates))[np.argsort(np.asarray(reports.client_ids))] for reports, _ in recorder.raw
    ]
