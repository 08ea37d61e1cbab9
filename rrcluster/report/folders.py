"""Read run folders, and group runs that differ only in their seed.

Published files are read, and of `checkpoint/` only the round number. Values of `diagnostics.jsonl` come from raw client
data and are labelled with `DIAGNOSTIC` wherever they are shown.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rrcluster.errors import RunFolderError
from rrcluster.privacy.cost import Cost, folder_cost
from rrcluster.report.values import method_label, number, numbers, settings_key
from rrcluster.storage import WAY_OUT, read_json_lines, read_mapping

DIAGNOSTIC = "diagnostic, not private"
CONFIG = "config.yaml"
DESCRIPTION = "reproduction.json"  # in a folder of `rrcluster reproduce`

Confusion = tuple[tuple[float, ...], ...]  # (k, groups) clients by chosen cluster and true group; empty where unknown

OWN_OUTPUT = frozenset({"figures", "report.html", "table.csv", "table.tex", "table.md"})  # of a report beside runs


class NoRunYet(RunFolderError):
    """The folder is missing or has no run: one may still begin in it."""


@dataclass(frozen=True)
class ReleasedRound:
    """The released sizes of one round."""

    round_index: int
    sizes: tuple[float, ...]  # (k,) natural sizes as released: noisy, and possibly negative
    denominators: tuple[float, ...]  # (k,) denominators of the clusters' means
    accuracy: float | None = None  # noisy, if the plan includes evaluation


@dataclass(frozen=True)
class Diagnostic:
    """The quality of the models after one round, measured on raw client data: not private."""

    round_index: int
    confusion: Confusion
    figures: Mapping[str, Mapping[str, float]]  # of the run and its references, by name
    by_group: tuple[Mapping[str, float], ...]  # of each cluster its clients, and how they fare
    verdict: str  # on them, in a sentence; empty where nothing is compared
    written: Mapping[str, Any]  # the whole line of diagnostics.jsonl
    accuracy: float | None = None
    loss: float | None = None
    clustering_accuracy: float | None = None
    worst_decile: float | None = None
    seconds: float | None = None  # since the run was started or resumed
    evaluated_clients: float | None = None  # None: the whole population
    adjusted_rand: float | None = None
    personalised_accuracy: float | None = None  # of the models that clients end up with, where it was measured
    clusters_alive: float | None = None  # clusters that at least one client chooses


_MEASURED = [part.name for part in fields(Diagnostic) if part.default is None]


@dataclass(frozen=True)
class Run:
    """The contents of one run folder."""

    path: Path
    config: Mapping[str, Any]
    privacy: Mapping[str, Any]
    summary: Mapping[str, Any]  # empty until the run ends
    rounds: tuple[ReleasedRound, ...]
    diagnostics: tuple[Diagnostic, ...]
    cost: Cost | None  # None without privacy

    @property
    def label(self) -> str:
        """The method's name."""
        return method_label(self.config)

    @property
    def private(self) -> bool:
        """Whether the run has a privacy guarantee."""
        return self.cost is not None

    @property
    def exposed(self) -> bool:
        """Whether the folder itself is not private: without noise, or with seeded noise that can be subtracted."""
        return self.cost is None or not self.cost.secure

    @property
    def seed(self) -> int | None:
        """The run's seed; None when it had none."""
        value = self.config.get("seed", self.summary.get("seed"))
        return value if isinstance(value, int) else None

    @property
    def status(self) -> str:
        """finished, stopped, or unfinished (no summary: still running, or killed)."""
        return str(self.summary.get("status", "unfinished"))

    @property
    def epsilon(self) -> float | None:
        """The cost of the run's whole plan, however it ended; None without a finite bound."""
        return None if self.cost is None else self.cost.epsilon

    @property
    def private_accuracy(self) -> float | None:
        """The accuracy released within the budget, limited to 0..1 if noise took it beyond."""
        evaluation = self.summary.get("private_evaluation")
        return _released_accuracy(evaluation) if self.private else None

    @property
    def judged_rows(self) -> str:
        """The rows behind that accuracy: training, test, validation or members'; empty without one."""
        evaluation = self.summary.get("private_evaluation")
        return str(evaluation.get("rows", "training")) if isinstance(evaluation, Mapping) else ""

    @property
    def delta(self) -> float | None:
        """The delta of its epsilon."""
        return None if self.cost is None else self.cost.delta

    @property
    def seconds(self) -> float | None:
        """Wall-clock time of the run: a diagnostic, because it depends on who took part."""
        return self.diagnostics[-1].seconds if self.diagnostics else None

    @property
    def num_clusters(self) -> int:
        """The number of clusters of the run: 1 for FedAvg, whatever its settings say."""
        if self.rounds and self.rounds[-1].sizes and "random_effects" not in self.summary:
            return len(self.rounds[-1].sizes)
        return int(number(self.summary.get("num_clusters", self.config.get("num_clusters"))) or 1)

    @property
    def final(self) -> Diagnostic | None:
        """The last diagnostics; None if there are none."""
        return self.diagnostics[-1] if self.diagnostics else None

    @property
    def verdict(self) -> str:
        """The comparison of the run with its references, in a sentence; empty without one."""
        return self.final.verdict if self.final else ""


