"""Runs of a sweep side by side on a processor: one at a time in each of several processes, this one among them."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import wait

from rrcluster.data.federated import FederatedData
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.reference import one_thread
from rrcluster.engine.workers.processes import Spawned
from rrcluster.experiments.config import RunConfig
from rrcluster.experiments.grid import Job
from rrcluster.experiments.job_process import JobProcess
from rrcluster.experiments.setup import Experiment, make_experiment
from rrcluster.experiments.sweep import Step, steps_of


def side_by_side(todo: Sequence[Job], *, processes: int, early: Sequence[Spawned] = ()) -> Iterator[Step]:
    """Run jobs in `processes` processes, each with one thread; whichever is free takes the next.

    `early`: those of them that were started already.

    The number of threads is written down with every charge (experiments/fingerprint.py). A sweep that goes on after it
    was stopped has the same jobs, hence as many processes and threads.
    """
    waiting, here = deque(todo), InTurn()
    own = waiting.popleft()
    with one_thread(), ExitStack() as stack:
        begun = [*early, *[None] * processes][: processes - 1]
        others = [stack.enter_context(JobProcess([waiting.popleft()], 1.0, spawned=one)) for one in begun]
        waiting.appendleft(own)
        while waiting:
            for step in here.steps([waiting.popleft()]):
                yield step
                yield from _arrived(others, waiting, timeout=0.0)
        yield from _arrived(others, waiting, timeout=None)


def _arrived(others: Sequence[JobProcess], waiting: deque[Job], *, timeout: float | None) -> Iterator[Step]:
    """All steps that other processes have reported; one that has nothing left to do gets the next job."""
    while working := {process.connection: process for process in others if process.left}:
        reported = wait(list(working), timeout)
        for process in (process for connection, process in working.items() if connection in reported):
            yield from process.steps()
            if waiting and not process.left and process.alive:
                process.give([waiting.popleft()], 1.0)
        if not reported:
            return


class InTurn:
    """Runs jobs in turn; one that has the population and the network of the one before uses them again."""

    def __init__(self) -> None:
        """Nothing to use again yet."""
        self._population: tuple[object, FederatedData | None] = None, None
        self._engine: tuple[object, BatchedEngine] | None = None

    def steps(self, jobs: Sequence[Job]) -> Iterator[Step]:
        """All steps of the jobs."""
        for job in jobs:
            yield from steps_of(job, make=self._experiment)

    def _experiment(self, config: RunConfig) -> Experiment:
        data = (config.data, config.columns)
        network, clients = (network_of(config), *data), (config.seed, *data)
        before, population = self._population
        made = make_experiment(config, data=population if before == clients else None)
        self._population = clients, made.data
        if not isinstance(made.engine, BatchedEngine):
            return made
        if self._engine is None or self._engine[0] != network:
            self._engine = network, made.engine
        return replace(made, engine=self._engine[1])


def network_of(config: RunConfig) -> tuple[object, ...]:
    """What runs must have in common to share an engine: the network, on the same kind of data, on one device."""
    additive = config.method.algorithm.startswith("fedcam")  # its network is twice the one asked for
    output = config.output
    return (
        config.data.data,
        config.method.model,
        additive,
        output.device,
        output.engine,
        output.capacity,
        output.precision,
    )
