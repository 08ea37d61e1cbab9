import ast
import gzip
from pathlib import Path

import numpy as np
import pytest
from idx_files import write_idx

import rrcluster.data
from rrcluster.data.build import load_dataset
from rrcluster.data.catalogue import SOURCES
from rrcluster.data.sources import check, download_folder, list_sources, search_path
from rrcluster.errors import ConfigError, DataError
from rrcluster.storage import cache_folder

FILES = [file.name for file in SOURCES["fashion-mnist"].files]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A machine that has no dataset anywhere."""
    monkeypatch.delenv("RRCLUSTER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("rrcluster.data.sources._DEBIAN", tmp_path / "debian")


@pytest.fixture
def folder(tmp_path):
    """Four well-formed files that are not FashionMNIST."""
    place = tmp_path / "mine"
    place.mkdir()
    for part in ("train", "t10k"):
        write_idx(place / f"{part}-images-idx3-ubyte.gz", np.zeros((3, 28, 28), dtype=np.uint8))
        write_idx(place / f"{part}-labels-idx1-ubyte.gz", np.array([0, 9, 4], dtype=np.uint8))
    return place


def test_the_search_path(tmp_path, monkeypatch):
    cache, debian = tmp_path / "cache/rrcluster/fashion-mnist", tmp_path / "debian/fashion-mnist"
    assert search_path("fashion-mnist") == (cache, debian)
    monkeypatch.setenv("RRCLUSTER_DATA", "/env")
    env = Path("/env")
    assert search_path("fashion-mnist") == (env / "fashion-mnist", env, cache, debian)
    assert search_path("fashion-mnist", "/arg") == (Path("/arg/fashion-mnist"), Path("/arg"))
    assert download_folder("fashion-mnist") == env / "fashion-mnist"
    monkeypatch.delenv("RRCLUSTER_DATA")
    assert download_folder("fashion-mnist") == cache == cache_folder("fashion-mnist")


def test_missing_files_list_the_folders_searched_and_three_ways_out(tmp_path):
    with pytest.raises(DataError) as error:
        load_dataset("fashion-mnist")
    message = str(error.value)
    for part in ("cache/rrcluster/fashion-mnist", "debian/fashion-mnist"):
        assert str(tmp_path / part) in message
    for way in (
        "rrcluster data get fashion-mnist",
        "apt-get install dataset-fashion-mnist",
        "RRCLUSTER_DATA=folder",
    ):
        assert way in message


def test_one_missing_file_is_named(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"\(missing t10k-labels-idx1-ubyte\)"):
        load_dataset("fashion-mnist", folder)


def test_an_explicit_folder_is_the_only_place(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RRCLUSTER_DATA", str(folder))
    with pytest.raises(DataError, match="nowhere"):
        load_dataset("fashion-mnist", tmp_path / "nowhere")


@pytest.mark.parametrize("way", ["argument", "environment", "cache", "debian", "plain"])
def test_well_formed_files_with_other_content_are_found_and_refused(folder, tmp_path, monkeypatch, way):
    argument = folder if way in ("argument", "plain") else None
    if way == "environment":
        monkeypatch.setenv("RRCLUSTER_DATA", str(folder))
    if way == "plain":
        for name in FILES:
            (folder / name).write_bytes(gzip.decompress((folder / f"{name}.gz").read_bytes()))
            (folder / f"{name}.gz").unlink()
    if way in ("cache", "debian"):
        place = cache_folder("fashion-mnist") if way == "cache" else tmp_path / "debian/fashion-mnist"
        place.parent.mkdir(parents=True)
        folder.rename(place)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.*sha256 c59f468a2f67"):
        load_dataset("fashion-mnist", argument)


@pytest.mark.parametrize(
    ("file", "values", "expected"),
    [
        ("train-labels-idx1-ubyte", np.array([0, 10, 4]), "labels from 0 to 9, found labels up to 10"),
        ("t10k-labels-idx1-ubyte", np.array([0, 1]), "one label for each of 3 images, found 2 labels"),
        ("train-images-idx3-ubyte", np.zeros((3, 27, 28)), r"\(any, 28, 28\), found \(3, 27, 28\)"),
        ("t10k-images-idx3-ubyte", np.zeros((3, 784)), r"\(any, 28, 28\), found \(3, 784\)"),
    ],
)
def test_a_file_that_does_not_fit_is_named(folder, file, values, expected):
    write_idx(folder / f"{file}.gz", values.astype(np.uint8))
    with pytest.raises(DataError, match=expected) as error:
        load_dataset("fashion-mnist", folder)
    assert str(folder / file) in str(error.value)
    assert "rrcluster data get fashion-mnist" in str(error.value)


def test_check_reports_every_file(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8bdamaged")
    rows = check("fashion-mnist", folder)
    assert [row.file for row in rows] == FILES
    assert [row.present for row in rows] == [True, True, True, False]
    assert [row.sha256_ok for row in rows] == [False] * 4
    assert rows[1].bytes == 9
    assert rows[1].path == folder / "train-labels-idx1-ubyte.gz"
    assert rows[3].path is None
    assert not any(row.present for row in check("fashion-mnist"))
    assert [row.sha256_ok for row in check("fashion-mini")] == [True]
    assert check("synthetic") == ()


def test_list_sources(folder):
    rows = {row.name: row for row in list_sources()}
    assert list(rows) == list(SOURCES)
    where = {name: row.where for name, row in rows.items()}
    assert (where["fashion-mini"], where["synthetic"], where["cifar10"]) == ("bundled", "generated", "not found")
    assert rows["fashion-mnist"].bytes == 26_421_880 + 29_515 + 4_422_102 + 5_148
    assert {row.name: row.where for row in list_sources(folder)}["fashion-mnist"] == str(folder)


def test_unknown_names_list_the_known():
    with pytest.raises(ConfigError, match="fashion-mnist, fashion-mini, emnist"):
        check("mnist")
    with pytest.raises(ConfigError, match="fashion-mnist, fashion-mini"):
        load_dataset("synthetic")


def test_importing_the_data_package_costs_numpy_only():
    folder = Path(rrcluster.data.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text())
        everywhere = {name for node in ast.walk(tree) for name in imported(node)}
        at_import = {name for node in tree.body for name in imported(node)}
        assert "torch" not in everywhere
        assert not at_import & {"pooch", "rich", "scipy"}


def imported(node):
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    return [node.module.split(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []
