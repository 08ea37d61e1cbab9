"""Division of samples among clients, and differences between clients: functions of labels and a random stream.

Three kinds of difference: groups that see images turned (`rotated_images`), groups that rename their classes
(`flipped_images`), and clients with different classes (`dirichlet_images`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.data.federated import FederatedData, TestSet
from rrcluster.data.images import ImageDataset, Labels
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng, stream

Indices = tuple[NDArray[np.int64], ...]  # one array of sample positions per client


class Holdings(Protocol):
    """The samples of each client: `Indices` in memory, or `DrawnIndices` by formula."""

    def __getitem__(self, client: int, /) -> NDArray[np.int64]:
        """Positions of one client's samples."""

    def __len__(self) -> int:
        """Clients in the population."""


@dataclass(frozen=True)
class DrawnIndices:
    """Every client draws its samples by formula: nothing is stored per client.

    Guarantees: a client's samples are `samples_per_client` distinct positions below `num_samples`, a uniform subset,
    independent between clients, and a function of (`key`, client id) alone: neither the number of clients nor the order
    of requests changes them. Two clients may share samples.
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
        rng = stream(self.key, "samples", client)
        return rng.choice(self.num_samples, size=self.samples_per_client, replace=False)

    def __len__(self) -> int:
        return self.num_clients


def holding_sizes(holdings: Holdings) -> NDArray[np.int64]:
    """(num_clients,) number of samples of each client."""
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
    sizes = _rounded(num_clients * np.asarray(ratio, dtype=np.float64) / float(sum(ratio)), num_clients)
    if sizes.min() < 1:
        spelled = ":".join(f"{share:g}" for share in ratio)
        raise ConfigError(f"num_clients = {num_clients} leaves a group of {spelled} empty; raise num_clients.")
    return sizes


def _rounded(exact: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers of sum `total`: the largest remainders are rounded up, the earlier one of equal ones."""
    sizes = np.floor(exact).astype(np.int64)
    largest_first = np.argsort(-np.round(exact - sizes, 9), kind="stable")
    sizes[largest_first[: total - int(sizes.sum())]] += 1
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
        dealt.update(zip(clients.tolist(), shares, strict=False))  # a smaller group leaves the last shares unused
    return tuple(dealt[client] for client in range(len(groups)))


MAX_ROTATIONS = 4


@dataclass(frozen=True, eq=False, repr=False)
class ImageStore:
    """Images stored once; a client's are picked, turned, normalised and relabelled on request."""

    dataset: ImageDataset
    indices: Holdings
    turns: NDArray[np.int64]  # (num_clients,) quarter turns
    names: NDArray[np.int64]  # (num_clients,) the group whose class names a client uses (`flipped`)

    def client(self, client: int) -> tuple[NDArray[np.float32], Labels]:
        """The images of one client, (size, channels, height, width) normalised, and their labels."""
        picked, dataset = self.indices[client], self.dataset
        inputs = dataset.inputs(dataset.train_images[picked], int(self.turns[client]))
        return inputs, flipped(dataset.train_labels[picked], int(self.names[client]), dataset.num_classes)


def _population(
    name: str, store: ImageStore, tests: Iterable[TestSet], *, groups: NDArray[np.int64], num_groups: int
) -> FederatedData:
    """A test set for each group; or for each client, where there are no groups."""
    return FederatedData(
        name=name,
        num_classes=store.dataset.num_classes,
        input_shape=store.dataset.input_shape,
        sizes=holding_sizes(store.indices),
        groups=groups,
        num_groups=num_groups,
        store=store,
        test_sets=tuple(tests),
        test_of=groups.copy() if num_groups else np.arange(len(groups)),
    )


def rotated_images(
    name: str, dataset: ImageDataset, *, indices: Holdings, groups: NDArray[np.int64], num_groups: int
) -> FederatedData:
    """The population in which group g sees its images turned by 90 * g degrees, counter-clockwise.

    A client's test set is the whole test part of `dataset` in its group's rotation. `ConfigError` for images
    that are not square, or more groups than there are rotations.
    """
    _, height, width = dataset.input_shape
    if num_groups > MAX_ROTATIONS or height != width:
        raise ConfigError(
            f"{num_groups} rotations of {height} x {width} images: quarter turns need square images and give "
            f"at most {MAX_ROTATIONS} groups; lower num_groups."
        )
    tests = (
        TestSet(dataset.test_labels, partial(dataset.inputs, dataset.test_images, turns)) for turns in range(num_groups)
    )
    store = ImageStore(dataset, indices, turns=groups, names=np.zeros_like(groups))
    return _population(name, store, tests, groups=groups, num_groups=num_groups)


def flipped(labels: Labels, group: int, num_classes: int) -> Labels:
    """The public permutation of group g: class y is called (y + g) mod num_classes; group 0 keeps the true names.

    Guarantees: a permutation of the classes; two groups of fewer than `num_classes` disagree on every class, so a model
    that is right for one is wrong for all others.
    """
    return (labels + group) % num_classes


