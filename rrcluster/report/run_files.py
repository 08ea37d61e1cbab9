"""Numbers in the files of a run folder, which may hold anything."""

import math


def number(value: object) -> float | None:
    """A finite number, or None for anything else (missing, null, NaN, infinite, not a number)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def numbers(value: object) -> tuple[float, ...]:
    """The numbers of a list, NaN for an entry that is none; () for anything but a list."""
    if not isinstance(value, list):
        return ()
    return tuple(math.nan if number(entry) is None else float(entry) for entry in value)
