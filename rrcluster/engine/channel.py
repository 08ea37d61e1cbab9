"""Messages between the ranks of a run: a word, plain settings and named arrays, over `torch.distributed`.

Messages are safetensors, so nothing received is executed. No wait is unbounded: a rank whose process ended closes its
connections, and one that hangs is given up after a time limit; both raise a `RankError`.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import load, save

from rrcluster.engine.protocol import CPU
from rrcluster.errors import ConfigError, RankError
from rrcluster.types import Array

LIMIT, LIMIT_NAME = 1800.0, "RRCLUSTER_RANK_TIMEOUT"  # seconds; the variable that sets them


@dataclass(frozen=True)
class Message:
    """What one rank sends to another."""

    word: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # plain values
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """The message as bytes."""
        contents = {name: np.ascontiguousarray(values) for name, values in self.arrays.items()}
        contents[""] = np.frombuffer(json.dumps([self.word, dict(self.settings)]).encode(), dtype=np.uint8)
        return bytes(save(contents))

    @classmethod
    def decoded(cls, content: bytes) -> "Message":
        """The message from its bytes."""
        arrays = load(content)
        word, settings = json.loads(arrays.pop("").tobytes())
        return cls(word, settings, arrays)


class Channel(Protocol):
    """A connection between the ranks of a run."""

    @property
    def rank(self) -> int:
        """This process's rank; 0 leads."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def send(self, message: Message, *, to: int) -> None:
        """Send a message to one rank."""

    def receive(self, *, sender: int) -> Message:
        """Wait for a message from one rank."""


@dataclass(frozen=True)
class TorchChannel:
    """A channel over torch's process group: gloo between CPUs, NCCL between GPUs."""

    rank: int
    size: int
    wire: torch.device  # where tensors must be to be sent

    def send(self, message: Message, *, to: int) -> None:
        """Send a message to one rank."""
        content = torch.frombuffer(bytearray(message.encoded()), dtype=torch.uint8).to(self.wire)
        with _rank_errors(to):
            dist.send(torch.tensor([len(content)], device=self.wire), to)
            dist.send(content, to)

    def receive(self, *, sender: int) -> Message:
        """Wait for a message from one rank."""
        with _rank_errors(sender):
            length = torch.zeros(1, dtype=torch.int64, device=self.wire)
            dist.recv(length, sender)
            content = torch.empty(int(length), dtype=torch.uint8, device=self.wire)
            dist.recv(content, sender)
        return Message.decoded(content.cpu().numpy().tobytes())


@contextmanager
def join_ranks() -> Iterator[TorchChannel]:
    """Connect to the other ranks that torchrun started, until the end of the block.

    Uses NCCL where every rank of this machine has its own GPU, else gloo.
    """
    local, neighbours = (int(os.environ.get(name, "0")) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    own_gpu = torch.cuda.is_available() and dist.is_nccl_available() and 0 < neighbours <= torch.cuda.device_count()
    if torch.cuda.is_available():
        torch.cuda.set_device(local % torch.cuda.device_count())
    wait = timedelta(seconds=_limit())
    try:
        dist.init_process_group("nccl" if own_gpu else "gloo", timeout=wait)
    except (RuntimeError, ValueError) as error:
        raise RankError(f"could not connect the ranks ({_first_line(error)}); start them with torchrun.") from error
    wire = torch.device("cuda", torch.cuda.current_device()) if own_gpu else CPU
    try:
        yield TorchChannel(dist.get_rank(), dist.get_world_size(), wire)
    finally:
        if not own_gpu:  # NCCL would wait here for ranks that may have ended; it closes with the process
            dist.destroy_process_group()


@contextmanager
def _rank_errors(peer: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"rank {peer} is gone, or silent for {_limit():g} s ({_first_line(error)}); see its stderr. "
            f"{LIMIT_NAME} sets the time limit; continue with `rrcluster run --resume`."
        ) from error


def _limit() -> float:
    value = os.environ.get(LIMIT_NAME, str(LIMIT))
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ConfigError(f"{LIMIT_NAME} = {value!r} must be a number of seconds above 0 and below 1e6.")
    return seconds


def _first_line(error: BaseException) -> str:
    """The first sentence of torch's message, without its source line."""
    line = re.sub(r"^\[\S+:\d+\] ", "", str(error).strip()).partition("\n")[0]
    return line.partition(". ")[0][:160] or type(error).__name__
