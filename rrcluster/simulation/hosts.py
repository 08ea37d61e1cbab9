"""Hosts: they hold clients and compute their half of a round, here or in other processes.

A round is a sum: a host adds up the messages of a part of the cohort, and the server adds up the hosts' sums. Parts
depend on the cohort alone, draws are keyed by client, and sums are exact, so no bit depends on the number of hosts, nor
on a dead host whose part another one repeated.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from rrcluster import __version__
from rrcluster.client import ClientKeys, ClientSide
from rrcluster.data.arrays import ArrayStore
from rrcluster.data.federated import FederatedData
from rrcluster.engine.protocol import Engine
from rrcluster.engine.reference import one_thread
from rrcluster.errors import PrivacyError, RoundError, WorkerError
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Method
from rrcluster.models.probe import made_up_samples
from rrcluster.privacy.mechanism import Mechanism, SummingMechanism, adds_up
from rrcluster.privacy.none import NoneMechanism
from rrcluster.privacy.reports import MessageSum, Reports, as_numpy, join_reports
from rrcluster.processes import (
    end_processes,
    local_executor,
    lost_cluster,
    pickled,
    process_died,
    submitted,
    unpickled,
)
from rrcluster.server.server import Guidance
from rrcluster.settings import LocalSettings
from rrcluster.simulation.clients import ClientMemory, FaultKeys, Faults, Incidents
from rrcluster.types import Array

Answer = TypeVar("Answer")
_MOST_HOSTS = 2  # hosts of different runs that a process keeps ready


@dataclass(frozen=True)
class RoundTask:
    """The task of a round, for any part of the cohort."""

    guidance: Guidance
    keys: ClientKeys
    faults: FaultKeys


@dataclass(frozen=True, repr=False)
class Part:
    """Some clients of a cohort, and their memory."""

    ids: Array
    memory: ClientMemory

    @property
    def nobody(self) -> "Part":
        """The part without clients."""
        return Part(self.ids[:0], self.memory.of([]))

    @property
    def single(self) -> "list[Part]":
        """Each of its clients as a separate part."""
        return [Part(np.array([client]), self.memory.of([client])) for client in self.ids.tolist()]


def parts_of(ids: Array, memory: ClientMemory, size: int) -> list[Part]:
    """A cohort in slices of `size` clients, which depend on the cohort alone; at least one, which may be empty.

    PrivacyError for a duplicate client: parts are summed separately, so it would count twice.
    """
    if len(np.unique(ids)) < len(ids):
        raise PrivacyError("the sampler's cohort holds a client twice; a cohort is a set: draw every client once.")
    slices = [ids[first : first + size] for first in range(0, len(ids), size)] or [ids]
    return [Part(some, memory.of(some.tolist())) for some in slices]


@dataclass(frozen=True, repr=False)
class PartAnswer:
    """A host's answer for a part of a cohort: raw, for the mechanism alone, and its clients' new memory."""

    total: Array | None  # the sum of messages for the server; None where single reports are needed
    reports: Reports | None  # for the server; None where sums suffice
    honest: Any  # either one, before hostile clients changed theirs; None if nobody is hostile
    remembered: ClientMemory
    num_reports: int
    hostile: int


@dataclass(frozen=True, eq=False)
class Host:
    """Clients' data, and the program for their half of a round: the same code wherever it runs."""

    data: FederatedData
    side: ClientSide
    faults: Faults
    discreet: bool  # secure runs: clients one by one; a failing client sends nothing

    def answer(self, task: RoundTask, part: Part) -> PartAnswer:
        """Choose, train and report for these clients, and add up their messages."""
        honest, rows = self._answers(task, part)
        remembered = ClientMemory(part.memory.width).updated(np.asarray(honest.client_ids), rows)
        k, t = task.guidance.models.num_clusters, task.guidance.round_index
        reports, lying = self.faults.tampered(honest, num_clusters=k, keys=task.faults)
        count = len(np.asarray(honest.client_ids))
        if not adds_up(self.side.mechanism):
            without = None if reports is honest else _on_host(honest)
            return PartAnswer(None, _on_host(reports), without, remembered, count, lying)
        total = _sum(self.side.mechanism, self._named(reports), t)
        exact = None if reports is honest else _sum(self.side.mechanism, self._named(honest), t)
        return PartAnswer(total, None, exact, remembered, count, lying)

    def _answers(self, task: RoundTask, part: Part) -> tuple[Reports, Array]:
        def clients(ids: Array) -> Clients:
            return part.memory.recall(self.data.cohort(ids))

        if not self.discreet:
            return self.side.answer(task.guidance, clients(part.ids), task.keys)
        return self.side.answer_singly(task.guidance, part.ids[self.data.usable(part.ids)], clients, task.keys)

    def _named(self, reports: Reports) -> Reports:
        """Reports under the clients' names, which determine their slots."""
        if not self.data.clients or self.side.mechanism.slots.count == 1:
            return reports
        names = self.data.clients
        return replace(reports, client_ids=[names[client] for client in np.asarray(reports.client_ids).tolist()])


