"""Populations from users' own data: plain arrays, long arrays of rows on disk, or fewer samples of another one."""

import hashlib
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rrcluster import checks
from rrcluster.data.federated import (
    FLOAT,
    IDS,
    ClientStore,
    FederatedData,
    Inputs,
    Layout,
    TableColumns,
    Targets,
    TestSet,
)
from rrcluster.errors import DataError
from rrcluster.rng import stream

Arrays = Sequence[ArrayLike] | NDArray[Any]
Parts = tuple[NDArray[Any], ...]


@dataclass(frozen=True, eq=False, repr=False)
class ArrayStore:
    """One array of inputs and one of targets per client."""

    inputs: tuple[Inputs, ...]
    targets: tuple[Targets, ...]

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """The samples of one client, as given."""
        return self.inputs[client], self.targets[client]


@dataclass(frozen=True, repr=False)
class Constant:
    """An array in memory, as the `make_inputs` of a test set."""

    values: Inputs

    def __call__(self) -> Inputs:
        """The array."""
        return self.values


def from_arrays(
    inputs: Arrays,
    targets: Arrays,
    *,
    test_inputs: Arrays | None = None,
    test_targets: Arrays | None = None,
    groups: ArrayLike | None = None,
    num_classes: int | None = None,
    ids: bool = False,
    names: Sequence[str] = (),
    name: str = "arrays",
    columns: TableColumns | None = None,
) -> FederatedData:
    """A population from one array of inputs (size, ...) and one of targets (size, ...) per client.

    `inputs` and `targets` are lists, one entry per client, of any sizes; or arrays (num_clients, size, ...); of numpy,
    torch or nested lists. Where a network takes several inputs, an entry is a dict of arrays (passed by name) or a
    tuple of them (by position), each (size, ...); whole numbers in them are ids. Targets are (size,), or (size, m) for
    m numbers or a sequence. Integer targets are classes 0, 1, ...; float targets, or `num_classes` = 0, mean
    regression. `num_classes` is a public constant: left out, it is one more than the largest class seen, which no
    guarantee covers. `groups` (num_clients,), if known, serve diagnostics only. A test set as an array (t, ...) is
    shared by all clients; a list has one per client, empty where a client has none, or one per known group. `ids`:
    inputs are not numbers but ids from 0 (characters, words), kept as int64. `names`, one per client, decide its slot
    under `participation = schedule`. `columns`: cells, or NaN.

    Guarantees: inputs are kept as given, in float32 (no normalisation) or, if `ids`, in int64; every client has at
    least one sample; all values are finite; all samples have one shape. Anything else is a `DataError` that names
    the client and the shapes, never a value.
    """
    layout = Layout.of(inputs[0], "client 0") if len(inputs) else None
    xs, ys = _parts(_packed(layout, inputs, "client")), _parts(targets)
    if not xs or len(xs) != len(ys):
        raise DataError(f"inputs are of {len(xs)} clients and targets of {len(ys)}; give one of each per client.")
    true_groups, num_groups = checked_groups(groups, len(xs))
    test_xs, test_ys, test_of = test_parts(_packed_tests(layout, test_inputs), test_targets, true_groups, num_groups)
    shape, target_shape = xs[0].shape[1:], ys[0].shape[1:]
    pairs, tests = list(zip(xs, ys, strict=True)), list(zip(test_xs, test_ys, strict=True))
    for place, pair in enumerate(pairs + tests):
        owner = f"client {place}" if place < len(xs) else f"test set {place - len(xs)}"
        check_samples(owner, *pair, shape, target_shape, ids=ids, missing=columns is not None)
    kind, input_dtype = FLOAT if _is_regression((*ys, *test_ys), num_classes) else IDS, IDS if ids else FLOAT
    return FederatedData(
        name=name,
        num_classes=0 if kind == FLOAT else _checked_classes((*ys, *test_ys), num_classes),
        input_shape=shape,
        sizes=np.array([len(y) for y in ys], dtype=np.int64),
        groups=true_groups,
        num_groups=num_groups,
        store=ArrayStore(tuple(x.astype(input_dtype) for x in xs), tuple(y.astype(kind) for y in ys)),
        test_sets=tuple(TestSet(y.astype(kind), Constant(x.astype(input_dtype))) for x, y in tests),
        test_of=test_of,
        input_dtype=input_dtype,
        target_shape=target_shape,
        layout=layout,
        held_out=_own_tests(test_inputs, len(xs)),
        clients=_checked_names(names, len(xs)),
        counted={} if num_classes is not None else {"num_classes": "declare it (num_classes=..., 0 for regression)"},
        columns=columns,
    )


