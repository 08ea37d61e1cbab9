"""CUDA graphs: a program of many small kernels is recorded once and then replayed with one launch.

A replay reads and writes the very tensors it was recorded with, so inputs are copied into them and results out of them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

OWN_CALLS = "thread_local"  # what a recording may be spoilt by: other threads of a stack use the device meanwhile
_KEPT = 48  # recorded programs of one engine; the one unused for longest goes first


class Recorded:
    """A function of tensors, recorded. Its results are overwritten by the next call: use or copy them first."""

    def __init__(self, program: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        """Run once to compile and to choose kernels, then record."""
        self._inputs = tuple(value.clone() for value in inputs)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            program(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode=OWN_CALLS):
            self._output = program(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Replay with these inputs."""
        for kept, value in zip(self._inputs, inputs, strict=True):
            kept.copy_(value)
        self._graph.replay()
        return self._output


class Recorder:
    """Recorded programs by key: everything but the inputs' values that a program depends on."""

    def __init__(self) -> None:
        """Nothing recorded yet."""
        self._programs: OrderedDict[Hashable, Recorded] = OrderedDict()

    def run(self, key: Hashable, program: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Replay the program of this key, recording it at its first use."""
        if key not in self._programs:
            if len(self._programs) >= _KEPT:
                self._programs.popitem(last=False)
            self._programs[key] = Recorded(program, inputs)
        self._programs.move_to_end(key)
        return self._programs[key](*inputs)
