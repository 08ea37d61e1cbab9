"""Federated data: the arrays that the engine trains and tests on.

The population is in a compact store (images once, as bytes, however many clients share them); `cohort` makes the float
arrays of the requested clients only.

Samples that consist of several arrays (a user and an item, tokens and a mask) are packed into one row of numbers each.

Stores, cohorts and engines see one float32 array; the network gets its parts back (models/model.py). Integers are ids
and come back as int64: float32 represents them exactly below 2^24, and larger ones are refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rrcluster.errors import ConfigError, DataError
from rrcluster.settings import ColumnSettings

LARGEST_ID = 2**24 - 1


@dataclass(frozen=True)
class InputPart:
    """One of a sample's arrays, and its place in the packed row."""

    name: str  # its keyword or position in the call
    shape: tuple[int, ...]  # of one sample
    ids: bool  # whole numbers from 0, passed as int64; else float32
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The parts of a sample in the order of the packed row."""

    parts: tuple[InputPart, ...]
    by_name: bool  # passed by keyword (from a dict), else by position (from a tuple)

    @classmethod
    def of(cls, sample: Any, owner: str) -> "Layout | None":
        """The layout of the inputs (s, ...) of one owner; None where they are one array."""
        arrays = _arrays(sample, owner)
        if arrays is None:
            return None
        parts = [(name, array.shape[1:], array.dtype.kind in "iu") for name, array in arrays.items()]
        return cls.restored({"parts": parts, "by_name": isinstance(sample, Mapping)})

    @property
    def described(self) -> dict[str, Any]:
        """As plain data, for files."""
        return {"by_name": self.by_name, "parts": [[part.name, list(part.shape), part.ids] for part in self.parts]}

    @classmethod
    def restored(cls, described: Mapping[str, Any]) -> "Layout":
        """The inverse of `described`."""
        parts, start = [], 0
        for name, shape, ids in described["parts"]:
            stop = start + prod(shape)
            parts.append(InputPart(str(name), tuple(shape), bool(ids), start, stop))
            start = stop
        return cls(tuple(parts), bool(described["by_name"]))

    def pack(self, sample: Any, owner: str) -> NDArray[Any]:
        """The inputs of one owner as rows (s, width) of float32."""
        arrays = _arrays(sample, owner)
        if arrays is None or list(arrays) != [part.name for part in self.parts]:
            names = "one array" if arrays is None else ", ".join(arrays)
            raise DataError(f"{owner} has inputs {names}, others {', '.join(part.name for part in self.parts)}.")
        columns = []
        for part, array in zip(self.parts, arrays.values(), strict=True):
            if array.shape[1:] != part.shape or (array.dtype.kind in "iu") != part.ids:
                raise DataError(
                    f"{owner} has {part.name} of type {array.dtype} and shape {array.shape[1:]} per sample, others "
                    f"{'whole numbers' if part.ids else 'numbers'} of shape {part.shape}; all must be alike."
                )
            if part.ids and array.size and (array.min() < 0 or array.max() > LARGEST_ID):
                raise DataError(f"{owner} has ids in {part.name} outside 0 to {LARGEST_ID}; number them anew.")
            columns.append(array.reshape(len(array), -1).astype(np.float32))
        return np.concatenate(columns, axis=1)


def _arrays(sample: Any, owner: str) -> dict[str, NDArray[Any]] | None:
    """The named arrays of one owner's inputs; None if they are one array."""
    if isinstance(sample, Mapping):
        by_name = {str(name): np.asarray(array) for name, array in sample.items()}
    elif isinstance(sample, tuple):
        by_name = {str(place): np.asarray(array) for place, array in enumerate(sample)}
    else:
        return None
    if (
        not by_name
        or len({array.shape[:1] for array in by_name.values()}) > 1
        or () in {a.shape for a in by_name.values()}
    ):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in by_name.items())
        raise DataError(f"{owner} has inputs {shapes or 'without any array'}; each must be (s, ...) with the same s.")
    for name, array in by_name.items():
        if array.dtype.kind not in "biuf":
            raise DataError(f"{owner} has {name} of type {array.dtype}; give real numbers.")
    return by_name


