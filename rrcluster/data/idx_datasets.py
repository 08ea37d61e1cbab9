"""Datasets of idx files: FashionMNIST, EMNIST with 47 classes, and fashion-mini, which comes with the package.

fashion-mini is fixed and class-balanced: of the official training file the first 1,000 images of every class, of the
official test file the first 100 of every class, each part in the order of its file. Lossless: pixels and labels are
the official ones.

Its bundle is one xz stream: the training labels and test labels (one byte each, in the order of the file), then the
training and test pixels, each part sorted by class and every image column by column; clothes are more alike along
columns and within a class, which brings 784 bytes an image down to 355.
"""

import hashlib
import lzma
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.files import idx_sha256, read_idx
from rrcluster.data.images import ImageDataset, Images, Labels
from rrcluster.data.sources import SOURCES, locate, ways_out
from rrcluster.errors import DataError

FASHION_CLASSES, EMNIST_CLASSES = 10, 47
FASHION_MEAN, FASHION_STD = 0.2860, 0.3530  # of pixel / 255 over the training images
EMNIST_MEAN, EMNIST_STD = 0.1736, 0.3317  # of pixel / 255 over the ByMerge test images
TEST_EVERY = 5  # of EMNIST's test file alone, one image in five of every class is for testing
TRAIN_PER_CLASS, TEST_PER_CLASS = 1000, 100  # of fashion-mini
BUNDLE = Path(__file__).parent / "bundled" / "fashion-mini.xz"

_SIDE = 28
_Folder = str | os.PathLike[str] | None


def load_fashion_mnist(folder: _Folder = None) -> ImageDataset:
    """The 60,000 training and 10,000 test images, from `folder` or the first place that has all four files.

    Guarantees of this and the other official files: every file is a whole idx file, images and labels match in number,
    labels are classes, and the content has the official sha256 where one is known; else a `DataError` that names the
    file and the ways to a good copy. Downloads nothing.
    """
    name, parts = "fashion-mnist", ("train", "t10k")
    train, test = _read_parts(name, locate(name, folder), parts, FASHION_CLASSES)
    return ImageDataset(*train, *test, FASHION_CLASSES, FASHION_MEAN, FASHION_STD)


def load_fashion_mini(path: str | os.PathLike[str] = BUNDLE) -> ImageDataset:
    """The bundled images: 10,000 for training, 1,000 for testing, ten classes in equal parts.

    Guarantees: the bundle has the recorded sha256, else `DataError`; no pickle is read and no more is
    decompressed than the bundle may hold. Many runs in one process decompress it once.
    """
    content = np.frombuffer(_decompressed(_checked_bundle(Path(path))), dtype=np.uint8)
    train, test = FASHION_CLASSES * TRAIN_PER_CLASS, FASHION_CLASSES * TEST_PER_CLASS
    cuts = np.cumsum([train, test, train * _SIDE * _SIDE])
    train_labels, test_labels, train_pixels, test_pixels = np.split(content, cuts)
    return ImageDataset(
        train_images=_unpack(train_pixels, train_labels),
        train_labels=train_labels.astype(np.int64),
        test_images=_unpack(test_pixels, test_labels),
        test_labels=test_labels.astype(np.int64),
        num_classes=FASHION_CLASSES,
        mean=FASHION_MEAN,
        std=FASHION_STD,
    )


def load_emnist(folder: _Folder = None) -> ImageDataset:
    """ByMerge's test file alone, divided 80/20: in the order of the file, every fifth image of a class is for testing.

    The division follows from the file: no seed. 93,074 training and 23,249 test images. Not comparable, number for
    number, with results on the official splits.
    """
    ((images, labels),) = _read_parts("emnist", locate("emnist", folder), ("emnist-bymerge-test",), EMNIST_CLASSES)
    for_test = every_nth_per_class(labels, TEST_EVERY)
    return _emnist(images[~for_test], labels[~for_test], images[for_test], labels[for_test])


def load_emnist_balanced(folder: _Folder = None) -> ImageDataset:
    """The official Balanced split: 112,800 training and 18,800 test images, classes in equal parts."""
    name, parts = "emnist-balanced", ("emnist-balanced-train", "emnist-balanced-test")
    paths = locate(name, folder)
    train, test = _read_parts(name, paths, parts, EMNIST_CLASSES)
    for part, (_, labels) in zip(parts, (train, test), strict=True):
        counts = np.bincount(labels, minlength=EMNIST_CLASSES)
        if counts.min() != counts.max():
            path = paths[f"{part}-labels-idx1-ubyte"]
            _refuse(name, path, "as many images of every class", f"{counts.min()} to {counts.max()}")
    return _emnist(*train, *test)


