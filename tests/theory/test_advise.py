"""Advice is by hand, public, and not worse than B = 0 when simulated."""

import inspect
import math

import numpy as np
import pytest
from quadratic_problem import Problem, RoundSettings, play_round

import rrcluster as rr
from rrcluster.errors import ConfigError
from rrcluster.theory.advise import Case, filled, trade_off
from rrcluster.theory.outlook import outlook
from rrcluster.types import Coordinates

PLAIN = {  # a floor of 1: the problem of the theory
    "num_clients": 1000,
    "sample_rate": 0.1,
    "delta": 1e-3,
    "size_floor": 1.0,
    "by_model": True,
    "num_clusters": 4,
    "num_coordinates": 1000,
    "update_clip": 0.5,
    "noise_multiplier": 1.0,
    "expected_ratio": (55, 30, 12, 3),
}


def case(sizes, **changes):
    known = {"noise": 100.0, "num_coordinates": 10**6, "horizon": 2.0, "size_floor": 1.0, "separation": 40.0}
    return Case(sizes=np.array(sizes, dtype=float), **known | changes)


def test_trade_off_by_hand():
    # 9 clients move to the last cluster, from surpluses of 43 and 18.
    after = [55 - 9 * 43 / 61, 30 - 9 * 18 / 61, 12, 12]
    option = trade_off(case([55, 30, 12, 3]), min_cluster_size=12)
    assert filled(np.array([55.0, 30.0, 12.0, 3.0]), min_cluster_size=12) == pytest.approx(after)
    assert option.noise == pytest.approx([50 / size**2 for size in after])
    assert option.bias == pytest.approx([0, 0, 0, (40 * 9 / 12) ** 2])
    assert option.error == pytest.approx((sum(50 / size**2 for size in after) + 900) / 4)


def test_without_rebalancing_the_error_is_natural():
    option = trade_off(case([8, 0.5]), min_cluster_size=0)
    assert option.noise == pytest.approx([50 / 64, 50.0])  # nobody is divided by less than one
    assert not option.bias.any()


def test_noise_that_hides_the_separation_starves_a_cluster():
    # Per round, noise is 100 / 10^2 = 1 in the small cluster and 100 / 90^2 in the large one; choices turn near 1.
    assert not trade_off(case([90, 10], separation=1.1), min_cluster_size=0).starved.any()
    option = trade_off(case([90, 10], separation=0.9), min_cluster_size=0)
    assert option.starved.tolist() == [False, True]
    assert option.noise == pytest.approx([50 / 100**2, 200.0])  # nobody pulls the second one back
    assert option.bias == pytest.approx([0.81 * 0.1**2, 0.81])
    assert not trade_off(case([90, 10], separation=0.9), min_cluster_size=12).starved.any()


def test_much_noise_and_imbalance_call_for_rebalancing():
    advice = rr.advise(**PLAIN)
    assert advice.rebalance
    assert 3 < advice.min_cluster_size <= 25
    assert advice.error_with < advice.error_without
    assert advice.largest_separation > 1


def test_where_every_b_starves_a_cluster_none_is_advised():
    advice = rr.advise(**PLAIN | {"expected_ratio": None, "noise_multiplier": 10.0})
    assert (advice.rebalance, advice.min_cluster_size) == (False, 0)
    assert any("lose their own clients" in reason for reason in advice.reasons)
    assert any("would not" in reason for reason in advice.reasons)


@pytest.mark.parametrize(
    "change",
    [{"expected_ratio": None}, {"noise_multiplier": 1e-9}, {"separation": 1000.0}],
    ids=lambda change: next(iter(change)),
)
def test_balance_no_noise_or_far_groups_call_for_none(change):
    advice = rr.advise(**PLAIN | change)
    assert (advice.rebalance, advice.min_cluster_size) == (False, 0)
    assert advice.error_with == advice.error_without


