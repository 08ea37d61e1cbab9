"""Runs that another reproduction has made already. Tables and figures of the paper share cells; a run is made once."""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from rrcluster.errors import RRClusterError
from rrcluster.experiments.config import RunConfig, from_flat
from rrcluster.experiments.folder import RunFolder
from rrcluster.experiments.sweep import Job
from rrcluster.storage import read_mapping, write_file


def take_over(jobs: Sequence[Job], reproductions: Iterable[Path]) -> int:
    """Copy the finished runs of exactly these settings from other reproductions; how many there were.

    Everything but the folder is the same, so a copy is what the job would have made on the machine that made it.
    """
    wanted: dict[str, list[Job]] = {}
    for job in jobs:
        if not job.folder.exists() and (config := _config(job)) is not None:
            wanted.setdefault(_settings(config), []).append(job)
    taken = 0
    for path in (file.parent for place in reproductions for file in sorted(place.glob("*/*/seed-*/config.yaml"))):
        if not wanted:
            break
        if RunFolder(path).finished and (found := _found(path)) is not None:
            for job in wanted.pop(_settings(found), []):
                _copy(path, job.folder, job.config)
                taken += 1
    return taken


def of_other_settings(jobs: Sequence[Job]) -> Path | None:
    """The first folder of a job that holds a run of other settings than its own, finished or not."""
    for job in jobs:
        if (job.folder / "config.yaml").exists() and (wanted := _config(job)) is not None:
            found = _found(job.folder)
            if found is None or _settings(found) != _settings(wanted):
                return job.folder
    return None


def _copy(source: Path, target: Path, config: RunConfig) -> None:
    """Into place at once, from a name that no run has: half a copy is never taken for one."""
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
    except RRClusterError:  # it will be refused
        return None


def _found(path: Path) -> RunConfig | None:
    try:
        return from_flat(read_mapping(path / "config.yaml"))
    except (RRClusterError, TypeError, AttributeError):  # damaged, or of another version
        return None
