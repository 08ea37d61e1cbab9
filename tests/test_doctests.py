"""The examples in docstrings run and give what they say."""

import doctest
from importlib import import_module

import pytest

MODULES = ("spelling", "privacy.clip", "privacy.sampling", "privacy.budget")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    failed, tried = doctest.testmod(import_module(f"rrcluster.{name}"))
    assert tried
    assert not failed


def test_the_toy_in_the_docstring_of_a_method_runs(tmp_path):
    """Taken from the docstring, word for word."""
    import numpy as np

    import rrcluster as rr
    from rrcluster.methods import method

    lines = method.Method.__doc__.split("clearly better:\n\n")[1].split("\n\n    `scores`")[0].splitlines()
    source = "\n".join(line[8:] for line in lines)
    exec(source, {"rr": rr, "Method": method.Method, "cluster_losses": method.cluster_losses})
    settings = {"num_clients": 40, "max_samples": 10, "num_rounds": 3, "noise_multiplier": 1.0, "delta": 1e-3}
    result = rr.run(algorithm="cautious", num_clusters=2, sample_rate=0.5, **settings, out=tmp_path / "run")
    assert np.isfinite(result.models.clustered).all()
