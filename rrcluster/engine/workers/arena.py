"""Arrays in memory that a process and its workers share: written once, pickled never.

The memory is an open file without a name: it is gone with the last process that holds it, however that one ends.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from rrcluster.types import Array

_BOUNDARY = 64
_GROWTH = 1.25


@dataclass(frozen=True)
class Slot:
    """Where an array lies."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


def unnamed_file() -> int:
    """A descriptor of empty memory (Linux), or of an unlinked file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rrcluster")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Arena:
    """One piece of shared memory, laid out anew for every job."""

    def __init__(self, descriptor: int) -> None:
        """Over an open file; the caller closes it."""
        self._descriptor = descriptor
        self._memory: mmap.mmap | None = None
        self.size = 0

    def lay(self, arrays: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Slot]:
        """Room for arrays of these shapes and kinds, one after the other; the file grows as needed."""
        slots, end = {}, 0
        for name, (shape, kind) in arrays.items():
            slots[name] = Slot(end, tuple(shape), kind)
            end += -(-prod(shape) * np.dtype(kind).itemsize // _BOUNDARY) * _BOUNDARY
        if end > self.size:
            grown = int(end * _GROWTH)
            os.ftruncate(self._descriptor, grown)
            self.attach(grown)
        return slots

    def attach(self, size: int) -> None:
        """See `size` bytes of the file."""
        if size != self.size:
            self._memory = mmap.mmap(self._descriptor, size)  # the one before lives as long as its views do
            self.size = size

    def view(self, slot: Slot) -> Array:
        """The array in a slot: shared, not copied."""
        count = prod(slot.shape)
        if self._memory is None or not count:
            return np.zeros(slot.shape, dtype=slot.dtype)
        return np.frombuffer(self._memory, dtype=slot.dtype, count=count, offset=slot.offset).reshape(slot.shape)
