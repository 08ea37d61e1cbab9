"""Synthetic clients made when asked for: a population of any size at the cost of the cohort."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.arrays import Kept
from rrcluster.data.federated import FederatedData, Inputs, Targets, TestSet
from rrcluster.rng import Rng, stream

HELD_CLIENTS = 20_000  # a synthetic population of more clients than this is not held in memory
TEST_SAMPLES = 1000  # per group

Samples = tuple[NDArray[np.float64], NDArray[np.float64]]  # inputs (count, dimension), targets (count,)


class Law(Protocol):
    """How the samples of a group are distributed."""

    def draw(self, group: int, count: int, *, rng: Rng) -> Samples:
        """Fresh samples of one group."""
        ...


@dataclass(frozen=True, eq=False)
class GeneratedStore:
    """Samples drawn from the law of the client's group; a function of (`key`, client id) alone."""

    law: Law
    groups: NDArray[np.int64]  # (num_clients,)
    sizes: NDArray[np.int64]  # (num_clients,)
    key: int

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """The samples of one client, the same whenever they are asked for."""
        own = stream(self.key, "samples", client)
        inputs, targets = self.law.draw(int(self.groups[client]), int(self.sizes[client]), rng=own)
        return inputs.astype(np.float32), targets.astype(np.float32)


def generated(
    name: str,
    law: Law,
    *,
    dimension: int,
    groups: NDArray[np.int64],
    sizes: NDArray[np.int64],
    num_groups: int,
    rng: Rng,
) -> FederatedData:
    """The regression population in which client i has `sizes[i]` samples of the law of `groups[i]`.

    Guarantees: memory is three numbers per client; making a cohort costs what the cohort holds; 1,000 test samples per
    group, drawn once.
    """
    tests = []
    for group in range(num_groups):
        inputs, targets = law.draw(group, TEST_SAMPLES, rng=rng)
        tests.append(TestSet(targets.astype(np.float32), Kept(inputs.astype(np.float32))))
    return FederatedData(
        name=name,
        num_classes=0,
        input_shape=(dimension,),
        sizes=sizes,
        groups=groups,
        num_groups=num_groups,
        store=GeneratedStore(law, groups, sizes, int(rng.integers(2**62))),
        test_sets=tuple(tests),
        test_of=groups,
    )
