"""CIFAR-10 and CIFAR-100 from whichever form is here: binary files, python pickles, or PNG sheets with labels.

All forms are brought to the records of the binary files: for each image the label (CIFAR-100: coarse label, then
label) and the red, green and blue planes, one byte each. The digest is that of the records, so that every form is held
to the same standard. Pickles are read without being run (`unpickle.py`).
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.content import Unexpected, expect, read_bytes, reporting
from rrcluster.data.images import ImageDataset, Level
from rrcluster.data.png import read_png
from rrcluster.data.sources import SOURCES, SourceFile, locate, ways_out
from rrcluster.data.unpickle import read_pickle

Records = NDArray[np.uint8]  # (N, labels + 3072)
Folder = str | os.PathLike[str] | None

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_MOST = 1 << 28  # bytes of a file, when its size is not recorded


@dataclass(frozen=True)
class _Cifar:
    """What tells the two datasets apart. The last label of a record is the class."""

    name: str
    num_classes: int
    keys: tuple[str, ...]  # of the labels in a pickle, in the order of the records
    most: tuple[int, ...]  # of each label
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
    """50,000 training and 10,000 test images (N, 3, 32, 32), from `folder` or the first place that has a whole form.

    Guarantees: the decoded records have the sha256 of the official binary files, whatever form they came in; no
    pickle is run; else a `DataError` that names the file and the ways to a good copy.
    """
    return _load(CIFAR10, folder)


def load_cifar100(folder: Folder = None) -> ImageDataset:
    """50,000 training and 10,000 test images with their 100 (fine) classes.

    Guarantees: as many images of every class as published (500 and 100); pickles have the published md5 and are not
    run. Nobody publishes a digest of the binary files: of those only structure and counts are checked.
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
            found = f"{counts.min()} to {counts.max()} (file {file.name})"
            expect(counts.min() == counts.max(), f"as many {part} images of every class", found)
    labels = len(kind.keys)
    return ImageDataset(
        *(train[:, labels:].reshape(-1, 3, _SIDE, _SIDE), train[:, labels - 1].astype(np.int64)),
        *(test[:, labels:].reshape(-1, 3, _SIDE, _SIDE), test[:, labels - 1].astype(np.int64)),
        num_classes=kind.num_classes,
        mean=kind.mean,
        std=kind.std,
    )


def _read(kind: _Cifar, paths: dict[str, Path], place: int) -> Records:
    """The records of the binary file at `place`, from the form that `paths` has, checked."""
    binary = SOURCES[kind.name].files[place]
    form = next(form for form in SOURCES[kind.name].forms if form[0].name in paths)
    file = form[place]
    reader = _READERS.get(Path(file.name).suffix, _from_pickle)
    with reporting(paths[file.name], kind=f"{kind.name} file", way_out=ways_out(kind.name)):
        content = _checked_content(kind, file, paths[file.name])
        records = reader(kind, content, paths, place)
        count = binary.bytes // (len(kind.keys) + _PIXELS)
        expect(len(records) == count, f"{count} images", f"{len(records)}")
        for column, bound in enumerate(kind.most):
            most = int(records[:, column].max())
            expect(most < bound, f"labels from 0 to {bound - 1}", f"labels up to {most}")
        found = hashlib.sha256(records.tobytes()).hexdigest()
        expect(binary.sha256 in ("", found), f"records with sha256 {binary.sha256[:12]}...", f"{found[:12]}...")
    return records


def _checked_content(kind: _Cifar, file: SourceFile, path: Path) -> bytes:
    """The bytes of a file; md5 is checked where we have nothing better to hold the records to."""
    content = read_bytes(path, most=file.bytes or _MOST, kind=f"{kind.name} file", way_out=ways_out(kind.name))
    if file.md5 and not SOURCES[kind.name].files[0].sha256:
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        expect(found == file.md5, f"content with md5 {file.md5}", found)
    return content


def _from_binary(kind: _Cifar, content: bytes, paths: dict[str, Path], place: int) -> Records:  # noqa: ARG001
    width = len(kind.keys) + _PIXELS
    expect(len(content) % width == 0, f"records of {width} bytes", f"{len(content) % width} bytes too many")
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, width)


def _from_pickle(kind: _Cifar, content: bytes, paths: dict[str, Path], place: int) -> Records:  # noqa: ARG001
    found = read_pickle(content)
    pixels = found.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise Unexpected(f"expected an array 'data' of bytes (N, {_PIXELS}), found none")
    labels = [_labels(found.get(key), key, len(pixels)) for key in kind.keys]
    return np.concatenate([*(column[:, None] for column in labels), pixels], axis=1)


def _from_sheet(kind: _Cifar, content: bytes, paths: dict[str, Path], place: int) -> Records:
    """A PNG with one image per row, its pixels row by row; the labels of the part are in a JSON file."""
    count = SOURCES[kind.name].files[place].bytes // (1 + _PIXELS)
    sheet = read_png(content, width=_SIDE * _SIDE, height=count)
    batches = len(SOURCES[kind.name].files) - 1
    part, first = ("test", 0) if place == batches else ("train", place * count)
    path = paths[f"{part}_lables.json"]
    raw = read_bytes(path, most=1 << 20, kind="JSON list of labels", way_out=ways_out(kind.name))
    try:
        listed = json.loads(raw)
    except (ValueError, RecursionError):
        raise Unexpected(f"expected labels in {path.name}, found no JSON") from None
    expect(isinstance(listed, list), f"a list of labels in {path.name}", type(listed).__name__)
    labels = _labels(listed[first : first + count], path.name, count)
    return np.concatenate([labels[:, None], sheet.transpose(0, 2, 1).reshape(count, _PIXELS)], axis=1)


def _labels(values: Any, where: str, count: int) -> NDArray[np.uint8]:
    """A list of `count` whole numbers from 0 to 255 as bytes."""
    if not isinstance(values, list) or len(values) != count:
        raise Unexpected(f"expected {count} labels in {where}, found {len(values) if isinstance(values, list) else 0}")
    if not all(type(value) is int and 0 <= value < 256 for value in values):
        raise Unexpected(f"expected labels from 0 to 255 in {where}, found others")
    return np.array(values, dtype=np.uint8)


_READERS: dict[str, Callable[[_Cifar, bytes, dict[str, Path], int], Records]] = {
    ".bin": _from_binary,
    ".png": _from_sheet,
}
