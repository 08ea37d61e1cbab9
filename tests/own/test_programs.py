"""A complete program for every kind of network that people bring, each in under 15 lines of code."""

import runpy
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program(path, tmp_path, monkeypatch, caplog):
    assert len([line for line in path.read_text().splitlines() if line]) < 15
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    (folder,) = (file.parent for file in tmp_path.rglob("models.safetensors"))
    assert (folder / "privacy.json").exists()
    assert "one at a time" not in caplog.text