def flipped_images(
    name: str, dataset: ImageDataset, *, indices: Holdings, groups: NDArray[np.int64], num_groups: int
) -> FederatedData:
    """The population in which group g calls class y by the name (y + g) mod num_classes.

    A client's test set is the whole test part of `dataset` under its group's names. `ConfigError` for more groups than
    classes.
    """
    classes = dataset.num_classes
    if num_groups > classes:
        raise ConfigError(f"{num_groups} groups need as many classes, but {name} has {classes}; lower num_groups.")
    true = TestSet(dataset.test_labels, partial(dataset.inputs, dataset.test_images))  # normalised once for all groups
    tests = (TestSet(flipped(dataset.test_labels, g, classes), lambda: true.inputs) for g in range(num_groups))
    store = ImageStore(dataset, indices, turns=np.zeros_like(groups), names=groups)
    return _population(name, store, tests, groups=groups, num_groups=num_groups)


LEAST_IMAGES = 10  # of a client
TEST_IMAGES = 100  # per client


def split_dirichlet(
    labels: Labels, num_clients: int, *, concentration: float, rng: Rng, at_least: int = LEAST_IMAGES
) -> Indices:
    """Deal all samples to the clients, every class in proportions drawn from Dirichlet(concentration).

    Guarantees: every sample goes to exactly one client; every client has `at_least` samples, filled up from the
    largest where the draw gave it fewer. A `ConfigError` when clients have fewer than twice that on average: filling up
    would then undo the draw.
    """
    checks.count(num_clients=num_clients)
    checks.positive(concentration=concentration)
    if 2 * at_least * num_clients > len(labels):
        most = len(labels) // (2 * at_least)
        raise ConfigError(
            f"num_clients = {num_clients} leaves {len(labels) / num_clients:.1f} training samples per client, too few "
            f"to give each at least {at_least} and still differ; use at most {most} clients or a larger dataset."
        )
    dealt: list[list[NDArray[np.int64]]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == label))
        shares = _dirichlet_shares(num_clients, concentration, rng)
        cuts = np.rint(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
        for client, part in enumerate(np.split(samples, cuts)):
            dealt[client].append(part)
    return _filled([np.concatenate(parts) for parts in dealt], at_least, rng)


def _dirichlet_shares(num_clients: int, concentration: float, rng: Rng) -> NDArray[np.float64]:
    """A draw from the Dirichlet distribution; where it underflows (tiny concentrations) one client has all."""
    shares = rng.dirichlet(np.full(num_clients, concentration))
    if np.isfinite(shares).all() and np.isclose(shares.sum(), 1.0):
        return shares
    alone = np.zeros(num_clients)
    alone[rng.integers(num_clients)] = 1.0
    return alone


def _filled(parts: list[NDArray[np.int64]], at_least: int, rng: Rng) -> Indices:
    """Give every client below `at_least` random samples of the largest client, one at a time."""
    held = [part.tolist() for part in parts]
    sizes = np.array([len(part) for part in held])
    for client in np.flatnonzero(sizes < at_least).tolist():
        while sizes[client] < at_least:
            donor = int(sizes.argmax())
            held[client].append(held[donor].pop(int(rng.integers(sizes[donor]))))
            sizes[client] += 1
            sizes[donor] -= 1
    return tuple(np.array(part, dtype=np.int64) for part in held)


def draw_like(labels: Labels, like: Labels, *, count: int, rng: Rng) -> NDArray[np.int64]:
    """Positions in `labels` of about `count` samples without repeats, in the label proportions of `like`.

    Per class: `count` times its share in `like`, rounded by largest remainders (the lower class first), but no more
    than there are.
    """
    classes, held = np.unique(like, return_counts=True)
    picked = []
    for label, number in zip(classes.tolist(), _rounded(count * held / held.sum(), count).tolist(), strict=True):
        samples = np.flatnonzero(labels == label)
        picked.append(rng.choice(samples, size=min(number, len(samples)), replace=False))
    return np.concatenate(picked)


def dirichlet_images(
    name: str, dataset: ImageDataset, *, num_clients: int, concentration: float, rng: Rng
) -> FederatedData:
    """The population whose clients hold shares of every class drawn from a Dirichlet distribution; no true groups.

    - Training images. For every class, the clients' shares of it are one draw from a symmetric Dirichlet distribution
      over the clients, with parameter `concentration`; the images of the class, in random order, are cut in these
      proportions. Small concentrations give a client few classes. Every image goes to exactly one client.
    - At least ten images each. A client the draw leaves with fewer, or none, is filled up to ten: each missing image is
      taken at random from the client that has most at that moment.
    - Test images. A client is tested on 100 images drawn from the test part without replacement, in the label
      proportions of its training images: 100 times the proportions, rounded by largest remainders. Of a class that the
      test part has fewer images of, all are taken, and the client's set is that much smaller. Test sets may overlap.

    A `ConfigError` where a client's classes have no test image at all.
    """
    indices = split_dirichlet(dataset.train_labels, num_clients, concentration=concentration, rng=rng)
    tests = []
    for client, part in enumerate(indices):
        picked = draw_like(dataset.test_labels, dataset.train_labels[part], count=TEST_IMAGES, rng=rng)
        if not len(picked):
            raise ConfigError(f"client {client} has classes without a test image in {name}; use another dataset.")
        tests.append(TestSet(dataset.test_labels[picked], partial(dataset.test_inputs, picked), keep=False))
    nobody = np.zeros(num_clients, dtype=np.int64)
    return _population(name, ImageStore(dataset, indices, nobody, nobody), tests, groups=nobody, num_groups=0)
