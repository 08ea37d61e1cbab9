"""Simulated clients between rounds: their memory, failures and attacks.

Their memory is in no release, and on disk only in checkpoint/. Every draw of a fault is keyed by (seed, stream, round,
client id), so failures do not depend on who else takes part. Nobody replaces a client that dropped out and no round is
repeated: the sampling law, the number of rounds and hence the epsilon are those of the plan in any case.

The server cannot distinguish dropping out before or after training, and other clients have their own draws, so the
simulator drops clients before it spends time on them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rrcluster.data.federated import Cohort
from rrcluster.entropy import StreamSource
from rrcluster.methods.method import Clients
from rrcluster.privacy.reports import Reports, as_numpy
from rrcluster.rng import client_uniforms
from rrcluster.settings import FaultSettings
from rrcluster.types import Array

Key = tuple[int, int]


@dataclass(frozen=True, repr=False)
class ClientMemory:
    """One row of numbers per client that has taken part. A changed memory is a new one, so a round can be undone."""

    width: int
    rows: Mapping[int, Array] = field(default_factory=dict)

    def recall(self, cohort: Cohort) -> Clients:
        """The clients of a cohort with their memory; zeros for those without any."""
        if not self.rows:
            return Clients.without_memory(cohort, self.width)
        memory = np.zeros((len(cohort.clients), self.width), dtype=np.float32)
        known = np.array([client in self.rows for client in cohort.clients.tolist()], dtype=bool)
        for place in np.flatnonzero(known):
            memory[place] = self.rows[int(cohort.clients[place])]
        return Clients(cohort, memory, known)

    def of(self, clients: Sequence[int]) -> "ClientMemory":
        """The memory of some clients."""
        return ClientMemory(self.width, {client: self.rows[client] for client in clients if client in self.rows})

    def merged(self, other: "ClientMemory") -> "ClientMemory":
        """With other clients' current memory."""
        return ClientMemory(self.width, {**self.rows, **other.rows}) if other.rows else self

    def updated(self, clients: Array, rows: Array) -> "ClientMemory":
        """The memory after these clients' round."""
        if self.width == 0:
            return self
        fresh = {int(client): np.array(row, dtype=np.float32) for client, row in zip(clients, rows, strict=True)}
        return ClientMemory(self.width, {**self.rows, **fresh})

    def tensors(self) -> dict[str, Array]:
        """As two arrays, for the checkpoint."""
        ids = np.array(sorted(self.rows), dtype=np.int64)
        rows = [self.rows[client] for client in ids.tolist()]
        return {"memory.clients": ids, "memory.rows": np.array(rows, dtype=np.float32).reshape(len(ids), self.width)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array]) -> "ClientMemory":
        """The inverse of `tensors`."""
        ids, rows = tensors["memory.clients"], tensors["memory.rows"]
        return cls(int(rows.shape[1]), dict(zip(ids.tolist(), rows, strict=True)))


@dataclass(frozen=True)
class Incidents:
    """Numbers of clients that failed in a round. Raw counts, which no release covers: for diagnostics only."""

    dropped: int = 0
    hostile: int = 0

    def plus(self, other: "Incidents") -> "Incidents":
        """The sum of both."""
        return Incidents(self.dropped + other.dropped, self.hostile + other.hostile)


@dataclass(frozen=True)
class FaultKeys:
    """Keys for drawing who is hostile in a round, and how."""

    hostile: Key
    attack: Key


_NO_KEY = (0, 0)


@dataclass(frozen=True)
class Faults:
    """The share of sampled clients that drops out, and the share of the others that is hostile."""

    settings: FaultSettings = field(default_factory=FaultSettings)

    def remaining(self, clients: Array, *, streams: StreamSource, round_index: int) -> Array:
        """The sampled clients that do not drop out, in their order; possibly none."""
        rate = self.settings.dropout
        key = streams.client_key("dropout", round_index) if rate else _NO_KEY
        return clients[~_drawn(rate, clients, key)]

    def keys(self, streams: StreamSource, round_index: int) -> FaultKeys:
        """The keys of a round: from the run's seed, or fresh from the operating system."""
        names = ("hostile", "attack") if self.settings.hostile else ()
        drawn = [streams.client_key(name, round_index) for name in names] or [_NO_KEY, _NO_KEY]
        return FaultKeys(*drawn)

    def tampered(self, reports: Reports, *, num_clusters: int, keys: FaultKeys) -> tuple[Reports, int]:
        """The reports with hostile ones replaced, and their number. With rate 0 it is `reports` itself."""
        clients = np.asarray(reports.client_ids)
        hostile = _drawn(self.settings.hostile, clients, keys.hostile)
        if not hostile.any():
            return reports, 0
        draws = client_uniforms(keys.attack, clients)[:, 0]
        known = list(ATTACKS)
        names = [known[int(draw * len(known))] if lies else None for lies, draw in zip(hostile, draws, strict=True)]
        arriving = [
            (place, report)
            for place, name in enumerate(names)
            for report in _reports(name, reports.updates[place], reports.choices[place], num_clusters)
        ]
        places = np.array([place for place, _ in arriving])
        return Reports(
            updates=[update for _, (update, _) in arriving],
            choices=[choice for _, (_, choice) in arriving],
            destinations=None if reports.destinations is None else np.asarray(reports.destinations)[places],
            client_ids=clients[places],
            evaluations=None if reports.evaluations is None else np.asarray(reports.evaluations)[places],
        ), int(hostile.sum())


Report = tuple[Any, Any]  # an update and a choice, or a hostile client's replacement
Attack = Callable[[Array, Any, int], list[Report]]  # update, choice, number of clusters -> reports sent


def _update(change: Callable[[Array], Any]) -> Attack:
    return lambda update, choice, _: [(change(np.asarray(as_numpy(update), dtype=np.float64)), choice)]


def _choice(change: Callable[[int], Any]) -> Attack:
    return lambda update, _, num_clusters: [(update, change(num_clusters))]


ATTACKS: dict[str, Attack] = {
    "nan": _update(lambda row: np.where(np.arange(len(row)) == 0, np.nan, row)),
    "infinite": _update(lambda row: np.full(len(row), np.inf)),
    "norm 1e30": _update(lambda row: np.full(len(row), 1e30 / np.sqrt(len(row)))),
    "overflowing norm": _update(lambda row: np.full(len(row), 1e200)),
    "wrong dtype": _update(lambda row: row + 1j),
    "text": _update(lambda _: "an update"),
    "wrong shape": _update(lambda row: row[:-1]),
    "nothing": _update(lambda _: None),
    "cluster out of range": _choice(lambda num_clusters: num_clusters),
    "negative cluster": _choice(lambda _: -1),
    "no cluster": _choice(lambda _: None),
    "duplicate": lambda update, choice, _: [(update, choice), (update, choice)],
}


def _reports(attack: str | None, update: Array, choice: Any, num_clusters: int) -> list[Report]:
    """The reports of one client, honest or by its attack."""
    return [(update, choice)] if attack is None else ATTACKS[attack](update, choice, num_clusters)


def _drawn(rate: float, clients: Array, key: Key) -> Array:
    """(n,) bool: whether a client's own draw under the key is below `rate`. Rate 0 is nobody, rate 1 everybody."""
    if rate == 0:
        return np.zeros(len(clients), dtype=bool)
    return np.asarray(client_uniforms(key, clients)[:, 0] < rate)
