"""CUDA graphs: a program of many small kernels is recorded once and then replayed with one launch.

A replay reads and writes the very tensors it was recorded with, so inputs are copied into them and results out of them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

_SPOILT_BY = "thread_local"  # calls of the recording thread: others of a stack use the device meanwhile
Result = TypeVar("Result")
_KEPT = 48  # recorded programs of one engine; the one unused for longest goes first


class Tape:
    """Records programs that are replayed one at a time: all of them work in one memory, on one stream.

    A stream of its own for every recording would cost the matrix library's working memory, 32 MiB, for each of them in
    every thread.
    """

    def __init__(self) -> None:
        """No device is asked for before the first recording."""
        self._memory: Any = None

    def record(self, program: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Run once to compile and to choose kernels, then record; a result lies where each replay writes it.

        The result keeps its place until it is let go of; all else the program made is overwritten by other recordings.
        """
        stream, current = self._stream, torch.cuda.current_stream()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                program()
        finally:
            current.wait_stream(stream)
        self._memory = self._memory or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._memory, stream=stream, capture_error_mode=_SPOILT_BY):
                result = program()
        except BaseException:  # torch may leave us on that stream, and the memory marked as being recorded in
            torch.cuda.set_stream(current)
            self._memory = None
            raise
        return graph, result

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class Recorded:
    """A function of tensors, recorded. Its results are overwritten by the next call: use or copy them first."""

    def __init__(self, tape: Tape, program: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        """Of inputs of these shapes."""
        self._inputs = tuple(value.clone() for value in inputs)
        self._graph, self._output = tape.record(lambda: program(*self._inputs))

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Replay with these inputs."""
        for kept, value in zip(self._inputs, inputs, strict=True):
            kept.copy_(value)
        self._graph.replay()
        return self._output


class Recorder:
    """Recorded programs by key: everything but the inputs' values that a program depends on."""

    def __init__(self, tape: Tape) -> None:
        """Nothing recorded yet."""
        self._tape = tape
        self._programs: OrderedDict[Hashable, Recorded] = OrderedDict()

    def run(self, key: Hashable, program: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Replay the program of this key, recording it at its first use."""
        if key not in self._programs:
            if len(self._programs) >= _KEPT:
                self._programs.popitem(last=False)
            self._programs[key] = Recorded(self._tape, program, inputs)
        self._programs.move_to_end(key)
        return self._programs[key](*inputs)
