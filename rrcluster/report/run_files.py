"""Plain files of a run folder: read safely, written atomically. Nothing here executes what it reads."""

import contextlib
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rrcluster.errors import RunFolderError
from rrcluster.reading import plain_json, plain_yaml, read_text

WAY_OUT = "Restore it, or run again with the same settings."


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping that a YAML file holds; plain data only (`safe_load`)."""
    text = _text(path)
    try:
        value = plain_yaml(text)
    except ValueError as error:
        raise RunFolderError(f"{path}: not readable YAML; the file is damaged. {WAY_OUT}") from error
    return _mapping(value, path)


def read_json(path: Path) -> Mapping[str, Any]:
    """The object that a JSON file holds."""
    text = _text(path)
    try:
        value = plain_json(text)
    except ValueError as error:
        raise RunFolderError(f"{path}: not readable JSON; the file is damaged. {WAY_OUT}") from error
    return _mapping(value, path)


def read_jsonl(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The objects of a JSONL file, one a line.

    A last line without its newline that does not parse was torn by a crash, or is being written now: it is left out.
    Damage anywhere else is an error.
    """
    lines = _text(path).split("\n")
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entries.append(_mapping(plain_json(line), path))
        except ValueError as error:
            if number == len(lines):
                break
            raise RunFolderError(f"{path}, line {number}: not a JSON object; the file is damaged. {WAY_OUT}") from error
    return tuple(entries)


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write under a temporary name in the same folder, then rename: readers see the old file or the new one."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise RunFolderError(
            f"{path}: could not be written ({error.strerror}); free the disk or its permissions, or give another `out`."
        ) from error
    return path


def number(value: object) -> float | None:
    """A finite number, or None for anything else (missing, null, NaN, infinite, not a number)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def numbers(value: object) -> tuple[float, ...]:
    """A list of numbers; NaN where an entry is none, so that places are kept."""
    if not isinstance(value, list):
        return ()
    return tuple(math.nan if number(entry) is None else float(entry) for entry in value)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError as error:
        raise RunFolderError(f"{path}: missing, so this is not a complete run folder. {WAY_OUT}") from error
    except ValueError as error:
        raise RunFolderError(f"{path}: not text; the file is damaged. {WAY_OUT}") from error
    except OSError as error:
        raise RunFolderError(f"{path}: could not be read ({error.strerror}). Check its permissions.") from error


def _mapping(value: Any, path: Path) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RunFolderError(f"{path}: holds no named values; the file is damaged. {WAY_OUT}")
    return {str(key): entry for key, entry in value.items()}
