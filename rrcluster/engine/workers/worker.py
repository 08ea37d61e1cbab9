"""A worker process: receives jobs over a connection and writes results to shared memory until the connection closes.

The connection closes with the parent process, however that ends. Only a worker that needs torch imports it.
"""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from rrcluster.engine.workers.shared_arrays import ArraySpec, SharedArena
from rrcluster.types import Array

MeasureClient = Callable[[Array, Array], Array]  # inputs (n, *input), targets (n,) -> (k, 2)


@dataclass(frozen=True)
class Steps:
    """`LocalSettings` of a client as plain values, so that a worker imports nothing for them."""

    rate: float
    epochs: int
    batch_size: int
    proximal: float
    optimizer: str = "sgd"
    momentum: float = 0.0

    @classmethod
    def of(cls, local: Any) -> "Steps":
        """Of `LocalSettings`."""
        rate, epochs, batch_size = local.local_lr, local.local_epochs, local.batch_size
        return cls(rate, epochs, batch_size, local.proximal, local.local_optimizer, local.local_momentum)

    @property
    def plain(self) -> bool:
        """SGD without momentum."""
        return self.optimizer == "sgd" and not self.momentum


@dataclass(frozen=True, eq=False)
class ClientCall:
    """One client's local training: n > 0 samples, visited in the order `orders`."""

    start: Array  # (d,)
    inputs: Array  # (n, *input)
    targets: Array  # (n,)
    orders: Array  # (epochs, n)
    steps: Steps
    anchor: Array  # (d,) used when steps.proximal is above 0
    trainable: Array | None = None  # (d,) above 0 where a coordinate moves; None: all move
    seeds: Array | None = None  # (steps,) of what random layers draw in each step; None: the network has none


class ClientTrainer(Protocol):
    """Trains and measures one client at a time; no other client's samples change a bit of its result."""

    def train(self, call: ClientCall) -> Array:
        """The trained model (d,)."""

    def evaluator(self, models: Array) -> MeasureClient:
        """A function of samples: sums of loss and of correct answers for k models, (k, d) -> (k, 2) float64."""


@dataclass(frozen=True)
class TrainerSpec:
    """What a worker builds its trainer from: the compiled `cnn`, or a module and task pickled by the parent process."""

    library: Path | None = None  # of the compiled cnn
    outputs: int = 0  # of the compiled cnn
    module: bytes = b""
    samples_at_once: int = 0

    def build(self) -> ClientTrainer:
        """The trainer."""
        if self.library is not None:
            from rrcluster.engine.fast_cnn.native_client import NativeCnn

            return NativeCnn(self.library, self.outputs)
        import torch

        from rrcluster.engine.workers.torch_client import TorchClientTrainer

        torch.set_num_threads(1)
        module, task = pickle.loads(self.module)
        return TorchClientTrainer(module, task, self.samples_at_once)


@dataclass(frozen=True)
class WorkerJob:
    """Arrays in shared memory, and what to compute for each of their rows.

    `spans` (P, 2) says which samples of `inputs` and `targets` belong to a row. To train: `orders` (P, epochs, s),
    `start` (P, d), optionally `anchor` (P, d), `trainable` (d,) and `seeds` (P, steps); `result` is (P, d). To measure:
    `models` (k, d); `result` is (P, k, 2).
    """

    size: int  # of the shared memory, in bytes
    arrays: Mapping[str, ArraySpec]
    steps: Steps | None = None  # None: measure

    def bind(self, trainer: ClientTrainer, arrays: Mapping[str, Array]) -> Callable[[int], Array]:
        """The function that computes the result of one row."""
        if self.steps is None:
            measure = trainer.evaluator(arrays["models"])
            return lambda row: measure(*_samples(arrays, row))
        return partial(_train_row, trainer, self.steps, arrays)


def _samples(arrays: Mapping[str, Array], row: int) -> tuple[Array, Array]:
    first, last = arrays["spans"][row]
    return arrays["inputs"][first:last], arrays["targets"][first:last]


def _train_row(trainer: ClientTrainer, steps: Steps, arrays: Mapping[str, Array], row: int) -> Array:
    start: Array = arrays["start"][row]
    inputs, targets = _samples(arrays, row)
    if not len(inputs):
        return start
    orders = arrays["orders"][row, :, : len(inputs)]
    anchor = arrays["anchor"][row] if "anchor" in arrays else start
    seeds = arrays["seeds"][row] if "seeds" in arrays else None
    return trainer.train(ClientCall(start, inputs, targets, orders, steps, anchor, arrays.get("trainable"), seeds))


def serve(connection: Connection, descriptor: int) -> None:
    """Work until the connection closes. Errors are reported by type and line only: a message may hold raw values."""
    arena, trainer = SharedArena(descriptor), connection.recv().build()
    while True:
        message: Any = connection.recv()
        if isinstance(message, WorkerJob):
            arena.attach(message.size)
            arrays = {name: arena.view(spec) for name, spec in message.arrays.items()}
            result, compute = arrays["result"], message.bind(trainer, arrays)
            continue
        try:
            for row in message:
                result[row] = compute(row)
        except Exception as error:
            connection.send(type_and_line(error))
        else:
            connection.send(None)


def type_and_line(error: Exception) -> str:
    """What may be said of an error: not its message, which may hold raw values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return f"{type(error).__name__}{place}"


def main(socket: int, descriptor: int) -> None:
    """Entry point of the process."""
    with Connection(socket) as connection:
        try:
            serve(connection, descriptor)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent has closed the connection or ended
