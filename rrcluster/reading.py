"""Text that is not to be trusted, read as plain data: nothing in it is executed, and nothing in it can grow.

Every way in which a text fails to be what it should be is one `ValueError`; whoever reads a file turns it into an error
that names the file.
"""

import json
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 26  # of one text file: 64 MiB, far more than any file of a run
MAX_DEPTH = 20
_LARGEST = 2**63


def read_text(path: Path) -> str:
    """A file's text, in UTF-8. `OSError` where it cannot be read, `ValueError` where it is not text or far too long."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return path.read_text(encoding="utf-8")


def plain_yaml(text: str) -> Any:
    """What a YAML text holds: plain values only (`safe_load`).

    Anchors are refused: a few lines of them, nested or merged, stand for more values than fit in memory. So are values
    nested more than `MAX_DEPTH` deep, and whole numbers beyond 64 bits, which cannot even be printed in an error
    message when they are long enough.
    """
    import yaml

    try:
        _refuse_bombs(text)
        value = yaml.safe_load(text)
        _refuse_long_numbers(value)
    except (yaml.YAMLError, RecursionError, AttributeError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    return value


def plain_json(text: str) -> Any:
    """What a JSON text holds."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_bombs(text: str) -> None:
    """Look at a YAML text event by event, before anything is made of it."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it uses YAML anchors; write each value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")


def _refuse_long_numbers(value: Any) -> None:
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError("it holds a whole number of more than 64 bits")
    if isinstance(value, dict):
        parts: list[Any] = [*value.keys(), *value.values()]
    else:
        parts = list(value) if isinstance(value, (list, tuple, set)) else []
    for part in parts:
        _refuse_long_numbers(part)
