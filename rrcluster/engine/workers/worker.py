"""A worker process: it takes jobs over a connection and leaves results in shared memory, until the connection closes.

It closes with the process that started it, however that one ends. Only a worker that needs torch imports it.
"""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rrcluster.engine.workers.arena import Arena, Slot
from rrcluster.engine.workers.single_client import Alone, Steps
from rrcluster.types import Array


@dataclass(frozen=True)
class Recipe:
    """What a worker computes with: the compiled `cnn`, or else a module, pickled by the process that started it."""

    library: Path | None = None  # of the compiled cnn
    outputs: int = 0  # of the compiled cnn
    module: bytes = b""
    samples_at_once: int = 0

    def made(self) -> Alone:
        """Ready to train."""
        if self.library is not None:
            from rrcluster.engine.fast_cnn.native_client import CompiledCnn

            return CompiledCnn(self.library, self.outputs)
        import torch

        from rrcluster.engine.workers.torch_client import TorchAlone

        torch.set_num_threads(1)
        return TorchAlone(pickle.loads(self.module), self.samples_at_once)


@dataclass(frozen=True)
class Job:
    """Arrays in shared memory, and what to do with each of their rows.

    `spans` (P, 2) says which samples of `inputs` and `targets` belong to a row. To train: `orders` (P, epochs, s),
    `start` (P, d), optionally `anchor` (P, d) and `trainable` (d,); `result` is (P, d). To measure: `vectors` (k, d);
    `result` is (P, k, 2).
    """

    size: int  # of the shared memory
    slots: Mapping[str, Slot]
    steps: Steps | None = None  # None: measure

    def begun(self, alone: Alone, arrays: Mapping[str, Array]) -> Callable[[int], Array]:
        """What makes the result of a row."""
        if self.steps is None:
            measure = alone.measuring(arrays["vectors"])
            return lambda row: measure(*_samples(arrays, row))
        return partial(_trained, alone, self.steps, arrays)


def _samples(arrays: Mapping[str, Array], row: int) -> tuple[Array, Array]:
    first, last = arrays["spans"][row]
    return arrays["inputs"][first:last], arrays["targets"][first:last]


def _trained(alone: Alone, steps: Steps, arrays: Mapping[str, Array], row: int) -> Array:
    start: Array = arrays["start"][row]
    inputs, targets = _samples(arrays, row)
    if not len(inputs):
        return start
    return alone.train(
        start,
        inputs,
        targets,
        orders=arrays["orders"][row, :, : len(inputs)],
        steps=steps,
        anchor=arrays["anchor"][row] if "anchor" in arrays else start,
        moving=arrays.get("trainable"),
    )


def serve(connection: Connection, descriptor: int) -> None:
    """Work until the connection closes. What goes wrong is told by kind and place: a message may hold raw values."""
    arena, alone = Arena(descriptor), connection.recv().made()
    while True:
        said: Any = connection.recv()
        if isinstance(said, Job):
            arena.attach(said.size)
            arrays = {name: arena.view(slot) for name, slot in said.slots.items()}
            result, made = arrays["result"], said.begun(alone, arrays)
            continue
        try:
            for row in said:
                result[row] = made(row)
        except Exception as error:
            connection.send(_kind_and_place(error))
        else:
            connection.send(None)


def _kind_and_place(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return f"{type(error).__name__}{place}"


def main(socket: int, descriptor: int) -> None:
    """The process."""
    with Connection(socket) as connection:
        try:
            serve(connection, descriptor)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent has closed, or is gone
