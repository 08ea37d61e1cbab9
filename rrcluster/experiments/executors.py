"""Which executor runs the jobs of a sweep; and those that stack runs on one device, in one process or several.

Runs of one network go in step, each in a thread of its own, and share an engine (engine/stacked.py). A job's numbers
are those it gets alone; one that is refused or fails leaves the stack, and the others go on. Python
runs one thread of a process at a time, so one process cannot prepare and finish rounds as fast as a GPU trains them:
many jobs are shared out to several processes, each of which sends its steps to the one that started it.
"""

import gc
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection, wait

import torch

from rrcluster.data.federated import FederatedData
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.pick_engine import pick_device
from rrcluster.engine.protocol import Engine
from rrcluster.engine.stacked import Stack, StackedEngine
from rrcluster.engine.workers.processes import Spawned
from rrcluster.errors import RRClusterError
from rrcluster.experiments.config import RunConfig
from rrcluster.experiments.early import accounting_ahead, early_processes, processes_for, stacks_for
from rrcluster.experiments.grid import Job
from rrcluster.experiments.job_process import JobProcess
from rrcluster.experiments.setup import Experiment, engine_for, load_population, make_experiment
from rrcluster.experiments.side_by_side import InTurn, network_of, side_by_side
from rrcluster.experiments.sweep import FAILED, REFUSED, Executor, Outcome, Step, steps_of
from rrcluster.models.model import Model
from rrcluster.models.zoo import shipped_model
from rrcluster.privacy.account_cache import add_values

LARGEST_STACK = 160  # runs
_AT_WORK = 2  # runs of a stack: while one waits for the disk, another computes
_MEMORY_EACH = 12 * 2**30  # of a device, for a process
_SHARED_OUT = 0.95  # of a device's memory; the rest is for what processes need before they compute


def in_processes(shares: Sequence[Sequence[Job]], early: Sequence[Spawned] = ()) -> Iterator[Step]:
    """Run every share in a process of its own, with an equal part of a device's memory; steps come as they happen.

    `early`: processes that were started for it.
    """
    part, begun = _SHARED_OUT / len(shares), [*early, *[None] * len(shares)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(JobProcess(share, part, spawned=one)) for share, one in zip(shares, begun, strict=False)
        ]
        while working := {process.connection: process for process in processes if process.left}:
            for ready in wait(list(working)):
                yield from next(process for connection, process in working.items() if connection is ready).steps()


def main(socket: int) -> None:
    """Entry point of the process: run the jobs it is sent, until the parent is gone."""
    here = InTurn()
    with Connection(socket) as connection, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            jobs, part, values = connection.recv()
            add_values(values)
            devices = [device for device in devices_of(jobs) if device.type == "cuda"]
            for device in devices:
                with torch.cuda.device(device):  # which may have no number
                    torch.cuda.set_per_process_memory_fraction(part)  # it frees what it has cached before it fails
            for step in in_this_process(jobs) if devices else here.steps(jobs):
                connection.send(step)


def pick_executor(todo: Sequence[Job], early: Sequence[Spawned] = ()) -> Executor:
    """Stacked where the runs are meant for a CUDA device; else side by side if there is enough to do, or in turn.

    `early`: processes that were started for it.
    """
    devices = devices_of(todo)
    if devices and devices[0].type == "cuda":
        return partial(stacked, early=early)
    processes = processes_for(todo)
    return partial(side_by_side, processes=processes, early=early) if processes > 1 else InTurn().steps


def run_jobs(todo: Sequence[Job]) -> Iterator[Step]:
    """All steps of jobs by the executor that suits them, after their plans were accounted for side by side."""
    with accounting_ahead(todo) as take_values, early_processes(todo) as early:
        take_values()
        yield from pick_executor(todo, early)(todo)


def devices_of(todo: Sequence[Job]) -> list[torch.device]:
    """The available devices that jobs name, each once, in order."""
    devices = []
    for name in dict.fromkeys(str(job.settings.get("device", "auto")) for job in todo):
        with suppress(RRClusterError):  # its jobs will be refused
            devices.append(pick_device(name))
    return devices


def stacked(todo: Sequence[Job], early: Sequence[Spawned] = ()) -> Iterator[Step]:
    """Runs of one network at once, in as many processes as their hosts' work needs: a job's numbers are the same.

    (To the last bit or within rounding, as engine/stacked.py says.) Networks that keep a device busy by themselves stay
    in one process, after the others.
    """
    light: list[Job] = []
    heavy: list[Job] = []
    for job in todo:
        (heavy if _heavy(job) else light).append(job)
    shares = shared_out(light, min(_room(devices_of(light)), stacks_for(light)))
    several = len(shares) > 1
    for connection, _ in early[len(shares) if several else 0 :]:
        connection.close()  # which ends a process that is not needed
    yield from in_processes(shares, early) if several else in_this_process(light)
    yield from in_this_process(heavy)


def shared_out(todo: Sequence[Job], processes: int) -> list[list[Job]]:
    """Equal shares of every kind of job, those on one population together: each process then holds few of them."""
    shares: list[list[Job]] = [[] for _ in range(max(processes, 1))]
    kinds: dict[object, list[Job]] = {}
    for job in todo:
        kinds.setdefault(tuple(job.settings.get(name) for name in ("model", "algorithm")), []).append(job)
    for jobs in kinds.values():
        jobs.sort(
            key=lambda job: [str(job.settings.get(name)) for name in ("seed", "data", "partition", "concentration")]
        )
        for place, job in enumerate(jobs):
            shares[place * len(shares) // len(jobs)].append(job)
    return [share for share in shares if share]


def _heavy(job: Job) -> bool:
    try:
        return shipped_model(job.config.method.model).heavy
    except RRClusterError:  # it will be refused
        return False


def _room(devices: Sequence[torch.device]) -> int:
    """How many processes the memory of every device allows."""
    memory = [torch.cuda.get_device_properties(device).total_memory for device in devices if device.type == "cuda"]
    return int(min(memory, default=0) // _MEMORY_EACH)


def in_this_process(todo: Sequence[Job]) -> Iterator[Step]:
    """Runs of one network at once, up to `LARGEST_STACK` of them; the rest after them."""
    alike: dict[object, list[Job]] = {}
    for job in todo:
        try:
            alike.setdefault(network_of(job.config), []).append(job)
        except RRClusterError as error:
            yield Outcome(job, REFUSED, str(error))
    for jobs in alike.values():
        for first in range(0, len(jobs), LARGEST_STACK):
            yield from _together(jobs[first : first + LARGEST_STACK])
            _free_cached()


def _free_cached() -> None:
    """Give back the device memory of a stack that is over: another process may need it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class _Shared:
    """What the runs of a stack have in common: populations by their settings, and the engine, made by the first.

    Runs form two stacks that take turns on the engine, so that the device has work while a round's host part is done.
    Few of them do that part at once: threads that all want Python's lock lose more time handing it over than they gain.
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
        """One run is over."""
        with self._lock:
            if not self._stacks:
                self._members[side] -= 1
                return
        self._stacks[side].leave()

    def _engine(self, side: int, config: RunConfig, model: Model) -> Engine:
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
        except Exception as error:  # a full disk, say: alone it would end the sweep, which nobody here would notice
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
