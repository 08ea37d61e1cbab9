"""Jobs of a sweep in one process: one after the other, or stacked on a GPU; and as tasks of an executor.

A job's numbers are those of the run alone. A refused or failed job is reported, and the others continue.

Stacked runs proceed in lockstep: they share one batched engine, which combines their calls into larger ones. A client's
numbers depend on its own data, start and draws alone, so a stacked run equals the run alone (to the last bit where a
client's arithmetic does not depend on the number of clients computed with it, else within rounding).
"""

import gc
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from rrcluster import registry
from rrcluster.data.federated import FederatedData
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.pick_engine import pick_device
from rrcluster.engine.protocol import Engine, Measured, Question, TrainingCall, Updates
from rrcluster.errors import RRClusterError
from rrcluster.methods import METHODS
from rrcluster.models.model import Model
from rrcluster.runs.config import RunConfig
from rrcluster.runs.experiment import Experiment, engine_for, load_population, make_experiment
from rrcluster.runs.lock import Lease
from rrcluster.runs.outcome import accuracy_text
from rrcluster.runs.run import MakeExperiment, Running, start_or_resume
from rrcluster.runs.sweep import DIVERGED, FAILED, FINISHED, REFUSED, Going, Job, Outcome, Step, failure_text

Batch = Callable[[Sequence[Any]], list[Any]]


@dataclass(eq=False)
class _Request:
    """Calls of one run, waiting for those of the other runs."""

    method: str
    calls: Sequence[Any]
    results: Sequence[Any] = ()
    error: BaseException | None = None
    done: bool = False


class Stack:
    """Meeting point of `members` runs, each in its own thread: every call waits until all runs have one.

    A run that ends or fails must `leave`; otherwise the others wait for ever.
    """

    def __init__(
        self,
        engine: BatchedEngine,
        members: int,
        *,
        turn: AbstractContextManager[Any] | None = None,
        working: threading.Semaphore | None = None,
    ) -> None:
        """All `members` are waited for from the start.

        Stacks that share an engine share its `turn` lock: while one computes, the runs of the other do the host's part
        of their rounds. Such a run holds `working`, which a call releases while it waits.
        """
        self.engine = engine
        self._methods: dict[str, Batch] = {"measure": engine.measure, "train": engine.train}
        self._members, self._turn, self._working = members, turn or threading.Lock(), working
        self._waiting: list[_Request] = []
        self._meeting = threading.Condition()

    def leave(self) -> None:
        """One run makes no more calls."""
        with self._meeting:
            self._members -= 1
            self._compute_if_complete()

    def call(self, method: str, calls: Sequence[Any]) -> list[Any]:
        """Wait for the other runs, then for the results. An error is raised in every run that shared the call."""
        request = _Request(method, calls)
        if self._working is not None:
            self._working.release()
        try:
            with self._meeting:
                self._waiting.append(request)
                self._compute_if_complete()
                self._meeting.wait_for(lambda: request.done)
        finally:
            if self._working is not None:
                self._working.acquire()
        if request.error is not None:
            raise request.error
        return list(request.results)

    def _compute_if_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self._members:
            return
        waiting, self._waiting = self._waiting, []
        with self._turn:
            for method, batch in self._methods.items():
                _compute([request for request in waiting if request.method == method], batch)
        self._meeting.notify_all()


def _compute(requests: Sequence[_Request], batch: Batch) -> None:
    try:
        results = iter(_in_passes(batch, [call for request in requests for call in request.calls]))
        for request in requests:
            request.results = [next(results) for _ in request.calls]
    except Exception as error:
        for request in requests:
            request.error = error
    for request in requests:
        request.done = True


def _in_passes(batch: Batch, calls: Sequence[Any]) -> list[Any]:
    """All calls at once, or in halves where device memory runs out. Results differ by rounding at most."""
    if not calls:
        return []
    try:
        return batch(calls)
    except torch.OutOfMemoryError:
        if len(calls) < 2:
            raise
    torch.cuda.empty_cache()
    half = len(calls) // 2
    return _in_passes(batch, calls[:half]) + _in_passes(batch, calls[half:])


