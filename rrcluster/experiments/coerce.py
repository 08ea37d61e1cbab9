"""Check one value from a YAML file against the type that its setting declares."""

import contextlib
import reprlib
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from rrcluster.errors import ConfigError


def coerce(section: type, name: str, value: Any, *, source: str) -> Any:
    """`value` as the declared type of `section.name`; ConfigError naming both where it does not fit."""
    hint = get_type_hints(section, include_extras=False)[name]
    try:
        return _as(hint, value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{source}: {name} = {_shortened(value)} should be {_spell(hint)}.") from None


def _as(hint: Any, value: Any) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _as(options[0], value)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        return _as_one_of([option for option in options if option is not type(None)], value)
    if origin is Literal:
        return _checked(value, value in options)
    if origin is tuple:
        return tuple(_as(options[0], item) for item in _checked(value, isinstance(value, (list, tuple))))
    if hint is Path:
        return Path(_checked(value, isinstance(value, (str, Path))))
    if hint is float:
        return float(_checked(_number(value), isinstance(_number(value), (int, float)) and not isinstance(value, bool)))
    if hint is int:
        return _checked(value, isinstance(value, int) and not isinstance(value, bool))
    return _checked(value, isinstance(value, hint))


def _as_one_of(options: list[Any], value: Any) -> Any:
    """The first option that fits; the last one's error if none does."""
    for option in options[:-1]:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return _as(option, value)
    return _as(options[-1], value)


def _number(value: Any) -> Any:
    """YAML reads 1e-4 (no dot) as a string; take it for the number it is."""
    return float(value) if isinstance(value, str) else value


def _checked(value: Any, fits: bool) -> Any:
    if not fits:
        raise TypeError
    return value


def _shortened(value: Any) -> str:
    """The value as it would be typed, cut to a length that fits in an error message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # a whole number of too many digits
        return "a very large number"


def _spell(hint: Any) -> str:
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join("empty" if option is type(None) else _spell(option) for option in options)
    if origin is Literal:
        return "one of " + ", ".join(map(str, options))
    if origin is tuple:
        return f"a list of {_spell(options[0])}s"
    return {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}.get(hint, str(hint))
