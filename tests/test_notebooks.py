"""The notebooks: they run from top to bottom as they stand, and are stored with what they printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def printed(cell):
    return "".join("".join(output["text"]) for output in cell["outputs"])


def test_none_is_missing():
    tutorials = ("wages", "own_csv", "own_module", "backbone", "laptop_federation", "own_method", "audit_a_claim")
    assert {path.stem for path in NOTEBOOKS} >= set(tutorials)


@each_notebook
def test_it_is_stored_as_it_was_run_once_from_top_to_bottom(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert {output["output_type"] for cell in cells for output in cell["outputs"]} == {"stream"}
    assert not re.search(r"/home/|/tmp/|/root/|Traceback", "".join(map(printed, cells)))


@pytest.mark.slow
@each_notebook
def test_it_runs_and_prints_the_lines_that_are_stored(path, tmp_path):
    pytest.importorskip("pyarrow", reason="a table of one's own needs the extra [frames]")
    cells = code_cells(path)
    program = "\n".join("".join(cell["source"]) for cell in cells)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=600
    )
    assert answer.returncode == 0, answer.stderr
    stored, now = (
        [line.split()[0] for line in text.splitlines()] for text in ("".join(map(printed, cells)), answer.stdout)
    )
    assert now == stored