def test_more_noise_never_asks_for_a_smaller_least_size_while_one_helps():
    sizes = [rr.advise(**PLAIN | {"noise_multiplier": z}).min_cluster_size for z in (0.01, 0.1, 0.3, 1)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert rr.advise(**PLAIN | {"noise_multiplier": 30}).min_cluster_size == 0


def test_the_break_even_separation_is_where_the_advised_size_stops_paying():
    advice = rr.advise(**PLAIN)
    std = math.hypot(0.5, 0.125)
    for factor, pays in ((0.999, True), (1.001, False)):
        known = {"noise": 1000 * std**2, "num_coordinates": 1000, "horizon": 50.0}
        apart = case([55, 30, 12, 3], separation=factor * advice.largest_separation * 0.5, **known)
        none, some = (trade_off(apart, min_cluster_size=size).error for size in (0, advice.min_cluster_size))
        assert (some < none) == pays


def test_reasons_are_sentences_that_state_the_assumption():
    for advice in (rr.advise(**PLAIN), rr.advise(**PLAIN | {"noise_multiplier": 1e-9})):
        assert all(reason.endswith(".") for reason in advice.reasons)
        assert any("differ by 1 clips" in reason for reason in advice.reasons)
    assert any(reason.startswith("Warning") for reason in rr.advise(**PLAIN | {"noise_multiplier": 50.0}).reasons)
    assert "one cluster" in " ".join(rr.advise(**PLAIN | {"num_clusters": 1, "expected_ratio": (1,)}).reasons)


def test_nothing_private_can_be_passed():
    asked = {"settings", "num_clients", "num_clusters", "num_coordinates", "expected_ratio", "separation", "size_floor"}
    asked |= {"exploration", "average_last", "by_model", "changes"}
    assert set(inspect.signature(rr.advise).parameters) == asked


def test_noise_floor_and_cohort_are_those_of_the_plan():
    known = {"num_clients": 500, "num_clusters": 5}
    privacy = {"sample_rate": 0.2, "epsilon": 2.0, "delta": 1e-3, "num_rounds": 50, "update_clip": 0.3}
    plan = rr.PrivacyPlan.build(**known, **privacy, coordinates=Coordinates(0, 900))
    seen = rr.advise(**known, **privacy, num_coordinates=900).outlook
    assert seen.size_floor == plan.mechanism.size_floor == pytest.approx(12)
    assert seen.sizes == pytest.approx((20,) * 5)
    assert seen.per_round == pytest.approx((20 * 0.3 / (30 * plan.mechanism.noise_std),) * 5)
    assert seen.over_run == pytest.approx([5 * ratio for ratio in seen.per_round])  # 25 rounds are averaged
    assert rr.advise(**known, **privacy | {"update_clip": 3.0}, num_coordinates=900).outlook.per_round == pytest.approx(
        seen.per_round
    )  # the clip cancels
    shared = outlook(plan.with_coordinates(Coordinates(900, 0)), update_clip=0.3)
    assert shared.per_round[0] == pytest.approx(5 * seen.per_round[0])  # everybody's sum


INSURED = PLAIN | {"by_model": False, "size_floor": None, "expected_ratio": (1, 1, 1, 1), "noise_multiplier": 0.8}


def test_with_exploration_b_is_below_the_expected_size_by_what_released_sizes_vary():
    advice = rr.advise(**INSURED)
    size_noise = 0.8 * math.hypot(0.5, 0.125) / 0.125  # std of one released size, in clients
    deviation = math.sqrt(0.1 / 1.9) * math.hypot(size_noise, 5)
    assert advice.min_cluster_size == int(25 - 2.5 * deviation) == 21
    small = rr.advise(**INSURED | {"expected_ratio": (8, 1, 1, 1), "num_coordinates": 10})
    assert small.min_cluster_size == int(
        100 / 11 - 2.5 * math.sqrt(0.1 / 1.9) * math.hypot(size_noise, (100 / 11) ** 0.5)
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"expected_ratio": None}, "not given"),
        ({"exploration": 0.0}, "without exploration"),
        ({"num_coordinates": 10**6}, "signal-to-noise"),
        ({"num_coordinates": 1, "expected_ratio": (97, 1, 1, 1)}, "cannot tell"),
        ({"num_coordinates": 1, "mechanism": "identifier"}, "cannot tell"),
        ({"num_clusters": 1, "expected_ratio": (1,)}, "one cluster"),
    ],
)
def test_with_exploration_no_b_where_it_could_cost(change, reason):
    advice = rr.advise(**INSURED | change)
    assert (advice.rebalance, advice.min_cluster_size) == (False, 0)
    assert reason in " ".join(advice.reasons)


