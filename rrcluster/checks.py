"""Argument checks that name the argument in their messages: `positive(update_clip=clip)`.

Each check takes exactly one keyword, returns its value, and raises `ConfigError` naming it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, cast

from rrcluster.errors import ConfigError

MAX_NAME = 200  # bytes; most file systems allow 255


def _one(named: dict[str, Any]) -> tuple[str, float]:
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name} = {value!r} must be a number.")
    try:
        if math.isnan(value):
            raise ConfigError(f"{name} = {value!r} must be a number.")
    except OverflowError:
        raise ConfigError(f"{name} is a whole number too large to compute with; use less than 1e308.") from None
    return name, cast(float, value)


def _within(words: str, holds: Callable[[float], bool]) -> Callable[..., float]:
    def check(**named: float) -> float:
        name, value = _one(named)
        if not holds(value):
            raise ConfigError(f"{name} = {value} must be {words}.")
        return value

    return check


positive = _within("greater than 0 and finite", lambda value: 0 < value < math.inf)
non_negative = _within("at least 0 and finite", lambda value: 0 <= value < math.inf)
rate = _within("greater than 0 and at most 1", lambda value: 0 < value <= 1)
fraction = _within("at least 0 and less than 1", lambda value: 0 <= value < 1)
share = _within("at least 0 and at most 1", lambda value: 0 <= value <= 1)


def count(*, at_least: int = 1, **named: int) -> int:
    """A whole number of at least `at_least`."""
    name, value = _one(dict(named))
    if math.isinf(value) or value != int(value) or value < at_least:
        raise ConfigError(f"{name} = {value} must be a whole number of at least {at_least}.")
    return int(value)


def each(check: Callable[..., object], record: Any, *names: str) -> None:
    """The check, for these fields of a record where they are not None."""
    for name in names:
        if (value := getattr(record, name)) is not None:
            check(**{name: value})


def path(**named: object) -> None:
    """A string that can name a file or folder: encodable text without NUL."""
    ((name, value),) = named.items()
    text = str(value)
    try:
        usable = bool(text) and "\0" not in text and bool(text.encode())
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise ConfigError(f"{name} = {text[:80]!a} cannot name a file or folder; use plain characters.")


def file_name(**named: str) -> None:
    """One part of a path, so that nothing is written outside its folder."""
    path(**named)
    ((name, value),) = named.items()
    if value.startswith(".") or len(value.encode()) > MAX_NAME or any(mark in value for mark in "/\\:\n\r"):
        raise ConfigError(
            f"{name} = {value[:80]!a} must be one part of a path: at most {MAX_NAME} bytes, no slash, colon or line "
            "break, and no dot in front."
        )


def one_of(choices: Iterable[str], **named: str) -> str:
    """One of the given names."""
    ((name, value),) = named.items()
    names = list(choices)
    if value not in names:
        near = get_close_matches(str(value), names, n=1)
        suggestion = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"{name} = {value!r} is not known{suggestion}; choose one of {', '.join(names)}.")
    return value


def slots(participation: str, number: int | None, *, num_rounds: int, reserve_rounds: int) -> None:
    """The number of slots, required with `participation = schedule` and refused otherwise; at most one per round."""
    if participation in ("poisson", "everybody"):
        if number is not None:
            raise ConfigError(
                f"slots = {number} with participation = {participation}, which has none; use schedule, or leave slots "
                "out."
            )
        return
    if number is None:
        raise ConfigError(f"participation = {participation} needs slots, the number of slots (b).")
    if count(slots=number, at_least=2) > num_rounds:
        raise ConfigError(
            f"slots = {number} is more than num_rounds = {num_rounds}: the last slots would never take part; use at "
            f"most {num_rounds}."
        )
    if reserve_rounds:
        raise ConfigError(
            f"reserve_rounds = {reserve_rounds} with slots: a round is repeated exactly after a crash and is charged "
            "once; leave reserve_rounds out."
        )


def in_full_precision(record: Any) -> None:
    """Convert every number of a new frozen dataclass to Python's own types, in place.

    A half-precision number would be computed with in half precision: its epsilon too low, or overflowing where messages
    are scaled. An 8-bit integer would wrap.
    """
    for part in fields(record):
        value = getattr(record, part.name)
        if isinstance(value, bool) or not isinstance(value, Real):
            continue
        object.__setattr__(record, part.name, int(value) if isinstance(value, Integral) else float(value))
