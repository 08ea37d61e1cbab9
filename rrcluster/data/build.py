"""From names to clients: load a dataset of the catalogue and divide it by a partition."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks, registry
from rrcluster.data.catalogue import IMAGE_PARTITIONS, SOURCES, Source
from rrcluster.data.federated import FederatedData
from rrcluster.data.images import ImageDataset
from rrcluster.data.partition import (
    DrawnIndices,
    Holdings,
    assign_groups,
    dirichlet_images,
    flipped_images,
    rotated_images,
    split_equally,
    split_reusing,
)
from rrcluster.data.shakespeare import by_role
from rrcluster.data.synthetic import SCENARIOS, linear_regression, noisy_lines
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng, stream

Folder = str | os.PathLike[str] | None

DRAWN_SAMPLES = 40  # of a client that draws its images by formula; as many as 1,000 clients of fashion-mini have


@dataclass(frozen=True)
class Request:
    """The settings of a population, with all defaults."""

    data: str
    num_clients: int
    ratio: tuple[float, ...]  # of the groups; () without groups
    reuse: bool
    samples_per_client: int | None  # None: images are dealt out if there are enough
    concentration: float
    folder: Folder
    rng: Rng


@dataclass(frozen=True)
class Partition:
    """A way in which clients differ: proportions of the groups, supported settings, and constructor."""

    description: str
    ratio: tuple[float, ...]  # () without true groups
    build: Callable[[Request], FederatedData]
    settings: frozenset[str] = frozenset()  # of `load_federated`, besides those that every partition supports


def load_dataset(name: str, folder: Folder = None) -> ImageDataset:
    """The images called `name`, from files on this machine; never downloads.

    `ConfigError` for an unknown name, `DataError` for missing or damaged files.
    """
    dataset = _load(name, folder) if "rotation" in find_source(name).partitions else None
    if not isinstance(dataset, ImageDataset):
        raise ConfigError(f"data = {name!r} holds no images; choose one of {', '.join(IMAGES)}.")
    return dataset


def find_source(name: str) -> Source:
    """The dataset's entry in the catalogue, or one for a dataset registered with a function of a folder."""
    registry.DATASETS.check(data=name)
    if name in SOURCES:
        return SOURCES[name]
    entry = registry.DATASETS[name]
    return Source(
        name,
        entry.label,
        "registered at run time",
        "stated by its author",
        entry.facts.get("num_classes", 0),
        entry.facts.get("usual_model", "linear"),
        partitions=entry.facts.get("partitions", IMAGE_PARTITIONS),
    )


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
    source = find_source(data)
    chosen, name = _partition_of(data, partition)
    options = {
        "num_groups": num_groups,
        "ratio": ratio,
        "reuse": reuse,
        "samples_per_client": samples_per_client,
        "concentration": concentration,
    }
    for setting in sorted(setting for setting, value in options.items() if value is not None):
        if setting not in chosen.settings:
            raise ConfigError(f"{setting} is not supported by {name}; remove it.")
    request = Request(
        data=data,
        num_clients=checks.count(num_clients=num_clients),
        ratio=_ratio(partition or data, chosen.ratio, num_groups, ratio),
        reuse=source.reuse if reuse is None else reuse,
        samples_per_client=samples_per_client,
        concentration=checks.positive(concentration=0.5 if concentration is None else concentration),
        folder=folder,
        rng=stream(seed, "partition"),
    )
    return chosen.build(request)


def _split(dataset: ImageDataset, groups: NDArray[np.int64], request: Request) -> Holdings:
    """The images of each client: dealt out, or drawn by formula if requested or necessary."""
    images, each, rng = len(dataset.train_labels), request.samples_per_client, request.rng
    if each is None and request.reuse and np.bincount(groups).max() > images:
        each = min(DRAWN_SAMPLES, images)
    if each is not None:
        return DrawnIndices(int(rng.integers(2**62)), len(groups), images, each)
    if request.reuse:
        return split_reusing(dataset.train_labels, groups, rng=rng)
    return split_equally(dataset.train_labels, len(groups), rng=rng)


def _load(name: str, folder: Folder) -> Any:
    if name not in SOURCES:
        return registry.DATASETS.load(name)(folder)
    module, function = SOURCES[name].load.split(":")
    load = getattr(import_module(module), function)
    return load() if SOURCES[name].bundled else load(folder)


