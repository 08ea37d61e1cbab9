import lzma
import pickle
from dataclasses import replace

import numpy as np
import pytest
from fashion_mini_bundle import build, first_per_class, packed

from rrcluster.data import SOURCES
from rrcluster.data.images import BUNDLE, load_fashion_mini
from rrcluster.errors import DataError


def test_counts_and_balance():
    mini = load_fashion_mini()
    assert mini.train_images.shape == (10_000, 28, 28)
    assert mini.test_images.shape == (1_000, 28, 28)
    assert np.bincount(mini.train_labels).tolist() == [1000] * 10
    assert np.bincount(mini.test_labels).tolist() == [100] * 10
    pixels = mini.train_images / 255.0
    assert abs(pixels.mean() - mini.mean) < 0.005
    assert abs(pixels.std() - mini.std) < 0.005


def test_the_bundle_is_small_and_comes_with_its_licence():
    notice = BUNDLE.with_name("NOTICE").read_text(encoding="utf-8")
    assert BUNDLE.stat().st_size <= 4_000_000
    assert sum(path.stat().st_size for path in BUNDLE.parent.iterdir()) <= 4_200_000  # with the table wages
    assert "MIT" in notice
    assert "2017 Zalando SE" in notice


def test_first_per_class_by_hand():
    labels = np.array([3, 1, 3, 3, 1, 0])
    assert first_per_class(labels, 2).tolist() == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("damage", ["flipped", "cut", "other", "pickle", "missing"])
def test_a_damaged_bundle_is_refused(tmp_path, damage):
    good = BUNDLE.read_bytes()
    contents = {
        "flipped": good[:5000] + bytes([good[5000] ^ 1]) + good[5001:],
        "cut": good[:-100],
        "other": lzma.compress(b"something else"),
        "pickle": pickle.dumps([1, 2, 3]),
    }
    path = tmp_path / "fashion-mini.xz"
    if damage in contents:
        path.write_bytes(contents[damage])
    with pytest.raises(DataError, match="install rrcluster again") as error:
        load_fashion_mini(path)
    assert str(path) in str(error.value)


def test_a_wrong_recorded_digest_is_noticed(monkeypatch):
    entry = SOURCES["fashion-mini"]
    wrong = replace(entry, files=(replace(entry.files[0], sha256="0" * 64),))
    monkeypatch.setitem(SOURCES, "fashion-mini", wrong)
    with pytest.raises(DataError, match="sha256 000000000000"):
        load_fashion_mini()


def test_the_bundle_follows_its_rule(full):
    mini = load_fashion_mini()
    train, test = first_per_class(full.train_labels, 1000), first_per_class(full.test_labels, 100)
    assert np.array_equal(mini.train_images, full.train_images[train])
    assert np.array_equal(mini.train_labels, full.train_labels[train])
    assert np.array_equal(mini.test_images, full.test_images[test])
    assert np.array_equal(mini.test_labels, full.test_labels[test])
    assert packed(full) == lzma.decompress(BUNDLE.read_bytes())


@pytest.mark.slow
def test_build_makes_the_bundle(full, tmp_path):
    build(tmp_path / "again.xz")
    assert lzma.decompress((tmp_path / "again.xz").read_bytes()) == lzma.decompress(BUNDLE.read_bytes())


def test_the_full_dataset(full):
    assert np.bincount(full.train_labels).tolist() == [6000] * 10
    assert np.bincount(full.test_labels).tolist() == [1000] * 10
    assert abs((full.train_images / 255.0).mean() - full.mean) < 5e-5
