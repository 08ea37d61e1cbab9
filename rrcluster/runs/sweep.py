"""A sweep: the jobs of a grid, here or on an executor. A failed job is reported, and the others continue.

Only processes that run jobs import PyTorch.

A grid has settings with lists of values, or named runs. Its jobs are the runs of every combination.
"""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from rrcluster import registry
from rrcluster.errors import ConfigError, RRClusterError
from rrcluster.processes import (
    cores,
    end_processes,
    local_executor,
    lost_cluster,
    process_died,
    refuse_secure,
    submitted,
)
from rrcluster.runs.config import RunConfig, closest, coerce, from_flat, takes_list
from rrcluster.settings import AFFECTS, FIELDS, SECTIONS, names_file
from rrcluster.storage import write_json

_LONGEST_NAME = 120
_OF_DATA = ("data", "columns")  # sections
RUNS = "runs"  # in a file: settings of named runs


@dataclass(frozen=True)
class Cell:
    """One combination: the varied settings, and all settings of its runs but seed and folder."""

    name: str  # distinguishes it from the others; fit for a folder
    values: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """Settings with one value, settings with several, and seeds."""

    fixed: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    out: Path
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings of named runs, instead of axes

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every combination, the last axis fastest; or the named runs."""
        if self.runs:
            return tuple(Cell(name, values, {**self.fixed, **values}) for name, values in self.runs.items())
        combinations = [dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())]
        digits = len(str(len(combinations)))
        return tuple(
            Cell(_folder_name(f"{place:0{digits}d}", values), values, {**self.fixed, **values})
            for place, values in enumerate(combinations, start=1)
        )

    def spelled(self) -> tuple[str, ...]:
        """One line per axis: "update_clip: 0.1, 0.2"."""
        return tuple(f"{name}: {', '.join(map(str, values))}" for name, values in self.axes.items())


def read_grid(settings: Mapping[str, Any], *, source: str, out: Path) -> Grid:
    """A grid from a YAML file's content; names and types are checked here, combinations only when they run."""
    fixed: dict[str, Any] = {}
    axes: dict[str, tuple[Any, ...]] = {}
    for name, value in settings.items():
        if name == RUNS:
            continue
        _check_known(name, source)
        if name == "seeds" and value == []:  # as in a run folder's config.yaml
            continue
        if isinstance(value, list) and not _one_value(name, value):
            axes[name] = _axis(name, value, source)
        else:
            fixed[name] = coerce(SECTIONS[FIELDS[name]], name, value, source=source)
    if fixed.get("tensorboard"):
        raise ConfigError(f"{source}: a sweep writes no TensorBoard events; leave tensorboard out.")
    seeds = axes.pop("seeds", ()) or axes.pop("seed", ()) or (fixed.pop("seed", 0),)
    if "seed" in axes or "seed" in fixed:
        raise ConfigError(f"{source}: gives both seed and seeds; give one of them.")
    if axes and RUNS in settings:
        raise ConfigError(
            f"{source}: has named runs and a list of values for {next(iter(axes))}; leave out one of them."
        )
    runs = _named_runs(settings[RUNS], source) if RUNS in settings else {}
    return Grid(fixed, axes, seeds, Path(fixed.pop("out", None) or out), runs)


def _check_known(name: str, source: str) -> None:
    if name not in FIELDS:
        raise ConfigError(f"{source}: setting {name!r} is not known; {closest(str(name))}")


def _named_runs(runs: object, source: str) -> dict[str, dict[str, Any]]:
    """Settings of each named run, checked one by one; names become folders."""
    if not isinstance(runs, dict) or not runs or not all(isinstance(given, dict) for given in runs.values()):
        raise ConfigError(f"{source}: {RUNS} holds one `name: {{setting: value, ...}}` per line.")
    checked: dict[str, dict[str, Any]] = {}
    for run, given in runs.items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+=_-]*", str(run)):
            raise ConfigError(
                f"{source}: the name of a run = {run!r} must be letters, digits and .+=_-, for its folder."
            )
        checked[str(run)] = {}
        for name, value in given.items():
            _check_known(name, source)
            if AFFECTS[name] != "result" or name == "seed":
                raise ConfigError(f"{source}: {name} takes one value for the whole sweep; give it above {RUNS}.")
            checked[str(run)][name] = coerce(SECTIONS[FIELDS[name]], name, value, source=source)
    return checked


