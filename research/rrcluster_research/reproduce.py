"""Run a table or figure of the paper: turn a study into jobs, run them, and describe the folder for the report.

`reproduction.json` in that folder has, for every cell, the run folder, the published number, or the reason why it was
not run. It does not depend on time or machine.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.data.federated import FederatedData
from rrcluster.data.sources import locate
from rrcluster.errors import ConfigError, DataError, RunFolderError
from rrcluster.report.folders import DESCRIPTION
from rrcluster.runs.config import RunConfig, from_flat
from rrcluster.runs.experiment import load_population
from rrcluster.runs.sweep import FAILED, REFUSED, Job, Outcome, Step, run_jobs
from rrcluster.settings import AFFECTS, DataSettings
from rrcluster.storage import write_json
from rrcluster_research.reuse import of_other_settings
from rrcluster_research.study import Answer, Column, Row, Settings, Study


@dataclass(frozen=True)
class Reproduction:
    """A study, in full or quick, as jobs in a folder. `absent`: missing dataset -> how to get it."""

    study: Study
    quick: bool
    seeds: tuple[int, ...]
    changes: Settings  # settings of all rows that do not set them: device, model, delta
    out: Path
    absent: Mapping[str, str]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of this version."""
        return tuple(c for c in self.study.columns if not self.quick or c.key in self.study.quick.columns)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of this version."""
        return tuple(r for r in self.study.rows if not self.quick or r.key in self.study.quick.rows)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """One job per cell, mechanism and seed, except where data is missing; the seeds of a cell are adjacent."""
        return tuple(
            self._job(row, column, mechanism, seed)
            for column in self.columns
            for row in self.rows
            for mechanism in column.mechanisms
            if isinstance(self.answer(row, column, mechanism), dict)
            for seed in self.seeds
        )

    def answer(self, row: Row, column: Column, mechanism: str) -> Answer | None:
        """All settings of a cell's runs but seed and folder, or why it is not run; None if it is not in the study."""
        own = self.own(row, mechanism)
        if own is None or isinstance(own, str):
            return own
        own = _replaced(own, column.answers.get(mechanism, {}))
        shared = self._of_model(own.get("model", self.shared.get("model")))
        settings = {**shared, **column.settings, **self.at_budget(column), **self._small, **self.changes, **own}
        return self.absent.get(settings["data"]) or {**settings, "mechanism": mechanism}

    def own(self, row: Row, mechanism: str) -> Answer | None:
        """The settings in which a row differs from the others; the quick version may replace their values.

        A row with its own network gets that network's settings, except those that the row sets itself.
        """
        own = row.answers.get(mechanism)
        if own is None or isinstance(own, str):
            return own
        if own.get("model") != self.changes.get("model"):
            own = {**self.study.by_model.get(own.get("model", ""), {}), **own}
        return _replaced(own, self.study.quick.answers.get(mechanism, {}) if self.quick else {})

    @property
    def shared(self) -> dict[str, Any]:
        """The settings of all rows and columns that do not override them."""
        model = {**self.study.settings, **self._small, **self.changes}.get("model")
        return {**self._of_model(model), **self._small, **self.changes}

    def at_budget(self, column: Column) -> Settings:
        """Settings for a column's epsilon, if the table is run with another network; empty in the quick version."""
        by_epsilon = {} if self.quick else self.study.by_budget.get(self.changes.get("model", ""), {})
        return by_epsilon.get(column.epsilon, {})

    def _of_model(self, model: str | None) -> dict[str, Any]:
        """The study's settings with those of a network."""
        return {**self.study.settings, **self.study.by_model.get(model or "", {})}

    @property
    def _small(self) -> Settings:
        return self.study.quick.settings if self.quick else {}

    def folder(self, row: Row, column: Column, mechanism: str) -> Path:
        """The folder of a cell, relative to `out`; it has a folder per seed."""
        return Path(column.key) / f"{row.key}-{mechanism}"

    def _job(self, row: Row, column: Column, mechanism: str, seed: int) -> Job:
        folder = self.out / self.folder(row, column, mechanism) / f"seed-{seed}"
        answer = self.answer(row, column, mechanism)
        assert isinstance(answer, dict)
        values = {"column": column.key, "row": row.name, "mechanism": mechanism}
        settings = {**answer, "seed": seed, "out": str(folder)}
        return Job(f"{column.key}, {row.name}, {mechanism}, seed {seed}", values, settings, folder)