def _packed(layout: Layout | None, inputs: Arrays, owner: str) -> Arrays:
    """Pack inputs that consist of several arrays into one array each."""
    if layout is None:
        return inputs
    return [layout.pack(sample, f"{owner} {place}") for place, sample in enumerate(inputs)]


def _packed_tests(layout: Layout | None, inputs: Any) -> Any:
    if layout is None or inputs is None or isinstance(inputs, list):
        return inputs if layout is None or inputs is None else _packed(layout, inputs, "test set")
    return layout.pack(inputs, "the test set")


def _parts(arrays: Arrays) -> Parts:
    try:
        return tuple(np.asarray(part) for part in arrays)
    except ValueError as problem:
        raise DataError(f"a part of the data is not one rectangular array: {problem}") from None


def test_parts(
    inputs: Arrays | None, targets: Arrays | None, groups: NDArray[np.int64], num_groups: int
) -> tuple[Parts, Parts, NDArray[np.int64]]:
    """The test sets as two tuples of equal length, and the place of each client's own among them, -1 for none.

    There may be none, one shared by all clients, one per known group, or one per client, which may be empty.
    """
    if inputs is None and targets is None:
        return (), (), np.full(len(groups), -1)
    if inputs is None or targets is None:
        raise DataError("test_inputs and test_targets go together; give both or neither.")
    one = [not isinstance(part, (list, tuple)) for part in (inputs, targets)]
    if all(one):
        return (np.asarray(inputs),), (np.asarray(targets),), np.zeros(len(groups), dtype=np.int64)
    if any(one):
        raise DataError("test_inputs and test_targets must both be arrays (shared by all) or both lists.")
    xs, ys = _parts(inputs), _parts(targets)
    by_group = len(xs) == num_groups != len(groups)  # one client's group must not take the others' own rows from them
    if len(xs) != len(ys) or not (by_group or len(xs) == len(groups)):
        wanted = f"client ({len(groups)})" + (f", or per group ({num_groups})" if num_groups else "")
        raise DataError(f"test lists hold {len(xs)} inputs and {len(ys)} targets; give one per {wanted}.")
    owners = groups if by_group else np.arange(len(groups))
    present = np.array([by_group or len(x) + len(y) > 0 for x, y in zip(xs, ys, strict=True)])
    place = np.where(present, np.cumsum(present) - 1, -1)
    used = np.flatnonzero(present).tolist()
    return tuple(xs[i] for i in used), tuple(ys[i] for i in used), place[owners]


def _own_tests(tests: Any, num_clients: int) -> bool:
    """Whether test sets are the clients' own: not one that all share, nor one per group."""
    return isinstance(tests, (list, tuple)) and len(tests) == num_clients


def check_samples(
    owner: str,
    x: NDArray[Any],
    y: NDArray[Any],
    shape: tuple[int, ...],
    target_shape: tuple[int, ...] = (),
    *,
    ids: bool = False,
    missing: bool = False,
) -> None:
    """Refuse samples that are empty, of another shape, or not finite; `owner` names their client.

    With `ids`, also inputs that are not ids from 0; NaN passes where it means `missing`.
    """
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or len(y) == 0:
        raise DataError(f"{owner} has inputs {x.shape} and targets {y.shape}; it needs (s, ...) and (s,), s > 0.")
    for what, found, expected in (("samples", x.shape[1:], shape), ("targets", y.shape[1:], target_shape)):
        if found != expected:
            raise DataError(f"{owner} has {what} of shape {found}, client 0 of {expected}; all must be alike.")
    for what, values in (("inputs", np.where(np.isnan(x), 0, x) if missing else x), ("targets", y)):
        if values.dtype.kind not in "biuf":
            raise DataError(f"{owner} has {what} of type {values.dtype}; give real numbers.")
        with np.errstate(over="ignore"):
            finite = np.isfinite(values.astype(np.float32)).all()
        if not finite:
            raise DataError(f"{owner} has {what} that are not finite in float32; remove or rescale them.")
    if ids and (x.dtype.kind not in "iu" or x.min(initial=0) < 0):
        raise DataError(f"{owner} has inputs of type {x.dtype}, not ids; give whole numbers from 0, or leave ids out.")


def _is_regression(targets: Parts, num_classes: int | None) -> bool:
    if num_classes == 0:
        return True
    floats = any(y.dtype.kind == "f" for y in targets)
    if floats and num_classes is not None:
        raise DataError(f"num_classes = {num_classes} needs integer targets; convert them, or leave num_classes out.")
    return floats


