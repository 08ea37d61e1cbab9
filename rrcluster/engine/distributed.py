"""A cohort's clients over several processes or machines: rank 0 runs everything, the others only compute clients.

Rank 0 alone draws, charges, releases, evaluates and writes; it sends each other rank the ids of its share of a cohort
and the models they start from, and gets losses and updates back, row by row in the cohort's order. Every rank makes its
clients' data for itself. A client's row does not depend on which rank computes it, so neither does the release: exactly
so with `reference`, where each client is computed alone, and to the last bits of float32 with `batched`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rrcluster.data.federated import Cohort, FederatedData, TestSet
from rrcluster.engine.channel import Channel, Message
from rrcluster.engine.protocol import Engine, LocalSettings, Updates, changes_by_training
from rrcluster.errors import RankError, RRClusterError
from rrcluster.types import Array


@dataclass(frozen=True)
class Worker:
    """What a rank other than 0 has made itself ready with."""

    engine: Engine
    data: FederatedData
    about: Mapping[str, Any]  # versions and machine, for rank 0 to compare


@dataclass(frozen=True)
class Ranks:
    """All ranks of a run, as rank 0 sees them."""

    channel: Channel

    @property
    def others(self) -> range:
        """Every rank but this one."""
        return range(1, self.channel.size)

    def prepare(self, settings: Mapping[str, Any]) -> None:
        """Let the others load the data and the model of a run, while rank 0 does the same."""
        for rank in self.others:
            self.channel.send(Message("prepare", settings), to=rank)

    def ready(self) -> list[Mapping[str, Any]]:
        """Wait until all are, and hear what each says about itself."""
        return [self.answer(rank).settings for rank in self.others]

    def answer(self, rank: int) -> Message:
        """Wait for a rank's answer; a `RankError` if it failed."""
        message = self.channel.receive(sender=rank)
        if message.word == "failed":
            raise RankError(f"rank {rank} failed: {message.settings['error']}")
        return message

    def dismiss(self) -> None:
        """Tell the others that there is nothing more to do."""
        for rank in self.others:
            self.channel.send(Message("stop"), to=rank)