def test_the_floor_of_the_plan_makes_the_promise_smaller():
    """With the floor of a run, a small cluster is divided by 15 and not by its own 3 clients."""
    alone, floored = rr.advise(**PLAIN), rr.advise(**PLAIN | {"size_floor": None})
    assert floored.outlook.size_floor == 15
    assert floored.error_without < alone.error_without / 10


@pytest.mark.parametrize(
    ("noise_multiplier", "hopeless", "warned"), [(0.2, False, False), (5.0, False, True), (20.0, True, True)]
)
def test_warnings_follow_the_signal(noise_multiplier, hopeless, warned):
    seen = rr.advise(**PLAIN | {"expected_ratio": None, "noise_multiplier": noise_multiplier, "num_rounds": 20}).outlook
    assert seen.hopeless == hopeless
    assert any(line.startswith("Warning") for line in seen.warnings) == warned


def test_correlated_noise_counts_by_what_is_left_of_it():
    """A schedule with independent noise is as noisy as a sample of the same size; correlation cancels some of it."""
    known = {"num_clients": 1000, "num_clusters": 4, "num_coordinates": 500, "noise_multiplier": 1.0, "delta": 1e-3}
    sample = rr.advise(**known, sample_rate=0.1).outlook
    slots = {"participation": "schedule", "slots": 10}
    independent, optimised = (
        rr.advise(**known, **slots, correlation=name).outlook for name in ("independent", "optimised")
    )
    assert independent.over_run == pytest.approx(sample.over_run)
    assert optimised.per_round[0] < independent.per_round[0]  # a single round is noisier
    assert optimised.over_run[0] > 1.5 * independent.over_run[0]
    assert optimised.over_run[0] < optimised.per_round[0] * 50  # all rounds together, without any noise of their own


def test_clusters_below_the_floor_are_mentioned():
    seen = rr.advise(**PLAIN | {"size_floor": None, "noise_multiplier": 0.1}).outlook
    assert "2 of 4 clusters" in seen.warnings[0]


