"""What selecting the best of several runs costs, by dp-accounting too; and how often runs are repeated."""

import logging
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import stats

from rrcluster.errors import ConfigError, PrivacyError, UnsupportedEvent
from rrcluster.privacy.accounting import account, epsilon
from rrcluster.privacy.calibrate import TOLERANCE, calibrate
from rrcluster.privacy.events import REPETITION_LAWS, FixedSize, KaryChoice, PoissonGaussian, RepeatAndSelect
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.selection import Selection, draw_repetitions, stopping_probability, worst_run
from rrcluster.privacy.statement import statement
from rrcluster.types import Coordinates

RUN = PoissonGaussian(1.2, 0.1)


def selection(mean=10.0, law="geometric", run=RUN, num_rounds=100):
    return RepeatAndSelect(run, num_rounds, mean, law)


def cost(event, delta=1e-3):
    return epsilon(event, num_rounds=1, delta=delta, accountant="rdp")


# dp_accounting 0.6.0, z = 1.2, q = 0.1, T = 100, delta = 1e-3.
@pytest.mark.parametrize(("law", "expected"), [("geometric", 9.58), ("logarithmic", 8.05)])
def test_the_best_of_thirty_on_average(law, expected):
    assert cost(selection(30, law)) == pytest.approx(expected, abs=0.005)


def test_it_costs_more_than_one_run_and_far_less_than_composing_them():
    one = epsilon(RUN, num_rounds=100, delta=1e-3, accountant="rdp")
    all_of_them = epsilon(RUN, num_rounds=3000, delta=1e-3, accountant="rdp")
    assert one == pytest.approx(4.02, abs=0.005)
    assert all_of_them == pytest.approx(35.5, abs=0.06)
    assert one < cost(selection(30, "logarithmic")) < cost(selection(30)) < all_of_them


@pytest.mark.parametrize("law", REPETITION_LAWS)
@pytest.mark.parametrize("mean", [1.5, 10, 200])
@pytest.mark.parametrize(("noise", "delta"), [(0.7, 1e-5), (1.2, 1e-3), (4.0, 1e-4)])
def test_the_formula_is_that_of_dp_accounting(law, mean, noise, delta, caplog):
    caplog.set_level(logging.ERROR, logger="absl")  # it says which orders it leaves out
    run = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(noise)), 50)
    theirs = dp.rdp.RdpAccountant().compose(dp_event.RepeatAndSelectDpEvent(run, mean, REPETITION_LAWS[law]))
    ours = cost(selection(mean, law, PoissonGaussian(noise, 0.1), 50), delta)
    assert ours == pytest.approx(theirs.get_epsilon(delta), rel=1e-6)


def test_fixed_size_cohorts_too():
    run = dp.SelfComposedDpEvent(dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(2.0)), 50)
    relation = dp.NeighboringRelation.REPLACE_ONE
    theirs = dp.rdp.RdpAccountant(neighboring_relation=relation).compose(dp_event.RepeatAndSelectDpEvent(run, 10, 1))
    ours = cost(selection(10, run=FixedSize(2.0, 100, 1000), num_rounds=50), 1e-4)
    assert ours == pytest.approx(theirs.get_epsilon(1e-4), rel=1e-6)


def test_only_rdp_accounts_it():
    rows = {row.accountant: row for row in account(selection(), num_rounds=1, delta=1e-3)}
    assert rows["rdp"].epsilon == pytest.approx(cost(selection()))
    for name in ("pld", "paper"):
        assert rows[name].epsilon is None
        assert "Renyi DP only" in rows[name].reason
    with pytest.raises(UnsupportedEvent, match=r"below 0\.01"):
        cost(selection(run=PoissonGaussian(0.005, 0.1)))


@pytest.mark.parametrize("law", REPETITION_LAWS)
def test_calibrated_noise_meets_the_target_for_the_whole_selection(law):
    noise = calibrate(
        lambda z: selection(10, law, PoissonGaussian(z, 0.1)), epsilon=4, delta=1e-4, num_rounds=1, accountant="rdp"
    )
    assert cost(selection(10, law, PoissonGaussian(noise, 0.1)), 1e-4) <= 4
    assert cost(selection(10, law, PoissonGaussian(noise / (1 + TOLERANCE), 0.1)), 1e-4) > 4
    one = calibrate(lambda z: PoissonGaussian(z, 0.1), epsilon=4, delta=1e-4, num_rounds=100, accountant="rdp")
    assert noise > one


def law_of(event, n):
    gamma = stopping_probability(event)
    if event.law == "geometric":
        return gamma * (1 - gamma) ** (n - 1)
    return (1 - gamma) ** n / (n * math.log(1 / gamma))


