"""From names to data: the datasets that can be loaded and the partitions they can be given."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.data.cifar import load_cifar10, load_cifar100
from rrcluster.data.dirichlet import dirichlet
from rrcluster.data.emnist import load_emnist, load_emnist_balanced, load_emnist_bymerge
from rrcluster.data.fashion_mini import load_fashion_mini
from rrcluster.data.fashion_mnist import load_fashion_mnist
from rrcluster.data.federated import FederatedData
from rrcluster.data.flipped import flipped_images
from rrcluster.data.images import ImageDataset
from rrcluster.data.lines import SCENARIOS, noisy_lines
from rrcluster.data.partition import DrawnIndices, Holdings, assign_groups, split_equally, split_reusing
from rrcluster.data.rotated import rotated_images
from rrcluster.data.shakespeare import by_role, load_shakespeare
from rrcluster.data.sources import SOURCES
from rrcluster.data.synthetic import linear_regression
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng, stream

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Request:
    """What is asked of a partition, all defaults filled in."""

    data: str
    num_clients: int
    ratio: tuple[float, ...]  # of the groups; () where there are none
    reuse: bool
    samples_per_client: int | None  # None: images are dealt out where there are enough
    concentration: float
    folder: Folder
    rng: Rng


@dataclass(frozen=True)
class Partition:
    """How clients differ: what a group is, the groups' sizes in proportion, which data it divides, what it heeds."""

    description: str
    ratio: tuple[float, ...]  # () where there are no true groups
    build: Callable[[Request], FederatedData]
    divides: tuple[str, ...]  # datasets
    settings: frozenset[str]  # of `load_federated`, besides those that all heed


def load_dataset(name: str, folder: Folder = None) -> ImageDataset:
    """The images called `name`, from files that are here; never downloads.

    `ConfigError` for an unknown name, `DataError` for missing or damaged files.
    """
    return IMAGES[checks.one_of(IMAGES, data=name)](folder)


def load_federated(
    data: str,
    *,
    num_clients: int,
    seed: int,
    partition: str | None = None,
    num_groups: int | None = None,
    ratio: Sequence[float] | None = None,
    reuse: bool | None = None,
    samples_per_client: int | None = None,
    concentration: float | None = None,
    folder: Folder = None,
) -> FederatedData:
    """The population of `num_clients` that a dataset and a partition make; the same for the same arguments.

    `partition` defaults to rotation for images and to role for Shakespeare; the synthetic datasets draw their own
    groups and take none. `num_groups` or `ratio` replace the partition's groups and their proportions. `reuse` lets
    every group use all images instead of dealing each image once; by default only fashion-mini does.
    `samples_per_client` deals nothing: every client draws that many images for itself, by formula (`DrawnIndices`), so
    that a population of any size costs nothing to make; without it, a population that reuses images and has more
    clients in a group than there are images draws `DRAWN_SAMPLES` each. Synthetic populations of more than
    `HELD_CLIENTS` clients are generated client by client when asked for. `concentration` (default 0.5) belongs to the
    partition dirichlet. All randomness is `stream(seed, "partition")`.
    """
    checks.one_of(SOURCES, data=data)
    chosen = _partition_of(data, partition)
    given = {
        "num_groups": num_groups,
        "ratio": ratio,
        "reuse": reuse,
        "samples_per_client": samples_per_client,
        "concentration": concentration,
    }
    idle = sorted(name for name, value in given.items() if value is not None and name not in chosen.settings)
    if idle:
        raise ConfigError(f"{idle[0]} = {given[idle[0]]} means nothing to {chosen.description}; leave {idle[0]} out.")
    request = Request(
        data=data,
        num_clients=checks.count(num_clients=num_clients),
        ratio=_ratio(partition or data, chosen.ratio, num_groups, ratio),
        reuse=data in REUSED if reuse is None else reuse,
        samples_per_client=samples_per_client,
        concentration=checks.positive(concentration=0.5 if concentration is None else concentration),
        folder=folder,
        rng=stream(seed, "partition"),
    )
    return chosen.build(request)


def rotation(
    name: str,
    dataset: ImageDataset,
    *,
    num_clients: int,
    ratio: Sequence[float],
    reuse: bool,
    rng: Rng,
    samples_per_client: int | None = None,
) -> FederatedData:
    """Clients in len(ratio) groups, each with its own rotation of the images."""
    groups = assign_groups(num_clients, ratio, rng=rng)
    indices = _split(dataset, groups, reuse=reuse, samples_per_client=samples_per_client, rng=rng)
    return rotated_images(name, dataset, indices=indices, groups=groups, num_groups=len(ratio))


def label_flip(
    name: str,
    dataset: ImageDataset,
    *,
    num_clients: int,
    ratio: Sequence[float],
    reuse: bool,
    rng: Rng,
    samples_per_client: int | None = None,
) -> FederatedData:
    """Clients in len(ratio) groups, each with its own names for the classes."""
    groups = assign_groups(num_clients, ratio, rng=rng)
    indices = _split(dataset, groups, reuse=reuse, samples_per_client=samples_per_client, rng=rng)
    return flipped_images(name, dataset, indices=indices, groups=groups, num_groups=len(ratio))