@pytest.mark.parametrize(
    "change",
    [
        {"expected_ratio": (1, 2)},
        {"expected_ratio": (0, 0, 0, 0)},
        {"noise_multiplier": -1.0},
        {"mechanism": "nothing"},
    ],
)
def test_bad_arguments_are_named(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        rr.advise(**PLAIN | change)


def test_the_old_way_to_ask_is_named():
    with pytest.raises(ConfigError, match="expected_cohort is gone"):
        rr.advise(expected_cohort=100, num_clients=1000, num_clusters=4, num_coordinates=10)


def squared_error(problem, *, min_cluster_size, noise_std, num_rounds, rng):
    """Mean over clusters of |average model of the last half - optimum|^2, with choices by loss."""
    settings = RoundSettings(min_cluster_size, server_lr=1.0, identifier_noise_multiplier=0.0, noise_std=noise_std)
    models, kept = problem.optima, []
    for _ in range(num_rounds):
        models = play_round(problem, models, settings, rng=rng).models
        kept.append(models)
    average = np.mean(kept[num_rounds // 2 :], axis=0)
    return float(((average - problem.optima) ** 2).sum(axis=1).mean())


@pytest.mark.parametrize("ratio", [(55, 30, 12, 3), (40, 40, 15, 5), (25, 25, 25, 25)])
@pytest.mark.parametrize("noise_multiplier", [0.05, 0.2, 0.8, 3.0])
@pytest.mark.parametrize("separation", [0.3, 1.0, 3.0])
def test_advice_is_not_worse_than_none_when_simulated(ratio, noise_multiplier, separation, rng):
    d, num_rounds = 50, 20
    advice = rr.advise(
        num_clients=100,
        sample_rate=1.0,
        delta=1e-3,
        size_floor=1.0,
        by_model=True,
        num_clusters=4,
        num_coordinates=d,
        update_clip=1.0,
        noise_multiplier=noise_multiplier,
        expected_ratio=ratio,
        num_rounds=num_rounds,
        separation=separation,
    )
    corners = separation / math.sqrt(2) * np.eye(4, d)  # every two optima are `separation` apart
    problem = Problem(corners, np.ones((4, d)), np.array(ratio), data_std=0.01)
    known = {"noise_std": noise_multiplier * math.hypot(1, 0.25), "num_rounds": num_rounds, "rng": rng}
    errors = {
        size: np.array([squared_error(problem, min_cluster_size=size, **known) for _ in range(12)])
        for size in {0, advice.min_cluster_size}
    }
    none, advised = errors[0], errors[advice.min_cluster_size]
    print(
        f"{ratio} z={noise_multiplier} sep={separation}: B={advice.min_cluster_size} none {none.mean():.4g} "
        f"({advice.error_without:.4g}) advised {advised.mean():.4g} ({advice.error_with:.4g})"
    )
    assert advised.mean() <= none.mean() + 2 * (none.std() + advised.std()) / math.sqrt(12)


def random_case(rng):
    """Two to five groups of 100 clients from balanced to very uneven, any noise and separation."""
    k = int(rng.integers(2, 6))
    ratio = np.maximum(1, rng.multinomial(100, rng.dirichlet(np.full(k, float(rng.choice([0.7, 3, 50]))))))
    d = max(k, int(10 ** rng.uniform(1, 2.5)))
    noise_multiplier, separation = float(10 ** rng.uniform(-1.5, 0.7)), float(10 ** rng.uniform(-0.7, 0.7))
    problem = Problem(separation / math.sqrt(2) * np.eye(k, d), np.ones((k, d)), ratio, data_std=0.01)
    return problem, noise_multiplier, separation


@pytest.mark.slow
def test_advice_is_rarely_worse_than_none_on_random_problems():
    rng, advised_some, gains = np.random.default_rng(7), 0, []
    for _ in range(120):
        problem, noise_multiplier, separation = random_case(rng)
        advice = rr.advise(
            num_clients=int(problem.group_sizes.sum()),
            sample_rate=1.0,
            delta=1e-3,
            size_floor=1.0,
            by_model=True,
            num_clusters=len(problem.optima),
            num_coordinates=problem.optima.shape[1],
            update_clip=1.0,
            noise_multiplier=noise_multiplier,
            expected_ratio=problem.group_sizes.tolist(),
            num_rounds=20,
            separation=separation,
        )
        if not advice.rebalance:
            continue
        advised_some += 1
        known = {"noise_std": noise_multiplier * math.hypot(1, 0.25), "num_rounds": 20, "rng": rng}
        none, advised = (
            np.mean([squared_error(problem, min_cluster_size=size, **known) for _ in range(8)])
            for size in (0, advice.min_cluster_size)
        )
        gains.append(none / advised)
    print(f"B > 0 advised in {advised_some} of 120; none / advised: {np.quantile(gains, [0, 0.1, 0.5, 0.9])}")
    assert advised_some > 20
    assert np.mean(np.array(gains) < 0.9) <= 0.1
    assert np.median(gains) > 10