def _sum(mechanism: Mechanism, reports: Reports, round_index: int) -> Array:
    summing: SummingMechanism = mechanism  # type: ignore[assignment]
    return summing.sum_messages(reports, round_index=round_index)


def _on_host(reports: Reports) -> Reports:
    """Reports that can be sent to another process: tensors as arrays."""
    return replace(reports, updates=as_numpy(reports.updates))


def answer_made_up(function: Callable[[Host, Any, Part], Answer], host: Host, argument: Any, part: Part) -> Answer:
    """The host's answer for one synthetic client of three samples: public, whoever the part's clients are."""
    inputs, targets = made_up_samples(host.data, num_ids=1, count=3)
    none, store = np.zeros(1, dtype=np.int64), ArrayStore((inputs.numpy(),), (targets.numpy(),))
    data = replace(host.data, sizes=none + 3, groups=none, store=store, test_sets=(), test_of=none - 1, clients=())
    return function(replace(host, data=data), argument, Part(none, part.memory.of([])))


@dataclass(frozen=True)
class Collection:
    """A round's raw data for diagnostics; a secure run does not retain it."""

    honest: MessageSum | Reports | None = None  # before hostile clients changed what they sent
    num_reports: int = 0
    incidents: Incidents = field(default_factory=Incidents)


def collected(answers: Iterable[PartAnswer]) -> tuple[MessageSum | Reports, Collection, ClientMemory]:
    """The server's input from all parts, its diagnostics, and clients' memory.

    Integer sums are exact in any order; floats, without privacy, are added in the order of the parts.
    """
    reports: list[Reports] = []
    honest_reports: list[Reports] = []
    total, honest = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    count, hostile, remembered = 0, 0, ClientMemory(0)
    for part in answers:
        if part.reports is not None:
            reports.append(part.reports)
            honest_reports.append(part.reports if part.honest is None else part.honest)
        elif part.total is not None:
            total = total + part.total
            honest = honest + (part.total if part.honest is None else part.honest)
        count, hostile = count + part.num_reports, hostile + part.hostile
        remembered = remembered.merged(part.remembered)
    incidents = Incidents(hostile=hostile)
    if reports:
        sent = join_reports(reports)
        return sent, Collection(join_reports(honest_reports) if hostile else sent, count, incidents), remembered
    return MessageSum(total), Collection(MessageSum(honest), count, incidents), remembered


