"""A set of small grey images with labels, checked once, at the door."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rrcluster.errors import DataError

Images = NDArray[np.uint8]  # (N, height, width)
Labels = NDArray[np.int64]  # (N,)


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Training and test images with labels, and the mean and std of pixel / 255 to normalise them with.

    Guarantees: images are uint8 (N, height, width) with equal height and width in both parts, one label per
    image, every label in [0, num_classes), no part empty. Labels are kept as int64.
    """

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    num_classes: int
    mean: float
    std: float

    def __post_init__(self) -> None:
        """Check shapes, counts and labels; raise `DataError` naming what does not fit."""
        _check_part("train", self.train_images, self.train_labels, self.num_classes)
        _check_part("test", self.test_images, self.test_labels, self.num_classes)
        train, test = self.train_images.shape[1:], self.test_images.shape[1:]
        if train != test:
            raise DataError(f"train images are {train} but test images are {test}; they must be of one size.")
        if not (np.isfinite(self.mean) and np.isfinite(self.std) and self.std > 0):
            raise DataError(f"mean = {self.mean} and std = {self.std} must be finite, and std greater than 0.")
        object.__setattr__(self, "train_labels", self.train_labels.astype(np.int64))
        object.__setattr__(self, "test_labels", self.test_labels.astype(np.int64))


def normalise(images: Images, *, mean: float, std: float) -> NDArray[np.float32]:
    """(pixel / 255 - mean) / std in float32, as one multiplication and one addition; any shape."""
    values = np.multiply(images, np.float32(1.0 / (255.0 * std)), dtype=np.float32)
    values -= np.float32(mean / std)
    return values


def _check_part(part: str, images: Images, labels: Labels, num_classes: int) -> None:
    if images.dtype != np.uint8 or images.ndim != 3:
        raise DataError(f"{part} images must be uint8 (N, height, width), found {images.dtype} {images.shape}.")
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        raise DataError(f"{part} labels must be integers (N,), found {labels.dtype} {labels.shape}.")
    if len(images) != len(labels) or len(images) == 0:
        raise DataError(f"{part} has {len(images)} images and {len(labels)} labels; it needs one label per image.")
    if labels.min() < 0 or labels.max() >= num_classes:
        found = f"{labels.min()} to {labels.max()}"
        raise DataError(f"{part} labels must lie in 0 to {num_classes - 1}, found {found}.")
