"""fashion-mini: a fixed, class-balanced part of FashionMNIST that comes with the package.

The rule: of the official training file the first 1,000 images of every class, of the official test file the
first 100 of every class, each part in the order of its file. Lossless: pixels and labels are the official
ones.

The bundle is one xz stream: the training labels and test labels (one byte each, in the order of the file),
then the training and test pixels, each part sorted by class and every image column by column; clothes are
more alike along columns and within a class, which brings 784 bytes an image down to 355. `build` makes it,
`load` checks and undoes it.
"""

import hashlib
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.fashion_mnist import MEAN, NUM_CLASSES, STD, load_fashion_mnist
from rrcluster.data.images import ImageDataset, Images
from rrcluster.data.sources import SOURCES
from rrcluster.errors import DataError

TRAIN_PER_CLASS = 1000
TEST_PER_CLASS = 100
BUNDLE = Path(__file__).parent / "bundled" / "fashion-mini.xz"

_SIDE = 28
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


def build(folder: str | os.PathLike[str] | None = None, *, out: str | os.PathLike[str] = BUNDLE) -> str:
    """Make the bundle from the full files found in `folder` (or the search path); return its sha256.

    The content follows from the rule alone; the compressed bytes may differ between versions of liblzma.
    """
    bundle = lzma.compress(packed(load_fashion_mnist(folder)), filters=_FILTERS)
    out = Path(out)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(bundle)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return hashlib.sha256(bundle).hexdigest()


def packed(full: ImageDataset) -> bytes:
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
    found = hashlib.sha256(bundle).hexdigest()
    if found != file.sha256:
        expected = f"expected {file.bytes} bytes with sha256 {file.sha256[:12]}..."
        raise DataError(f"{path} is damaged: {expected}, found {len(bundle)} with {found[:12]}...; {way_out}.")
    size = NUM_CLASSES * (TRAIN_PER_CLASS + TEST_PER_CLASS) * (1 + _SIDE * _SIDE)
    content = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(bundle, size + 1)
    assert len(content) == size
    return content
