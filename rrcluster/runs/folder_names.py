"""The folder of a new run, chosen without importing torch: a folder in use is refused at once."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from rrcluster.errors import RunFolderError
from rrcluster.runs.config import RunConfig, from_flat
from rrcluster.settings import without_removed
from rrcluster.storage import make_folders, read_mapping, sync_folder


def refuse_a_second_run(path: Path) -> None:
    """Refuse a folder that holds a run already."""
    try:
        if not (path / "config.yaml").exists():
            return
    except OSError:  # creating the folder reports it
        return
    finished = (path / "models.safetensors").exists()
    way_out = f"`rrcluster report {path}` shows it" if finished else f"continue it with `rrcluster run --resume {path}`"
    raise RunFolderError(
        f"{path} already holds a run; {way_out}, or choose another folder with --out (out= in Python)."
    )


def new_folder(config: RunConfig) -> Path:
    """The folder of a new run: the one asked for, or the first free one of runs/<label>, runs/<label>-2, ...

    A default folder is made here, so that two runs that start at the same moment get different ones.
    """
    if _named(config):
        return config.folder
    for path in _numbered(config):
        try:
            make_folders(path.parent)
            path.mkdir()
            sync_folder(path.parent)
        except FileExistsError:
            continue
        except OSError:  # creating the run reports it
            pass
        return path
    raise AssertionError  # there is always another number


def seeds_folder(config: RunConfig) -> Path:
    """Where the runs of several seeds go: as asked for, or the first default that no other settings have taken.

    The same command therefore finds the runs that it began.
    """
    if _named(config):
        refuse_a_second_run(config.folder)
        return config.folder
    return next(path for path in _numbered(config) if not path.exists() or _same_runs(config, path))


def _same_runs(config: RunConfig, path: Path) -> bool:
    runs = [path / f"seed-{seed}" for seed in config.output.seeds]
    if (path / "config.yaml").exists() or not any(run.exists() for run in runs):
        return False
    pairs = zip(config.output.seeds, runs, strict=True)
    return all(_settings(run) in (None, config.with_seed(seed, run).resolved()) for seed, run in pairs)


def _settings(run: Path) -> RunConfig | None:
    """Of the run in a folder; None where there is none yet."""
    file = run / "config.yaml"
    return from_flat(without_removed(read_mapping(file)), source=str(file)) if file.exists() else None


def _named(config: RunConfig) -> bool:
    return config.output.out is not None or config.output.name is not None


def _numbered(config: RunConfig) -> Iterator[Path]:
    first = config.folder
    yield first
    yield from (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
