"""Arrays in memory that processes share: written to it once, never sent through a connection.

Shared memory is an open file without a name, so it disappears with the last process that has it open.
"""

import mmap
import os
import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rrcluster.types import Array

_ALIGNMENT = 64
_GROWTH = 1.25


@dataclass(frozen=True)
class ArraySpec:
    """Offset, shape and type of an array in shared memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


def open_unnamed_file() -> int:
    """A file descriptor of anonymous memory (Linux), or of an unlinked temporary file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rrcluster")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedArena:
    """One block of shared memory, laid out anew for every job."""

    def __init__(self, descriptor: int) -> None:
        """Over an open file, which the caller closes."""
        self._descriptor = descriptor
        self._memory: mmap.mmap | None = None
        self.size = 0

    def allocate(self, arrays: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, ArraySpec]:
        """Place arrays of these shapes and types one after the other; the file grows as needed."""
        specs, end = {}, 0
        for name, (shape, dtype) in arrays.items():
            specs[name] = ArraySpec(end, tuple(shape), dtype)
            end += -(-prod(shape) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
        if end > self.size:
            grown = int(end * _GROWTH)
            os.ftruncate(self._descriptor, grown)
            self.attach(grown)
        return specs

    def attach(self, size: int) -> None:
        """Map `size` bytes of the file."""
        if size != self.size:
            self._memory = mmap.mmap(self._descriptor, size)  # the previous mapping lives as long as its views
            self.size = size

    def view(self, spec: ArraySpec) -> Array:
        """The array at `spec`: shared, not copied."""
        count = prod(spec.shape)
        if self._memory is None or not count:
            return np.zeros(spec.shape, dtype=spec.dtype)
        return np.frombuffer(self._memory, dtype=spec.dtype, count=count, offset=spec.offset).reshape(spec.shape)


def send_shared(connection: Connection, arena: SharedArena, message: object) -> None:
    """Send a message through the arena, where the next one overwrites it.

    Only places in the arena go through the connection, so this does not wait for a receiver that is busy.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)  # contiguous arrays are left out of it
    whole = (memoryview(head), *(buffer.raw() for buffer in buffers))
    contents = [np.frombuffer(content, dtype=np.uint8) for content in whole]
    specs = arena.allocate({str(place): (content.shape, "|u1") for place, content in enumerate(contents)}).values()
    for spec, content in zip(specs, contents, strict=True):
        arena.view(spec)[...] = content
    connection.send((arena.size, list(specs)))


def receive_shared(connection: Connection, arena: SharedArena) -> Any:
    """A message that was sent so; its arrays are views of the arena."""
    size, specs = connection.recv()
    arena.attach(size)
    head, *buffers = (arena.view(spec) for spec in specs)
    return pickle.loads(head.tobytes(), buffers=buffers)
