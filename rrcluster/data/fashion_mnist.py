"""FashionMNIST from its four official files."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rrcluster.data import idx
from rrcluster.data.images import ImageDataset
from rrcluster.data.sources import SOURCES, locate, ways_out
from rrcluster.errors import DataError

NUM_CLASSES = 10
MEAN, STD = 0.2860, 0.3530  # of pixel / 255 over the training images

_SIDE = 28


def load_fashion_mnist(folder: str | os.PathLike[str] | None = None) -> ImageDataset:
    """The 60,000 training and 10,000 test images, from `folder` or the first place that has all four files.

    Guarantees: every file is a whole idx file, images and labels match in number, labels are classes, and the
    content has the official sha256; else a `DataError` that names the file and the ways to a good copy.
    Downloads nothing.
    """
    paths = locate("fashion-mnist", folder)
    train_images, train_labels = _read_part(paths, "train")
    test_images, test_labels = _read_part(paths, "t10k")
    digests = {file.name: file.sha256 for file in SOURCES["fashion-mnist"].files}
    for part, images, labels in (("train", train_images, train_labels), ("t10k", test_images, test_labels)):
        _check_digest(paths[_images(part)], images, digests[_images(part)])
        _check_digest(paths[_labels(part)], labels, digests[_labels(part)])
    return ImageDataset(
        train_images,
        train_labels.astype(np.int64),
        test_images,
        test_labels.astype(np.int64),
        NUM_CLASSES,
        MEAN,
        STD,
    )


def _images(part: str) -> str:
    return f"{part}-images-idx3-ubyte"


def _labels(part: str) -> str:
    return f"{part}-labels-idx1-ubyte"


def _read_part(paths: dict[str, Path], part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The images and labels of one part; a label out of range or a count that differs names the file."""
    path = paths[_labels(part)]
    images = idx.read(paths[_images(part)], shape=(None, _SIDE, _SIDE))
    labels = idx.read(path, shape=(None,))
    if len(images) != len(labels):
        _refuse(path, f"one label for each of {len(images)} images", f"{len(labels)} labels")
    if len(labels) and labels.max() >= NUM_CLASSES:
        _refuse(path, f"labels from 0 to {NUM_CLASSES - 1}", f"labels up to {labels.max()}")
    return images, labels


def _check_digest(path: Path, values: NDArray[np.uint8], expected: str) -> None:
    found = idx.sha256(values)
    if found != expected:
        _refuse(path, f"content with sha256 {expected[:12]}...", f"{found[:12]}...")


def _refuse(path: Path, expected: str, found: str) -> None:
    raise DataError(f"{path} is not the official file: expected {expected}, found {found}. {ways_out('fashion-mnist')}")
