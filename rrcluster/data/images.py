"""Populations of images: a dataset with labels, and how its images differ between clients.

Three kinds of difference: groups that see them turned (`rotated_images`), groups that call them by other names
(`flipped_images`), and clients that hold other classes (`dirichlet_images`).

Datasets of idx files: FashionMNIST, EMNIST with 47 classes, and fashion-mini, which comes with the package.

fashion-mini is fixed and class-balanced: of the official training file the first 1,000 images of every class, of the
official test file the first 100 of every class, each part in the order of its file. Lossless: pixels and labels are the
official ones.

Its bundle is one xz stream: the training labels and test labels (one byte each, in the order of the file), then the
training and test pixels, each part sorted by class and every image column by column; clothes are more alike along
columns and within a class, which brings 784 bytes an image down to 355.
"""

import hashlib
import lzma
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.data.federated import ClientStore, FederatedData, Inputs, TestSet
from rrcluster.data.partition import Holdings, Indices, holding_sizes
from rrcluster.data.sources import SOURCES, idx_sha256, locate, read_idx, ways_out
from rrcluster.errors import ConfigError, DataError
from rrcluster.rng import Rng

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
        spread = f"{labels.min()} to {labels.max()}"
        raise DataError(f"{part} labels must lie in 0 to {num_classes - 1}, found {spread}.")


MAX_ROTATIONS = 4


@dataclass(frozen=True, eq=False, repr=False)
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


def flipped(labels: Labels, group: int, num_classes: int) -> Labels:
    """The public permutation of group g: class y is called (y + g) mod num_classes; group 0 keeps the true names.

    Guarantees: a permutation of the classes; two groups of fewer than `num_classes` disagree on every class, so a model
    that is right for one is wrong for all others.
    """
    return (labels + group) % num_classes


@dataclass(frozen=True, eq=False, repr=False)
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


LEAST_IMAGES = 10  # of a client
TEST_IMAGES = 100  # per client


def split_dirichlet(
    labels: Labels, num_clients: int, *, concentration: float, rng: Rng, at_least: int = LEAST_IMAGES
) -> Indices:
    """Deal all samples to the clients, every class in proportions drawn from Dirichlet(concentration).

    Guarantees: every sample goes to exactly one client; every client has `at_least` samples, filled up from the
    largest where the draw gave it fewer. A `ConfigError` when clients have fewer than twice that on average: filling up
    would then undo the draw.
    """
    checks.count(num_clients=num_clients)
    checks.positive(concentration=concentration)
    if 2 * at_least * num_clients > len(labels):
        most = len(labels) // (2 * at_least)
        raise ConfigError(
            f"num_clients = {num_clients} leaves {len(labels) / num_clients:.1f} training samples per client, too few "
            f"to give each at least {at_least} and still differ; use at most {most} clients or a larger dataset."
        )
    dealt: list[list[NDArray[np.int64]]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == label))
        shares = _dirichlet_shares(num_clients, concentration, rng)
        cuts = np.rint(np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
        for client, part in enumerate(np.split(samples, cuts)):
            dealt[client].append(part)
    return _filled([np.concatenate(parts) for parts in dealt], at_least, rng)


def _dirichlet_shares(num_clients: int, concentration: float, rng: Rng) -> NDArray[np.float64]:
    """A draw from the Dirichlet distribution; where it underflows (tiny concentrations) one client has all."""
    shares = rng.dirichlet(np.full(num_clients, concentration))
    if np.isfinite(shares).all() and np.isclose(shares.sum(), 1.0):
        return shares
    alone = np.zeros(num_clients)
    alone[rng.integers(num_clients)] = 1.0
    return alone


def _filled(parts: list[NDArray[np.int64]], at_least: int, rng: Rng) -> Indices:
    """Every client below `at_least` gets random samples of whoever has most, one at a time."""
    held = [part.tolist() for part in parts]
    sizes = np.array([len(part) for part in held])
    for client in np.flatnonzero(sizes < at_least).tolist():
        while sizes[client] < at_least:
            donor = int(sizes.argmax())
            held[client].append(held[donor].pop(int(rng.integers(sizes[donor]))))
            sizes[client] += 1
            sizes[donor] -= 1
    return tuple(np.array(part, dtype=np.int64) for part in held)


def draw_like(labels: Labels, like: Labels, *, count: int, rng: Rng) -> NDArray[np.int64]:
    """Positions in `labels` of about `count` samples without repeats, in the label proportions of `like`.

    Per class: `count` times its share in `like`, rounded by largest remainders (the lower class first), but no more
    than there are.
    """
    classes, held = np.unique(like, return_counts=True)
    exact = count * held / held.sum()
    wanted = np.floor(exact).astype(np.int64)
    largest_first = np.argsort(-np.round(exact - wanted, 9), kind="stable")
    wanted[largest_first[: count - int(wanted.sum())]] += 1
    picked = []
    for label, number in zip(classes.tolist(), wanted.tolist(), strict=True):
        samples = np.flatnonzero(labels == label)
        picked.append(rng.choice(samples, size=min(number, len(samples)), replace=False))
    return np.concatenate(picked)


@dataclass(frozen=True, eq=False)
class _Picked:
    """Some of the test images, as the `make_inputs` of a test set."""

    dataset: ImageDataset
    picked: NDArray[np.int64]

    def __call__(self) -> NDArray[np.float32]:
        return oriented(self.dataset.test_images[self.picked], 0, self.dataset.mean, self.dataset.std)


def dirichlet_images(
    name: str, dataset: ImageDataset, *, num_clients: int, concentration: float, rng: Rng
) -> FederatedData:
    """The population whose clients hold shares of every class drawn from a Dirichlet distribution; no true groups.

    - Training images. For every class, the clients' shares of it are one draw from a symmetric Dirichlet distribution
      over the clients, with parameter `concentration`; the images of the class, in random order, are cut in these
      proportions. Small concentrations give a client few classes. Every image goes to exactly one client.
    - At least ten images each. A client the draw leaves with fewer, or none, is filled up to ten: each missing image is
      taken at random from the client that has most at that moment.
    - Test images. A client is tested on 100 images drawn from the test part without replacement, in the label
      proportions of its training images: 100 times the proportions, rounded by largest remainders. Of a class that the
      test part has fewer images of, all are taken, and the client's set is that much smaller. Test sets may overlap.

    A `ConfigError` where a client's classes have no test image at all.
    """
    indices = split_dirichlet(dataset.train_labels, num_clients, concentration=concentration, rng=rng)
    tests = []
    for client, part in enumerate(indices):
        picked = draw_like(dataset.test_labels, dataset.train_labels[part], count=TEST_IMAGES, rng=rng)
        if not len(picked):
            raise ConfigError(f"client {client} has classes without a test image in {name}; use another dataset.")
        tests.append(TestSet(dataset.test_labels[picked], _Picked(dataset, picked), keep=False))
    turns = np.zeros(num_clients, dtype=np.int64)
    return FederatedData(
        name=name,
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        sizes=np.array([len(part) for part in indices], dtype=np.int64),
        groups=np.zeros(num_clients, dtype=np.int64),
        num_groups=0,
        store=RotatedImages(dataset.train_images, dataset.train_labels, indices, turns, dataset.mean, dataset.std),
        test_sets=tuple(tests),
        test_of=np.arange(num_clients),
    )


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