def _split(
    dataset: ImageDataset, groups: NDArray[np.int64], *, reuse: bool, samples_per_client: int | None, rng: Rng
) -> Holdings:
    """Who holds which images: dealt out, or drawn by formula where that is asked for or the only way."""
    images = len(dataset.train_labels)
    if samples_per_client is None and reuse and np.bincount(groups).max() > images:
        samples_per_client = min(DRAWN_SAMPLES, images)
    if samples_per_client is not None:
        return DrawnIndices(int(rng.integers(2**62)), len(groups), images, samples_per_client)
    if reuse:
        return split_reusing(dataset.train_labels, groups, rng=rng)
    return split_equally(dataset.train_labels, len(groups), rng=rng)


def _rotation(it: Request) -> FederatedData:
    dataset = load_dataset(it.data, it.folder)
    return rotation(
        it.data,
        dataset,
        num_clients=it.num_clients,
        ratio=it.ratio,
        reuse=it.reuse,
        samples_per_client=it.samples_per_client,
        rng=it.rng,
    )


def _label_flip(it: Request) -> FederatedData:
    dataset = load_dataset(it.data, it.folder)
    return label_flip(
        it.data,
        dataset,
        num_clients=it.num_clients,
        ratio=it.ratio,
        reuse=it.reuse,
        samples_per_client=it.samples_per_client,
        rng=it.rng,
    )


def _dirichlet(it: Request) -> FederatedData:
    dataset = load_dataset(it.data, it.folder)
    return dirichlet(it.data, dataset, num_clients=it.num_clients, concentration=it.concentration, rng=it.rng)


def _role(it: Request) -> FederatedData:
    return by_role(it.data, load_shakespeare(it.folder), num_clients=it.num_clients, rng=it.rng)


def _synthetic(it: Request) -> FederatedData:
    own = 60 if it.samples_per_client is None else it.samples_per_client
    return linear_regression(num_clients=it.num_clients, ratio=it.ratio, samples_per_client=own, rng=it.rng).data


def _lines(it: Request) -> FederatedData:
    noise_std = SCENARIOS[it.data].noise_std
    return noisy_lines(it.data, num_clients=it.num_clients, ratio=it.ratio, noise_std=noise_std, rng=it.rng)


IMAGES: dict[str, Callable[[Folder], ImageDataset]] = {
    "fashion-mnist": load_fashion_mnist,
    "fashion-mini": lambda folder: load_fashion_mini(),  # noqa: ARG005  # bundled: there is no other folder
    "emnist": load_emnist,
    "emnist-balanced": load_emnist_balanced,
    "emnist-bymerge": load_emnist_bymerge,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
}
REUSED = frozenset({"fashion-mini"})  # too small to give every client images of its own
DRAWN_SAMPLES = 40  # of a client that draws its images by formula: what 1,000 clients of fashion-mini hold

_EQUAL, _IMAGES = (1, 1, 1, 1), tuple(IMAGES)
_GROUPED, _GENERATED = frozenset({"num_groups", "ratio"}), frozenset({"num_groups", "ratio", "samples_per_client"})
_DEALT = _GENERATED | {"reuse"}
PARTITIONS: dict[str, Partition] = {
    "rotation": Partition(
        "images turned by 0, 90, 180 or 270 degrees, equal groups", _EQUAL, _rotation, _IMAGES, _DEALT
    ),
    "rotation-imbalanced": Partition(
        "images turned by 0, 90 or 180 degrees, groups 2:1:1", (2, 1, 1), _rotation, _IMAGES, _DEALT
    ),
    "dirichlet": Partition(
        "label proportions drawn from a Dirichlet distribution, no groups",
        (),
        _dirichlet,
        _IMAGES,
        frozenset({"concentration"}),
    ),
    "role": Partition("one client per speaking role, no groups", (), _role, ("shakespeare",), frozenset()),
    "label-flip": Partition("classes renamed by group, equal groups", _EQUAL, _label_flip, _IMAGES, _DEALT),
}
GENERATED: dict[str, Partition] = {
    "synthetic": Partition("a dataset that draws its own groups", _EQUAL, _synthetic, ("synthetic",), _GENERATED),
    **{
        name: Partition("a dataset that draws its own groups", scenario.ratio, _lines, (name,), _GROUPED)
        for name, scenario in SCENARIOS.items()
    },
}


def _partition_of(data: str, partition: str | None) -> Partition:
    """The partition by name, or the dataset's own; a `ConfigError` that names those that fit."""
    if data in GENERATED:
        if partition is not None:
            raise ConfigError(f"data = '{data}' draws its own groups; leave partition and reuse out.")
        return GENERATED[data]
    fitting = [name for name, entry in PARTITIONS.items() if data in entry.divides]
    chosen = checks.one_of(PARTITIONS, partition=partition or fitting[0])
    if chosen not in fitting:
        raise ConfigError(f"partition = '{chosen}' does not divide {data}; choose one of {', '.join(fitting)}.")
    return PARTITIONS[chosen]


def _ratio(
    name: str, default: tuple[float, ...], num_groups: int | None, ratio: Sequence[float] | None
) -> tuple[float, ...]:
    """The proportions of the groups: `ratio` if given, else the default, resized if its groups are equal."""
    shares = tuple(ratio) if ratio is not None else default
    if num_groups is None or num_groups == len(shares):
        return shares
    checks.count(num_groups=num_groups)
    if ratio is None and len(set(default)) == 1:
        return (default[0],) * num_groups
    spelled = ":".join(f"{share:g}" for share in shares)
    raise ConfigError(f"num_groups = {num_groups} does not fit the ratio {spelled} of {name}; give a ratio to match.")