def plan_reproduction(
    study: Study,
    *,
    out: Path,
    quick: bool = False,
    seeds: Sequence[int] = (),
    rows: Sequence[str] = (),
    changes: Settings | None = None,
) -> Reproduction:
    """Plan the runs: checks which data files exist, reads and writes none. `rows`: keys of the rows to run."""
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds = {list(seeds)} names a seed twice; name each once.")
    known = [row.key for row in study.rows if not quick or row.key in study.quick.rows]
    if unknown := [key for key in rows if key not in known]:
        raise ConfigError(f"rows: {study.name} has no row {unknown[0]!r}; its rows are {', '.join(known)}.")
    if rows:
        study = replace(study, rows=tuple(row for row in study.rows if row.key in rows))
    own = study.quick.seeds if quick else study.seeds
    plan = Reproduction(study, quick, tuple(seeds) or own, changes or {}, out, {})
    names = {
        answer["data"]
        for row in plan.rows
        for column in plan.columns
        for mechanism in column.mechanisms
        if isinstance(answer := plan.answer(row, column, mechanism), dict)
    }
    folder = plan.changes.get("data_folder")
    return replace(plan, absent={name: reason for name in sorted(names) if (reason := _missing(name, folder))})


def reproduce(plan: Reproduction, *, executor: Executor | None = None) -> Iterator[Step]:
    """Run all jobs, resuming interrupted ones, and write the description of the folder.

    A folder with runs of other settings is refused before anything is written: the table would describe them wrongly.
    """
    if (other := of_other_settings(plan.jobs)) is not None:
        raise RunFolderError(
            f"{other} holds a run with other settings than the table; choose another folder with --out, or remove it."
        )
    constants = _constants(plan)
    describe(plan, constants, {})
    failures: dict[str, str] = {}
    for step in run_jobs(plan.jobs, executor=executor):
        if isinstance(step, Outcome) and step.status in (REFUSED, FAILED):
            failures[str(step.job.folder.relative_to(plan.out))] = step.reason or step.status
        yield step
    describe(plan, constants, failures)


def constant_accuracy(data: FederatedData) -> float:
    """Mean accuracy over clients of always predicting the most frequent training target; NaN for regression.

    Computed from raw client data: a diagnostic.
    """
    if not data.num_classes:
        return float("nan")
    counts = np.zeros(data.num_classes, dtype=np.int64)
    for client in range(data.num_clients):
        counts += np.bincount(data.store.client(client)[1], minlength=data.num_classes)
    right = np.array([float((tests.targets == counts.argmax()).mean()) for tests in data.test_sets])
    tested = data.test_of[data.test_of >= 0]
    return float(right[tested].mean())


def _constants(plan: Reproduction) -> dict[str, list[float]]:
    """The constant predictor's accuracy for every column, by seed; empty for damaged data."""
    known: dict[DataSettings, list[float]] = {}  # columns that differ only in budget share a population
    constants = {}
    for column in plan.columns:
        answers = [plan.answer(row, column, mechanism) for row in plan.rows for mechanism in column.mechanisms]
        settings = next((answer for answer in answers if isinstance(answer, dict)), None)
        if settings is None:
            continue
        configs = [from_flat({**settings, "seed": seed}, source=column.key) for seed in plan.seeds]
        if configs[0].data not in known:
            known[configs[0].data] = _constant_of(configs)
        constants[column.key] = known[configs[0].data]
    return constants