@dataclass(frozen=True, eq=False)
class StackedEngine:
    """One run's view of a stack."""

    stack: Stack
    isolates: ClassVar[bool] = False
    part: ClassVar[int] = sys.maxsize

    @property
    def model(self) -> Model:
        """The shared engine's model."""
        return self.stack.engine.model

    @property
    def device(self) -> torch.device:
        """The shared engine's device."""
        return self.stack.engine.device

    @property
    def described(self) -> str:
        """The shared engine's description: a job's numbers are those of the run alone."""
        return self.stack.engine.described

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        return self.stack.call("train", calls)

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        return self.stack.call("measure", questions)


LARGEST_STACK = 160  # runs
_AT_WORK = 2  # runs of a stack: while one waits for the disk, another computes


class Reused:
    """Populations and engines for reuse by the next job: those of one population and network at a time."""

    def __init__(self) -> None:
        """Start empty."""
        self._population: tuple[object, FederatedData | None] = None, None
        self._engine: tuple[object, Engine] | None = None

    def experiment(self, config: RunConfig) -> Experiment:
        """The experiment of a config, reusing the previous population and engine where they are the same."""
        clients = (config.data, config.columns, config.seed)
        before, population = self._population
        data = population if before == clients and population is not None else load_population(config)
        self._population = clients, data
        return make_experiment(config, data=data, engine=partial(self._engine_of, config))

    def _engine_of(self, config: RunConfig, model: Model) -> Engine:
        """One engine for jobs whose networks are equal once their methods have adapted them."""
        key = (model.signature, config.data, config.columns, config.seed, _engine_settings(config))
        if self._engine is None or self._engine[0] != key or model.own:
            self._engine = key, engine_for(config, model)
        return self._engine[1]


def _engine_settings(config: RunConfig) -> tuple[object, ...]:
    output = config.output
    return output.device, output.engine, output.capacity, output.precision, config.local.plain_sgd


def steps_of(job: Job, *, make: MakeExperiment = make_experiment) -> Iterator[Step]:
    """All steps of one job, up to its outcome, errors included."""
    try:
        with Lease(job.folder) if job.shared else nullcontext() as lease:
            for step in _rounds(job, make):
                if lease is not None:
                    lease.check()
                yield step
    except RRClusterError as error:
        yield Outcome(job, REFUSED, str(error))
    except (RuntimeError, ArithmeticError, MemoryError) as error:
        yield Outcome(job, FAILED, failure_text(error))


def _rounds(job: Job, make: MakeExperiment) -> Iterator[Step]:
    running = start_or_resume(job.config, make=make)
    if running is None:  # finished in an earlier sweep
        yield Outcome(job, FINISHED)
        return
    for progress in running.rounds():
        yield Going(job, progress.round_index + 1, progress.num_rounds, accuracy_text(progress))
    yield _outcome(job, running)


def _outcome(job: Job, running: Running) -> Outcome:
    result = running.result()
    finite = np.isfinite(result.models.shared).all() and np.isfinite(result.models.clustered).all()
    if finite and (result.evaluation is None or np.isfinite(result.evaluation.loss) or not _tested(running)):
        return Outcome(job, FINISHED)
    return Outcome(job, DIVERGED, "the models or their loss are not finite; lower local_lr, server_lr or update_clip.")


def _tested(running: Running) -> bool:
    """Whether any client has test samples; without them no loss is measured."""
    return bool((running.experiment.data.test_of >= 0).any())


def in_turn(todo: Sequence[Job], reused: Reused | None = None) -> Iterator[Step]:
    """Jobs one after the other, in this process."""
    reused = reused or Reused()
    for job in todo:
        yield from steps_of(job, make=reused.experiment)


