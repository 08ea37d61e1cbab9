"""Settings of Shakespeare's table are chosen on roles that the table never sees."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from rrcluster_research.studies import SHAKESPEARE

from rrcluster.data.build import load_federated
from rrcluster.data.sources import locate
from rrcluster.errors import DataError

SCRIPT = Path(__file__).parents[2] / "research/benchmarks" / "tune_shakespeare.py"


@pytest.fixture(scope="module")
def tuning():
    spec = importlib.util.spec_from_file_location("tune_shakespeare", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_no_tuning_role_is_in_any_population_of_the_table(tuning):
    try:
        locate("shakespeare")
    except DataError as missing:
        pytest.skip(f"needs the real file: {missing}")
    roles = {part.text.tobytes() for part in tuning.tuning_population(None).store.parts}
    assert len(roles) == 203
    for seed in SHAKESPEARE.seeds:
        data = load_federated("shakespeare", num_clients=300, seed=seed)
        assert not roles & {part.text.tobytes() for part in data.store.parts}


def test_the_start_is_in_the_grid_and_every_method_walks_it(tuning):
    assert tuning.START.keys() == tuning.GRID.keys()
    assert all(tuning.START[name] in values for name, values in tuning.GRID.items())
    likes = {name: values[-1] for name, values in tuning.GRID.items()}

    def tried(method, chosen):
        seen.append(chosen)
        return np.sum([chosen[name] == value for name, value in likes.items()])

    for method in tuning.METHODS:
        seen = []
        tuning.walk(tried, method)
        expected = {name for name in likes if name != "num_clusters" or method not in tuning.ONE_MODEL}
        assert {name for name in likes if len({str(chosen[name]) for chosen in seen}) > 1} == expected
        assert max(tried(method, chosen) for chosen in list(seen)) >= len(expected)