class Hosts:
    """Runs functions of a host on parts of its clients: in this process, or by an executor in others."""

    def __init__(
        self,
        host: Host,
        *,
        processes: int = 1,
        executor: Executor | None = None,
        load: Callable[[], FederatedData] | None = None,
    ) -> None:
        """`executor`: any with the interface of concurrent.futures; else local processes, if more than one.

        `load`: loads the population in other processes, once each; None: it is sent to them.
        """
        self.host, self._processes, self._given, self._load = host, processes, executor, load
        self._executor = executor
        self._payload: bytes | None = None
        self._digest = ""

    @classmethod
    def here(
        cls, data: FederatedData, *, method: Method, split: Split, engine: Engine, local: LocalSettings | None = None
    ) -> "Hosts":
        """This process as a host, to evaluate models on a population without any mechanism."""
        nothing = NoneMechanism(split.coordinates, 1, cohort_size=1, num_clients=1, size_floor=1.0)
        side = ClientSide(method, split, engine, local or LocalSettings(), nothing)
        return cls(Host(data, side, Faults(), discreet=False))

    def map(
        self, function: Callable[[Host, Any, Any], Answer], argument: Any, parts: Sequence[Any]
    ) -> Iterator[Answer]:
        """function(host, argument, part) for every part, in order; more answers than parts where one was isolated."""
        if len(parts) == 1 or not self._elsewhere():
            for part in parts:
                with _one_thread(self.host):
                    answer = function(self.host, argument, part)
                yield answer
            return
        yield from self._in_processes(function, argument, parts)

    def stop(self) -> None:
        """Cancel work under way and end the local processes."""
        if self._executor is not None and self._given is None:
            end_processes(self._executor)
            self._executor = None

    def _elsewhere(self) -> bool:
        """Whether there are other processes, and the host can be sent to them."""
        if self._given is None and self._processes < 2:
            return False
        if self._payload is None:
            bare = self.host if self._load is None else replace(self.host, data=None)  # type: ignore[arg-type]
            self._payload = pickled((bare, self._load))
            self._digest = f"{_VERSIONS}; {hashlib.blake2b(self._payload, digest_size=16).hexdigest()}"
        return bool(self._payload)

    def _in_processes(
        self, function: Callable[[Host, Any, Any], Answer], argument: Any, parts: Sequence[Any]
    ) -> Iterator[Answer]:
        """Results in the order of the parts.

        The parts of a dead host are repeated; a part that killed two hosts is computed client by client, and a client
        that kills a host sends nothing.
        """
        futures = [self._submit(function, argument, part) for part in parts]
        place, deaths = 0, 0
        while place < len(parts):
            try:
                answer = self._result(futures[place], function, argument, parts[place])
            except Exception as error:
                if not process_died(error):
                    raise lost_cluster(error) or error from None
                deaths += 1 if isinstance(error, BrokenExecutor) else 2  # a cluster has retried it several times
                self._restart()
                if deaths > 1:  # this part, or another one at the same time, kills hosts
                    yield from self._isolated(function, argument, parts[place])
                    place += 1
                again = range(place, len(parts)) if self._given is None else [place] if deaths < 2 else []
                for number in again:
                    futures[number] = self._submit(function, argument, parts[number])
                continue
            yield answer
            futures[place] = Future()  # answers are as long as all models: free them
            place += 1

    def _isolated(self, function: Callable[[Host, Any, Any], Answer], argument: Any, part: Any) -> Iterator[Answer]:
        """A part by itself; if it kills its host, each of its clients by itself, without any message: it is private."""
        try:
            yield self._result(self._submit(function, argument, part), function, argument, part)
            return
        except Exception as error:
            if not process_died(error):
                raise
        self._restart()
        if not isinstance(part, Part):
            raise WorkerError("a process died repeatedly on the same work; run it with processes = 1 to see why.")
        self._check_hosts(partial(answer_made_up, function), argument, part.nobody)
        yield function(self.host, argument, part.nobody)  # a round has an answer even if every client kills the host
        for alone in part.single:
            try:
                yield self._result(self._submit(function, argument, alone), function, argument, alone)
            except Exception as error:
                if not process_died(error):
                    raise
                self._restart()

    def _check_hosts(self, function: Callable[[Host, Any, Any], Any], argument: Any, nobody: Part) -> None:
        """RoundError if a host dies of a synthetic client, too: the cause is then the machine or network."""
        try:
            self._result(self._submit(function, argument, nobody), function, argument, nobody)
        except Exception as error:  # an error in a synthetic client's computation is no death
            if process_died(error):
                raise RoundError(
                    "processes that compute clients die, even for a synthetic client: they are out of "
                    "memory, or cannot load a library; use processes = 1, or fewer processes."
                ) from None

    def _submit(self, function: Callable[[Host, Any, Any], Any], argument: Any, part: Any) -> "Future[Any]":
        if self._executor is None:
            self._executor = local_executor(self._processes)
        return submitted(self._executor, _work, self._digest, function, argument, part)

    def _result(
        self, future: "Future[Any]", function: Callable[[Host, Any, Any], Answer], argument: Any, part: Any
    ) -> Answer:
        answer = future.result()
        if answer is UnknownHost:
            assert self._executor is not None
            answer = self._executor.submit(_work, self._digest, function, argument, part, self._payload).result()
        result: Answer = answer
        return result

    def _restart(self) -> None:
        """A local pool is useless once one of its processes has died; other executors replace them."""
        if self._given is None:
            self.stop()


def _one_thread(host: Host) -> AbstractContextManager[None]:
    """Use one thread: their number may change the last bits of a sum, and on a busy machine threads wait."""
    return one_thread() if host.side.engine.device.type == "cpu" else nullcontext()


class UnknownHost:
    """The answer of a process that has not received the host of a task."""


_VERSIONS = f"rrcluster {__version__}, torch {torch.__version__}"  # hosts with other versions would compute other bits
_HOSTS: dict[str, Host] = {}  # of this process, by the digest of their source
_TURN = threading.Lock()  # of this process: clients that draw share its generators


def _work(
    digest: str, function: Callable[[Host, Any, Any], Answer], argument: Any, part: Any, payload: bytes | None = None
) -> Answer | type[UnknownHost]:
    """A task in another process; tasks of one process take turns, if an executor has threads."""
    with _TURN:
        if not digest.startswith(f"{_VERSIONS};"):
            raise WorkerError(
                f"a worker has {_VERSIONS}, and the run {digest.partition(';')[0]}; install the same there."
            )
        if payload is not None:
            while len(_HOSTS) >= _MOST_HOSTS:
                _HOSTS.pop(next(iter(_HOSTS)))
            made, load = unpickled(payload)
            _HOSTS[digest] = made if load is None else replace(made, data=load())
        host = _HOSTS.get(digest)
        if host is None:
            return UnknownHost
        with _one_thread(host):
            return function(host, argument, part)
