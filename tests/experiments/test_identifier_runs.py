"""Runs whose identifiers read more than the choice: they resume from their folder alone, and can be secure."""

import json

import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError
from rrcluster.experiments.config import from_flat
from rrcluster.experiments.run import finish, resume, start

KINDS = {
    "r-dpcfl": {"algorithm": "r-dpcfl", "mechanism": "identifier", "identifier": "projection"},
    "exponential": {"mechanism": "identifier", "identifier": "exponential", "identifier_share": "auto"},
}


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_a_stopped_run_resumes_to_the_same_models(tiny, tmp_path, settings):
    whole = rr.run(**tiny, **settings)
    config = from_flat(tiny | settings | {"out": str(tmp_path / "stopped")})
    rounds = start(config).rounds()
    next(rounds)
    next(rounds)
    rounds.close()
    resumed = finish(resume(tmp_path / "stopped"))
    assert (resumed.models.clustered == whole.models.clustered).all()


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_secure_runs_go_through_with_dropouts_and_say_what_they_release(tiny, settings):
    del tiny["evaluate_every"]
    result = rr.run(**tiny, **settings, secure=True, dropout=0.3, hostile=0.2)
    told = json.loads((result.folder / "privacy.json").read_text())
    assert ("projections" in " ".join(told["released"])) == (settings["identifier"] == "projection")
    assert result.epsilon == told["epsilon"]


def test_every_hostile_report_at_once_stops_nothing(tiny):
    rr.run(**tiny, **KINDS["r-dpcfl"], hostile=1.0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"algorithm": "r-dpcfl"}, "mechanism = joint"),
        ({"algorithm": "r-dpcfl", "mechanism": "identifier"}, "identifier = projection"),
        ({"mechanism": "identifier", "identifier": "projection"}, "no other makes them"),
        ({"mechanism": "identifier", "identifier_share": "some"}, "should be number or one of auto"),
        ({"mechanism": "identifier", "identifier": "exponential", "identifier_loss_bound": 0.0}, "loss_bound"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(tiny, tmp_path, changes, text):
    with pytest.raises(ConfigError, match=text):
        rr.run(**(tiny | changes))
    assert not (tmp_path / "run").exists()
