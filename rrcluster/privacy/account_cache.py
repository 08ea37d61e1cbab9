"""Values that accountants have computed, by function and arguments: a cache that processes can hand to each other."""

from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Value = TypeVar("Value")
CachedValues = Mapping[str, Mapping[tuple[Hashable, ...], Any]]  # function -> its arguments -> its value

_MOST = 4096  # values of a function
_CACHE: dict[str, dict[tuple[Hashable, ...], Any]] = {}


def cached(function: Callable[[*Arguments], Value]) -> Callable[[*Arguments], Value]:
    """A function of hashable arguments alone that computes each of its values once; errors are raised again."""
    values = _CACHE.setdefault(f"{function.__module__}.{function.__qualname__}", {})

    @wraps(function)
    def compute_once(*arguments: *Arguments) -> Value:
        if arguments in values:
            value: Value = values[arguments]
            return value
        value = function(*arguments)
        if len(values) >= _MOST:
            values.clear()
        values[arguments] = value
        return value

    return compute_once


def cached_values() -> CachedValues:
    """All values that this process has computed, or was given."""
    return {function: dict(values) for function, values in _CACHE.items()}


def add_values(given: CachedValues) -> None:
    """Take over the values of another process of this program."""
    for function, values in given.items():
        _CACHE.setdefault(function, {}).update(values)
