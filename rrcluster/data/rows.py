"""Users' own data, too many clients to hold: a population whose samples stay on disk until a cohort asks for them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rrcluster import checks
from rrcluster.data.arrays import Arrays, Kept, check_ids, check_samples, checked_groups, test_parts
from rrcluster.data.federated import FLOAT, IDS, FederatedData, Inputs, Targets, TestSet
from rrcluster.errors import DataError


@dataclass(frozen=True, eq=False)
class RowStore:
    """All samples in two long arrays; client i has the rows from offsets[i] up to offsets[i + 1]."""

    inputs: NDArray[Any]  # (N, *input_shape), in memory or mapped from a file
    targets: NDArray[Any]  # (N,)
    offsets: NDArray[np.int64]  # (num_clients + 1,)
    num_classes: int  # 0 for regression
    ids: bool

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """The rows of one client, read and checked now; a `DataError` names the client, never a value."""
        rows = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        inputs, targets = np.asarray(self.inputs[rows]), np.asarray(self.targets[rows])
        check_rows(f"client {client}", inputs, targets, self.inputs.shape[1:], self.num_classes, ids=self.ids)
        return _typed(inputs, targets, self.num_classes, ids=self.ids)

    def usable(self, client: int) -> bool:
        """Whether the client's samples pass the checks."""
        try:
            self.client(client)
        except DataError:
            return False
        return True


def from_rows(
    inputs: NDArray[Any],
    targets: NDArray[Any],
    offsets: ArrayLike,
    *,
    num_classes: int,
    test_inputs: Arrays | None = None,
    test_targets: Arrays | None = None,
    groups: ArrayLike | None = None,
    ids: bool = False,
    name: str = "rows",
) -> FederatedData:
    """A population from long arrays, in memory or mapped (`np.load(path, mmap_mode="r")`, `np.memmap`).

    `inputs` (N, ...) and `targets` (N,) hold the samples of all clients one after another; client i has the rows from
    `offsets[i]` up to `offsets[i + 1]`. `num_classes`, 0 for regression, is a public constant and must be given:
    counting it would read everything. The other arguments are those of `from_arrays`.

    Guarantees: no sample is read before a cohort asks for its client; a cohort reads its own rows only, and every
    client is checked, as `from_arrays` would, when it is read; memory beside the arrays is a few numbers per client.
    """
    bounds = _checked_offsets(offsets, len(inputs), len(targets))
    checks.count(num_classes=num_classes, at_least=0)
    num_clients, shape = len(bounds) - 1, inputs.shape[1:]
    true_groups = checked_groups(groups, num_clients)
    num_groups = 0 if groups is None else int(true_groups.max()) + 1
    tests = []
    for place, (x, y) in enumerate(zip(*test_parts(test_inputs, test_targets, num_groups, num_clients), strict=True)):
        check_rows(f"test set {place}", x, y, shape, num_classes, ids=ids)
        test_x, test_y = _typed(x, y, num_classes, ids=ids)
        tests.append(TestSet(test_y, Kept(test_x)))
    own_tests = true_groups if num_groups else np.arange(num_clients)
    return FederatedData(
        name=name,
        num_classes=num_classes,
        input_shape=shape,
        sizes=np.diff(bounds),
        groups=true_groups,
        num_groups=num_groups,
        store=RowStore(inputs, targets, bounds, num_classes, ids),
        test_sets=tuple(tests),
        test_of=own_tests if len(tests) > 1 else np.full(num_clients, len(tests) - 1, dtype=np.int64),
        input_dtype=IDS if ids else FLOAT,
    )


def check_rows(
    owner: str, inputs: NDArray[Any], targets: NDArray[Any], shape: tuple[int, ...], num_classes: int, *, ids: bool
) -> None:
    """Refuse samples that `from_arrays` would refuse."""
    check_samples(owner, inputs, targets, shape)
    if ids:
        check_ids(owner, inputs)
    if num_classes and (targets.dtype.kind not in "biu" or targets.min() < 0 or targets.max() >= num_classes):
        raise DataError(f"{owner} has targets that are not classes from 0 to {num_classes - 1}; number them anew.")


def _typed(
    inputs: NDArray[Any], targets: NDArray[Any], num_classes: int, *, ids: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    return inputs.astype(IDS if ids else FLOAT), targets.astype(IDS if num_classes else FLOAT)


def _checked_offsets(offsets: ArrayLike, num_inputs: int, num_targets: int) -> NDArray[np.int64]:
    bounds = np.asarray(offsets)
    if bounds.ndim != 1 or len(bounds) < 2 or bounds.dtype.kind not in "iu":
        raise DataError(f"offsets must be integers (num_clients + 1,), found {bounds.dtype} {bounds.shape}.")
    bounds = bounds.astype(np.int64)
    if num_inputs != num_targets or bounds[0] != 0 or bounds[-1] != num_inputs:
        raise DataError(
            f"there are {num_inputs} inputs and {num_targets} targets, and offsets from {bounds[0]} to {bounds[-1]}; "
            "offsets must begin at 0 and end at the number of both."
        )
    if np.diff(bounds).min() < 1:
        raise DataError(f"client {int(np.diff(bounds).argmin())} has no row; every client needs at least one sample.")
    return bounds