@dataclass(frozen=True)
class RunGroup:
    """Runs of the same settings, one per seed."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The first run; all runs of the group have its settings."""
        return self.runs[0]

    @property
    def label(self) -> str:
        """The method's name."""
        return self.first.label


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read one run folder. `RunFolderError` names the missing or damaged file, and the remedy.

    `summary.json` and `diagnostics.jsonl` may be missing: a run that has not ended has no summary, and one without
    evaluation has no diagnostics.
    """
    folder = Path(path)
    if not (folder / CONFIG).is_file():
        raise RunFolderError(
            f"{folder}: not a run folder, it has no {CONFIG}; give a folder that `rrcluster run` wrote."
        )
    cost, privacy = folder_cost(folder), read_mapping(folder / "privacy.json")
    if cost is not None:
        privacy |= {"epsilon": cost.epsilon}
    summary = read_mapping(folder / "summary.json") if (folder / "summary.json").exists() else {}
    return Run(
        path=folder,
        config=_with_init(read_mapping(folder / CONFIG), privacy),
        privacy=privacy,
        summary=summary,
        rounds=tuple(_round(entry, folder) for entry in _lines(folder / "rounds.jsonl", optional=not summary)),
        diagnostics=tuple(_diagnostic(entry, folder) for entry in _lines(folder / "diagnostics.jsonl")),
        cost=cost,
    )


def _with_init(config: Mapping[str, Any], privacy: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings with `init = auto` resolved."""
    begins = privacy.get("initialisation")
    if config.get("init") != "auto" or not isinstance(begins, Mapping):
        return config
    return {**config, "init": str(begins.get("init"))}


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[RunGroup]:
    """Every run under the paths, grouped by settings, in order of appearance.

    A path is a run folder, a folder of `seed-N/`, or one or two levels above such folders. Folders of `rrcluster
    reproduce`, which have their own reports, are skipped among several paths. A second run with the same settings and
    seed starts a new group, because it adds nothing to the spread over seeds.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    seen: set[Path] = set()
    folders = [Path(path) for path in paths]
    reports = [path for path in folders if path.name in OWN_OUTPUT and not (path / CONFIG).exists()]  # as in runs/*
    alone = len(folders) == 1
    for folder in (folder for path in folders if path not in reports for folder in run_folders(path, alone=alone)):
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        run, repeat = read_run(folder), 0
        key = settings_key(run.config)
        while run.seed is not None and run.seed in [other.seed for other in groups.get((key, repeat), [])]:
            repeat += 1
        groups.setdefault((key, repeat), []).append(run)
    if not groups:
        raise RunFolderError("no run folder was given; give at least one, for example runs/demo.")
    return [RunGroup(tuple(runs)) for runs in groups.values()]


def run_folders(path: Path, *, alone: bool = True, reproduced: bool = False) -> list[Path]:
    """The run folders at `path` or up to two levels below, and their seeds.

    Those of a reproduction, which has its own report, only if `reproduced`.
    """
    if not path.is_dir():
        kind = RunFolderError if path.exists() else NoRunYet
        raise kind(f"{path}: not a folder; give a run folder, or a folder of runs such as runs/demo.")
    runs = _below(path, levels=2, reproduced=reproduced)
    tables = [] if runs or reproduced else _tables(path)
    if tables and alone:
        raise RunFolderError(
            f"{path}: holds tables of `rrcluster reproduce`, which have their own reports; run `rrcluster report "
            f"{tables[0]}`, without --out."
        )
    if not runs and not tables:
        raise NoRunYet(
            f"{path}: no run in it (no {CONFIG} here, two levels of folders down, or in their seed-N folders); give "
            "a folder that `rrcluster run` wrote."
        )
    return runs


def _below(path: Path, *, levels: int, reproduced: bool) -> list[Path]:
    """Run folders in `path`, including those of a reproduction if requested."""
    runs = _seeds_or_self(path)
    if runs or not levels or ((path / DESCRIPTION).is_file() and not reproduced):
        return runs
    inner = (_below(child, levels=levels - 1, reproduced=reproduced) for child in _subfolders(path))
    return [folder for folders in inner for folder in folders]


def _tables(path: Path) -> list[Path]:
    """The folders of `rrcluster reproduce` among `path` and its subfolders."""
    return [folder for folder in (path, *_subfolders(path)) if (folder / DESCRIPTION).is_file()]


def _seeds_or_self(path: Path) -> list[Path]:
    seeds = [child for child in _subfolders(path) if child.name.startswith("seed-") and (child / CONFIG).is_file()]
    if seeds:
        return sorted(seeds, key=lambda child: (len(child.name), child.name))  # seed-2 before seed-10
    return [path] if (path / CONFIG).is_file() else []


def _subfolders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    except OSError as error:
        raise RunFolderError(f"{path}: could not be read ({error.strerror}). Check its permissions.") from error


def _lines(path: Path, *, optional: bool = True) -> list[dict[str, Any]]:
    """The lines of a file, which does not exist before the first round."""
    return [] if optional and not path.exists() else read_json_lines(path, damaged="refuse")


def _round(entry: Mapping[str, Any], folder: Path) -> ReleasedRound:
    evaluation = entry.get("private_evaluation")
    return ReleasedRound(
        round_index=_index(entry, folder / "rounds.jsonl"),
        sizes=numbers(entry.get("sizes")),
        denominators=numbers(entry.get("denominators")),
        accuracy=_released_accuracy(evaluation),
    )


def _released_accuracy(evaluation: Any) -> float | None:
    value = number(evaluation.get("accuracy")) if isinstance(evaluation, Mapping) else None
    return None if value is None else min(max(value, 0.0), 1.0)


def _diagnostic(entry: Mapping[str, Any], folder: Path) -> Diagnostic:
    compared = entry.get("comparison")
    compared = compared if isinstance(compared, dict) else {}
    groups = compared.get("by_group")
    return Diagnostic(
        round_index=_index(entry, folder / "diagnostics.jsonl"),
        confusion=_confusion(entry.get("confusion")),
        figures=_figures(compared.get("figures")),
        by_group=tuple(_figures(dict(enumerate(groups))).values()) if isinstance(groups, list) else (),
        verdict=str(compared.get("verdict", "")),
        written=entry,
        **{name: number(entry.get(name)) for name in _MEASURED},
    )


def _figures(value: object) -> dict[str, dict[str, float]]:
    """The figures of the run and its references, as far as they are numbers."""
    entries = value.items() if isinstance(value, dict) else ()
    return {
        str(name): {str(key): figure for key, entry in figures.items() if (figure := number(entry)) is not None}
        for name, figures in entries
        if isinstance(figures, dict)
    }


def _confusion(value: object) -> Confusion:
    """A rectangular table of counts; empty if the value is anything else."""
    rows = tuple(numbers(row) for row in value) if isinstance(value, list) else ()
    valid = len({len(row) for row in rows}) == 1 and all(count >= 0 for row in rows for count in row)
    return rows if valid else ()


def _index(entry: Mapping[str, Any], path: Path) -> int:
    index = entry.get("round")
    if isinstance(index, bool) or not isinstance(index, int):
        raise RunFolderError(f"{path}: a line has no round number; the file is damaged. {WAY_OUT}")
    return index
