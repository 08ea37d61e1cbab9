"""CUDA graphs: a program of many small kernels is captured once and then replayed with one launch.

A replay reads and writes the tensors it was captured with, so inputs are copied into them and results out of them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

_CAPTURE_ERRORS = "thread_local"  # only calls of the capturing thread can break a capture; others use the device
Result = TypeVar("Result")
_MOST_GRAPHS = 48  # of one engine; the least recently used is dropped first


class GraphPool:
    """Captures graphs that are replayed one at a time: all of them share one memory pool and one stream.

    A separate stream for every graph would cost 32 MiB of the matrix library's workspace for each, in every thread.
    """

    def __init__(self) -> None:
        """The device is not touched before the first capture."""
        self._memory: Any = None

    def capture(self, program: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Run once to compile and to choose kernels, then capture; the result lies where each replay writes it.

        The result's memory is reserved while it is referenced; other tensors of the program are overwritten by others.
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
            with torch.cuda.graph(graph, pool=self._memory, stream=stream, capture_error_mode=_CAPTURE_ERRORS):
                result = program()
        except BaseException:  # torch may leave this stream current, and the pool marked as capturing
            torch.cuda.set_stream(current)
            self._memory = None
            raise
        return graph, result

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class CapturedFunction:
    """A captured function of tensors. Each call overwrites the previous result: use or copy it first."""

    def __init__(self, pool: GraphPool, program: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        """Capture for inputs of these shapes."""
        self._inputs = tuple(value.clone() for value in inputs)
        self._graph, self._output = pool.capture(lambda: program(*self._inputs))

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Replay with these inputs."""
        for captured, value in zip(self._inputs, inputs, strict=True):
            captured.copy_(value)
        self._graph.replay()
        return self._output


class GraphCache:
    """Captured functions by key: everything that a program depends on except the values of its inputs."""

    def __init__(self, pool: GraphPool) -> None:
        """An empty cache."""
        self._pool = pool
        self._functions: OrderedDict[Hashable, CapturedFunction] = OrderedDict()

    def run(self, key: Hashable, program: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Replay the program of this key, capturing it at its first use."""
        if key not in self._functions:
            if len(self._functions) >= _MOST_GRAPHS:
                self._functions.popitem(last=False)
            self._functions[key] = CapturedFunction(self._pool, program, inputs)
        self._functions.move_to_end(key)
        return self._functions[key](*inputs)