def load_emnist_bymerge(folder: _Folder = None) -> ImageDataset:
    """The official ByMerge split: 697,932 training and 116,323 test images."""
    name, parts = "emnist-bymerge", ("emnist-bymerge-train", "emnist-bymerge-test")
    train, test = _read_parts(name, locate(name, folder), parts, EMNIST_CLASSES)
    return _emnist(*train, *test)


def every_nth_per_class(labels: Labels, n: int) -> NDArray[np.bool_]:
    """(N,) which labels are the n-th, 2n-th, ... of their class, in order: floor(count / n) of every class."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[n - 1 :: n]] = True
    return chosen


def _emnist(train: Images, train_labels: Labels, test: Images, test_labels: Labels) -> ImageDataset:
    """Upright: the files hold images transposed."""
    upright = (np.ascontiguousarray(images.swapaxes(1, 2)) for images in (train, test))
    return ImageDataset(
        next(upright), train_labels, next(upright), test_labels, EMNIST_CLASSES, EMNIST_MEAN, EMNIST_STD
    )


def _read_parts(
    name: str, paths: dict[str, Path], parts: Sequence[str], num_classes: int
) -> list[tuple[Images, Labels]]:
    """Images and labels of each part, every claim of the `SourceFile`s checked, digests last."""
    files = {file.name: file for file in SOURCES[name].files}
    content: dict[str, NDArray[np.uint8]] = {}
    for part in parts:
        images, labels = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
        count = None if files[labels].sha256 else files[labels].bytes - 8  # without a digest, as many as published
        way_out = ways_out(name).rstrip(".")
        content[images] = read_idx(paths[images], shape=(count, _SIDE, _SIDE), way_out=way_out)
        content[labels] = read_idx(paths[labels], shape=(count,), way_out=way_out)
        num_labels, largest = len(content[labels]), content[labels].max(initial=0)
        if len(content[images]) != num_labels:
            _refuse(name, paths[labels], f"one label for each of {len(content[images])} images", f"{num_labels} labels")
        if largest >= num_classes:
            _refuse(name, paths[labels], f"labels from 0 to {num_classes - 1}", f"labels up to {largest}")
    for file_name, values in content.items():
        expected, digest = files[file_name].sha256, idx_sha256(values)
        if expected and digest != expected:
            _refuse(name, paths[file_name], f"content with sha256 {expected[:12]}...", f"{digest[:12]}...")
    return [
        (content[f"{part}-images-idx3-ubyte"], content[f"{part}-labels-idx1-ubyte"].astype(np.int64)) for part in parts
    ]


def _refuse(name: str, path: Path, expected: str, found: str) -> None:
    raise DataError(f"{path} is not the official file: expected {expected}, found {found}. {ways_out(name)}")


def _unpack(pixels: NDArray[np.uint8], labels: NDArray[Any]) -> Images:
    images = np.empty((len(labels), _SIDE, _SIDE), dtype=np.uint8)
    images[np.argsort(labels, kind="stable")] = pixels.reshape(-1, _SIDE, _SIDE).transpose(0, 2, 1)
    return images


def _checked_bundle(path: Path) -> bytes:
    """The bundle's bytes, which have the recorded sha256."""
    (file,) = SOURCES["fashion-mini"].files
    way_out = "it is part of the package: install rrcluster again"
    try:
        bundle = path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}; {way_out}.") from None
    digest = hashlib.sha256(bundle).hexdigest()
    if digest != file.sha256:
        expected = f"expected {file.bytes} bytes with sha256 {file.sha256[:12]}..."
        raise DataError(f"{path} is damaged: {expected}, found {len(bundle)} with {digest[:12]}...; {way_out}.")
    return bundle


@lru_cache(maxsize=1)
def _decompressed(bundle: bytes) -> bytes:
    size = FASHION_CLASSES * (TRAIN_PER_CLASS + TEST_PER_CLASS) * (1 + _SIDE * _SIDE)
    content = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(bundle, size + 1)
    assert len(content) == size
    return content
