"""A sweep: the jobs of a grid, run by an executor. One that fails is reported, and the others go on.

An executor turns jobs into steps; `one_after_another` is the plain one. Another may run many jobs at once (stacked on a
device): a job's numbers do not depend on which executor ran it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrcluster.data.frames import load_table
from rrcluster.data_settings import names_file
from rrcluster.errors import RRClusterError
from rrcluster.experiments.config import from_flat
from rrcluster.experiments.grid import Cell, Grid, Job, jobs
from rrcluster.experiments.outcome import Progress
from rrcluster.experiments.run import MakeExperiment, Running, start_or_resume
from rrcluster.experiments.setup import make_experiment
from rrcluster.settings import FIELDS
from rrcluster.storage import write_json


def check_own_data(grid: Grid, *, source: str) -> None:
    """Read every file of own data once, before anything is written: a mistake in it would fail all runs alike."""
    for settings in {repr(given): given for given in map(_data_settings, grid.cells)}.values():
        if names_file(str(settings.get("data", ""))):
            config = from_flat(settings, source=source)
            load_table(config.data.data, config.columns)


def _data_settings(cell: Cell) -> dict[str, Any]:
    return {name: value for name, value in cell.settings.items() if FIELDS[name] in ("data", "columns")}


FINISHED, DIVERGED, REFUSED, FAILED = "finished", "diverged", "refused", "failed"


@dataclass(frozen=True)
class Going:
    """A job has finished a round."""

    job: Job
    progress: Progress


@dataclass(frozen=True)
class Outcome:
    """A job is over. `reason` says why it did not finish, or what is wrong with what it made."""

    job: Job
    status: str  # finished, diverged, refused, failed
    reason: str | None = None


Step = Going | Outcome
Executor = Callable[[Sequence[Job]], Iterator[Step]]


def sweep(grid: Grid, *, executor: Executor | None = None) -> Iterator[Step]:
    """Run all jobs of the grid; at the end `sweep.json` says what became of each.

    Run again with the same file, a sweep that was stopped goes on where it was.
    """
    outcomes = []
    for step in (executor or one_after_another)(jobs(grid)):
        if isinstance(step, Outcome):
            outcomes.append(step)
        yield step
    grid.out.mkdir(parents=True, exist_ok=True)
    write_json(grid.out / "sweep.json", describe(grid, in_order(outcomes, jobs(grid))))


def in_order(outcomes: Sequence[Outcome], planned: Sequence[Job]) -> list[Outcome]:
    """The outcomes in the order of their jobs: runs side by side end in any."""
    place = {job.folder: number for number, job in enumerate(planned)}
    return sorted(outcomes, key=lambda outcome: place[outcome.job.folder])


def one_after_another(todo: Sequence[Job]) -> Iterator[Step]:
    """The simplest executor: jobs in order, in this process."""
    for job in todo:
        yield from steps_of(job)


def steps_of(job: Job, *, make: MakeExperiment = make_experiment) -> Iterator[Step]:
    """All steps of one job, up to its outcome, errors included."""
    try:
        yield from _rounds(job, make)
    except RRClusterError as error:
        yield Outcome(job, REFUSED, str(error))
    except (RuntimeError, ArithmeticError, MemoryError) as error:
        # its text may hold shapes, and so the size of a cohort: it stays out of files
        yield Outcome(job, FAILED, f"{type(error).__name__}; run it alone to see more.")


def describe(grid: Grid, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What was varied, and what became of each run."""
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


def _rounds(job: Job, make: MakeExperiment) -> Iterator[Step]:
    running = start_or_resume(job.config, make=make)
    if running is None:  # finished in an earlier sweep
        yield Outcome(job, FINISHED)
        return
    for progress in running.rounds():
        yield Going(job, progress)
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
