"""Read a folder of `rrcluster reproduce`: which runs belong to which cell of the paper's table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcluster.errors import RunFolderError
from rrcluster.report.folders import DESCRIPTION, Run, read_run
from rrcluster.report.values import Estimate, estimate, number
from rrcluster.storage import WAY_OUT, read_mapping

MEASURES = {
    "accuracy": "accuracy (%)",
    "clustering_accuracy": "clustering accuracy (%)",
    "worst_decile": "worst decile (%)",
    "loss": "loss",
    "mean_accuracy": "mean accuracy over the rounds (%)",
}


@dataclass(frozen=True)
class MeasuredColumn:
    """A column of the paper's table: a population and a budget; `epsilon` None is without noise."""

    key: str
    panel: str
    epsilon: float | None
    mechanisms: tuple[str, ...]
    title: str | None

    @property
    def budget(self) -> str:
        """Such as "epsilon 2"."""
        return self.title or ("no noise" if self.epsilon is None else f"epsilon {self.epsilon:g}")


@dataclass(frozen=True)
class MeasuredCell:
    """The runs of one cell under one mechanism, by seed; `reason` says why some or all are missing."""

    runs: Mapping[int, Run]
    reason: str | None


@dataclass(frozen=True)
class MeasuredRow:
    """A method: its published numbers and its runs."""

    key: str
    name: str
    reference: bool
    published: Mapping[str, float | None]  # by column
    settings: Mapping[str, str]  # by mechanism, in words
    cells: Mapping[tuple[str, str], MeasuredCell]  # by column and mechanism


@dataclass(frozen=True)
class Reproduced:
    """One table or figure of the paper, with the runs that have finished so far."""

    folder: Path
    about: Mapping[str, Any]
    columns: tuple[MeasuredColumn, ...]
    rows: tuple[MeasuredRow, ...]

    @property
    def measure(self) -> str:
        """The paper's diagnostic."""
        return str(self.about["measure"])

    @property
    def num_seeds(self) -> int:
        """The intended number of runs per cell."""
        return len(self.about["seeds"])

    @property
    def panels(self) -> tuple[str, ...]:
        """The panels, in order."""
        return tuple(dict.fromkeys(column.panel for column in self.columns))

    def row(self, key: str) -> MeasuredRow | None:
        """The row with that key; None if it was left out."""
        return next((row for row in self.rows if row.key == key), None)

    def column(self, key: str) -> MeasuredColumn | None:
        """The column with that key; None if it was left out."""
        return next((column for column in self.columns if column.key == key), None)

    def runs(self, row: MeasuredRow, column: MeasuredColumn, mechanism: str) -> Mapping[int, Run]:
        """The finished runs of a cell, by seed."""
        cell = row.cells.get((column.key, mechanism))
        return {} if cell is None else cell.runs

    def values(
        self, row: MeasuredRow, column: MeasuredColumn, mechanism: str, measure: str | None = None
    ) -> dict[int, float]:
        """The final values of a diagnostic, by seed; seeds without one (diverged) are left out."""
        runs = self.runs(row, column, mechanism)
        values = {seed: value_of(run, measure or self.measure) for seed, run in runs.items()}
        return {seed: value for seed, value in values.items() if value is not None}

    def estimate(
        self, row: MeasuredRow, column: MeasuredColumn, mechanism: str, measure: str | None = None
    ) -> Estimate | None:
        """Mean and interval over the seeds."""
        return estimate(self.values(row, column, mechanism, measure).values())

    def published_gap(self, one: MeasuredRow, two: MeasuredRow, column: MeasuredColumn) -> float | None:
        """Points by which the published number of `one` exceeds that of `two`; None unless both exist."""
        first, second = one.published.get(column.key), two.published.get(column.key)
        return None if first is None or second is None else first - second

    def constant(self, column: MeasuredColumn) -> Estimate | None:
        """The accuracy of always answering with the most frequent class; None for regression."""
        return estimate(number(value) for value in self.about["constant"].get(column.key, ()))


def value_of(run: Run, measure: str) -> float | None:
    """A run's final diagnostic; "mean_accuracy" is over all its evaluations. One cluster is no clustering."""
    if measure == "mean_accuracy":
        mean = estimate(entry.accuracy for entry in run.diagnostics)
        return None if mean is None else mean.mean
    if run.final is None or (measure == "clustering_accuracy" and run.num_clusters == 1):
        return None
    value: float | None = getattr(run.final, measure)
    return value


def is_reproduction(folder: Path) -> bool:
    """Whether `rrcluster reproduce` wrote this folder."""
    return (folder / DESCRIPTION).is_file()


def read_reproduction(folder: Path) -> Reproduced:
    """Read the folder, unfinished runs left out. `RunFolderError` for damaged files."""
    about = read_mapping(folder / DESCRIPTION)
    try:
        columns = tuple(
            MeasuredColumn(entry["key"], entry["panel"], entry["epsilon"], tuple(entry["mechanisms"]), entry["title"])
            for entry in about["columns"]
        )
        rows = tuple(_row(entry, folder, about["seeds"]) for entry in about["rows"])
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"{folder / DESCRIPTION}: damaged, a field is missing or has another type. {WAY_OUT}"
        ) from error
    return Reproduced(folder, about, columns, rows)


def _row(entry: Mapping[str, Any], folder: Path, seeds: list[int]) -> MeasuredRow:
    cells = {
        (column, mechanism): MeasuredCell(_finished(folder, cell["folder"], seeds), cell["reason"])
        for column, by_mechanism in entry["cells"].items()
        for mechanism, cell in by_mechanism.items()
    }
    return MeasuredRow(entry["key"], entry["name"], entry["reference"], entry["published"], entry["settings"], cells)


def _finished(folder: Path, cell: str | None, seeds: list[int]) -> dict[int, Run]:
    if cell is None:
        return {}
    paths = {seed: folder / cell / f"seed-{seed}" for seed in seeds}
    runs = {seed: read_run(path) for seed, path in paths.items() if (path / "models.safetensors").exists()}
    return {seed: run for seed, run in runs.items() if run.status == "finished"}
