"""A plan's constants are checked when it is made, not in every round."""

import pytest

import rrcluster as rr
from rrcluster.privacy.events import PoissonGaussian
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.sampling import PoissonSampler


@pytest.mark.parametrize("participation", [{}, {"participation": "schedule", "slots": 2, "sample_rate": 1.0}])
def test_rounds_make_no_sampler_and_no_event_anew(participation, monkeypatch):
    settings = {"data": "synthetic", "num_clients": 40, "num_clusters": 2, "sample_rate": 0.5, "num_rounds": 6}
    experiment = rr.experiment(**settings | {"noise_multiplier": 1.0, "delta": 1e-3, "device": "cpu"} | participation)
    rounds, made = experiment.rounds(ledger=Ledger()), []
    next(rounds)
    for kind in (PoissonSampler, PoissonGaussian):
        checks = kind.__post_init__
        monkeypatch.setattr(kind, "__post_init__", lambda self, checks=checks: (made.append(self), checks(self)))
    assert len(list(rounds)) == 5
    assert made == []