def run_task(todo: Sequence[Job], known: Sequence[tuple[str, registry.Entry]], share: float) -> list[Outcome]:
    """Jobs as a task of an executor; on a GPU stacked, with this share of its memory.

    `known`: the registrations of the program that started the sweep.
    """
    registry.restore(known)
    devices = [device for device in devices_of(todo) if device.type == "cuda"]
    for device in devices:
        with torch.cuda.device(device):  # which may have no number
            torch.cuda.set_per_process_memory_fraction(share)  # it frees what it has cached before it fails
    steps = stacked(todo) if devices else in_turn(todo, _REUSED)
    return [step for step in steps if isinstance(step, Outcome)]


_REUSED = Reused()  # of a worker process, from task to task


def devices_of(todo: Sequence[Job]) -> list[torch.device]:
    """The available devices of the jobs, each once, in order."""
    devices = []
    for name in dict.fromkeys(str(job.settings.get("device", "auto")) for job in todo):
        with suppress(RRClusterError):  # its jobs will be refused
            devices.append(pick_device(name))
    return devices


def stacked(todo: Sequence[Job]) -> Iterator[Step]:
    """Runs of one network at once on a GPU, up to `LARGEST_STACK` of them; the rest after them."""
    alike: dict[object, list[Job]] = {}
    for job in todo:
        try:
            config = job.config
            network = config.data.data, config.method.model, METHODS[config.method.algorithm].adapt
            alike.setdefault((*network, _engine_settings(config)), []).append(job)
        except RRClusterError as error:
            yield Outcome(job, REFUSED, str(error))
    for jobs in alike.values():
        for first in range(0, len(jobs), LARGEST_STACK):
            yield from _together(jobs[first : first + LARGEST_STACK])
            gc.collect()  # another process may need the device memory of a stack that is over
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


class _Shared:
    """State shared by the runs of a stack: populations by their settings, and the engine, made by the first run.

    Runs form two stacks that alternate on the engine, so that the device has work during the host's part of a round.
    Few runs do that part at once: threads that compete for Python's lock lose more time than they gain.
    """

    def __init__(self, members: int) -> None:
        self.working = threading.Semaphore(_AT_WORK)
        self._lock = threading.Lock()
        self._populations: dict[object, FederatedData] = {}
        self._members = [members - members // 2, members // 2]
        self._stacks: list[Stack] = []

    def experiment(self, side: int, config: RunConfig) -> Experiment:
        """The experiment of a config, on shared data and the shared engine."""
        with self._lock:
            key = (config.data, config.columns, config.seed)
            if key not in self._populations:
                self._populations[key] = load_population(config)
            return make_experiment(config, data=self._populations[key], engine=partial(self._engine, side, config))

    def leave(self, side: int) -> None:
        """Remove a finished run."""
        with self._lock:
            if not self._stacks:
                self._members[side] -= 1
                return
        self._stacks[side].leave()

    def _engine(self, side: int, config: RunConfig, model: Model) -> Engine:
        """The shared engine; jobs of a stack have equal networks."""
        if not self._stacks:
            engine, turn = engine_for(config, model), threading.Lock()
            if not isinstance(engine, BatchedEngine):
                return engine
            self._stacks = [Stack(engine, members, turn=turn, working=self.working) for members in self._members]
        return StackedEngine(self._stacks[side])


def _together(jobs: Sequence[Job]) -> Iterator[Step]:
    shared, steps = _Shared(len(jobs)), queue.SimpleQueue[Step | None]()

    def work(side: int, job: Job) -> None:
        try:
            with shared.working:
                for step in steps_of(job, make=partial(shared.experiment, side)):
                    steps.put(step)
        except Exception as error:  # such as a full disk: it would end the sweep unnoticed
            steps.put(Outcome(job, FAILED, f"{type(error).__name__}; run it alone to see more."))
        finally:
            shared.leave(side)
            steps.put(None)

    threads = [threading.Thread(target=work, args=(place % 2, job), daemon=True) for place, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    running = len(threads)
    while running:
        step = steps.get()
        if step is None:
            running -= 1
        else:
            yield step
