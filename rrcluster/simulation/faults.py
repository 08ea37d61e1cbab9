"""Clients that fail or lie, simulated: who drops out, and what a hostile client sends in place of its report.

Every draw is keyed by (seed, stream, round, client id), so who fails does not depend on who else takes part. Nobody
replaces a client that dropped out and no round is repeated: the sampling law, the number of rounds and hence the
epsilon are those of the plan, whatever happens here. Dropping before training or after it is the same to the server,
and draws of the others are their own, so the simulator drops clients before it spends time on them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrcluster import checks
from rrcluster.entropy import StreamSource
from rrcluster.privacy.reports import as_numpy
from rrcluster.rng import client_uniforms
from rrcluster.types import Array


@dataclass(frozen=True)
class Incidents:
    """How many clients of a round failed. Raw counts, which no release covers: for diagnostics only."""

    dropped: int = 0
    hostile: int = 0

    def plus(self, other: "Incidents") -> "Incidents":
        """Both together."""
        return Incidents(self.dropped + other.dropped, self.hostile + other.hostile)


@dataclass(frozen=True)
class Sent:
    """What arrives at the server: of hostile clients, anything at all."""

    updates: Any  # (n, d), or a list of n rows of any kind
    choices: Any  # (n,)
    destinations: Any  # (n,), or None without coins
    client_ids: Any  # (n,); not distinct when somebody reports twice
    evaluations: Any = None  # (n, 2), or None without private evaluation
    scores: Any = None  # (n, w), or None where identifiers read the choice alone


@dataclass(frozen=True)
class Faults:
    """Which share of the sampled clients drops out, and which share of the others is hostile. Public settings."""

    dropout: float = 0.0
    hostile: float = 0.0

    def __post_init__(self) -> None:
        checks.share(dropout=self.dropout)
        checks.share(hostile=self.hostile)

    def remaining(self, clients: Array, *, streams: StreamSource, round_index: int) -> Array:
        """The sampled clients that do not drop out, in their order; possibly none."""
        return clients[~_drawn(self.dropout, "dropout", clients, streams, round_index)]

    def tampered(self, sent: Sent, *, num_clusters: int, streams: StreamSource, round_index: int) -> tuple[Sent, int]:
        """What the server gets when some senders are hostile, and how many are. With rate 0 it is `sent` itself."""
        clients = np.asarray(sent.client_ids)
        hostile = _drawn(self.hostile, "hostile", clients, streams, round_index)
        if not hostile.any():
            return sent, 0
        draws = client_uniforms(streams.client_key("attack", round_index), clients)[:, 0]
        known = list(ATTACKS)
        names = [known[int(draw * len(known))] if lies else None for lies, draw in zip(hostile, draws, strict=True)]
        arriving = [
            (place, report)
            for place, name in enumerate(names)
            for report in _reports(name, sent.updates[place], sent.choices[place], num_clusters)
        ]
        places = np.array([place for place, _ in arriving])
        return Sent(
            updates=[update for _, (update, _) in arriving],
            choices=[choice for _, (_, choice) in arriving],
            destinations=None if sent.destinations is None else np.asarray(sent.destinations)[places],
            client_ids=clients[places],
            evaluations=None if sent.evaluations is None else np.asarray(sent.evaluations)[places],
            scores=None if sent.scores is None else np.asarray(sent.scores)[places],
        ), int(hostile.sum())


Report = tuple[Any, Any]  # an update and a choice, or what a hostile client sends for them
Attack = Callable[[Array, Any, int], list[Report]]  # update, choice, number of clusters -> what is sent


def _update(change: Callable[[Array], Any]) -> Attack:
    return lambda update, choice, _: [(change(np.asarray(as_numpy(update), dtype=np.float64)), choice)]


def _choice(change: Callable[[int], Any]) -> Attack:
    return lambda update, _, num_clusters: [(update, change(num_clusters))]


ATTACKS: dict[str, Attack] = {
    "nan": _update(lambda row: np.where(np.arange(len(row)) == 0, np.nan, row)),
    "infinite": _update(lambda row: np.full(len(row), np.inf)),
    "norm 1e30": _update(lambda row: np.full(len(row), 1e30 / np.sqrt(len(row)))),
    "overflowing norm": _update(lambda row: np.full(len(row), 1e200)),
    "wrong dtype": _update(lambda row: row.astype(np.complex128)),
    "text": _update(lambda _: "an update"),
    "wrong shape": _update(lambda row: row[:-1]),
    "nothing": _update(lambda _: None),
    "cluster out of range": _choice(lambda num_clusters: num_clusters),
    "negative cluster": _choice(lambda _: -1),
    "no cluster": _choice(lambda _: None),
    "duplicate": lambda update, choice, _: [(update, choice), (update, choice)],
}


def _reports(attack: str | None, update: Array, choice: Any, num_clusters: int) -> list[Report]:
    """What one client sends: its report, or what its attack makes of it."""
    return [(update, choice)] if attack is None else ATTACKS[attack](update, choice, num_clusters)


def _drawn(rate: float, name: str, clients: Array, streams: StreamSource, round_index: int) -> Array:
    """(n,) bool: whose own draw for `name` falls below `rate`. Rate 0 is nobody, rate 1 everybody."""
    if rate == 0:
        return np.zeros(len(clients), dtype=bool)
    return np.asarray(client_uniforms(streams.client_key(name, round_index), clients)[:, 0] < rate)
