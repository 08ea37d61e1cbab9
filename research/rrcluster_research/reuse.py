"""Copy runs between reproductions: tables and figures of the paper share cells, and each run is made once."""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from rrcluster.errors import RRClusterError
from rrcluster.runs.config import RunConfig, from_flat
from rrcluster.runs.folder import RunFolder
from rrcluster.runs.sweep import Job
from rrcluster.storage import read_mapping, write_file


def take_over(jobs: Sequence[Job], reproductions: Iterable[Path]) -> int:
    """Copy finished runs with exactly the settings of these jobs from other reproductions; returns their number."""
    wanted: dict[str, list[Job]] = {}
    for job in jobs:
        if not job.folder.exists() and (config := _config(job)) is not None:
            wanted.setdefault(_settings(config), []).append(job)
    taken = 0
    for path in (file.parent for place in reproductions for file in sorted(place.glob("*/*/seed-*/config.yaml"))):
        if not wanted:
            break
        if RunFolder(path).finished and (config := _read_config(path)) is not None:
            for job in wanted.pop(_settings(config), []):
                _copy(path, job.folder, job.config)
                taken += 1
    return taken


def of_other_settings(jobs: Sequence[Job]) -> Path | None:
    """The folder of the first job that contains a run, finished or not, with other settings than the job's."""
    for job in jobs:
        if (job.folder / "config.yaml").exists() and (wanted := _config(job)) is not None:
            existing = _read_config(job.folder)
            if existing is None or _settings(existing) != _settings(wanted):
                return job.folder
    return None


def _copy(source: Path, target: Path, config: RunConfig) -> None:
    """Copy under a temporary name, then rename, so that an interrupted copy is never read as a run."""
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{target.name}.copy")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source, half, ignore=shutil.ignore_patterns("checkpoint"))
    write_file(half / "config.yaml", yaml.safe_dump(config.flat(), sort_keys=False))
    half.rename(target)


def _settings(config: RunConfig) -> str:
    return json.dumps({name: value for name, value in config.flat().items() if name != "out"}, sort_keys=True)


def _config(job: Job) -> RunConfig | None:
    try:
        return job.config
    except RRClusterError:  # the run itself will report it
        return None


def _read_config(path: Path) -> RunConfig | None:
    try:
        return from_flat(read_mapping(path / "config.yaml"))
    except (RRClusterError, TypeError, AttributeError):  # damaged, or of another version
        return None
