"""Write files so that a reader never sees half of one: under a temporary name first, then renamed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rrcluster.errors import RunFolderError
from rrcluster.reading import plain_json, read_text


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` on a temporary neighbour of `path`, flush it to disk and rename it into place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}); choose another folder with --out."
        ) from error


def write_text(path: Path, text: str) -> None:
    """A whole text file."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_json(path: Path, value: Any) -> None:
    """A whole JSON file."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def append_json(path: Path, value: Any) -> None:
    """One line of a JSON-lines file."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written ({error.strerror}); free the disk and resume.") from error


def keep_rounds_before(path: Path, round_index: int) -> None:
    """Drop the lines of rounds from `round_index` on (they will be run again), and everything from a torn line on."""
    if not path.exists():
        return
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: cannot be read; the file is damaged. Start a new run.") from error
    kept = []
    for line in text.splitlines():
        try:
            if plain_json(line)["round"] < round_index:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            break
    write_text(path, "".join(line + "\n" for line in kept))
