"""`rr.simulate` takes hosts only where they add up what the plan's noise is made for."""

from dataclasses import replace

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.simulation.hosts import Hosts

SETTINGS = {"data": "synthetic", "num_clients": 40, "num_clusters": 2, "num_rounds": 1, "participation": "everybody"}
SETTINGS |= {"noise_multiplier": 1.0, "delta": 1e-3, "device": "cpu", "secure": True, "seed": None, "model": "linear"}
PARTS = ("data", "model", "method", "plan", "engine", "streams", "local", "server")


def rounds(experiment, **changes):
    return list(rr.simulate(**{name: getattr(experiment, name) for name in PARTS} | changes))


def test_hosts_of_another_plan_are_refused():
    """They would weigh counts by their own plan, and the noise would be of this one's."""
    experiment, loud = rr.experiment(**SETTINGS), rr.experiment(**SETTINGS, count_weight=16.0)
    assert len(rounds(experiment, hosts=experiment.hosts)) == 1
    host = replace(loud.hosts.host, data=experiment.data, side=replace(loud.hosts.host.side, engine=experiment.engine))
    with pytest.raises(PrivacyError, match="hosts were made for a different mechanism"):
        rounds(experiment, hosts=Hosts(host))


@pytest.mark.parametrize("other", ["data", "engine", "secrecy"])
def test_hosts_of_other_parts_are_refused(other):
    experiment, again = rr.experiment(**SETTINGS), rr.experiment(**SETTINGS)
    host = experiment.hosts.host
    side = replace(host.side, engine=again.engine) if other == "engine" else host.side
    changed = {"data": replace(host, data=again.data), "engine": replace(host, side=side)}
    changed["secrecy"] = replace(host, discreet=False)
    with pytest.raises(PrivacyError, match=f"hosts were made for a different {other}"):
        rounds(experiment, hosts=Hosts(changed[other]))


def test_a_secure_plan_runs_on_no_constant_that_was_counted():
    rng = np.random.default_rng(0)
    experiment = rr.experiment(**SETTINGS)
    counted = rr.from_arrays(rng.normal(size=(40, 3, *experiment.data.input_shape)), rng.normal(size=(40, 3)))
    with pytest.raises(ConfigError, match="num_classes were counted in the labels"):
        rounds(experiment, data=counted)