def _one_value(name: str, value: list[Any]) -> bool:
    """Whether a list is one value of a setting that takes lists; a list of lists has several."""
    return name != "seeds" and takes_list(name) and not any(isinstance(part, (list, dict)) for part in value)


def _axis(name: str, values: list[Any], source: str) -> tuple[Any, ...]:
    if AFFECTS[name] != "result" and name != "seeds":
        raise ConfigError(f"{source}: {name} takes one value for the whole sweep, not a list.")
    if not values:
        raise ConfigError(f"{source}: {name} is an empty list; give at least one value.")
    one = "seed" if name == "seeds" else name
    section = SECTIONS[FIELDS[one]]
    checked = tuple(coerce(section, one, value, source=source) for value in values)
    if len(set(map(repr, checked))) < len(checked):
        raise ConfigError(f"{source}: {name} = {list(checked)} names a value twice; name each once.")
    return checked


def _folder_name(number: str, values: Mapping[str, Any]) -> str:
    parts = [f"{name}={re.sub(r'[^A-Za-z0-9.+-]', '_', str(value))}" for name, value in values.items()]
    return "-".join([number, *parts])[:_LONGEST_NAME]


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    values: Mapping[str, Any]  # of the varied settings
    settings: Mapping[str, Any]  # all of them, seed and folder included
    folder: Path
    shared: bool = field(default=False, compare=False)  # between machines that see the same folders

    @property
    def config(self) -> RunConfig:
        """Its settings, checked: raises for an impossible combination."""
        return from_flat({"references": False} | dict(self.settings), source=self.name)


def jobs(grid: Grid) -> tuple[Job, ...]:
    """One job per combination and seed: in `out/<combination>`, with several seeds in `seed-N` below it."""
    planned = []
    for cell in grid.cells:
        for seed in grid.seeds:
            several = len(grid.seeds) > 1
            folder = grid.out / cell.name / f"seed-{seed}" if several else grid.out / cell.name
            settings = {**cell.settings, "seed": seed, "out": str(folder)}
            planned.append(Job(f"{cell.name}, seed {seed}" if several else cell.name, cell.values, settings, folder))
    return tuple(planned)


def check_own_data(grid: Grid, *, source: str) -> None:
    """Read every file of own data once, before anything is written: a mistake in it would fail all runs alike."""
    from rrcluster.data.frames import load_table

    of_data = [{name: cell.settings[name] for name in cell.settings if FIELDS[name] in _OF_DATA} for cell in grid.cells]
    for settings in {repr(settings_of_data): settings_of_data for settings_of_data in of_data}.values():
        if names_file(str(settings.get("data", ""))):
            config = from_flat(settings, source=source)
            load_table(config.data.data, config.columns)


FINISHED, DIVERGED, REFUSED, FAILED = "finished", "diverged", "refused", "failed"


@dataclass(frozen=True)
class Going:
    """A job has finished `done` of its `total` rounds."""

    job: Job
    done: int
    total: int
    accuracy: str = ""  # if known in this process


@dataclass(frozen=True)
class Outcome:
    """The end of a job. `reason` says why it did not finish, or what is wrong with its result."""

    job: Job
    status: str  # finished, diverged, refused, failed
    reason: str | None = None


Step = Going | Outcome
_SECONDS_BETWEEN_LOOKS = 0.3  # at the folders of remote jobs
_CLIENTS_TO_REPAY = 10_000  # clients of all rounds that make another process worthwhile


