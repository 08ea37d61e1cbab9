"""Examples and the README's code run as they stand; in this process, because starting another costs seconds."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

import rrcluster as rr

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a program in an empty folder, and return what it prints."""

    def run(path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(path)])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path, run):
    assert len(path.read_text().splitlines()) <= 60
    for package in re.findall(r"^(?:from|import) (flwr)", path.read_text(), flags=re.MULTILINE):
        pytest.importorskip(package, reason=f"{path.name} is for those who use {package}")
    run(path)


def test_programs_and_notebooks_import_public_names_alone():
    """Public is what `rrcluster` itself offers."""
    notebooks = set((ROOT / "examples" / "notebooks").glob("*.ipynb"))
    notebooks -= {ROOT / "examples" / "notebooks" / "audit_a_claim.ipynb"}  # on what is inside: it plants a mistake
    cells = {path: json.loads(path.read_text())["cells"] for path in notebooks}
    sources = {path: path.read_text() for path in EXAMPLES}
    sources |= {
        path: "\n".join("".join(cell["source"]) for cell in parts if cell["cell_type"] == "code")
        for path, parts in cells.items()
    }
    assert len(sources) > 10
    for path, source in sources.items():
        assert not re.findall(r"(?:import|from) +rrcluster\.\S+", source), path.name
        for name in re.findall(r"from +rrcluster +import +(.*)", source):
            assert set(re.findall(r"\w+", name)) <= set(rr.__all__), path.name


def test_each_function_for_an_existing_system_has_an_example():
    text = "".join(path.read_text() for path in EXAMPLES)
    for name in ("rr.release(", "rr.load(", "rr.assign(", "rr.Server(", "rr.run("):
        assert name in text, name


def test_no_example_rebalances_raw_choices():
    """On raw choices the exact rule is not private; a plan's own rebalancing works by coins."""
    for path in (*EXAMPLES, ROOT / "docs" / "own-code.md"):
        assert not re.search(r"\brebalance\(", path.read_text()), path.name


def test_the_readme_example_runs_and_is_short(tmp_path, run):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(code.splitlines()) <= 15
    (tmp_path / "readme.py").write_text(code)
    assert "epsilon" in run(tmp_path / "readme.py")


def test_the_demo_settings_are_valid():
    import yaml

    from rrcluster.runs.config import from_flat

    config = from_flat(yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text()))
    assert config.privacy.delta <= 1 / (10 * config.data.num_clients)
