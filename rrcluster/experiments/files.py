"""Write files so that a reader never sees half of one, and say what to do when the disk refuses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rrcluster.durable import replace_file
from rrcluster.errors import RunFolderError
from rrcluster.reading import plain_json, read_text


def write_bytes(path: Path, content: bytes) -> None:
    """A whole file, under a temporary name first, flushed, then renamed."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}); free the disk and resume, or choose another folder with "
            "--out."
        ) from error


def write_text(path: Path, text: str) -> None:
    """A whole text file."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """A whole JSON file."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def append_json(path: Path, value: Any) -> None:
    """One line of a JSON-lines file; a checkpoint flushes it."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written ({error.strerror}); free the disk and resume.") from error


def keep_rounds_before(path: Path, round_index: int) -> None:
    """Drop the lines of rounds from `round_index` on (they will be run again), and everything from a torn line on."""
    before = _content(path)
    after = "".join(line + "\n" for at, line in _whole(before) if at < round_index)
    if after != before:
        write_text(path, after)


def lines_by_round(path: Path) -> list[tuple[int, str]]:
    """The lines of a JSON-lines file with the rounds they are of, up to the first that is torn; none without a file."""
    return list(_whole(_content(path)))


def _content(path: Path) -> str:
    try:
        return read_text(path) if path.exists() else ""
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: cannot be read; the file is damaged. Start a new run.") from error


def _whole(content: str) -> Iterator[tuple[int, str]]:
    for line in content.splitlines():
        try:
            at = plain_json(line)["round"]
        except (ValueError, KeyError, TypeError):
            return
        if not isinstance(at, int):
            return
        yield at, line
