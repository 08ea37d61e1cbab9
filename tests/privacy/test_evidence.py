"""What a statement gives a reader to check its epsilon by."""

import json
import math

import pytest

from rrcluster.privacy.budget import account
from rrcluster.privacy.events import FixedSize, PoissonGaussian, RepeatAndSelect
from rrcluster.privacy.evidence import evidence
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.profiles import gaussian_delta
from rrcluster.privacy.statement import statement
from rrcluster.types import Coordinates


def plan(**settings):
    return PrivacyPlan.build(coordinates=Coordinates(0, 3), num_clients=100, num_clusters=2, **settings)


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_a_statement_brackets_its_epsilon(mechanism):
    stated = statement(plan(mechanism=mechanism, noise_multiplier=3.0, delta=1e-3, num_rounds=5, sample_rate=0.2))
    assert json.loads(json.dumps(stated)) == stated
    assert 0.9 * stated["epsilon"] < stated["bracket"]["least"] <= stated["epsilon"]
    assert stated["bracket"]["most"] == pytest.approx(stated["epsilon"], rel=1e-6)
    assert {"epsilon": stated["epsilon"], "delta": pytest.approx(1e-3, rel=1e-6)} in stated["profile"]
    assert stated["recompute"]["event"]["count"] == 5


def test_the_profile_is_that_of_the_accountant():
    event, z = PoissonGaussian(4.0, 1.0), 4.0 / math.sqrt(9)
    for accountant in ("pld", "rdp"):
        shown = evidence(event, num_rounds=9, delta=1e-5, accountant=accountant)
        deltas = [pair["delta"] for pair in shown["profile"]]
        assert len(deltas) >= 5
        assert deltas == sorted(deltas, reverse=True)
        exact = [float(gaussian_delta(pair["epsilon"], z)) for pair in shown["profile"]]
        assert all(own >= true * (1 - 1e-12) for own, true in zip(deltas, exact, strict=True))
        assert (deltas == exact) == (accountant == "pld")
        assert shown["mu"] == pytest.approx(3 / 4)


def test_a_sampled_event_has_no_mu():
    assert "mu" not in evidence(FixedSize(2.0, 10, 100), num_rounds=3, delta=1e-3, accountant="paper")


def test_a_selection_says_why_it_has_no_bracket():
    event = RepeatAndSelect(PoissonGaussian(3.0, 0.1), 5, 3.0, "geometric")
    shown = evidence(event, num_rounds=1, delta=1e-3, accountant="rdp")
    assert "Renyi" in shown["bracket"]["reason"]
    assert shown["profile"]


def test_account_gives_both_ends():
    rows = account(noise_multiplier=2.0, delta=1e-3, num_rounds=4, sample_rate=0.2)
    assert rows["pld"].least <= rows["pld"].epsilon
    assert rows["pld"].most == pytest.approx(rows["pld"].epsilon, rel=1e-6)
    assert rows["rdp"].least is None
    assert rows["rdp"].profile
    assert rows["rdp"].recompute["accountant"] == "RdpAccountant"