def sweep(
    grid: Mapping[str, Any] | Grid, *, executor: Executor | None = None, processes: int | None = None
) -> list[Outcome]:
    """Run every combination of settings, of which some are lists: `sweep({"epsilon": [2, 4], "out": "runs/two"})`.

    Settings are those of `rrcluster run`; the run folders are below `out`. `executor`: any with the interface of
    concurrent.futures, whose workers see the same folders; else `processes` of this machine, by default as many as are
    worthwhile. With the same settings, an interrupted sweep continues.
    """
    grid = grid if isinstance(grid, Grid) else read_grid(grid, source="sweep", out=Path("runs/sweep"))
    check_own_data(grid, source="sweep")
    steps = sweep_steps(grid, executor=executor, processes=processes)
    return in_order([step for step in steps if isinstance(step, Outcome)], jobs(grid))


def sweep_steps(
    grid: Grid, *, executor: Executor | None = None, processes: int | None = None, place: int = 0, shards: int = 1
) -> Iterator[Step]:
    """`sweep`, step by step; at the end `sweep.json` has the outcome of each job.

    Each of `shards` machines that see the same folders runs every `shards`-th job from its `place` on; none of them
    knows all outcomes.
    """
    if shards > 1:
        shard = [replace(job, shared=True) for job in jobs(grid)[place::shards]]
        yield from run_jobs(shard, executor=executor, processes=processes)
        return
    outcomes = []
    for step in run_jobs(jobs(grid), executor=executor, processes=processes):
        if isinstance(step, Outcome):
            outcomes.append(step)
        yield step
    grid.out.mkdir(parents=True, exist_ok=True)
    write_json(grid.out / "sweep.json", describe(grid, in_order(outcomes, jobs(grid))))


def run_jobs(todo: Sequence[Job], *, executor: Executor | None = None, processes: int | None = None) -> Iterator[Step]:
    """All steps of jobs: on an executor, stacked on a GPU, or one after the other in this process.

    A job's numbers do not depend on the choice.
    """
    on_gpu = _on_gpu(todo)
    count = processes or processes_for(todo, on_gpu=on_gpu)
    if executor is not None:
        refuse_secure(any(config.privacy.secure for config in _configs(todo)))
        yield from _on_executor([[replace(job, shared=True)] for job in todo], executor)
    elif count > 1:
        shares = shared_out(todo, count) if on_gpu else [[job] for job in todo]
        memory = _DEVICE_SHARED / count if on_gpu else 1.0
        yield from _on_executor(shares, None, processes=count, memory=memory)
    else:
        from rrcluster.runs.job_runner import in_turn, stacked

        yield from stacked(todo) if on_gpu else in_turn(todo)


def _on_gpu(todo: Sequence[Job]) -> bool:
    """Whether some job will use a GPU. PyTorch is not imported where it is a build without CUDA: that takes seconds."""
    if version("torch").endswith("+cpu"):
        return False
    from rrcluster.runs.job_runner import devices_of

    return any(device.type == "cuda" for device in devices_of(todo))


_DEVICE_SHARED = 0.95  # of a GPU's memory, among processes; the rest is for their set-up


