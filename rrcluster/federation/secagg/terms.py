"""The terms that clients of a secure aggregation agree on before any key is made, and the graph of shared masks.

Clients have places 0..n-1. Up to `COMPLETE` of them everybody masks with everybody. Above, the clients stand on a
ring, in an order that the digest decides, and each masks with the `reach` next ones on either side (after Bell et al.
2020, "Secure single-server aggregation with (poly)logarithmic overhead").

**Lemma** (docs/privacy.md). Let at most `most_colluders` clients collude with the server, and in no
neighbourhood more than `local_colluders`. Then for every client that follows the protocol the server learns at most
one of its two secrets; and what it can learn of the values is the sum over all survivors that follow the protocol, no
part of it. On the complete graph `local_colluders` is `most_colluders`; on the ring the second condition fails with
probability at most `failure_probability` over the order of the ring, which belongs into delta. The order follows from
the digest of the agreement, which the server writes last, so the bound is for the worst of `_TRIES` orders.

What a client advertises beside its keys, a commitment to its seed, tells nothing of seed or mask to whoever has fewer
than `threshold` shares: HKDF derives it from the seed, for this purpose alone (`Attempt.expand_seed`).
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom

from rrcluster import checks
from rrcluster.errors import PrivacyError, ProtocolError
from rrcluster.federation.secagg.masks import KEY_BYTES, digest

COMPLETE = 100  # clients up to which the graph is complete
_FAILURE = 2.0**-40  # total failure probability of the ring's order
_TRIES = 2.0**64  # member orders an attacker may try before publishing the agreement


@dataclass(frozen=True)
class Terms:
    """The clients, the message length, and the numbers that may be missing or collude. Public."""

    settings: bytes  # digest of the agreed settings
    identities: tuple[bytes, ...]  # (n,) public keys for signatures; a client's place is its number here
    width: int  # words of a message
    least_survivors: int  # sums of fewer are never unmasked
    most_colluders: int  # clients that may collude with the server
    reach: int | None = None  # neighbours on either side; None: all clients

    def __post_init__(self) -> None:
        n = len(self.identities)
        checks.count(width=self.width)
        checks.count(most_colluders=self.most_colluders, at_least=0)
        checks.count(least_survivors=self.least_survivors)
        if n < 2 or len(set(self.identities)) != n or any(len(key) != KEY_BYTES for key in self.identities):
            raise ProtocolError(f"{n} identities must be two or more, distinct, of {KEY_BYTES} bytes each.")
        if self.least_survivors <= self.most_colluders + 1:
            raise PrivacyError(
                f"least_survivors = {self.least_survivors} leaves fewer than two honest clients beside "
                f"{self.most_colluders} colluders, and a sum of one is that one's message; raise it."
            )
        if self.least_survivors > n or self.threshold > self.neighbourhood_size or self.neighbourhood_size > n:
            raise ProtocolError(
                f"{n} clients cannot give {self.least_survivors} survivors and thresholds of {self.threshold} in "
                f"neighbourhoods of {self.neighbourhood_size}; allow fewer colluders or enrol more clients."
            )

    @classmethod
    def for_clients(
        cls, identities: tuple[bytes, ...], *, settings: bytes, width: int, least_survivors: int, most_colluders: int
    ) -> "Terms":
        """Terms with the smallest graph that is safe and lets a quarter of a neighbourhood drop out."""
        reach = None if len(identities) <= COMPLETE else _least_reach(len(identities), most_colluders)
        return cls(settings, identities, width, least_survivors, most_colluders, reach)

    @property
    def num_clients(self) -> int:
        """n."""
        return len(self.identities)

    @property
    def neighbourhood_size(self) -> int:
        """Size of a client's neighbourhood, itself included: the holders of its shares."""
        return self.num_clients if self.reach is None else 2 * self.reach + 1

    @cached_property
    def local_colluders(self) -> int:
        """Most colluders in one neighbourhood, except with `failure_probability`."""
        if self.reach is None:
            return self.most_colluders
        return _local_colluders(self.num_clients, self.reach, self.most_colluders)

    @property
    def failure_probability(self) -> float:
        """Probability that the ring puts more than `local_colluders` into a neighbourhood; part of delta."""
        return 0.0 if self.reach is None else _FAILURE

    @property
    def threshold(self) -> int:
        """Shares that give a secret; also the fewest survivors in a survivor's neighbourhood.

        More than half of the honest holders together with all colluders among them, so that two secrets of one client
        would need two answers of some honest holder. On the ring also so many that every honest survivor has an honest
        surviving neighbour on either side.
        """
        if self.reach is None:
            return (self.num_clients + self.most_colluders) // 2 + 1
        return self.reach + 2 + self.local_colluders

    @property
    def quorum(self) -> int:
        """Signatures that a list of survivors needs: two lists cannot both have them, since the honest sign one."""
        return (self.num_clients + self.most_colluders) // 2 + 1

    @cached_property
    def digest(self) -> bytes:
        """The digest of the terms."""
        numbers = (self.width, self.least_survivors, self.most_colluders, self.reach or 0)
        return digest(b"rrcluster secure aggregation 2", self.settings, repr(numbers).encode(), *self.identities)

    @cached_property
    def ring(self) -> NDArray[np.int64]:
        """(n,) places in the order of the ring."""
        keys = [digest(self.digest, b"ring", place.to_bytes(4)) for place in range(self.num_clients)]
        return np.array(sorted(range(self.num_clients), key=keys.__getitem__))

    @cached_property
    def neighbourhoods(self) -> tuple[tuple[int, ...], ...]:
        """(n,) places of each client's neighbourhood, itself included, in order."""
        n = self.num_clients
        if self.reach is None:
            return (tuple(range(n)),) * n
        steps = np.arange(-self.reach, self.reach + 1)
        hoods = np.sort(self.ring[(np.arange(n)[:, None] + steps) % n], axis=1)
        by_place = hoods[np.argsort(self.ring)]
        return tuple(tuple(int(place) for place in hood) for hood in by_place)

    def check_survivors(self, survivors: tuple[int, ...]) -> None:
        """Refuse a list that would reveal anything less than the whole sum, or a sum with too little noise."""
        alive = set(survivors)
        if list(survivors) != sorted(alive) or not alive <= set(range(self.num_clients)):
            raise ProtocolError("survivors must be distinct places in rising order.")
        if len(survivors) < self.least_survivors:
            raise ProtocolError(f"{len(survivors)} survivors are fewer than the {self.least_survivors} agreed on.")
        if any(len(alive.intersection(self.neighbourhoods[place])) < self.threshold for place in survivors):
            raise ProtocolError(f"a survivor has fewer than {self.threshold} surviving neighbours, itself included.")


def _local_colluders(num_clients: int, reach: int, most_colluders: int) -> int:
    """The smallest c such that no client has more than c colluders among its neighbours, in any of `_TRIES` orders.

    This fails with probability 2^-40 at most.
    """
    neighbours = hypergeom(num_clients - 1, most_colluders, 2 * reach)
    bound = _FAILURE / _TRIES / num_clients
    return bisect_left(range(most_colluders), True, key=lambda count: bool(neighbours.sf(count) <= bound))


def _least_reach(num_clients: int, most_colluders: int) -> int | None:
    """The smallest reach whose threshold lets a quarter of a neighbourhood drop out; None: only the complete graph."""
    for reach in range(10, (num_clients - 1) // 2):
        threshold = reach + 2 + _local_colluders(num_clients, reach, most_colluders)
        if 4 * threshold <= 3 * (2 * reach + 1):
            return reach
    return None