@pytest.mark.parametrize("law", REPETITION_LAWS)
@pytest.mark.parametrize("mean", [1.2, 4.0, 12.0])
def test_repetitions_follow_the_law_that_is_accounted(law, mean, rng):
    event = selection(mean, law)
    drawn = np.array([draw_repetitions(event, rng=rng) for _ in range(20_000)])
    assert drawn.min() == 1
    numbers = np.arange(1, 20_000)
    assert (law_of(event, numbers) * numbers).sum() == pytest.approx(mean, rel=1e-6)
    few = np.arange(1, 6)
    expected = np.append(law_of(event, few), 1 - law_of(event, few).sum())
    seen = np.append([(drawn == n).sum() for n in few], (drawn > 5).sum())
    keep = expected * len(drawn) > 5
    assert stats.chisquare(seen[keep], expected[keep] / expected[keep].sum() * seen[keep].sum()).pvalue > 1e-4


def test_a_wrong_law_would_be_noticed(rng):
    drawn = np.array([draw_repetitions(selection(4.0, "logarithmic"), rng=rng) for _ in range(20_000)])
    expected = law_of(selection(4.0, "geometric"), 1)
    assert abs((drawn == 1).mean() - expected) > 0.1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mean": 1.0}, "must be more than 1"),
        ({"mean": math.nan}, "must be a number"),
        ({"law": "fixed"}, "choose one"),
    ],
)
def test_what_makes_no_selection_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        selection(**changes)


def test_the_worst_run_has_the_least_noise_the_largest_cohorts_and_the_most_rounds():
    runs = [(PoissonGaussian(1.0, 0.05), 200), (PoissonGaussian(2.0, 0.2), 100)]
    assert worst_run(runs) == (PoissonGaussian(1.0, 0.2), 200)
    fixed = [(FixedSize(1.0, 10, 100), 5), (FixedSize(0.5, 20, 100), 2)]
    assert worst_run(fixed) == (FixedSize(0.5, 20, 100), 5)
    for run, rounds in runs:
        worst, most = worst_run(runs)
        mine, all_rounds = (epsilon(e, num_rounds=n, delta=1e-4) for e, n in ((run, rounds), (worst, most)))
        assert mine <= all_rounds


def test_settings_of_different_kinds_are_not_selected_among():
    kary = [(FixedSize(1.0, 10, 100, KaryChoice(keep, 3)), 5) for keep in (0.5, 0.6)]
    for runs in ([(RUN, 5), (FixedSize(1.0, 10, 100), 5)], kary):
        with pytest.raises(PrivacyError, match="guarantees of different kinds"):
            worst_run(runs)


def plan(**changes):
    settings = {
        "coordinates": Coordinates(0, 1),
        "num_clusters": 2,
        "num_clients": 1000,
        "sample_rate": 0.1,
        "num_rounds": 100,
        "update_clip": 1.0,
        "noise_multiplier": 1.2,
    }
    return PrivacyPlan.build(**(settings | changes))


def test_a_plan_that_is_part_of_a_selection_states_the_cost_of_the_selection():
    from dataclasses import replace

    chosen = replace(plan(), selection=Selection(selection(30), "private evaluation", ("update_clip: 0.1, 0.2",)))
    assert chosen.epsilon() == chosen.epsilon(num_rounds=1) == pytest.approx(cost(selection(30), 1e-4))
    told = statement(chosen)
    assert told["epsilon"] == pytest.approx(chosen.epsilon())
    assert told["accountant"] == "rdp"
    assert [row["epsilon"] for row in told["accountants"]] == [None, pytest.approx(chosen.epsilon()), None]
    assert told["event"]["type"] == "RepeatAndSelect"
    assert "update_clip: 0.1, 0.2" in told["selection"]["settings"]
    assert "geometric with mean 30" in told["selection"]["number_of_runs"]
    assert not any("picking the best" in line for line in told["not_covered"])
    assert any("another sweep" in line for line in told["not_covered"])
    assert any("picking the best" in line for line in statement(plan())["not_covered"])


@pytest.mark.parametrize("changes", [{"noise_multiplier": 1.1}, {"sample_rate": 0.2}, {"num_rounds": 101}])
def test_a_run_that_costs_more_than_was_charged_is_refused(changes):
    from dataclasses import replace

    with pytest.raises(PrivacyError, match="costs more than the selection was charged for"):
        replace(plan(**changes), selection=Selection(selection(), "public", ()))


def test_the_ledger_takes_a_selection_as_one_charge(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(0, selection())
    again = Ledger(path)
    again.charge(0, selection())
    assert again.num_charged == 1
    with pytest.raises(PrivacyError, match="charged for a different event"):
        again.charge(0, selection(11))
