"""Images whose orientation depends on the client's group: the population of the rotation partitions."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.federated import FederatedData, TestSet
from rrcluster.data.images import ImageDataset, Images, Labels, Level, oriented
from rrcluster.data.partition import Holdings, holding_sizes
from rrcluster.errors import ConfigError

MAX_ROTATIONS = 4


@dataclass(frozen=True, eq=False)
class RotatedImages:
    """Images stored once; a client's are picked, turned and normalised when asked for."""

    images: Images
    labels: Labels
    indices: Holdings
    turns: NDArray[np.int64]  # (num_clients,) quarter turns
    mean: Level
    std: Level

    def client(self, client: int) -> tuple[NDArray[np.float32], Labels]:
        """The images of one client, (size, channels, height, width) normalised, and their labels."""
        picked = self.indices[client]
        inputs = oriented(self.images[picked], int(self.turns[client]), self.mean, self.std)
        return inputs, self.labels[picked]


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
    mean, std = dataset.mean, dataset.std
    tests = (
        TestSet(dataset.test_labels, partial(oriented, dataset.test_images, turns, mean, std))
        for turns in range(num_groups)
    )
    return FederatedData(
        name=name,
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        sizes=holding_sizes(indices),
        groups=groups,
        num_groups=num_groups,
        store=RotatedImages(dataset.train_images, dataset.train_labels, indices, groups, mean, std),
        test_sets=tuple(tests),
        test_of=groups.copy(),
    )
