"""From names to data: the datasets that can be loaded and the partitions they can be given."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rrcluster import checks
from rrcluster.data.fashion_mini import load_fashion_mini
from rrcluster.data.fashion_mnist import load_fashion_mnist
from rrcluster.data.federated import FederatedData
from rrcluster.data.images import ImageDataset
from rrcluster.data.partition import assign_groups, split_equally, split_reusing
from rrcluster.data.rotated import rotated_images
from rrcluster.data.sources import SOURCES
from rrcluster.data.synthetic import linear_regression
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng, stream

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Partition:
    """How clients differ: what a group is, and the groups' sizes in proportion."""

    description: str
    ratio: tuple[float, ...]
    build: Callable[..., FederatedData]


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
    folder: Folder = None,
) -> FederatedData:
    """The population of `num_clients` that a dataset and a partition make; the same for the same arguments.

    `partition` defaults to rotation; the synthetic dataset draws its own groups and takes none. `num_groups`
    or `ratio` replace the partition's groups and their proportions. `reuse` lets every rotation use all
    images instead of dealing each image once; by default only fashion-mini does. All randomness is
    `stream(seed, "partition")`.
    """
    checks.one_of(SOURCES, data=data)
    rng = stream(seed, "partition")
    if data == "synthetic":
        if partition is not None or reuse is not None:
            raise ConfigError("data = 'synthetic' draws its own groups; leave partition and reuse out.")
        shares = _ratio("synthetic", (1, 1, 1, 1), num_groups, ratio)
        return linear_regression(num_clients=num_clients, ratio=shares, rng=rng).data
    name = checks.one_of(PARTITIONS, partition=partition or "rotation")
    chosen = PARTITIONS[name]
    return chosen.build(
        data,
        load_dataset(data, folder),
        num_clients=num_clients,
        ratio=_ratio(name, chosen.ratio, num_groups, ratio),
        reuse=data in REUSED if reuse is None else reuse,
        rng=rng,
    )


def rotation(
    name: str, dataset: ImageDataset, *, num_clients: int, ratio: Sequence[float], reuse: bool, rng: Rng
) -> FederatedData:
    """Clients in len(ratio) groups, each with its own rotation of the images."""
    groups = assign_groups(num_clients, ratio, rng=rng)
    if reuse:
        indices = split_reusing(dataset.train_labels, groups, rng=rng)
    else:
        indices = split_equally(dataset.train_labels, num_clients, rng=rng)
    return rotated_images(name, dataset, indices=indices, groups=groups, num_groups=len(ratio))


IMAGES: dict[str, Callable[[Folder], ImageDataset]] = {
    "fashion-mnist": load_fashion_mnist,
    "fashion-mini": lambda folder: load_fashion_mini(),  # noqa: ARG005  # bundled: there is no other folder
}
REUSED = frozenset({"fashion-mini"})  # too small to give every client images of its own
PARTITIONS: dict[str, Partition] = {
    "rotation": Partition("images turned by 0, 90, 180 or 270 degrees, equal groups", (1, 1, 1, 1), rotation),
    "rotation-imbalanced": Partition("images turned by 0, 90 or 180 degrees, groups 2:1:1", (2, 1, 1), rotation),
}


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
