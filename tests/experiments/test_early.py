import subprocess
import sys

import pytest

from rrcluster.experiments.config import from_flat
from rrcluster.experiments.early import AccountingAhead, accounting_ahead
from rrcluster.experiments.grid import jobs, read_grid
from rrcluster.experiments.setup import plan_for
from rrcluster.privacy import account_cache
from rrcluster.privacy.account_cache import cached, cached_values
from rrcluster.privacy.statement import statement
from rrcluster.types import Coordinates

SETTINGS = {"num_clients": 100, "num_rounds": 3, "noise_multiplier": 3.0, "delta": 1e-3}

TAKEN = f"""
import json, sys
from rrcluster.experiments.config import from_flat
from rrcluster.experiments.early import AccountingAhead, accounting_ahead
from rrcluster.experiments.grid import jobs, read_grid
config = from_flat({SETTINGS}, source="test")
with AccountingAhead() as ahead:
    ahead.ask(config)
    ahead.take()
sys.modules["dp_accounting"] = None  # so that nothing can be accounted here
from rrcluster.experiments.setup import plan_for
from rrcluster.privacy.statement import statement
from rrcluster.types import Coordinates
print(repr(statement(plan_for(config).with_coordinates(Coordinates(10, 10)))))
"""


def test_a_plan_accounted_ahead_is_stated_as_if_accounted_here():
    told = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, text=True, check=True).stdout
    config = from_flat(SETTINGS, source="test")
    assert told.strip() == repr(statement(plan_for(config).with_coordinates(Coordinates(10, 10))))


@pytest.mark.parametrize("fault", ["killed", "refused", "no noise"])
def test_without_an_answer_nothing_is_known_ahead(fault, monkeypatch):
    monkeypatch.setattr(account_cache, "_CACHE", {})
    changes = {"refused": {"delta": 0.5}, "no noise": {"mechanism": "none", "noise_multiplier": None}}.get(fault, {})
    with AccountingAhead() as ahead:
        if fault == "killed":
            ahead._process.kill()
            ahead._process.wait()
        ahead.ask(from_flat(SETTINGS | changes, source="test"))
        ahead.take()
    assert cached_values() == {}


def test_an_answer_is_computed_once_and_an_error_again():
    asked = []

    def half(number):
        asked.append(number)
        if number % 2:
            raise ValueError(number)
        return number // 2

    known = cached(half)
    assert [known(4), known(4)] == [2, 2]
    for _ in range(2):
        with pytest.raises(ValueError):
            known(3)
    assert asked == [4, 3, 3]


def test_a_full_cache_is_emptied(monkeypatch):
    monkeypatch.setattr(account_cache, "_MOST", 2)
    computed = []
    known = cached(lambda number: computed.append(number) or number)
    assert [known(number) for number in (1, 2, 1, 3, 1)] == [1, 2, 1, 3, 1]
    assert computed == [1, 2, 3, 1]


def test_plans_of_a_sweep_are_accounted_side_by_side_each_once(tmp_path, monkeypatch):
    monkeypatch.setattr(account_cache, "_CACHE", {})
    monkeypatch.setattr("rrcluster.experiments.early.cores", lambda: 4)  # for two processes
    grid = {**SETTINGS, "noise_multiplier": [3.0, 4.0, 5.0], "update_clip": [0.1, 0.2], "seeds": [0, 1]}
    todo = jobs(read_grid(grid, source="test", out=tmp_path))
    with accounting_ahead(todo) as take_values:
        take_values()
    brackets = [values for name, values in cached_values().items() if name.endswith("._bracket")]
    assert [len(values) for values in brackets] == [2]


def test_of_a_sweep_that_is_refused_nothing_is_accounted(tmp_path, monkeypatch):
    monkeypatch.setattr(account_cache, "_CACHE", {})
    todo = jobs(read_grid({**SETTINGS, "algorithm": "ifca", "num_clusters": [-1, -2]}, source="test", out=tmp_path))
    with accounting_ahead(todo) as take_values:
        take_values()
    assert cached_values() == {}