def _groups(shift: Callable[..., FederatedData], request: Request) -> FederatedData:
    """Clients in groups that differ by `shift`: `rotated_images` or `flipped_images`."""
    dataset = load_dataset(request.data, request.folder)
    groups = assign_groups(request.num_clients, request.ratio, rng=request.rng)
    indices = _split(dataset, groups, request)
    return shift(request.data, dataset, indices=indices, groups=groups, num_groups=len(request.ratio))


def _dirichlet(request: Request) -> FederatedData:
    dataset, clients = load_dataset(request.data, request.folder), request.num_clients
    return dirichlet_images(
        request.data, dataset, num_clients=clients, concentration=request.concentration, rng=request.rng
    )


def _role(request: Request) -> FederatedData:
    roles = _load(request.data, request.folder)
    return by_role(request.data, roles, num_clients=request.num_clients, rng=request.rng)


def _synthetic(request: Request) -> FederatedData:
    samples = 60 if request.samples_per_client is None else request.samples_per_client
    return linear_regression(
        num_clients=request.num_clients, ratio=request.ratio, samples_per_client=samples, rng=request.rng
    ).data


def _lines(request: Request) -> FederatedData:
    noise_std = SCENARIOS[request.data].noise_std
    return noisy_lines(
        request.data, num_clients=request.num_clients, ratio=request.ratio, noise_std=noise_std, rng=request.rng
    )


IMAGES = tuple(name for name, source in SOURCES.items() if "rotation" in source.partitions)

_EQUAL = (1, 1, 1, 1)
_GROUPED = frozenset({"num_groups", "ratio"})
_GENERATED = _GROUPED | {"samples_per_client"}
_DEALT = _GENERATED | {"reuse"}
_ROTATION = partial(_groups, rotated_images)
PARTITIONS: dict[str, Partition] = {
    "rotation": Partition("images turned by 0, 90, 180 or 270 degrees, equal groups", _EQUAL, _ROTATION, _DEALT),
    "rotation-imbalanced": Partition(
        "images turned by 0, 90 or 180 degrees, groups 2:1:1", (2, 1, 1), _ROTATION, _DEALT
    ),
    "dirichlet": Partition(
        "label proportions drawn from a Dirichlet distribution, no groups", (), _dirichlet, frozenset({"concentration"})
    ),
    "role": Partition("one client per speaking role, no groups", (), _role),
    "label-flip": Partition("classes renamed by group, equal groups", _EQUAL, partial(_groups, flipped_images), _DEALT),
}
GENERATED: dict[str, Partition] = {
    "synthetic": Partition("a dataset that draws its own groups", _EQUAL, _synthetic, _GENERATED),
    **{
        name: Partition("a dataset that draws its own groups", scenario.ratio, _lines, _GROUPED)
        for name, scenario in SCENARIOS.items()
    },
}


def _partition_of(data: str, partition: str | None) -> tuple[Partition, str]:
    """The named partition, or the dataset's own, and its name for errors; `ConfigError` if it does not fit."""
    if data in GENERATED:
        if partition is not None:
            raise ConfigError(f"data = '{data}' draws its own groups; remove partition and reuse.")
        return GENERATED[data], f"data = '{data}'"
    fitting = find_source(data).partitions
    chosen = checks.one_of(PARTITIONS, partition=partition or fitting[0])
    if chosen not in fitting:
        raise ConfigError(f"partition = '{chosen}' cannot divide {data}; choose one of {', '.join(fitting)}.")
    return PARTITIONS[chosen], f"partition = '{chosen}'"


def _ratio(
    name: str, default: tuple[float, ...], num_groups: int | None, ratio: Sequence[float] | None
) -> tuple[float, ...]:
    """The proportions of the groups: `ratio` if given, else the default.

    A default with equal proportions is made as long as `num_groups`; any other mismatch is an error.
    """
    shares = tuple(ratio) if ratio is not None else default
    if num_groups is None or num_groups == len(shares):
        return shares
    checks.count(num_groups=num_groups)
    if ratio is None and len(set(default)) == 1:
        return (default[0],) * num_groups
    spelled = ":".join(f"{share:g}" for share in shares)
    raise ConfigError(f"num_groups = {num_groups} does not fit the ratio {spelled} of {name}; give a ratio to match.")
