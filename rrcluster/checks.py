"""Argument checks whose messages write themselves: `positive(update_clip=clip)`.

Each check takes exactly one keyword, returns its value, and raises `ConfigError` naming it.
"""

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any, cast

from rrcluster.errors import ConfigError


def _one(named: dict[str, Any]) -> tuple[str, float]:
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise ConfigError(f"{name} = {value!r} must be a number.")
    return name, cast(float, value)


def positive(**named: float) -> float:
    """Finite and greater than zero."""
    name, value = _one(named)
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} = {value} must be greater than 0 and finite.")
    return value


def non_negative(**named: float) -> float:
    """Finite and at least zero."""
    name, value = _one(named)
    if not 0 <= value < math.inf:
        raise ConfigError(f"{name} = {value} must be at least 0 and finite.")
    return value


def rate(**named: float) -> float:
    """In (0, 1]."""
    name, value = _one(named)
    if not 0 < value <= 1:
        raise ConfigError(f"{name} = {value} must be greater than 0 and at most 1.")
    return value


def fraction(**named: float) -> float:
    """In [0, 1)."""
    name, value = _one(named)
    if not 0 <= value < 1:
        raise ConfigError(f"{name} = {value} must be at least 0 and less than 1.")
    return value


def share(**named: float) -> float:
    """In [0, 1]."""
    name, value = _one(named)
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} = {value} must be at least 0 and at most 1.")
    return value


def count(*, at_least: int = 1, **named: int) -> int:
    """A whole number of at least `at_least`."""
    name, value = _one(dict(named))
    if math.isinf(value) or value != int(value) or value < at_least:
        raise ConfigError(f"{name} = {value} must be a whole number of at least {at_least}.")
    return int(value)


def one_of(choices: Iterable[str], **named: str) -> str:
    """One of the given names."""
    ((name, value),) = named.items()
    known = list(choices)
    if value not in known:
        raise ConfigError(f"{name} = {value!r} is not known; choose one of {', '.join(known)}.")
    return value
