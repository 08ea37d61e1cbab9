"""What a command starts before it imports PyTorch, which takes seconds: the accounting, and a sweep's processes.

Values computed ahead are those that the run itself would compute. Where the process fails, or the run needs others, the
run computes them, or is refused, as if nothing had been started.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from rrcluster import registry
from rrcluster.engine.workers.processes import Spawned, cores, spawn, terminate
from rrcluster.errors import RRClusterError
from rrcluster.experiments.config import RunConfig
from rrcluster.experiments.grid import Job
from rrcluster.privacy.account_cache import CachedValues, add_values, cached_values

JOB_MODULE = "rrcluster.experiments.executors"  # whose `main` is a process that runs jobs
_CLIENTS_TO_REPAY = 10_000  # to train, over all rounds of all runs, for each process: starting one takes seconds
_CORES_EACH = 2  # of a process that accounts, or that runs jobs on a GPU
_LARGEST_STACK, _MOST_STACKS = 6, 8  # runs on a GPU for which one process is enough; processes


class AccountingAhead:
    """A process that gets ready to account as soon as it is made. Leaving the block ends it."""

    def __init__(self) -> None:
        """Start it."""
        self._connection, self._process = spawn("rrcluster.experiments.early", threads={})  # as many: bits depend on it
        self._requested = False

    def ask(self, config: RunConfig) -> None:
        """Have it account for the plan of a config; not for one without noise."""
        self._requested = registry.MECHANISMS.load(config.privacy.mechanism).noisy
        if self._requested:
            with suppress(OSError):  # it has died; `take` then gets nothing
                self._connection.send(config)

    def take(self) -> None:
        """Wait for the values, if any, and add them to the cache; a second call does nothing."""
        if self._requested:
            with suppress(EOFError, OSError):
                values: CachedValues = self._connection.recv()
                add_values(values)
        self._requested = False

    def __enter__(self) -> "AccountingAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        terminate(self._process)


def main(socket: int) -> None:
    """Entry point of the process: make and state the plan of a config that is received, and send all values."""
    import dp_accounting  # noqa: F401 (takes longer than the config to arrive)

    from rrcluster.privacy.statement import statement

    with Connection(socket) as connection, suppress(Exception):  # the run meets it again, and reports it
        config: RunConfig = connection.recv()
        statement(config.plan(config.method.num_clusters))
        connection.send(cached_values())


@contextmanager
def accounting_ahead(todo: Sequence[Job]) -> Iterator[Callable[[], None]]:
    """Account for the different plans of jobs, each in a process of its own; yields a function that waits for them.

    For as many plans as half of the cores allow, at least one: runs need cores themselves, and account for the rest.
    """
    plans: dict[object, RunConfig] = {}
    for job in todo:
        with suppress(RRClusterError):  # it will be refused
            config = job.config
            if registry.MECHANISMS.load(config.privacy.mechanism).noisy:
                plans.setdefault((replace(config.privacy, update_clip=1.0), config.data.population_size), config)
    few = list(plans.values())[: max(1, cores() // _CORES_EACH)]
    with ExitStack() as stack:
        asked = [stack.enter_context(AccountingAhead()) for _ in few]
        for ahead, config in zip(asked, few, strict=True):
            with suppress(RRClusterError):
                ahead.ask(config)

        def take() -> None:
            for ahead in asked:
                ahead.take()

        yield take


def stacks_for(todo: Sequence[Job]) -> int:
    """How many processes run jobs on a GPU: one cannot prepare and finish rounds as fast as it trains them.

    One where a job is secure: ending its process could cost it a round.
    """
    if any(job.settings.get("secure") for job in todo):
        return 1
    return max(1, min(-(-len(todo) // _LARGEST_STACK), cores() // _CORES_EACH, _MOST_STACKS))


def processes_for(todo: Sequence[Job]) -> int:
    """How many processes are worth having, this one included: it depends on the jobs and the cores alone.

    One where a run may start a process per core by itself, or is secure: ending its process could cost it a round.
    """
    if any(map(_stays_alone, todo)):
        return 1
    return max(1, min(cores(), len(todo), _clients(todo) // _CLIENTS_TO_REPAY))


def _clients(todo: Sequence[Job]) -> int:
    """About how many clients all rounds of the jobs train."""
    total = 0.0
    for job in todo:
        with suppress(RRClusterError):  # it will be refused
            config = job.config
            total += config.privacy.num_rounds * config.privacy.cohort_share * config.data.population_size
    return int(total)


def _stays_alone(job: Job) -> bool:
    try:
        config = job.config
        return config.privacy.secure or config.output.engine == "workers" or _one_by_one(config)
    except RRClusterError:  # it will be refused
        return False


def _one_by_one(config: RunConfig) -> bool:
    return config.output.engine == "auto" and bool(registry.MODELS.fact(config.method.model, "one_by_one", True))


@contextmanager
def early_processes(todo: Sequence[Job]) -> Iterator[list[Spawned]]:
    """The processes that jobs will run in, beside this one, importing already.

    Leaving the block ends those that are not at work.
    """
    on_gpu = _gpu_likely(todo)
    count = stacks_for(todo) if on_gpu else processes_for(todo)
    beside = count if on_gpu and count > 1 else count - 1  # of several on a GPU, this one runs none
    begun = [spawn(JOB_MODULE) for _ in range(beside)]
    try:
        yield begun
    finally:
        for connection, process in begun:
            connection.close()
            terminate(process)


def _gpu_likely(todo: Sequence[Job]) -> bool:
    named = {str(job.settings.get("device", "auto")) for job in todo}
    return bool(named - {"cpu"}) and any(Path("/dev").glob("nvidia[0-9]*"))
