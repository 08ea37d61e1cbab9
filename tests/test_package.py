"""Wheel and source archive hold the same files, and a run works from them alone, without the repository."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import rrcluster

ROOT = Path(__file__).parent.parent
BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"


def build(folder):
    """The files of the wheel, and the archive of the sources."""
    subprocess.run([sys.executable, "-c", BUILD], cwd=folder, check=True, capture_output=True)
    (wheel,), (archive,) = folder.glob("dist/*.whl"), folder.glob("dist/*.tar.gz")
    return wheel, archive


def names(wheel):
    with zipfile.ZipFile(wheel) as content:
        return {name for name in content.namelist() if "dist-info" not in name}


@pytest.mark.slow
def test_a_run_works_from_the_wheel_and_from_the_archive_of_the_sources(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "rrcluster", copy / "rrcluster", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    wheel, archive = build(copy)
    tracked = subprocess.run(["git", "ls-files", "rrcluster"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert names(wheel) == set(tracked.stdout.split())
    assert wheel.name.startswith(f"rrcluster-{rrcluster.__version__}-")
    with tarfile.open(archive) as content:
        content.extractall(tmp_path, filter="data")
    (sources,) = tmp_path.glob("rrcluster-*")
    assert not (sources / "tests").exists()  # half of them: helpers are no packages
    assert names(build(sources)[0]) == names(wheel)
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "installed")
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    where = "import rrcluster; print(rrcluster.__file__)"
    flags = ["--rounds", "2", "--clients", "60", "--mechanism", "none", "--model", "linear", "--out", "run"]
    for command in (["-c", where], ["-m", "rrcluster", "run", *flags], ["-m", "rrcluster", "report", "run"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=empty, env=environment, check=True, capture_output=True, text=True
        )
        if command[1] == where:
            assert done.stdout.startswith(str(tmp_path / "installed"))
    assert (empty / "run" / "report.html").is_file()


def test_the_version_is_written_once_and_cited():
    assert rrcluster.__version__ not in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {rrcluster.__version__}\n" in (ROOT / "CITATION.cff").read_text()