def processes_for(todo: Sequence[Job], *, on_gpu: bool) -> int:
    """The number of worthwhile processes, by the jobs and the cores alone.

    One where a run is secure, since ending its process could cost it a round, or may start processes by itself.
    """
    configs = _configs(todo)
    if any(config.privacy.secure or config.output.processes for config in configs):
        return 1
    if on_gpu:  # one process cannot prepare and finish rounds as fast as a GPU trains them
        return max(1, min(-(-len(todo) // _LARGEST_STACK), cores() // 2, _MOST_STACKS))
    privacy = [(config.privacy, config.data.population_size) for config in configs]
    clients = sum(plan.num_rounds * plan.cohort_share * population for plan, population in privacy)
    return max(1, min(cores(), len(todo), int(clients) // _CLIENTS_TO_REPAY))


_LARGEST_STACK, _MOST_STACKS = 6, 8  # runs on a GPU for one process; most processes


def _configs(todo: Sequence[Job]) -> list[RunConfig]:
    configs = []
    for job in todo:
        with suppress(RRClusterError):  # it will be refused
            configs.append(job.config)
    return configs


def shared_out(todo: Sequence[Job], shares: int) -> list[list[Job]]:
    """Equal shares, also of every kind of job, jobs on one population together: each process then holds few of them.

    Remaining jobs of a kind go to the smallest shares.
    """
    kinds: dict[object, list[Job]] = {}
    for job in todo:
        kinds.setdefault((job.settings.get("model"), job.settings.get("algorithm")), []).append(job)
    dealt: list[list[Job]] = [[] for _ in range(shares)]
    for alike in kinds.values():
        alike.sort(key=lambda job: [str(job.settings.get(name)) for name in ("seed", "data", "partition")])
        each, left_over = divmod(len(alike), shares)
        smallest = sorted(range(shares), key=lambda share: len(dealt[share]))[:left_over]
        rest = iter(alike)
        for place, share in enumerate(dealt):
            share += islice(rest, each + (place in smallest))
    return [share for share in dealt if share]


def _on_executor(
    tasks: Sequence[Sequence[Job]], executor: Executor | None, *, processes: int = 1, memory: float = 1.0
) -> Iterator[Step]:
    """Outcomes of tasks as they end, and progress from their run folders.

    A dead process takes the other tasks of its pool with it, so all remaining ones are retried once, and then each job
    by itself: a job that ends its own process fails.
    """
    attempt = partial(_attempt, executor=executor, processes=processes, memory=memory)
    left = yield from attempt(tasks)
    left = yield from attempt(left)
    for job in chain.from_iterable(left):
        if (yield from attempt([[job]])):
            yield Outcome(job, FAILED, "the process that ran it died; run it alone to see more.")


def _attempt(
    tasks: Sequence[Sequence[Job]], *, executor: Executor | None, processes: int, memory: float
) -> Generator[Step, None, list[Sequence[Job]]]:
    """The steps of tasks; returns those whose process died."""
    if not tasks:
        return []
    pool, registrations = executor or local_executor(processes), registry.registered()
    futures, died = {submitted(pool, _run_task, task, registrations, memory): task for task in tasks}, []
    try:
        while futures:
            done, _ = wait(futures, timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
            for future in done:
                task = futures.pop(future)
                error = CancelledError() if future.cancelled() else future.exception()
                if error is None:
                    yield from future.result()
                elif process_died(error):
                    died.append(task)
                elif (lost := lost_cluster(error)) is not None:
                    raise lost
                else:
                    yield from (Outcome(job, FAILED, failure_text(error)) for job in task)
            yield from _progress(job for task in futures.values() for job in task)
    finally:
        for future in futures:  # interrupted
            future.cancel()
        if executor is None and (futures or died):
            end_processes(pool)
    return died


def _run_task(todo: Sequence[Job], registrations: Sequence[tuple[str, registry.Entry]], share: float) -> list[Outcome]:
    """`job_runner.run_task`, which imports PyTorch: in the worker alone."""
    from rrcluster.runs.job_runner import run_task

    return run_task(todo, registrations, share)


def failure_text(error: BaseException) -> str:
    """The reason of a failure without its text, which may contain shapes, and so the size of a cohort."""
    return f"{type(error).__name__}; run it alone to see more."


def _progress(running: Iterable[Job]) -> Iterator[Going]:
    """The progress of remote jobs, from their folders."""
    for job in running:
        lines = job.folder / "rounds.jsonl"
        done = lines.read_bytes().count(b"\n") if lines.exists() else 0
        total = int(job.settings.get("num_rounds", 100))
        if 0 < done < total:
            yield Going(job, done, total)


def in_order(outcomes: Sequence[Outcome], planned: Sequence[Job]) -> list[Outcome]:
    """The outcomes in the order of their jobs, since parallel runs end in any order."""
    place = {job.folder: number for number, job in enumerate(planned)}
    return sorted(outcomes, key=lambda outcome: place[outcome.job.folder])


def describe(grid: Grid, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The varied settings, and the outcome of each run."""
    return {
        "varied": {name: list(values) for name, values in grid.axes.items()},
        "seeds": list(grid.seeds),
        "runs": [
            {
                "folder": str(outcome.job.folder.relative_to(grid.out)),
                "settings": dict(outcome.job.values),
                "status": outcome.status,
                "reason": outcome.reason,
            }
            for outcome in outcomes
        ],
    }
