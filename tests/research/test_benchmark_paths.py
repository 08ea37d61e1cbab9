"""Scripts among the benchmarks that read or write results name folders that are there."""

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = {
    "results_figures": "RESULTS",
    "gallery": "GALLERY",
}


@pytest.mark.parametrize("name", PLACES)
def test_a_script_writes_to_the_pages_of_the_repository(name, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "research" / "benchmarks"))  # as for a script that is run
    monkeypatch.syspath_prepend(str(ROOT / "research"))
    place = getattr(import_module(f"benchmarks.{name}"), PLACES[name])
    assert place.is_dir()
    assert place.resolve().is_relative_to(ROOT / "docs")


def test_the_benchmark_compares_with_its_last_result(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "research"))
    bench = import_module("benchmarks.bench")
    assert bench.RESULT.exists()
    assert (bench.ROOT / "examples" / "four-methods.yaml").exists()