@dataclass(frozen=True)
class RankedEngine:
    """An engine that computes its own share of every cohort and has the other ranks compute theirs.

    Cohorts of other data than the others prepared are computed here: they know clients by their ids. Test sets, alone
    or as a population of their own, are rank 0's own business.
    """

    own: Engine
    ranks: Ranks
    machines: tuple[str, ...]  # of the other ranks: what a repeated round must not change
    data: FederatedData  # what the others prepared

    def losses(self, vectors: Array, cohort: Cohort) -> Array:
        """(k, d) -> (G, k)."""
        return self._shared("losses", cohort, {}, {"vectors": _float32(vectors)}, {})["losses"]

    def measure(self, vectors: Array, cohort: Cohort) -> tuple[Array, Array]:
        """(k, d) -> loss (G, k), accuracy (G, k)."""
        both = self._shared("measure", cohort, {}, {"vectors": _float32(vectors)}, {})
        return both["losses"], both["accuracies"]

    def train(
        self,
        start: Array,
        cohort: Cohort,
        *,
        local: LocalSettings,
        key: tuple[int, int],
        anchor: Array | None = None,
        trainable: Array | None = None,
    ) -> Array:
        """(G, d) -> (G, d)."""
        settings = {"local": asdict(local), "key": list(key)}
        rows = {"start": _float32(start)} | ({} if anchor is None else {"anchor": _float32(anchor)})
        return self._shared("train", cohort, settings, {} if trainable is None else {"trainable": trainable}, rows)[
            "trained"
        ]

    def changes(
        self, vectors: Array, clusters: Array, cohort: Cohort, *, local: LocalSettings, key: tuple[int, int]
    ) -> Updates:
        """(k, d), (G,) -> (G, d)."""
        return changes_by_training(self, vectors, clusters, cohort, local=local, key=key)

    def test(self, vectors: Array, tests: TestSet) -> tuple[Array, Array]:
        """(k, d) -> loss (k,), accuracy (k,)."""
        return self.own.test(vectors, tests)

    def _shared(
        self, word: str, cohort: Cohort, settings: dict[str, Any], common: dict[str, Array], rows: dict[str, Array]
    ) -> dict[str, Array]:
        """Do a job in shares; `common` arrays go to every rank, of `rows` (G, ...) each gets those of its clients."""
        if cohort.population is not self.data:
            return _JOBS[word](self.own, cohort, settings, common | rows)
        shares = split_work(cohort.sizes, self.ranks.channel.size)
        asked = [rank for rank in self.ranks.others if shares[rank].start < shares[rank].stop]
        for rank in asked:
            share = shares[rank]
            arrays = {"clients": cohort.clients[share], **common}
            for name, values in rows.items():
                arrays |= packed(name, values[share])
            self.ranks.channel.send(Message(word, settings, arrays), to=rank)
        own = {name: values[shares[0]] for name, values in rows.items()}
        parts = [_JOBS[word](self.own, self.data.cohort(cohort.clients[shares[0]]), settings, common | own)]
        parts += [dict(self.ranks.answer(rank).arrays) for rank in asked]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def serve(channel: Channel, prepare: Callable[[Mapping[str, Any]], Worker]) -> None:
    """Do what rank 0 asks until it says stop. An error here is told to rank 0, which ends the run, and raised."""
    worker: Worker | None = None
    while (message := channel.receive(sender=0)).word != "stop":
        try:
            if message.word == "prepare":
                worker = prepare(message.settings)
                answer = Message("ready", worker.about)
            elif worker is None:
                raise RankError(f"asked for {message.word} before any data was prepared.")
            else:
                answer = Message("done", {}, _done(worker, message))
        except Exception as error:
            told = str(error) if isinstance(error, RRClusterError) else f"{type(error).__name__}; see its own messages."
            channel.send(Message("failed", {"error": told}), to=0)
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


def packed(name: str, rows: Array) -> dict[str, Array]:
    """Rows (n, d) as distinct rows and who has which: most clients start from one of k models."""
    places: dict[bytes, int] = {}
    which = np.array([places.setdefault(row.tobytes(), len(places)) for row in rows], dtype=np.int64)
    _, first = np.unique(which, return_index=True)
    return {f"{name}.distinct": rows[first], f"{name}.which": which}


def unpacked(arrays: Mapping[str, Array], name: str) -> Array:
    """The rows back."""
    return arrays[f"{name}.distinct"][arrays[f"{name}.which"]]


def _done(worker: Worker, message: Message) -> dict[str, Array]:
    arrays = dict(message.arrays)
    for name in ("start", "anchor"):
        if f"{name}.which" in arrays:
            arrays[name] = unpacked(arrays, name)
    return _JOBS[message.word](worker.engine, worker.data.cohort(arrays["clients"]), message.settings, arrays)


Job = Callable[[Engine, Cohort, Mapping[str, Any], Mapping[str, Array]], dict[str, Array]]


def _losses(engine: Engine, cohort: Cohort, _: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {"losses": engine.losses(arrays["vectors"], cohort)}


def _measure(engine: Engine, cohort: Cohort, _: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Array]:
    losses, accuracies = engine.measure(arrays["vectors"], cohort)
    return {"losses": losses, "accuracies": accuracies}


def _train(
    engine: Engine, cohort: Cohort, settings: Mapping[str, Any], arrays: Mapping[str, Array]
) -> dict[str, Array]:
    first, second = settings["key"]
    trained = engine.train(
        arrays["start"],
        cohort,
        local=LocalSettings(**settings["local"]),
        key=(first, second),
        anchor=arrays.get("anchor"),
        trainable=arrays.get("trainable"),
    )
    return {"trained": trained}


_JOBS: dict[str, Job] = {"losses": _losses, "measure": _measure, "train": _train}


def _float32(values: Array) -> Array:
    return np.asarray(values, dtype=np.float32)
