"""A smaller copy of a population: the same clients, each with fewer samples."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.data.federated import ClientStore, FederatedData, Inputs, Targets, TestSet


def at_most(data: FederatedData, count: int) -> FederatedData:
    """The population with at most `count` training samples per client, and as many per test set.

    Guarantees: nobody joins or leaves; who has no more than `count` keeps all, the others samples at equal distances,
    the first among them; no randomness.
    """
    checks.count(max_samples=count)
    return replace(
        data,
        sizes=np.minimum(data.sizes, count),
        store=_Fewer(data.store, count),
        test_sets=tuple(_fewer_tests(tests, count) for tests in data.test_sets),
    )


def spaced(size: int, count: int) -> NDArray[np.int64]:
    """(min(size, count),) places among `size`, at equal distances from 0 on."""
    kept = min(size, count)
    return np.arange(kept, dtype=np.int64) * size // max(kept, 1)


@dataclass(frozen=True, eq=False)
class _Fewer:
    store: ClientStore
    count: int

    def client(self, client: int) -> tuple[Inputs, Targets]:
        inputs, targets = self.store.client(client)
        kept = spaced(len(targets), self.count)
        return inputs[kept], targets[kept]


def _fewer_tests(tests: TestSet, count: int) -> TestSet:
    kept = spaced(len(tests.targets), count)
    return TestSet(tests.targets[kept], lambda: tests.make_inputs()[kept], keep=tests.keep)
