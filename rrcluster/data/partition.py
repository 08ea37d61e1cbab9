"""Who holds what: pure functions from labels and a random stream to one index array per client."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng

Indices = tuple[NDArray[np.int64], ...]  # one array of sample positions per client


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
            f"{len(labels)}; lower num_clients or use a larger dataset."
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
            f"{len(labels)} training samples; lower num_clients or use a larger dataset."
        )
    dealt: dict[int, NDArray[np.int64]] = {}
    for clients in members:
        shares = np.array_split(rng.permutation(len(labels)), most)
        dealt.update(zip(clients.tolist(), shares, strict=False))  # a smaller group leaves the last shares
    return tuple(dealt[client] for client in range(len(groups)))
