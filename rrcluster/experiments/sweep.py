"""Run every combination of a grid. One that fails is reported, and the others go on.

An executor turns jobs into steps; `one_after_another` is the plain one. Another may run many jobs at once (stacked on a
device): a job's numbers do not depend on which executor ran it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.errors import RRClusterError
from rrcluster.experiments.config import RunConfig, from_flat
from rrcluster.experiments.grid import Grid
from rrcluster.experiments.run import MakeExperiment, Progress, RunResult, start_or_resume
from rrcluster.experiments.setup import make_experiment
from rrcluster.storage import write_json

FINISHED, DIVERGED, REFUSED, FAILED = "finished", "diverged", "refused", "failed"


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    values: Mapping[str, Any]  # of the settings that vary
    settings: Mapping[str, Any]  # all of them, seed and folder included
    folder: Path

    @property
    def config(self) -> RunConfig:
        """Its settings, checked: raises where the combination makes no sense."""
        return from_flat(dict(self.settings), source=self.name)


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


def jobs(grid: Grid) -> tuple[Job, ...]:
    """One job per combination and seed: in `out/<combination>`, with several seeds in `seed-N` below it."""
    found = []
    for cell in grid.cells:
        for seed in grid.seeds:
            several = len(grid.seeds) > 1
            folder = grid.out / cell.name / f"seed-{seed}" if several else grid.out / cell.name
            settings = {**cell.settings, "seed": seed, "out": str(folder)}
            found.append(Job(f"{cell.name}, seed {seed}" if several else cell.name, cell.values, settings, folder))
    return tuple(found)


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
    write_json(grid.out / "sweep.json", describe(grid, outcomes))


def one_after_another(todo: Sequence[Job]) -> Iterator[Step]:
    """The plain executor."""
    for job in todo:
        yield from steps_of(job)


def steps_of(job: Job, *, make: MakeExperiment = make_experiment) -> Iterator[Step]:
    """All steps of one job, to its outcome, whatever happens to it."""
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
    yield _outcome(job, running.result())


def _outcome(job: Job, result: RunResult) -> Outcome:
    models = result.models
    finite = np.isfinite(models.shared).all() and np.isfinite(models.clustered).all()
    if finite and (result.evaluation is None or np.isfinite(result.evaluation.loss)):
        return Outcome(job, FINISHED)
    return Outcome(job, DIVERGED, "the models or their loss are not finite; lower local_lr, server_lr or update_clip.")