def _checked_classes(targets: Parts, num_classes: int | None) -> int:
    least = min(int(y.min()) for y in targets)
    seen = max(int(y.max()) for y in targets) + 1
    classes = seen if num_classes is None else num_classes
    if least < 0 or seen > classes:
        raise DataError(f"targets must be classes from 0 to {classes - 1}; number them anew or raise num_classes.")
    return classes


def checked_groups(groups: ArrayLike | None, num_clients: int) -> tuple[NDArray[np.int64], int]:
    """(num_clients,) the groups as given, or zeros; and how many there are, 0 where they are not known."""
    if groups is None:
        return np.zeros(num_clients, dtype=np.int64), 0
    array = np.asarray(groups)
    if array.shape != (num_clients,) or array.dtype.kind not in "iu" or array.min() < 0:
        raise DataError(f"groups must be {num_clients} integers from 0, found {array.dtype} {array.shape}.")
    return array.astype(np.int64), int(array.max()) + 1


def _checked_names(names: Sequence[str], num_clients: int) -> tuple[str, ...]:
    if len(names) not in (0, num_clients) or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        raise DataError(f"names must be {num_clients} texts, one per client, none of them twice; or leave them out.")
    return tuple(names)


@dataclass(frozen=True, eq=False, repr=False)
class RowStore:
    """All samples in two long arrays; client i has the rows from offsets[i] up to offsets[i + 1]."""

    inputs: NDArray[Any]  # (N, *input_shape), in memory or mapped from a file
    targets: NDArray[Any]  # (N,)
    offsets: NDArray[np.int64]  # (num_clients + 1,)
    num_classes: int  # 0 for regression
    ids: bool

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """The rows of one client, read and checked on each call; a `DataError` names the client, never a value."""
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _row_store, (_sent(self.inputs), _sent(self.targets), self.offsets, self.num_classes, self.ids)


@dataclass(frozen=True)
class _MappedArray:
    """A mapped array on its way to another process, which maps the file at the same path."""

    path: str
    place: tuple[np.dtype[Any], int, tuple[int, ...], str]  # type, offset, shape, order
    digest: bytes  # of some rows

    def open(self) -> NDArray[Any]:
        """The array; DataError if the file is missing or differs."""
        kind, offset, shape, order = self.place
        try:
            values: Any = np.memmap(self.path, kind, "r", offset, shape, order)  # type: ignore[call-overload]
        except (OSError, ValueError):
            raise DataError(f"{self.path} cannot be mapped by a worker; every one needs it at this path.") from None
        if _some_rows(values) != self.digest:
            raise DataError(
                f"{self.path} is not the same for a worker as where the run was started; give both one copy."
            )
        return np.asarray(values)


def _sent(values: Any) -> Any:
    """Replace a mapped array by its place in its file."""
    if not isinstance(getattr(values, "base", None), mmap.mmap) or values.filename is None:
        return values  # in memory, or only a part of the mapped array
    order = "C" if values.flags.c_contiguous else "F"
    path = str(Path(values.filename).absolute())
    return _MappedArray(path, (values.dtype, values.offset, values.shape, order), _some_rows(values))


def _some_rows(values: NDArray[Any]) -> bytes:
    return hashlib.blake2b(b"".join(values[row].tobytes() for row in spaced(len(values), 256).tolist())).digest()


def _row_store(inputs: Any, targets: Any, *rest: Any) -> RowStore:
    opened: list[Any] = [part.open() if isinstance(part, _MappedArray) else part for part in (inputs, targets)]
    return RowStore(opened[0], opened[1], *rest)


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
    names: Sequence[str] = (),
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
    true_groups, num_groups = checked_groups(groups, num_clients)
    tests = []
    test_xs, test_ys, test_of = test_parts(test_inputs, test_targets, true_groups, num_groups)
    for place, (x, y) in enumerate(zip(test_xs, test_ys, strict=True)):
        check_rows(f"test set {place}", x, y, shape, num_classes, ids=ids)
        test_x, test_y = _typed(x, y, num_classes, ids=ids)
        tests.append(TestSet(test_y, Constant(test_x)))
    return FederatedData(
        name=name,
        num_classes=num_classes,
        input_shape=shape,
        sizes=np.diff(bounds),
        groups=true_groups,
        num_groups=num_groups,
        store=RowStore(inputs, targets, bounds, num_classes, ids),
        test_sets=tuple(tests),
        test_of=test_of,
        input_dtype=IDS if ids else FLOAT,
        held_out=_own_tests(test_inputs, num_clients),
        clients=_checked_names(names, num_clients),
    )


def check_rows(
    owner: str, inputs: NDArray[Any], targets: NDArray[Any], shape: tuple[int, ...], num_classes: int, *, ids: bool
) -> None:
    """Refuse samples that `from_arrays` would refuse."""
    check_samples(owner, inputs, targets, shape, ids=ids)
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
        raise DataError(f"client {int(np.diff(bounds).argmin())} has no rows; every client needs at least one sample.")
    return bounds


