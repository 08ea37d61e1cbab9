"""Samples that consist of several arrays (a user and an item, tokens and a mask), packed into one row of numbers each.

Stores, cohorts and engines see one float32 array; the network gets its parts back (`models/task.py`). Whole numbers are
ids and come back as int64: float32 holds them exactly below 2^24, and larger ones are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.errors import DataError

LARGEST_ID = 2**24 - 1


@dataclass(frozen=True)
class InputPart:
    """One of the arrays that a sample consists of, and its place in the packed row."""

    name: str  # the keyword that it is passed by, or its position
    shape: tuple[int, ...]  # of one sample
    ids: bool  # whole numbers from 0, passed as int64; else float32
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The parts of a sample in the order of the packed row."""

    parts: tuple[InputPart, ...]
    by_name: bool  # passed as keywords (given as a dict); else by position (given as a tuple)

    @classmethod
    def of(cls, sample: Any, owner: str) -> "Layout | None":
        """The layout of the inputs (s, ...) of one owner; None where they are one array."""
        arrays = _arrays(sample, owner)
        if arrays is None:
            return None
        parts, start = [], 0
        for name, array in arrays.items():
            stop = start + prod(array.shape[1:])
            parts.append(InputPart(name, array.shape[1:], array.dtype.kind in "iu", start, stop))
            start = stop
        return cls(tuple(parts), isinstance(sample, Mapping))

    @property
    def described(self) -> dict[str, Any]:
        """As plain data, for files."""
        return {"by_name": self.by_name, "parts": [[part.name, list(part.shape), part.ids] for part in self.parts]}

    @classmethod
    def restored(cls, described: Mapping[str, Any]) -> "Layout":
        """From plain data."""
        parts, start = [], 0
        for name, shape, ids in described["parts"]:
            stop = start + prod(shape)
            parts.append(InputPart(str(name), tuple(shape), bool(ids), start, stop))
            start = stop
        return cls(tuple(parts), bool(described["by_name"]))

    def pack(self, sample: Any, owner: str) -> NDArray[Any]:
        """The inputs of one owner as rows (s, width) of float32."""
        arrays = _arrays(sample, owner)
        if arrays is None or list(arrays) != [part.name for part in self.parts]:
            names = "one array" if arrays is None else ", ".join(arrays)
            raise DataError(f"{owner} has inputs {names}, others {', '.join(part.name for part in self.parts)}.")
        columns = []
        for part, array in zip(self.parts, arrays.values(), strict=True):
            if array.shape[1:] != part.shape or (array.dtype.kind in "iu") != part.ids:
                raise DataError(
                    f"{owner} has {part.name} of type {array.dtype} and shape {array.shape[1:]} per sample, others "
                    f"{'whole numbers' if part.ids else 'numbers'} of shape {part.shape}; all must be alike."
                )
            if part.ids and array.size and (array.min() < 0 or array.max() > LARGEST_ID):
                raise DataError(f"{owner} has ids in {part.name} outside 0 to {LARGEST_ID}; number them anew.")
            columns.append(array.reshape(len(array), -1).astype(np.float32))
        return np.concatenate(columns, axis=1)


def _arrays(sample: Any, owner: str) -> dict[str, NDArray[Any]] | None:
    """The named arrays of one owner's inputs; None where they are one array."""
    if isinstance(sample, Mapping):
        named = {str(name): np.asarray(array) for name, array in sample.items()}
    elif isinstance(sample, tuple):
        named = {str(place): np.asarray(array) for place, array in enumerate(sample)}
    else:
        return None
    if not named or len({array.shape[:1] for array in named.values()}) > 1 or () in {a.shape for a in named.values()}:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in named.items())
        raise DataError(f"{owner} has inputs {shapes or 'without any array'}; each must be (s, ...) with the same s.")
    for name, array in named.items():
        if array.dtype.kind not in "biuf":
            raise DataError(f"{owner} has {name} of type {array.dtype}; give real numbers.")
    return named
