"""Which client holds which samples: pure functions from labels and a random stream to one index array per client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng, stream

Indices = tuple[NDArray[np.int64], ...]  # one array of sample positions per client


class Holdings(Protocol):
    """Which samples each client holds: `Indices` in memory, or `DrawnIndices` by formula."""

    def __getitem__(self, client: int, /) -> NDArray[np.int64]:
        """Positions of one client's samples."""

    def __len__(self) -> int:
        """Clients in the population."""


@dataclass(frozen=True)
class DrawnIndices:
    """Every client draws its samples for itself, by formula: nothing is stored per client.

    Guarantees: a client's samples are `samples_per_client` distinct positions below `num_samples`, a uniform subset,
    independent between clients, and a function of (`key`, client id) alone: neither the number of clients nor the order
    of asking changes them. Two clients may share samples.
    """

    key: int
    num_clients: int
    num_samples: int
    samples_per_client: int

    def __post_init__(self) -> None:
        checks.count(samples_per_client=self.samples_per_client)
        if self.samples_per_client > self.num_samples:
            raise ConfigError(
                f"samples_per_client = {self.samples_per_client} is more than the {self.num_samples} training samples "
                "there are; lower it."
            )

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        own = stream(self.key, "samples", client)
        return own.choice(self.num_samples, size=self.samples_per_client, replace=False)

    def __len__(self) -> int:
        return self.num_clients


def holding_sizes(holdings: Holdings) -> NDArray[np.int64]:
    """(num_clients,) how many samples each client holds."""
    if isinstance(holdings, DrawnIndices):
        return np.full(len(holdings), holdings.samples_per_client, dtype=np.int64)
    return np.array([len(holdings[client]) for client in range(len(holdings))], dtype=np.int64)


def group_sizes(num_clients: int, ratio: Sequence[float]) -> NDArray[np.int64]:
    """Clients per group, (num_groups,), in proportion to `ratio`: 8 clients at 2:1:1 are 4, 2 and 2.

    Guarantees: the sizes sum to `num_clients`, each is within one of its exact share (largest remainders are
    rounded up, the earlier group first), and no group is empty, else `ConfigError`.
    """
    checks.count(num_clients=num_clients)
    if not ratio:
        raise ConfigError("ratio is empty; give one positive number per group, such as (2, 1, 1).")
    for share in ratio:
        checks.positive(ratio=share)
    exact = num_clients * np.asarray(ratio, dtype=np.float64) / float(sum(ratio))
    sizes = np.floor(exact).astype(np.int64)
    largest_first = np.argsort(-np.round(exact - sizes, 9), kind="stable")
    sizes[largest_first[: num_clients - int(sizes.sum())]] += 1
    if sizes.min() < 1:
        spelled = ":".join(f"{share:g}" for share in ratio)
        raise ConfigError(f"num_clients = {num_clients} leaves a group of {spelled} empty; raise num_clients.")
    return sizes


def assign_groups(num_clients: int, ratio: Sequence[float], *, rng: Rng) -> NDArray[np.int64]:
    """The group of every client, (num_clients,): sizes as in `group_sizes`, client ids in random order."""
    sizes = group_sizes(num_clients, ratio)
    return rng.permutation(np.repeat(np.arange(len(sizes), dtype=np.int64), sizes))


def split_equally(labels: NDArray[np.int64], num_clients: int, *, rng: Rng) -> Indices:
    """Deal all samples to the clients at random, regardless of label.

    Guarantees: every sample goes to exactly one client; client sizes differ by at most one; no client is
    empty. A `ConfigError` when there are more clients than samples.
    """
    checks.count(num_clients=num_clients)
    if num_clients > len(labels):
        raise ConfigError(
            f"num_clients = {num_clients} needs at least as many training samples, but there are "
            f"{len(labels)}; lower num_clients, use a larger dataset, or set samples_per_client."
        )
    return tuple(np.array_split(rng.permutation(len(labels)), num_clients))


def split_reusing(labels: NDArray[np.int64], groups: NDArray[np.int64], *, rng: Rng) -> Indices:
    """Deal all samples to the clients of every group anew, so that each uses the whole set (as IFCA does).

    Guarantees: within a group no sample is dealt twice; client sizes, over all groups, differ by at most one;
    a largest group (with equal groups: every group) uses every sample exactly once, a smaller one leaves some
    out. A `ConfigError` when a group has more clients than there are samples.
    """
    members = [np.flatnonzero(groups == group) for group in range(int(groups.max()) + 1)]
    most = max(len(clients) for clients in members)
    if most > len(labels):
        raise ConfigError(
            f"num_clients = {len(groups)} puts {most} clients in one group, more than the "
            f"{len(labels)} training samples; lower num_clients, use a larger dataset, or set samples_per_client."
        )
    dealt: dict[int, NDArray[np.int64]] = {}
    for clients in members:
        shares = np.array_split(rng.permutation(len(labels)), most)
        dealt.update(zip(clients.tolist(), shares, strict=False))  # a smaller group leaves the last shares
    return tuple(dealt[client] for client in range(len(groups)))
