"""EMNIST with 47 classes, upright, from the official idx files."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.files import idx_sha256, read_idx
from rrcluster.data.images import ImageDataset, Images, Labels
from rrcluster.data.sources import SOURCES, locate, ways_out
from rrcluster.errors import DataError

NUM_CLASSES = 47
MEAN, STD = 0.1736, 0.3317  # of pixel / 255 over the ByMerge test images
TEST_EVERY = 5  # of the test file alone, one image in five of every class is for testing

_SIDE = 28
_Folder = str | os.PathLike[str] | None


def load_emnist(folder: _Folder = None) -> ImageDataset:
    """ByMerge's test file alone, divided 80/20: in the order of the file, every fifth image of a class is for testing.

    The division follows from the file: no seed. 93,074 training and 23,249 test images. Not comparable, number for
    number, with results on the official splits.
    """
    images, labels = _read_part("emnist", locate("emnist", folder), "bymerge-test")
    for_test = every_nth_per_class(labels, TEST_EVERY)
    return _dataset(images[~for_test], labels[~for_test], images[for_test], labels[for_test])


def load_emnist_balanced(folder: _Folder = None) -> ImageDataset:
    """The official Balanced split: 112,800 training and 18,800 test images, classes in equal parts."""
    return _official("emnist-balanced", "balanced", folder)


def load_emnist_bymerge(folder: _Folder = None) -> ImageDataset:
    """The official ByMerge split: 697,932 training and 116,323 test images."""
    return _official("emnist-bymerge", "bymerge", folder)


def every_nth_per_class(labels: Labels, n: int) -> NDArray[np.bool_]:
    """(N,) which labels are the n-th, 2n-th, ... of their class, in order: floor(count / n) of every class."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[n - 1 :: n]] = True
    return chosen


def _official(name: str, split: str, folder: _Folder) -> ImageDataset:
    """Guarantees: counts as published; the recorded sha256 where one is known; equal classes where that is so."""
    paths = locate(name, folder)
    train, test = (_read_part(name, paths, f"{split}-{part}") for part in ("train", "test"))
    if split == "balanced":
        for part, (_, labels) in (("train", train), ("test", test)):
            counts = np.bincount(labels, minlength=NUM_CLASSES)
            if counts.min() != counts.max():
                path = paths[f"emnist-balanced-{part}-labels-idx1-ubyte"]
                _refuse(name, path, "as many images of every class", f"{counts.min()} to {counts.max()}")
    return _dataset(*train, *test)


def _dataset(train: Images, train_labels: Labels, test: Images, test_labels: Labels) -> ImageDataset:
    return ImageDataset(train, train_labels, test, test_labels, NUM_CLASSES, MEAN, STD)


def _read_part(name: str, paths: dict[str, Path], part: str) -> tuple[Images, Labels]:
    """Upright images and labels of one part, every claim of its `SourceFile`s checked."""
    files = {file.name: file for file in SOURCES[name].files}
    images_file, labels_file = files[f"emnist-{part}-images-idx3-ubyte"], files[f"emnist-{part}-labels-idx1-ubyte"]
    count = labels_file.bytes - 8  # behind the header, a byte each
    way_out = ways_out(name).rstrip(".")
    images = read_idx(paths[images_file.name], shape=(count, _SIDE, _SIDE), way_out=way_out)
    labels = read_idx(paths[labels_file.name], shape=(count,), way_out=way_out)
    if labels.max(initial=0) >= NUM_CLASSES:
        _refuse(name, paths[labels_file.name], f"labels from 0 to {NUM_CLASSES - 1}", f"labels up to {labels.max()}")
    for file, values in ((images_file, images), (labels_file, labels)):
        if file.sha256 and idx_sha256(values) != file.sha256:
            _refuse(name, paths[file.name], f"content with sha256 {file.sha256[:12]}...", "another")
    return np.ascontiguousarray(images.swapaxes(1, 2)), labels.astype(np.int64)  # the files hold images transposed


def _refuse(name: str, path: Path, expected: str, found: str) -> None:
    raise DataError(f"{path} is not the official file: expected {expected}, found {found}. {ways_out(name)}")
