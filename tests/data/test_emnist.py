"""EMNIST's files, small ones the test writes and the real ones where they are."""

from dataclasses import replace

import numpy as np
import pytest
from idx_files import write_idx

from rrcluster.data.build import load_dataset, load_federated
from rrcluster.data.catalogue import SOURCES
from rrcluster.data.images import every_nth_per_class
from rrcluster.data.sources import check, get, locate
from rrcluster.errors import DataError

EACH = 6  # images of a class in a part


def write(folder, part, labels):
    """Image i has a single bright pixel, in the column i mod 28 of row 2 as stored."""
    images = np.zeros((len(labels), 28, 28), dtype=np.uint8)
    images[np.arange(len(labels)), 2, np.arange(len(labels)) % 28] = 255
    write_idx(folder / f"emnist-{part}-images-idx3-ubyte.gz", images)
    write_idx(folder / f"emnist-{part}-labels-idx1-ubyte.gz", np.asarray(labels, dtype=np.uint8))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small EMNIST of every split; the catalogue knows it as the real one."""
    place = tmp_path / "emnist"
    place.mkdir()
    for split in ("balanced", "bymerge"):
        for part in ("train", "test"):
            write(place, f"{split}-{part}", np.tile(np.arange(47), EACH))
    count = 47 * EACH
    for name in ("emnist", "emnist-balanced", "emnist-bymerge"):
        files = tuple(
            replace(file, sha256="", bytes=16 + 784 * count if "images" in file.name else 8 + count)
            for file in SOURCES[name].files
        )
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], files=files))
    return tmp_path


def test_every_nth_per_class_by_hand():
    labels = np.array([0, 1, 0, 0, 1, 0, 1])
    assert every_nth_per_class(labels, 2).tolist() == [False, False, True, False, True, True, False]


def test_the_test_file_alone_is_divided_within_classes(folder):
    data = load_dataset("emnist", folder)
    assert np.bincount(data.train_labels).tolist() == [5] * 47
    assert np.bincount(data.test_labels).tolist() == [1] * 47
    assert (data.mean, data.std, data.num_classes) == (0.1736, 0.3317, 47)


def test_images_are_upright(folder):
    data = load_dataset("emnist-balanced", folder)
    assert data.train_images[3].nonzero() == (np.array([3]), np.array([2]))  # stored in row 2, column 3
    assert len(data.train_images) == len(data.test_images) == 47 * EACH


def test_the_splits_share_a_folder_also_as_the_archive_unpacks(folder):
    (folder / "emnist").rename(folder / "gzip")
    assert len(load_dataset("emnist-bymerge", folder).train_labels) == 47 * EACH
    assert all(row.sha256_ok for row in check("emnist-balanced", folder))


@pytest.mark.parametrize(
    ("part", "labels", "expected"),
    [
        ("bymerge-test", [47] * 47 * EACH, "labels from 0 to 46, found labels up to 47"),
        ("bymerge-test", [1] * 5, r"expected shape \(282, 28, 28\), found \(5, 28, 28\)"),
        ("balanced-train", [0] * 47 * EACH, "as many images of every class, found 0 to 282"),
    ],
)
def test_what_does_not_fit_is_named(folder, part, labels, expected):
    write(folder / "emnist", part, labels)
    with pytest.raises(DataError, match=expected) as error:
        load_dataset("emnist" if part.startswith("bymerge") else "emnist-balanced", folder)
    assert f"emnist-{part}" in str(error.value)
    assert "biometrics.nist.gov" in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damage_is_named(folder, damage):
    path = folder / "emnist/emnist-bymerge-test-images-idx3-ubyte.gz"
    good = path.read_bytes()
    path.write_bytes(good[:-9] if damage == "cut" else good[:100] + bytes([good[100] ^ 8]) + good[101:])
    with pytest.raises(DataError, match=r"emnist-bymerge-test-images-idx3-ubyte\.gz is damaged"):
        load_dataset("emnist", folder)


def test_other_content_is_refused(folder, monkeypatch):
    files = tuple(replace(file, sha256="0" * 64) for file in SOURCES["emnist"].files)
    monkeypatch.setitem(SOURCES, "emnist", replace(SOURCES["emnist"], files=files))
    with pytest.raises(DataError, match="sha256 000000000000"):
        load_dataset("emnist", folder)


def test_what_we_cannot_download_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"rrcluster cannot download emnist.*gzip\.zip"):
        get("emnist-balanced", tmp_path)


@pytest.fixture
def real():
    try:
        locate("emnist")
    except DataError as missing:
        pytest.skip(f"needs the real files: {missing}")


def test_the_real_file(real):
    data = load_dataset("emnist")
    assert (len(data.train_labels), len(data.test_labels)) == (93_074, 23_249)
    counts = np.bincount(np.concatenate([data.train_labels, data.test_labels]))
    assert counts[:3].tolist() == [5745, 6400, 5765]
    assert (counts.min(), counts.max(), len(counts)) == (415, 6400, 47)
    assert (np.bincount(data.test_labels) == counts // 5).all()
    pixels = np.concatenate([data.train_images, data.test_images])
    assert abs(pixels.mean() / 255 - data.mean) < 1e-4
    ones = data.train_images[data.train_labels == 1].mean(0)
    assert ones.sum(0).max() > 1.5 * ones.sum(1).max()  # a one is tall: upright, its ink is in few columns


@pytest.mark.parametrize(("concentration", "classes"), [(0.5, 26.6), (0.1, 12.5)])
def test_the_papers_partitions_of_the_real_file(real, concentration, classes):
    data = load_federated("emnist", partition="dirichlet", concentration=concentration, num_clients=1000, seed=0)
    held = [len(np.unique(data.store.client(client)[1])) for client in range(1000)]
    assert data.sizes.sum() == 93_074
    assert data.sizes.min() >= 10
    assert np.mean(held) == pytest.approx(classes, rel=0.05)
    assert {len(test.targets) for test in data.test_sets} == {100}
