"""How models come to differ: what is open to clients, and what fits no run."""

from dataclasses import replace

import pytest

from rrcluster.errors import ConfigError
from rrcluster.methods import METHODS, check_init
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.server.choice import ChoiceRules, choose
from rrcluster.server.survey import make_schedule
from rrcluster.settings import ServerSettings


def settings(**changes):
    base = {"data": "synthetic-balanced-easy", "num_clients": 40, "num_rounds": 8, "sample_rate": 0.5}
    return from_flat({**base, "local_epochs": 1, "noise_multiplier": 1.0, "delta": 1e-3, "device": "cpu", **changes})


def test_closed_clusters_are_never_chosen(rng):
    scores = rng.normal(size=(300, 4)) - [0.0, 0.0, 9.0, 9.0]
    rules = replace(ChoiceRules.plain(4), num_open=2)
    chosen = choose(scores, rules, uniforms=rng.random((300, 4)))
    assert (chosen == scores[:, :2].argmin(axis=1)).all()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"init": "survey", "init_rounds": 8}, "less than num_rounds = 8"),
        ({"init": "survey", "init_rounds": 3}, "at least 4"),
        ({"init": "independent", "init_rounds": 3}, "takes no rounds"),
        ({"init": "survey", "algorithm": "fedavg"}, "has one model"),
        ({"init": "survey", "algorithm": "oracle"}, "given its clusters"),
        ({"init": "warm"}, "init = warm is gone: use init = survey"),
        ({"init": "kmeans++"}, r"init = kmeans\+\+ is gone: use init = survey"),
    ],
)
def test_what_cannot_be_initialised_so_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        make_experiment(settings(**changes))


def test_an_unknown_initialisation_is_refused_by_the_settings():
    with pytest.raises(ConfigError, match="init"):
        ServerSettings(init="magic")


def test_a_survey_is_for_methods_that_choose_by_loss():
    for method in METHODS.values():
        if method.num_clusters(2) == 2 and method.chooses_by_loss:
            check_init(method, "survey")
        else:
            with pytest.raises(ConfigError, match=r"has no effect|does nothing|choose by loss"):
                check_init(method, "survey")


def test_rounds_of_a_survey_by_default():
    assert make_schedule(ServerSettings(), num_rounds=100).survey_rounds == 0
    assert [make_schedule(ServerSettings(init="survey"), num_rounds=t).survey_rounds for t in (100, 5)] == [22, 4]
