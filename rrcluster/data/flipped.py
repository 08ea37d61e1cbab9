"""Concept shift: groups that see the same images and call them by different names."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.federated import ClientStore, FederatedData, Inputs, TestSet
from rrcluster.data.images import ImageDataset, Labels, oriented
from rrcluster.data.partition import Holdings, holding_sizes
from rrcluster.data.rotated import RotatedImages
from rrcluster.errors import ConfigError


def flipped(labels: Labels, group: int, num_classes: int) -> Labels:
    """The public permutation of group g: class y is called (y + g) mod num_classes; group 0 keeps the true names.

    Guarantees: a permutation of the classes; two groups of fewer than `num_classes` disagree on every class, so a model
    that is right for one is wrong for all others.
    """
    return (labels + group) % num_classes


@dataclass(frozen=True, eq=False)
class FlippedLabels:
    """Another store, with every client's labels permuted as its group's."""

    store: ClientStore
    groups: NDArray[np.int64]  # (num_clients,)
    num_classes: int

    def client(self, client: int) -> tuple[Inputs, Labels]:
        """The samples of one client, under the names its group uses."""
        inputs, labels = self.store.client(client)
        return inputs, flipped(labels, int(self.groups[client]), self.num_classes)


@dataclass(frozen=True, eq=False)
class _TestImages:
    """The test images, normalised once for all groups."""

    dataset: ImageDataset

    @cached_property
    def inputs(self) -> NDArray[np.float32]:
        return oriented(self.dataset.test_images, 0, self.dataset.mean, self.dataset.std)

    def __call__(self) -> NDArray[np.float32]:
        return self.inputs


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
    turns = np.zeros(len(indices), dtype=np.int64)
    store = RotatedImages(dataset.train_images, dataset.train_labels, indices, turns, dataset.mean, dataset.std)
    images = _TestImages(dataset)
    return FederatedData(
        name=name,
        num_classes=classes,
        input_shape=dataset.input_shape,
        sizes=holding_sizes(indices),
        groups=groups,
        num_groups=num_groups,
        store=FlippedLabels(store, groups, classes),
        test_sets=tuple(TestSet(flipped(dataset.test_labels, g, classes), images) for g in range(num_groups)),
        test_of=groups.copy(),
    )
