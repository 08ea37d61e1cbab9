"""Advice is by hand, public, and follows the plan of the run."""

import inspect
import math

import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError
from rrcluster.runs.advise import outlook
from rrcluster.types import Coordinates

PLAIN = {
    "num_clients": 1000,
    "sample_rate": 0.1,
    "delta": 1e-3,
    "num_clusters": 4,
    "num_coordinates": 1000,
    "update_clip": 0.5,
    "noise_multiplier": 1.0,
    "expected_ratio": (55, 30, 12, 3),
}


def test_nothing_private_can_be_passed():
    asked = {"settings", "num_clients", "num_clusters", "num_coordinates", "expected_ratio", "size_floor"}
    asked |= {"exploration", "average_last", "changes"}
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


INSURED = PLAIN | {"expected_ratio": (1, 1, 1, 1), "noise_multiplier": 0.8, "num_rounds": 9}  # too few to ask


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
    assert advice.min_cluster_size == 0
    assert reason in " ".join(advice.reasons)


@pytest.mark.parametrize(
    ("noise_multiplier", "hopeless", "warned"), [(0.2, False, False), (5.0, False, True), (20.0, True, True)]
)
def test_warnings_follow_the_signal(noise_multiplier, hopeless, warned):
    seen = rr.advise(**PLAIN | {"expected_ratio": None, "noise_multiplier": noise_multiplier, "num_rounds": 20}).outlook
    assert any("hopeless" in warning for warning in seen.warnings) == hopeless
    assert any(line.startswith("Warning") for line in seen.warnings) == warned


def test_correlated_noise_counts_by_what_is_left_of_it():
    """A sample of a schedule's size has independent noise; correlation cancels some of the noise over rounds."""
    known = {"num_clients": 1000, "num_clusters": 4, "num_coordinates": 500, "noise_multiplier": 1.0, "delta": 1e-3}
    independent = rr.advise(**known, sample_rate=0.1).outlook
    schedule = rr.advise(**known, participation="schedule", slots=10).outlook
    assert schedule.per_round[0] < independent.per_round[0]  # a single round is noisier
    assert schedule.over_run[0] > 1.5 * independent.over_run[0]
    assert schedule.over_run[0] < schedule.per_round[0] * 50  # all rounds together, without any noise of their own


def test_clusters_below_the_floor_are_mentioned():
    seen = rr.advise(**PLAIN | {"noise_multiplier": 0.1}).outlook
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


@pytest.mark.parametrize(
    ("change", "init"),
    [
        ({}, "survey"),
        ({"noise_multiplier": 4.0}, "independent"),
        ({"num_rounds": 9}, "independent"),
        ({"num_coordinates": 15}, "independent"),
        ({"exploration": 0.0}, "independent"),
        ({"mechanism": "identifier"}, "independent"),
        ({"participation": "schedule", "slots": 10, "noise_multiplier": 2.0, "sample_rate": 1.0}, "independent"),
    ],
)
def test_a_survey_is_advised_where_noise_leaves_it_enough(change, init):
    assert rr.advise(**PLAIN | {"expected_ratio": None, "noise_multiplier": 0.5} | change).init == init


def test_in_public_slots_b_is_nearly_the_smallest_size():
    slots = {"participation": "schedule", "slots": 10, "noise_multiplier": 2.0, "sample_rate": 1.0}
    for ratio, least in (((1, 1, 1, 1), 24), ((2, 1, 1, 1), 19), (None, 0)):
        assert rr.advise(**PLAIN | slots | {"expected_ratio": ratio}).min_cluster_size == least


def test_a_group_that_a_survey_may_miss_is_mentioned():
    known = PLAIN | {"noise_multiplier": 0.5}
    assert "may be missed" not in " ".join(rr.advise(**known | {"expected_ratio": (1, 1, 1, 1)}).reasons)
    assert "may be missed" in " ".join(rr.advise(**known | {"expected_ratio": (97, 1, 1, 1)}).reasons)
