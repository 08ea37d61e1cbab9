"""Distributed engine: a cohort's clients over several processes or machines. Rank 0 runs everything, others compute.

Rank 0 alone draws, charges, releases, evaluates and writes. It sends each other rank the ids of its share of a cohort
and the models they start from, and receives losses and updates in the cohort's order. Every rank loads its clients'
data itself. A client's row does not depend on the rank that computes it, so neither does the release: to the bit with
`reference`, which computes clients one by one, and within rounding of float32 with `batched`.

Messages go over `torch.distributed` as safetensors, so nothing received is executed. No wait is unbounded: a rank whose
process ended closes its connections, and one that hangs is given up after a time limit; both raise a `RankError`.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import load, save

from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.engine.calls import to_numpy
from rrcluster.engine.protocol import CPU, Engine, LocalSettings, Measured, Question, TrainingCall, Updates
from rrcluster.errors import ConfigError, RankError, RRClusterError
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


@dataclass(frozen=True)
class PreparedRank:
    """What a rank other than 0 has loaded."""

    engine: Engine
    data: FederatedData
    fingerprint: Mapping[str, Any]  # versions and machine, for rank 0 to compare


@dataclass(frozen=True)
class Ranks:
    """All ranks of a run, as seen from rank 0."""

    channel: Channel

    @property
    def others(self) -> range:
        """Every rank but 0."""
        return range(1, self.channel.size)

    def prepare(self, settings: Mapping[str, Any]) -> None:
        """Start loading the data and model of a run on the other ranks, while rank 0 does the same."""
        for rank in self.others:
            self.channel.send(Message("prepare", settings), to=rank)

    def fingerprints(self) -> list[Mapping[str, Any]]:
        """Wait until all ranks are prepared; the fingerprint of each."""
        return [self.answer(rank).settings for rank in self.others]

    def answer(self, rank: int) -> Message:
        """Wait for a rank's answer; a `RankError` if it failed."""
        message = self.channel.receive(sender=rank)
        if message.word == "failed":
            raise RankError(f"rank {rank} failed: {message.settings['error']}")
        return message

    def dismiss(self) -> None:
        """Stop the other ranks."""
        for rank in self.others:
            self.channel.send(Message("stop"), to=rank)


@dataclass(frozen=True)
class DistributedEngine:
    """Computes its own share of every cohort and has the other ranks compute theirs.

    The other ranks know clients of `data` by id; cohorts of other data and test sets are computed on rank 0.
    """

    own: Engine
    ranks: Ranks
    machines: tuple[str, ...]  # of the other ranks: a repeated round must run on the same ones
    data: FederatedData

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        return [self._train(call) for call in calls]

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        return [self._measure(question) for question in questions]

    def _train(self, call: TrainingCall) -> Updates:
        if call.cohort.population is not self.data:
            return self.own.train([call])[0]
        shares = [call.select(rows, part) for rows, part in self._shares(call.cohort)]
        return np.concatenate([arrays["updates"] for arrays in self._compute([_train_message(one) for one in shares])])

    def _measure(self, question: Question) -> Measured:
        cohort, models = question.samples, np.asarray(question.models, dtype=np.float32)
        if not isinstance(cohort, Cohort) or cohort.population is not self.data:
            return self.own.measure([question])[0]
        shares = self._shares(cohort)
        messages = [Message("measure", {}, {"clients": part.clients, "models": models}) for _, part in shares]
        parts = self._compute(messages)
        return Measured(*(np.concatenate([arrays[name] for arrays in parts]) for name in Measured._fields))

    def _shares(self, cohort: Cohort) -> list[tuple[slice, Cohort]]:
        """Each rank's rows of the cohort, and the cohort they form."""
        shares = split_work(cohort.sizes, self.ranks.channel.size)
        return [(rows, self.data.cohort(cohort.clients[rows])) for rows in shares]

    def _compute(self, messages: Sequence[Message]) -> list[Mapping[str, Array]]:
        """The answers of all ranks, in order; ranks other than 0 whose share is empty get no message."""
        busy = [rank for rank in self.ranks.others if len(messages[rank].arrays["clients"])]
        for rank in busy:
            self.ranks.channel.send(messages[rank], to=rank)
        own = _answer(self.own, self.data, messages[0])
        return [own, *(self.ranks.answer(rank).arrays for rank in busy)]


def serve(channel: Channel, prepare: Callable[[Mapping[str, Any]], PreparedRank]) -> None:
    """Compute what rank 0 sends until it says stop. An error is sent to rank 0, which ends the run, and raised."""
    prepared: PreparedRank | None = None
    while (message := channel.receive(sender=0)).word != "stop":
        try:
            if message.word == "prepare":
                prepared = prepare(message.settings)
                answer = Message("ready", prepared.fingerprint)
            elif prepared is None:
                raise RankError(f"asked for {message.word} before any data was prepared.")
            else:
                answer = Message("done", {}, _answer(prepared.engine, prepared.data, message))
        except Exception as error:
            expected = isinstance(error, RRClusterError)  # the text of others may hold raw values
            reason = str(error) if expected else f"{type(error).__name__}; see its stderr."
            channel.send(Message("failed", {"error": reason}), to=0)
            raise
        channel.send(answer, to=0)


def split_work(sizes: Array, num_ranks: int) -> list[slice]:
    """Consecutive shares of a cohort, one per rank, with about equally many samples; some may be empty.

    Guarantees: the shares follow each other and cover the cohort; no share exceeds the mean by more than one client.
    """
    work = np.cumsum(np.asarray(sizes, dtype=np.int64) + 1)
    total = int(work[-1]) if len(work) else 0
    middles = work - (np.asarray(sizes, dtype=np.int64) + 1) / 2
    cuts = np.searchsorted(middles, total * np.arange(1, num_ranks) / num_ranks, side="right")
    bounds = [0, *cuts.tolist(), len(work)]
    return [slice(first, last) for first, last in pairwise(bounds)]


def _train_message(call: TrainingCall) -> Message:
    arrays: dict[str, Array] = {"clients": call.cohort.clients, "model_of": call.model_of}
    arrays["models"] = np.asarray(call.models, dtype=np.float32)
    if call.anchor is not None:
        arrays["anchor"] = np.asarray(call.anchor, dtype=np.float32)
    if call.trainable is not None:
        arrays["trainable"] = call.trainable
    settings = {"local": asdict(call.local), "key": list(call.key), "whole_models": call.whole_models}
    return Message("train", settings, arrays)


def _answer(engine: Engine, data: FederatedData, message: Message) -> dict[str, Array]:
    """What a rank computes for a message: the arrays that it sends back."""
    arrays, settings = message.arrays, message.settings
    cohort = data.cohort(arrays["clients"])
    if message.word == "measure":
        return engine.measure([Question(arrays["models"], cohort)])[0]._asdict()
    first, second = settings["key"]
    call = TrainingCall(
        arrays["models"],
        arrays["model_of"],
        cohort,
        LocalSettings(**settings["local"]),
        (first, second),
        arrays.get("anchor"),
        arrays.get("trainable"),
        whole_models=settings["whole_models"],
    )
    return {"updates": to_numpy(engine.train([call])[0])}
