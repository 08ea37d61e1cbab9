"""Clients whose labels differ: shares of every class drawn from a Dirichlet distribution.

The protocol, in full:

- Training images. For every class, the clients' shares of it are one draw from a symmetric Dirichlet distribution over
  the clients, with parameter `concentration`; the images of the class, in random order, are cut in these proportions.
  Small concentrations give a client few classes. Every image goes to exactly one client.
- At least ten images each. A client the draw leaves with fewer, or none, is filled up to ten: each missing image is
  taken at random from the client that has most at that moment.
- Test images. A client is tested on 100 images drawn from the test part without replacement, in the label proportions
  of its training images: 100 times the proportions, rounded by largest remainders. Of a class that the test part has
  fewer images of, all are taken, and the client's set is that much smaller. Clients' test sets may overlap.
- There are no true groups.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.data.federated import FederatedData, TestSet
from rrcluster.data.images import ImageDataset, Labels, oriented
from rrcluster.data.partition import Indices
from rrcluster.data.rotated import RotatedImages
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng

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
        shares = _shares(num_clients, concentration, rng)
        cuts = np.rint(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
        for client, part in enumerate(np.split(samples, cuts)):
            dealt[client].append(part)
    return _filled([np.concatenate(parts) for parts in dealt], at_least, rng)


def _shares(num_clients: int, concentration: float, rng: Rng) -> NDArray[np.float64]:
    """A draw from the Dirichlet distribution; where it underflows (tiny concentrations) one client has all."""
    shares = rng.dirichlet(np.full(num_clients, concentration))
    if np.isfinite(shares).all() and np.isclose(shares.sum(), 1.0):
        return shares
    alone = np.zeros(num_clients)
    alone[rng.integers(num_clients)] = 1.0
    return alone


def _filled(parts: list[NDArray[np.int64]], at_least: int, rng: Rng) -> Indices:
    """Every client below `at_least` gets random samples of whoever has most, one at a time."""
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
    exact = count * held / held.sum()
    wanted = np.floor(exact).astype(np.int64)
    largest_first = np.argsort(-np.round(exact - wanted, 9), kind="stable")
    wanted[largest_first[: count - int(wanted.sum())]] += 1
    picked = []
    for label, number in zip(classes.tolist(), wanted.tolist(), strict=True):
        samples = np.flatnonzero(labels == label)
        picked.append(rng.choice(samples, size=min(number, len(samples)), replace=False))
    return np.concatenate(picked)


@dataclass(frozen=True, eq=False)
class _Picked:
    """Some of the test images, as the `make_inputs` of a test set."""

    dataset: ImageDataset
    picked: NDArray[np.int64]

    def __call__(self) -> NDArray[np.float32]:
        return oriented(self.dataset.test_images[self.picked], 0, self.dataset.mean, self.dataset.std)


def dirichlet(name: str, dataset: ImageDataset, *, num_clients: int, concentration: float, rng: Rng) -> FederatedData:
    """The population of the protocol above. A `ConfigError` where a client's classes have no test image at all."""
    indices = split_dirichlet(dataset.train_labels, num_clients, concentration=concentration, rng=rng)
    tests = []
    for client, part in enumerate(indices):
        picked = draw_like(dataset.test_labels, dataset.train_labels[part], count=TEST_IMAGES, rng=rng)
        if not len(picked):
            raise ConfigError(f"client {client} has classes without a test image in {name}; use another dataset.")
        tests.append(TestSet(dataset.test_labels[picked], _Picked(dataset, picked), keep=False))
    turns = np.zeros(num_clients, dtype=np.int64)
    return FederatedData(
        name=name,
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        sizes=np.array([len(part) for part in indices], dtype=np.int64),
        groups=np.zeros(num_clients, dtype=np.int64),
        num_groups=0,
        store=RotatedImages(dataset.train_images, dataset.train_labels, indices, turns, dataset.mean, dataset.std),
        test_sets=tuple(tests),
        test_of=np.arange(num_clients),
    )