@dataclass(frozen=True)
class TableColumns:
    """Public description of the columns of a table whose cells are encoded one by one.

    An input row is (values, codes), each as long as `names`. A numeric cell has its value and code 0, other text NaN
    and a code from 1 to `buckets`, a missing cell NaN and code 0. A declared column has a range for its values, and
    only code 0.
    """

    names: tuple[str, ...]  # of every value: a column, one place of its lists, or one of its categories
    buckets: int  # H
    ranges: tuple[tuple[float, float] | None, ...]  # declared, by value; None for undeclared columns
    target_range: tuple[float, float] | None = None  # declared range of a regression target

    @property
    def width(self) -> int:
        """Number of values, and of codes."""
        return len(self.names)


FLOAT, IDS = np.dtype(np.float32), np.dtype(np.int64)  # possible types of inputs
Inputs = NDArray[Any]  # float32 values, or int64 ids (characters, words)
Targets = NDArray[Any]  # int64 classes, or float32 values for regression


class ClientStore(Protocol):
    """The samples of a population."""

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """The samples of one client, ready to train on: (size, *input_shape) and (size, *target_shape)."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Cohort:
    """The data of some clients, stacked on first use; rows beyond a client's size are zero padding.

    An engine with the population on its device reads only `clients`, and nothing is stacked.
    """

    clients: NDArray[np.int64]  # (n,) ids
    sizes: NDArray[np.int64]  # (n,) number of real samples
    stack: Callable[[], tuple[Inputs, Targets]]
    population: "FederatedData | None" = None  # the clients' population

    @classmethod
    def of_arrays(
        cls, clients: NDArray[np.int64], inputs: Inputs, targets: Targets, sizes: NDArray[np.int64]
    ) -> "Cohort":
        """A cohort that is already stacked."""
        return cls(clients, sizes, lambda: (inputs, targets))

    @property
    def inputs(self) -> Inputs:
        """(n, s, *input_shape) float32, or int64 ids."""
        return self._stacked[0]

    @property
    def targets(self) -> Targets:
        """(n, s, *target_shape) int64 classes, or float32."""
        return self._stacked[1]

    @cached_property
    def _stacked(self) -> tuple[Inputs, Targets]:
        return self.stack()


@dataclass(frozen=True, eq=False, repr=False)
class TestSet:
    """A test set; its inputs are made on first use and then kept, or made on every use if not `keep`.

    A client's own set is small and quickly made, but there are as many as clients: not kept.
    """

    targets: Targets  # (t, *target_shape) int64 classes, or float32
    make_inputs: Callable[[], Inputs]
    keep: bool = True

    __test__ = False  # stops pytest from collecting it

    def first(self, count: int) -> "TestSet":
        """Its first `count` samples."""
        return TestSet(self.targets[:count], lambda: self.inputs[:count])

    @property
    def inputs(self) -> Inputs:
        """The inputs, (t, *input_shape)."""
        return self._kept if self.keep else self.make_inputs()

    @cached_property
    def _kept(self) -> Inputs:
        return self.make_inputs()


@dataclass(frozen=True, repr=False)
class _TestStore:
    test_sets: tuple[TestSet, ...]

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """The samples of one test set."""
        return self.test_sets[client].inputs, self.test_sets[client].targets


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """A population of clients, their training samples and their test sets.

    `groups` is the true group of every client. It exists to judge a clustering afterwards (diagnostics); no
    method may read it. A population without true groups says so by `num_groups` = 0 (and `groups` all 0):
    there is then no clustering accuracy to speak of. `test_of` is the position of a client's test set in
    `test_sets`, -1 where it has none. `input_dtype` is float32, or int64 for ids. `layout` says which arrays a sample
    consists of where that is more than one; `input_shape` is then that of the packed row. `clients` are the clients'
    names, if they have any: private, and in no file of a run. `counted` names constants that should be public and were
    taken from the clients' data instead, each with the way to declare it; `outside_rules` has by column the share of
    rows with a value that its rule does not name: private. `columns` says what inputs mean that are
    values and codes of cells, with NaN for missing values; else inputs are finite. `encoder` has the public rules by
    which a table's rows became inputs, nothing left to default.

    `held_out`: a client's test set is rows of its own, held out by a public rule. `ordered`: a client's samples are in
    order of time, the oldest first. `validation` has the samples that settings are chosen by, where they are, and
    `newcomers` the clients that are kept out of training.
    """

    name: str
    num_classes: int  # 0 for regression
    input_shape: tuple[int, ...]
    sizes: NDArray[np.int64]  # (num_clients,)
    groups: NDArray[np.int64]  # (num_clients,)
    num_groups: int  # 0: unknown
    store: ClientStore
    test_sets: tuple[TestSet, ...]
    test_of: NDArray[np.int64]  # (num_clients,)
    input_dtype: np.dtype[Any] = FLOAT
    target_shape: tuple[int, ...] = ()  # of one sample: () for a class or a number
    layout: Layout | None = None
    clients: tuple[str, ...] = ()
    counted: Mapping[str, str] = field(default_factory=dict)
    outside_rules: Mapping[str, float] = field(default_factory=dict)
    columns: TableColumns | None = None
    encoder: ColumnSettings | None = None
    held_out: bool = False
    ordered: bool = False
    validation: "FederatedData | None" = None
    newcomers: "FederatedData | None" = None

    def __repr__(self) -> str:
        """Public constants only, since logs and tracebacks show it."""
        targets = f"{self.num_classes} classes" if self.num_classes else "numbers"
        return f"FederatedData({self.name!r}, inputs {self.input_shape} of {self.input_dtype}, targets {targets})"

    @property
    def num_clients(self) -> int:
        """The number of clients in the population."""
        return len(self.sizes)

    @cached_property
    def tests(self) -> "FederatedData":
        """The test sets as a population: its client j has the samples of test_sets[j]."""
        count = len(self.test_sets)
        return FederatedData(
            name=f"tests of {self.name}",
            num_classes=self.num_classes,
            input_shape=self.input_shape,
            sizes=np.array([len(tests.targets) for tests in self.test_sets], dtype=np.int64),
            groups=np.zeros(count, dtype=np.int64),
            num_groups=0,
            store=_TestStore(self.test_sets),
            test_sets=(),
            test_of=np.full(count, -1),
            input_dtype=self.input_dtype,
            target_shape=self.target_shape,
            layout=self.layout,
            columns=self.columns,
        )

    def judged(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int64], Cohort | None]:
        """Places of the clients with samples for evaluating released models, and these samples, which nobody trains on.

        None if nothing is held out for that. Whether a client has any depends on its own samples alone.
        """
        if self.validation is not None:
            places = np.flatnonzero(self.validation.sizes[clients])
            return places, self.validation.cohort(clients[places])
        if not self.held_out:
            return np.arange(len(clients)), None
        places = np.flatnonzero(self.test_of[clients] >= 0)
        return places, self.tests.cohort(self.test_of[clients[places]])

    def usable(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) whether each client's samples pass the checks; all do if they were checked on loading."""
        check = getattr(self.store, "usable", None)
        if check is None:
            return np.ones(len(clients), dtype=bool)
        return np.array([check(int(client)) for client in clients], dtype=bool)

    def cohort(self, clients: ArrayLike) -> Cohort:
        """The data of these clients, in this order, padded to their largest size; stacked on first use.

        Guarantees: time and memory depend on the cohort, not on the population; the arrays are fresh, so the
        caller may write to them; padding is zero; no clients give arrays of length zero. A client may be
        named twice. A `ConfigError` for an id outside the population.
        """
        ids = self._checked(clients)
        sizes = self.sizes[ids]
        return Cohort(clients=ids, sizes=sizes, stack=lambda: self._stack(ids, sizes), population=self)

    def _stack(self, ids: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[Inputs, Targets]:
        width = int(sizes.max(initial=0))
        kind = np.int64 if self.num_classes else np.float32
        inputs = np.empty((len(ids), width, *self.input_shape), dtype=self.input_dtype)
        targets = np.zeros((len(ids), width, *self.target_shape), dtype=kind)
        for row, (client, size) in enumerate(zip(ids.tolist(), sizes.tolist(), strict=True)):
            inputs[row, :size], targets[row, :size] = self.store.client(client)
            inputs[row, size:] = 0
        return inputs, targets

    def _checked(self, clients: ArrayLike) -> NDArray[np.int64]:
        ids = np.asarray(clients)
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise ConfigError(f"clients must be integer ids (n,), found {ids.dtype} {ids.shape}.")
        if ids.size and (ids.min() < 0 or ids.max() >= self.num_clients):
            last = self.num_clients - 1
            raise ConfigError(f"client ids must lie in 0 to {last}, found {ids.min()} to {ids.max()}.")
        return ids.astype(np.int64)
