"""Slots: which clients may take part in which round, decided before anybody enrols.

A client's slot is a keyed hash of its id, so that adding or removing a client changes nobody else's; slots by order of
enrolment would change, and slots chosen by hand may depend on data. In round t only clients of slot t mod b may take
part: at most once in any b rounds, and at most ceil(T / b) times.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.types import Array

_TABLE = 2**16  # numbers below this are looked up in a table, a hundred of them in a few microseconds
_MOST_EMPTY = 0.1  # slots without any client, on average over keys


@dataclass(frozen=True)
class Slots:
    """`count` slots (b) under a public key, for a plan of `num_rounds` rounds (T). One slot: everybody, always."""

    count: int = 1
    key: str = ""
    num_rounds: int = 0

    def __post_init__(self) -> None:
        checks.count(slots=self.count)

    def most_rounds(self, num_rounds: int) -> int:
        """R = ceil(T / b): in how many of `num_rounds` rounds a client can take part at most."""
        return -(-num_rounds // self.count)

    def of(self, clients: Array | Sequence[int | str | bytes]) -> Array:
        """(n,) the slot of every client, by its id."""
        if isinstance(clients, np.ndarray):
            if clients.dtype.kind in "iu" and clients.size and 0 <= clients.min() <= clients.max() < _TABLE:
                return _slots_of(1 << int(clients.max()).bit_length(), self.key, self.count)[clients]
            clients = clients.tolist()
        return np.array([_slot(client, self.key, self.count) for client in clients], dtype=np.int32)

    def eligible(self, population: int | tuple[str, ...], round_index: int) -> Array:
        """Sorted numbers of the clients that may take part in a round; `population` is their number, or their names.

        Clients with names are in slots by name: a number that counts names in order would change as others join or
        leave. The cap on participations is enforced here, where cohorts are drawn: PrivacyError beyond the plan's last
        round.
        """
        if not 0 <= round_index < self.num_rounds:
            raise PrivacyError(
                f"round {round_index} is outside of the plan's {self.num_rounds} rounds: its clients would take part "
                f"more often than the {self.most_rounds(self.num_rounds)} times that epsilon covers; start a new run."
            )
        return np.flatnonzero(_slots_of(population, self.key, self.count) == round_index % self.count)

    def check_filled(self, num_clients: int) -> None:
        """Refuse so many slots that some may well be empty, by the declared number of clients alone.

        Whether one *is* empty depends on who the clients are: a refusal for that would tell.
        """
        empty = self.count * (1 - 1 / self.count) ** num_clients
        if empty > _MOST_EMPTY:
            raise ConfigError(
                f"slots = {self.count} for {num_clients} clients would leave {empty:.2g} slots without any client on "
                "average; use fewer slots."
            )


ONE_SLOT = Slots()


@lru_cache(maxsize=2**16, typed=True)  # a client is looked up in each of its rounds
def _slot(client: int | str | bytes, key: str, count: int) -> int:
    secret = hashlib.blake2b(key.encode(), digest_size=32).digest()
    spelled = client if isinstance(client, bytes) else str(client).encode()
    kind = b"number:" if isinstance(client, int) else b"text:" if isinstance(client, str) else b"bytes:"
    digest = hashlib.blake2b(kind + spelled, key=secret, digest_size=8).digest()
    return int.from_bytes(digest, "little") % count


@lru_cache(maxsize=4)
def _slots_of(population: int | tuple[str, ...], key: str, count: int) -> Array:
    """(population,) slots of the clients numbered from 0, or of those named; about a microsecond each, once."""
    clients = range(population) if isinstance(population, int) else population
    slots = np.fromiter((_slot(client, key, count) for client in clients), np.int32, count=len(clients))
    slots.flags.writeable = False
    return slots
