"""Arrays in memory that processes share: written to it once, never sent through a connection.

Shared memory is an open file without a name, so it disappears with the last process that has it open.
"""

import mmap
import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
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


class SharedConnection:
    """A connection whose messages lie in shared memory: only their places go through the connection itself.

    So sending does not wait for a receiver that is busy. Each direction has two arenas, used in turn: what was received
    is overwritten by the second message after it. Whoever sends must not be more than one message ahead.
    """

    def __init__(self, connection: Connection, outgoing: Sequence[int], incoming: Sequence[int]) -> None:
        """Over open files, two for each direction, which the caller closes."""
        self._connection = connection
        self._outgoing, self._incoming = (
            cycle([SharedArena(file) for file in files]) for files in (outgoing, incoming)
        )

    def send(self, message: object) -> None:
        """Any message that can be pickled."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)  # arrays are left out of it
        whole, arena = (memoryview(head), *(buffer.raw() for buffer in buffers)), next(self._outgoing)
        contents = [np.frombuffer(content, dtype=np.uint8) for content in whole]
        specs = arena.allocate({str(place): (content.shape, "|u1") for place, content in enumerate(contents)}).values()
        for spec, content in zip(specs, contents, strict=True):
            arena.view(spec)[...] = content
        self._connection.send((arena.size, list(specs)))

    def receive(self) -> Any:
        """The next message; its arrays are views of shared memory."""
        size, specs = self._connection.recv()
        arena = next(self._incoming)
        arena.attach(size)
        head, *buffers = (arena.view(spec) for spec in specs)
        return pickle.loads(head.tobytes(), buffers=buffers)
