"""FashionMNIST from its four official files, and fashion-mini, the part of it that comes with the package.

fashion-mini is fixed and class-balanced: of the official training file the first 1,000 images of every class, of the
official test file the first 100 of every class, each part in the order of its file. Lossless: pixels and labels are
the official ones.

Its bundle is one xz stream: the training labels and test labels (one byte each, in the order of the file), then the
training and test pixels, each part sorted by class and every image column by column; clothes are more alike along
columns and within a class, which brings 784 bytes an image down to 355. `build_fashion_mini` makes it,
`load_fashion_mini` checks and undoes it.
"""

import hashlib
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.files import idx_sha256, read_idx
from rrcluster.data.images import ImageDataset, Images
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
    images = read_idx(paths[_images(part)], shape=(None, _SIDE, _SIDE))
    labels = read_idx(path, shape=(None,))
    if len(images) != len(labels):
        _refuse(path, f"one label for each of {len(images)} images", f"{len(labels)} labels")
    if len(labels) and labels.max() >= NUM_CLASSES:
        _refuse(path, f"labels from 0 to {NUM_CLASSES - 1}", f"labels up to {labels.max()}")
    return images, labels


def _check_digest(path: Path, values: NDArray[np.uint8], expected: str) -> None:
    digest = idx_sha256(values)
    if digest != expected:
        _refuse(path, f"content with sha256 {expected[:12]}...", f"{digest[:12]}...")


def _refuse(path: Path, expected: str, found: str) -> None:
    raise DataError(f"{path} is not the official file: expected {expected}, found {found}. {ways_out('fashion-mnist')}")


TRAIN_PER_CLASS = 1000
TEST_PER_CLASS = 100
BUNDLE = Path(__file__).parent / "bundled" / "fashion-mini.xz"

_FILTERS: list[dict[str, Any]] = [
    {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "lc": 4,
        "lp": 0,
        "pb": 2,
        "dict_size": 1 << 23,
    }
]


def load_fashion_mini(path: str | os.PathLike[str] = BUNDLE) -> ImageDataset:
    """The bundled images: 10,000 for training, 1,000 for testing, ten classes in equal parts.

    Guarantees: the bundle has the recorded sha256, else `DataError`; no pickle is read and no more is
    decompressed than the bundle may hold.
    """
    content = np.frombuffer(_decompressed(Path(path)), dtype=np.uint8)
    train, test = NUM_CLASSES * TRAIN_PER_CLASS, NUM_CLASSES * TEST_PER_CLASS
    cuts = np.cumsum([train, test, train * _SIDE * _SIDE])
    train_labels, test_labels, train_pixels, test_pixels = np.split(content, cuts)
    return ImageDataset(
        train_images=_unpack(train_pixels, train_labels),
        train_labels=train_labels.astype(np.int64),
        test_images=_unpack(test_pixels, test_labels),
        test_labels=test_labels.astype(np.int64),
        num_classes=NUM_CLASSES,
        mean=MEAN,
        std=STD,
    )


def build_fashion_mini(folder: str | os.PathLike[str] | None = None, *, out: str | os.PathLike[str] = BUNDLE) -> str:
    """Make the bundle from the full files found in `folder` (or the search path); return its sha256.

    The content follows from the rule alone; the compressed bytes may differ between versions of liblzma.
    """
    bundle = lzma.compress(packed_fashion_mini(load_fashion_mnist(folder)), filters=_FILTERS)
    out = Path(out)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(bundle)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return hashlib.sha256(bundle).hexdigest()


def packed_fashion_mini(full: ImageDataset) -> bytes:
    """The content of the bundle, by the rule above, from the full dataset."""
    train = first_per_class(full.train_labels, TRAIN_PER_CLASS)
    test = first_per_class(full.test_labels, TEST_PER_CLASS)
    train_labels, test_labels = full.train_labels[train], full.test_labels[test]
    parts = (
        train_labels.astype(np.uint8),
        test_labels.astype(np.uint8),
        _pack(full.train_images[train], train_labels),
        _pack(full.test_images[test], test_labels),
    )
    return b"".join(part.tobytes() for part in parts)


def first_per_class(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The positions, in order, of the first `count` labels of every class 0..9."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(NUM_CLASSES)]))


def _pack(images: Images, labels: NDArray[Any]) -> Images:
    """Sorted by class (stable), each image by columns."""
    return images[np.argsort(labels, kind="stable")].transpose(0, 2, 1)


def _unpack(pixels: NDArray[np.uint8], labels: NDArray[Any]) -> Images:
    images = np.empty((len(labels), _SIDE, _SIDE), dtype=np.uint8)
    images[np.argsort(labels, kind="stable")] = pixels.reshape(-1, _SIDE, _SIDE).transpose(0, 2, 1)
    return images


def _decompressed(path: Path) -> bytes:
    """The content of the bundle; the file's sha256 is checked before, the content's size after."""
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
    size = NUM_CLASSES * (TRAIN_PER_CLASS + TEST_PER_CLASS) * (1 + _SIDE * _SIDE)
    content = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(bundle, size + 1)
    assert len(content) == size
    return content
