"""A set of small images with labels, grey or in colour, checked once, at the door."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rrcluster.errors import DataError

Images = NDArray[np.uint8]  # (N, height, width) grey, or (N, channels, height, width)
Labels = NDArray[np.int64]  # (N,)
Level = float | tuple[float, ...]  # one number for all pixels, or one per channel


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Training and test images with labels, and the mean and std of pixel / 255 to normalise them with.

    Guarantees: images are uint8, (N, height, width) or (N, channels, height, width), of one shape in both parts; one
    label per image, every label in [0, num_classes), no part empty; `mean` and `std` are one number, or one per
    channel. Labels are kept as int64.
    """

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    num_classes: int
    mean: Level
    std: Level

    def __post_init__(self) -> None:
        """Check shapes, counts and labels; raise `DataError` naming what does not fit."""
        _check_part("train", self.train_images, self.train_labels, self.num_classes)
        _check_part("test", self.test_images, self.test_labels, self.num_classes)
        train, test = self.train_images.shape[1:], self.test_images.shape[1:]
        if train != test:
            raise DataError(f"train images are {train} but test images are {test}; they must be of one size.")
        _check_levels(self.mean, self.std, self.channels)
        object.__setattr__(self, "train_labels", self.train_labels.astype(np.int64))
        object.__setattr__(self, "test_labels", self.test_labels.astype(np.int64))

    @property
    def channels(self) -> int:
        """1 for grey images."""
        return 1 if self.train_images.ndim == 3 else self.train_images.shape[1]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what a model sees."""
        height, width = self.train_images.shape[-2:]
        return self.channels, height, width


def normalise(images: Images, *, mean: Level, std: Level) -> NDArray[np.float32]:
    """(pixel / 255 - mean) / std in float32, as one multiplication and one addition; any shape.

    Levels per channel belong to the third axis from the end.
    """
    centre, spread = (np.asarray(level, dtype=np.float64) for level in (mean, std))
    if centre.ndim or spread.ndim:
        centre, spread = centre.reshape(-1, 1, 1), spread.reshape(-1, 1, 1)
    values = np.multiply(images, (1.0 / (255.0 * spread)).astype(np.float32), dtype=np.float32)
    values -= (centre / spread).astype(np.float32)
    return values


def oriented(images: Images, turns: int, mean: Level, std: Level) -> NDArray[np.float32]:
    """Images turned by 90 * `turns` degrees counter-clockwise and normalised: (n, channels, height, width)."""
    turned = np.rot90(images, k=turns, axes=(-2, -1))
    return normalise(turned[:, None] if images.ndim == 3 else turned, mean=mean, std=std)


def _check_levels(mean: Level, std: Level, channels: int) -> None:
    for level in (np.asarray(mean), np.asarray(std)):
        if level.shape not in ((), (channels,)):
            raise DataError(f"mean and std must be one number or one for each of {channels} channels.")
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and np.min(std) > 0):
        raise DataError(f"mean = {mean} and std = {std} must be finite, and std greater than 0.")


def _check_part(part: str, images: Images, labels: Labels, num_classes: int) -> None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        expected = "uint8 (N, height, width) or (N, channels, height, width)"
        raise DataError(f"{part} images must be {expected}, found {images.dtype} {images.shape}.")
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        raise DataError(f"{part} labels must be integers (N,), found {labels.dtype} {labels.shape}.")
    if len(images) != len(labels) or len(images) == 0:
        raise DataError(f"{part} has {len(images)} images and {len(labels)} labels; it needs one label per image.")
    if labels.min() < 0 or labels.max() >= num_classes:
        found = f"{labels.min()} to {labels.max()}"
        raise DataError(f"{part} labels must lie in 0 to {num_classes - 1}, found {found}.")