def _constant_of(configs: Sequence[RunConfig]) -> list[float]:
    try:
        values = [constant_accuracy(load_population(config)) for config in configs]
    except DataError:  # the runs will be refused with the reason
        return []
    return [value for value in values if np.isfinite(value)]


def _replaced(own: Settings, others: Settings) -> dict[str, Any]:
    """The settings with replaced values; nothing is added."""
    return {name: others.get(name, value) for name, value in own.items()}


def _missing(name: str, folder: str | None) -> str | None:
    try:
        locate(name, folder)
    except DataError as error:
        return str(error)
    return None


def describe(plan: Reproduction, constants: Mapping[str, list[float]], failures: Mapping[str, str]) -> None:
    """Write the description of the folder: the plan, the constants, and the failed runs."""
    study = plan.study
    plan.out.mkdir(parents=True, exist_ok=True)
    shown = {row.key for row in plan.rows}
    description = {
        "name": study.name,
        "title": study.title,
        "source": study.source,
        "measure": study.measure,
        "quick": study.quick.words if plan.quick else None,
        "seeds": list(plan.seeds),
        "changes": {name: value for name, value in plan.changes.items() if AFFECTS[name] != "place"},
        "choices": list(study.choices_by_model.get(plan.changes.get("model", ""), study.choices)),
        "shared": _shared(plan),
        "columns": [
            {
                "key": c.key,
                "panel": c.panel,
                "epsilon": c.epsilon,
                "mechanisms": list(c.mechanisms),
                "title": c.title,
            }
            for c in plan.columns
        ],
        "rows": [_row(plan, row, failures) for row in plan.rows],
        "constant": dict(constants),
        "pairs": [list(pair) for pair in study.pairs if {pair[0], pair[1]} <= shown],
        "claims": [asdict(claim) for claim in study.claims],
        "figures": list(study.figures),
        "spotlights": [asdict(spotlight) for spotlight in study.spotlights],
        "absent": dict(plan.absent),
    }
    write_json(plan.out / DESCRIPTION, description)


def _row(plan: Reproduction, row: Row, failures: Mapping[str, str]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for column in plan.columns:
        for mechanism in column.mechanisms:
            answer = plan.answer(row, column, mechanism)
            if answer is not None:
                cells.setdefault(column.key, {})[mechanism] = _cell(plan, row, column, mechanism, failures)
    return {
        "key": row.key,
        "name": row.name,
        "reference": row.reference,
        "published": {column.key: plan.study.published(row, column) for column in plan.columns},
        "settings": {mechanism: _spell(plan.own(row, mechanism) or {}) for mechanism in row.answers},
        "cells": cells,
    }


def _shared(plan: Reproduction) -> str:
    """The settings that all rows share, as text, followed by those that depend on epsilon."""
    by_epsilon = {
        column.epsilon: {name: value for name, value in plan.at_budget(column).items() if name not in plan.changes}
        for column in plan.columns
    }
    everywhere = set.intersection(*(set(settings) for settings in by_epsilon.values()))
    left_out = {name for name, affected in AFFECTS.items() if affected == "place"} | everywhere
    parts = [_spell({name: value for name, value in plan.shared.items() if name not in left_out})]
    for epsilon, settings in by_epsilon.items():
        if settings:
            parts.append(f"{'without noise' if epsilon is None else f'at epsilon {epsilon:g}'}: {_spell(settings)}")
    return "; ".join(parts)


def _spell(answer: Answer) -> str:
    return answer if isinstance(answer, str) else ", ".join(f"{name} = {value}" for name, value in answer.items())


def _cell(
    plan: Reproduction, row: Row, column: Column, mechanism: str, failures: Mapping[str, str]
) -> dict[str, str | None]:
    answer = plan.answer(row, column, mechanism)
    if isinstance(answer, str):
        return {"folder": None, "reason": answer}
    folder = str(plan.folder(row, column, mechanism))
    reasons = [reason for place, reason in failures.items() if place.startswith(f"{folder}/")]
    return {"folder": folder, "reason": reasons[0] if reasons else None}
