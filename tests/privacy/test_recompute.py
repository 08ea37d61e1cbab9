"""The event in a statement, rebuilt with dp-accounting as a reader would, gives the epsilon that is stated."""

import json

import dp_accounting
import pytest

from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.events import FixedSize, KaryChoice, PoissonGaussian, RepeatAndSelect
from rrcluster.privacy.evidence import recompute


def rebuilt(plain):
    if isinstance(plain, list):
        return [rebuilt(entry) for entry in plain]
    if not isinstance(plain, dict):
        return plain
    fields = {name: rebuilt(value) for name, value in plain.items() if name != "class"}
    return getattr(dp_accounting.dp_event, plain["class"])(**fields)


def recomputed(described, delta):
    relation = dp_accounting.NeighboringRelation[described["neighboring_relation"]]
    if described["accountant"] == "PLDAccountant":
        accountant = dp_accounting.pld.PLDAccountant(relation, described["value_discretization_interval"])
    else:
        accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    return accountant.compose(rebuilt(described["event"])).get_epsilon(delta)


@pytest.mark.parametrize(
    ("event", "accountant", "tolerance"),
    [
        (PoissonGaussian(1.0, 0.1), "pld", 1e-9),
        (PoissonGaussian(1.0, 0.1), "rdp", 1e-12),
        (PoissonGaussian(20.0, 1.0), "pld", 1e-3),  # a closed form here, a grid there
        (FixedSize(1.5, 100, 1000), "rdp", 1e-12),
        (RepeatAndSelect(PoissonGaussian(2.0, 0.1), 20, 5.0, "geometric"), "rdp", 1e-9),
        (RepeatAndSelect(FixedSize(2.0, 10, 100), 20, 5.0, "logarithmic"), "rdp", 1e-9),
    ],
)
def test_the_rebuilt_event_costs_the_stated_epsilon(event, accountant, tolerance):
    rounds = 1 if isinstance(event, RepeatAndSelect) else 40
    described = json.loads(json.dumps(recompute(event, num_rounds=rounds, accountant=accountant)))
    stated = epsilon(event, num_rounds=rounds, delta=1e-4, accountant=accountant)
    assert recomputed(described, 1e-4) == pytest.approx(stated, rel=tolerance)
    assert described["reason"] is None


def test_fixed_size_cohorts_are_recomputed_by_rdp_and_say_so():
    event = FixedSize(1.5, 100, 1000)
    described = recompute(event, num_rounds=40, accountant="pld")
    assert "no privacy loss distribution" in described["reason"]
    assert recomputed(described, 1e-4) == pytest.approx(
        epsilon(event, num_rounds=40, delta=1e-4, accountant="rdp"), rel=1e-12
    )


def test_what_dp_accounting_cannot_compute_is_described_and_refused():
    described = recompute(FixedSize(1.5, 100, 1000, KaryChoice(0.7, 4)), num_rounds=40, accountant="pld")
    assert described["accountant"] is None
    assert "randomised response" in described["reason"]
    response, gaussian = rebuilt(described["event"]).event.event.events
    assert 1 - response.noise_parameter * (1 - 1 / 4) == pytest.approx(0.7)
    assert gaussian.noise_multiplier == 1.5
    for accountant in (dp_accounting.pld.PLDAccountant, dp_accounting.rdp.RdpAccountant):
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        assert not accountant(neighboring_relation=relation).supports(rebuilt(described["event"]))


def test_several_selections_are_refused():
    event = RepeatAndSelect(PoissonGaussian(2.0, 0.1), 20, 5.0, "geometric")
    assert recompute(event, num_rounds=2, accountant="rdp")["accountant"] is None


def test_an_event_of_a_plugin_is_refused():
    class Mine(PoissonGaussian):
        pass

    assert "no event for Mine" in recompute(Mine(1.0, 0.1), num_rounds=3, accountant="pld")["reason"]