def at_most(data: FederatedData, count: int) -> FederatedData:
    """The population with at most `count` training samples per client, and as many per test set.

    Guarantees: nobody joins or leaves; clients with at most `count` samples keep all, others keep samples at equal
    distances, the first among them; no randomness.
    """
    checks.count(max_samples=count)
    return replace(
        data,
        sizes=np.minimum(data.sizes, count),
        store=SomeRows(data.store, partial(_spaced_rows, count=count)),
        test_sets=tuple(_fewer_tests(tests, count) for tests in data.test_sets),
    )


def with_validation(data: FederatedData) -> FederatedData:
    """The population with one in five of each client's samples held out for choosing settings.

    Rounded up; the newest where samples are in order of time, else drawn; none of a client's only sample. A client's
    held-out samples depend only on its number of samples.
    """
    held = np.where(data.sizes > 1, -(-data.sizes // _VALIDATION), 0)
    kept, trained = (
        SomeRows(data.store, partial(_divided_rows, ordered=data.ordered, validation=part)) for part in (True, False)
    )
    return replace(data, sizes=data.sizes - held, store=trained, validation=replace(data, sizes=held, store=kept))


_VALIDATION = 5  # one in so many samples


def _divided_rows(targets: Targets, *, ordered: bool, validation: bool) -> NDArray[np.int64]:
    size, held = len(targets), -(-len(targets) // _VALIDATION) if len(targets) > 1 else 0
    order = np.arange(size) if ordered else stream(0, "validation samples").permutation(size)
    return np.sort(order[size - held :] if validation else order[: size - held])


@dataclass(frozen=True, eq=False, repr=False)
class SomeRows:
    """Some of each client's samples."""

    store: ClientStore
    rows: Callable[[Targets], NDArray[Any]]  # the places of those of a client, or whether each is one, by its targets

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """These samples of one client."""
        inputs, targets = self.store.client(client)
        places = self.rows(targets)
        return inputs[places], targets[places]


def without_newcomers(data: FederatedData, share: float) -> FederatedData:
    """The population without a share of its clients, the `newcomers`, drawn by name (by position without names).

    Without held-out rows, newcomers are tested on their own rows.
    """
    names = data.clients or tuple(map(str, range(data.num_clients)))
    draws = np.array([stream(0, f"new client {name}").random() for name in names])
    count = round(share * data.num_clients)
    if not 0 < count < data.num_clients:
        raise DataError(f"new_clients = {share:g} is {count} of {data.num_clients} clients; choose another share.")
    order = np.argsort(draws)
    newcomers = of_clients(data, np.sort(order[:count]))
    newcomers = newcomers if data.held_out else _tested(with_validation(newcomers))
    return replace(of_clients(data, np.sort(order[count:])), newcomers=newcomers)


def _tested(data: FederatedData) -> FederatedData:
    """The population with its validation samples as test sets."""
    held = data.validation
    assert held is not None
    samples = [held.store.client(client) for client in range(held.num_clients)]
    tests = tuple(TestSet(targets, Constant(inputs)) for inputs, targets in samples if len(targets))
    place = np.where(held.sizes > 0, np.cumsum(held.sizes > 0) - 1, -1)
    return replace(data, validation=None, test_sets=tests, test_of=place, held_out=True)


def of_clients(data: FederatedData, ids: NDArray[np.int64]) -> FederatedData:
    """Some clients as a separate population."""
    return replace(
        data,
        sizes=data.sizes[ids],
        groups=data.groups[ids],
        store=_Some(data.store, ids),
        test_of=data.test_of[ids],
        clients=tuple(data.clients[place] for place in ids.tolist()) if data.clients else (),
    )


@dataclass(frozen=True, eq=False, repr=False)
class _Some:
    store: ClientStore
    ids: NDArray[np.int64]

    def client(self, client: int) -> tuple[Inputs, Targets]:
        return self.store.client(int(self.ids[client]))


def spaced(size: int, count: int) -> NDArray[np.int64]:
    """(min(size, count),) positions among `size`, evenly spaced from 0."""
    number = min(size, count)
    return np.arange(number, dtype=np.int64) * size // max(number, 1)


def _spaced_rows(targets: Targets, *, count: int) -> NDArray[np.int64]:
    return spaced(len(targets), count)


def _fewer_tests(tests: TestSet, count: int) -> TestSet:
    places = spaced(len(tests.targets), count)
    return TestSet(tests.targets[places], lambda: tests.make_inputs()[places], keep=tests.keep)
