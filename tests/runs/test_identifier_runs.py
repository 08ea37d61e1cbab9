"""Runs under `identifier`: they resume from their folder alone, can be secure, and outlive every client's lies."""

import json

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError
from rrcluster.privacy.identifier import IdentifierMechanism
from rrcluster.privacy.reports import check_reports
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.run import finish, resume, start

KINDS = {
    "gaussian": {"mechanism": "identifier", "identifier": "gaussian", "min_cluster_size": 3},
    "kary": {"mechanism": "identifier", "identifier": "kary", "identifier_share": 0.3},
}


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_a_stopped_run_resumes_to_the_same_models(tiny, tmp_path, settings):
    whole = rr.run(**tiny, **settings)
    config = from_flat(tiny | settings | {"out": str(tmp_path / "stopped")})
    rounds = start(make_experiment(config)).rounds()
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
    assert "cluster sizes by privatised identifiers" in told["released"]
    assert told["secure"]
    assert result.epsilon == told["epsilon"]


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_when_every_report_is_refused_the_run_costs_the_same_and_releases_noise_alone(
    tiny, tmp_path, settings, monkeypatch
):
    """Every client sends NaN: no report is used, nothing stops; cohorts, charges and epsilon are an honest run's."""
    honest = rr.run(**tiny, **settings)
    refused, honest_release = [], IdentifierMechanism.release

    def release(self, reports, *, rng):
        checked = check_reports(reports, width=self.coordinates.width, num_clusters=self.num_clusters)
        refused.append((len(checked.valid), int(checked.valid.sum())))
        made = honest_release(self, reports, rng=rng)
        sums = made.cluster_sums
        assert np.abs(sums).max() < 6 * self.noise_std
        assert np.sqrt((sums**2).mean()) == pytest.approx(self.noise_std, rel=0.05)
        return made

    monkeypatch.setattr(IdentifierMechanism, "release", release)
    monkeypatch.setattr(
        "rrcluster.simulation.clients.ATTACKS", {"nan": lambda update, choice, _: [(np.nan * update, choice)]}
    )
    result = rr.run(**(tiny | {"out": str(tmp_path / "refused")}), **settings, hostile=1.0)
    assert refused == [(30, 0)] * 4
    assert result.epsilon == honest.epsilon == json.loads((result.folder / "privacy.json").read_text())["epsilon"]
    assert 0 < result.epsilon < float("inf")
    assert np.isfinite(result.models.clustered).all()
    rounds, charges = ((result.folder / f"{name}.jsonl").read_text().splitlines() for name in ("rounds", "ledger"))
    assert [sum(json.loads(line)["sizes"]) for line in rounds] == [30] * 4
    assert len(charges) == 4
    told = json.loads((result.folder / "diagnostics.jsonl").read_text().splitlines()[-1])
    assert told["hostile"] == 4 * 30


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mechanism": "identifier", "identifier_share": 0.0}, "leaves the choices unprotected"),
        ({"mechanism": "identifier", "identifier_share": 1.0}, "identifier_share"),
        ({"mechanism": "identifier", "private_evaluation": 0.25}, "its event covers only noisy identifiers"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(tiny, tmp_path, changes, text):
    with pytest.raises(ConfigError, match=text):
        rr.run(**(tiny | changes))
    assert not (tmp_path / "run").exists()
