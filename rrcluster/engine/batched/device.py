"""CUDA graphs: a program of many small kernels is captured once and then replayed with one launch.

A replay reads and writes the tensors it was captured with, so inputs are copied into them and results out of them.

Client data on a device: uploaded once where the whole population fits, else cohort by cohort.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.models.model import FixedPart
from rrcluster.types import Array

_CAPTURE_ERRORS = "thread_local"  # only calls of the capturing thread can break a capture; others use the device
Result = TypeVar("Result")
_MOST_GRAPHS = 48  # of one engine; the least recently used is dropped first


class GraphPool:
    """Captures graphs that are replayed one at a time: all of them share one memory pool and one stream.

    A separate stream for every graph would cost 32 MiB of the matrix library's workspace for each, in every thread.
    """

    def __init__(self) -> None:
        """Do not touch the device before the first capture."""
        self._memory: Any = None

    def capture(self, program: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Run once to compile and to choose kernels, then capture; the result lies where each replay writes it.

        The result's memory is reserved while it is referenced; other tensors of the program may be overwritten.
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
    """Captured functions by key: everything a program depends on except the values of its inputs."""

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


_CLIENTS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class SampleTable:
    """The samples of some clients, one after another: sample i of the client at `place` is row offsets[place] + i."""

    inputs: Tensor  # (rows, *input_shape), or features where a model begins with a fixed map
    targets: Tensor  # (rows, *target_shape)
    offsets: Array  # (places,) int64, on the host
    of_population: bool  # places are client ids; else positions in the cohort
    _forms: dict[Callable[[Tensor], Tensor], Tensor] = field(default_factory=dict, init=False, repr=False)

    def starts(self, clients: Array) -> Array:
        """(n,) the first row of each client of a cohort, in the cohort's order."""
        return self.offsets[clients] if self.of_population else self.offsets

    def inputs_as(self, form: Callable[[Tensor], Tensor]) -> Tensor:
        """The inputs in the form of a model's kernels, computed once."""
        if form not in self._forms:
            self._forms[form] = form(self.inputs)
        return self._forms[form]


def population_bytes(data: FederatedData) -> int:
    """Device memory for the samples of a whole population."""
    numbers = prod(data.input_shape) * data.input_dtype.itemsize + 8 * prod(data.target_shape)
    return int(data.sizes.sum()) * numbers


class PopulationTable:
    """A table with room for every client of a population; each is uploaded on first use.

    The first round thus need not wait for the features of clients outside its cohort.
    """

    def __init__(self, data: FederatedData, device: torch.device, *, fixed: FixedPart | None = None) -> None:
        """Allocate the table without uploading."""
        self._device, self._fixed = device, fixed
        self._sizes, self._offsets = data.sizes, np.cumsum(data.sizes) - data.sizes
        self._absent = np.ones(data.num_clients, dtype=bool)
        self._table: SampleTable | None = None

    def holding(self, clients: Array, data: FederatedData) -> SampleTable:
        """The table, with the samples of these clients of the population `data` in it."""
        if self._table is not None and not self._absent.any():
            return self._table
        new = np.unique(clients[self._absent[clients]])
        parts = -(-len(new) // _CLIENTS_AT_ONCE) or int(self._table is None)
        for ids in np.array_split(new, parts) if parts else ():
            self._add(ids, cohort_table(data.cohort(ids), self._device, fixed=self._fixed))
        assert self._table is not None
        return self._table

    def _add(self, ids: Array, part: SampleTable) -> None:
        if self._table is None:
            rows = int(self._sizes.sum())
            inputs, targets = (values.new_empty(rows, *values.shape[1:]) for values in (part.inputs, part.targets))
            self._table = SampleTable(inputs, targets, self._offsets, of_population=True)
        sizes = self._sizes[ids]
        rows_of = np.repeat(self._offsets[ids] - part.offsets, sizes) + np.arange(int(sizes.sum()))
        places = torch.as_tensor(rows_of, device=self._device)
        self._table.inputs[places], self._table.targets[places] = part.inputs, part.targets
        self._absent[ids] = False


def cohort_table(cohort: Cohort, device: torch.device, *, fixed: FixedPart | None = None) -> SampleTable:
    """The clients of one cohort, without padding; features instead of samples where the model begins with `fixed`."""
    real = np.arange(cohort.inputs.shape[1])[None, :] < cohort.sizes[:, None]
    inputs = torch.as_tensor(cohort.inputs[real], device=device)
    return SampleTable(
        inputs=inputs if fixed is None else fixed.of(inputs),
        targets=torch.as_tensor(cohort.targets[real], device=device),
        offsets=np.cumsum(cohort.sizes) - cohort.sizes,
        of_population=False,
    )
