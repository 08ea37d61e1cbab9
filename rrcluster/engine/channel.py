"""Messages between the ranks of a run: a word, plain settings and named arrays, over `torch.distributed`.

Messages are safetensors: nothing that arrives is ever executed. Every wait ends: a rank whose process is gone closes
its connections, and one that hangs is given up after a time limit; both are a `RankError`.
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
    """What one rank says to another."""

    word: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # plain values
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """As bytes."""
        whole = {name: np.ascontiguousarray(values) for name, values in self.arrays.items()}
        whole[""] = np.frombuffer(json.dumps([self.word, dict(self.settings)]).encode(), dtype=np.uint8)
        return bytes(save(whole))

    @classmethod
    def decoded(cls, content: bytes) -> "Message":
        """Back from bytes."""
        arrays = load(content)
        word, settings = json.loads(arrays.pop("").tobytes())
        return cls(word, settings, arrays)


class Channel(Protocol):
    """How the ranks of a run talk."""

    @property
    def rank(self) -> int:
        """Which one this is; 0 leads."""

    @property
    def size(self) -> int:
        """How many there are."""

    def send(self, message: Message, *, to: int) -> None:
        """Say something to one rank."""

    def receive(self, *, sender: int) -> Message:
        """Wait for what one rank says."""


@dataclass(frozen=True)
class TorchChannel:
    """Over the process group that is set up: gloo between processors, NCCL between GPUs."""

    rank: int
    size: int
    wire: torch.device  # where tensors must lie to be sent

    def send(self, message: Message, *, to: int) -> None:
        """Say something to one rank."""
        content = torch.frombuffer(bytearray(message.encoded()), dtype=torch.uint8).to(self.wire)
        with _named(to):
            dist.send(torch.tensor([len(content)], device=self.wire), to)
            dist.send(content, to)

    def receive(self, *, sender: int) -> Message:
        """Wait for what one rank says."""
        with _named(sender):
            length = torch.zeros(1, dtype=torch.int64, device=self.wire)
            dist.recv(length, sender)
            content = torch.empty(int(length), dtype=torch.uint8, device=self.wire)
            dist.recv(content, sender)
        return Message.decoded(content.cpu().numpy().tobytes())


@contextmanager
def joined() -> Iterator[TorchChannel]:
    """Join the other ranks that torchrun has started, until the end of the block.

    NCCL where every rank of this machine has a GPU to itself, else gloo.
    """
    local, neighbours = (int(os.environ.get(name, "0")) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    own_gpu = torch.cuda.is_available() and dist.is_nccl_available() and 0 < neighbours <= torch.cuda.device_count()
    if torch.cuda.is_available():
        torch.cuda.set_device(local % torch.cuda.device_count())
    wait = timedelta(seconds=_limit())
    try:
        dist.init_process_group("nccl" if own_gpu else "gloo", timeout=wait)
    except (RuntimeError, ValueError) as error:
        raise RankError(f"the ranks could not be joined ({_first_line(error)}); start them with torchrun.") from error
    wire = torch.device("cuda", torch.cuda.current_device()) if own_gpu else CPU
    try:
        yield TorchChannel(dist.get_rank(), dist.get_world_size(), wire)
    finally:
        if not own_gpu:  # NCCL would wait here for ranks that may be gone; the end of the process closes it
            dist.destroy_process_group()


@contextmanager
def _named(peer: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"rank {peer} is gone, or silent for {_limit():g} s ({_first_line(error)}); see its own messages. "
            f"{LIMIT_NAME} sets the time limit; `rrcluster run --resume` goes on."
        ) from error


def _limit() -> float:
    given = os.environ.get(LIMIT_NAME, str(LIMIT))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ConfigError(f"{LIMIT_NAME} = {given!r} must be a number of seconds above 0 and below 1e6.")
    return seconds


def _first_line(error: BaseException) -> str:
    """The gist of torch's message, without the place in its sources."""
    line = re.sub(r"^\[\S+:\d+\] ", "", str(error).strip()).partition("\n")[0]
    return line.partition(". ")[0][:160] or type(error).__name__
