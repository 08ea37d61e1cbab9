"""Accuracy and loss as coordinates of the joint release: sensitivity, noise, validity, and what they mean."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_cases import CLIP, VALUES, WEIGHT, K, identifier, joint, joint_vector, update
from scipy import stats

from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.none import NoneMechanism
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import Reports, check_reports
from rrcluster.types import Coordinates, NoisyEvaluation

U = 0.2

said = st.one_of(
    st.floats(-2, 3), st.sampled_from([0.0, 0.5, 1.0, 1e300, -1e300, np.inf, -np.inf, np.nan, 5e-324])
)  # anything a float can be
client = st.tuples(st.sampled_from(list(VALUES.values())), st.integers(0, 2), st.integers(-1, K), said, said)


def released(mechanism, clients):
    width = mechanism.coordinates.width
    release = mechanism.release(
        Reports(
            np.array([update(value, width, axis) for value, axis, _, _, _ in clients]).reshape(-1, width),
            np.array([choice for _, _, choice, _, _ in clients], dtype=np.int64),
            evaluations=np.array([[accuracy, loss] for _, _, _, accuracy, loss in clients]).reshape(-1, 2),
        ),
        rng=np.random.default_rng(0),
    )
    return joint_vector(release, mechanism)


@given(st.lists(client, max_size=8), client, st.integers(0, 1), st.sampled_from([0.0, WEIGHT]))
@settings(max_examples=400, deadline=None)
def test_adding_one_client_moves_the_release_by_at_most_s_whatever_it_says(others, added, shared, weight):
    mechanism = joint(shared=shared, evaluation=U, count_weight=weight)
    without, with_it = released(mechanism, others), released(mechanism, [*others, added])
    assert np.isfinite(with_it).all()
    assert np.linalg.norm(with_it - without) <= mechanism.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize(("accuracy", "loss"), [(1.0, 0.0), (0.0, 1.0), (1e300, -7.0)])
def test_the_sensitivity_is_attained(accuracy, loss):
    mechanism = joint(evaluation=U)
    moved = released(mechanism, [(CLIP, 0, 1, accuracy, loss)]) - released(mechanism, [])
    assert np.linalg.norm(moved) == pytest.approx(mechanism.sensitivity, rel=1e-5)
    assert mechanism.sensitivity == pytest.approx(np.sqrt(CLIP**2 + WEIGHT**2 + U**2 / 2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_evaluation_that_is_no_number_makes_the_whole_report_the_zero_message(bad):
    mechanism = joint(evaluation=U)
    assert (released(mechanism, [(CLIP, 0, 1, 0.5, bad)]) == released(mechanism, [])).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_an_invalid_update_takes_its_evaluation_with_it(value):
    mechanism = joint(evaluation=U)
    assert (released(mechanism, [(value, 0, 1, 1.0, 1.0)]) == released(mechanism, [])).all()


@pytest.mark.parametrize("bad", ["ab", None, [1.0], [[1.0, 1.0]], ["high", "low"], [1j, 0], object(), [True]])
def test_one_hostile_evaluation_spoils_only_itself(bad):
    said = [[0.2, 0.9], bad, np.array([2.0, -1.0])]
    reports = check_reports(Reports(np.ones((3, 2)), [0, 1, 2], evaluations=said), width=2, num_clusters=3)
    assert reports.valid.tolist() == [True, False, True]
    assert reports.evaluations.tolist() == [[0.2, 0.9], [0.0, 0.0], [1.0, 0.0]]
    assert reports.padded(4).evaluations.shape == (4, 2)


def test_truth_values_are_the_numbers_they_stand_for():
    """As in updates: what a number is worth does not depend on the type that stacking gave it."""
    said = [[True, False], np.array([False, True]), [0.5, True]]
    reports = check_reports(Reports(np.ones((3, 2)), [0, 1, 2], evaluations=said), width=2, num_clusters=3)
    assert reports.valid.all()
    assert reports.evaluations.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.5, 1.0]]


def test_torch_evaluations_pass_and_mistakes_of_the_caller_raise():
    settings = {"width": 2, "num_clusters": 3}
    assert check_reports(Reports(np.ones((1, 2)), [0], evaluations=torch.tensor([[0.5, 0.5]])), **settings).valid.all()
    with pytest.raises(ConfigError, match="one pair per update; give as many"):
        check_reports(Reports(np.ones((2, 2)), [0, 1], evaluations=[[0.5, 0.5]]), **settings)
    with pytest.raises(ConfigError, match="evaluations have 3 coordinates"):
        check_reports(Reports(np.ones((1, 2)), [0], evaluations=np.ones((1, 3))), **settings)


def p_value(samples, std):
    upper = stats.chi2.sf((samples**2).sum() / std**2, samples.size)
    return 2 * min(upper, 1 - upper)


@pytest.mark.parametrize("clients", [0, 3], ids=["empty cohort", "three clients"])
def test_the_noise_on_the_evaluation_has_its_scale(clients, rng):
    mechanism = joint(clustered=1, noise_multiplier=1.7, evaluation=U)
    drawn = []
    for _ in range(2400):
        pairs = np.full((clients, 2), [1.0, 0.25])
        drawn.append(
            mechanism.release(Reports(np.zeros((clients, 1)), [0] * clients, evaluations=pairs), rng=rng).evaluation
        )
    errors = np.array([one.sums for one in drawn]) - clients * np.array([0.5, -0.25])
    std = 1.7 * np.sqrt(CLIP**2 + WEIGHT**2 + U**2 / 2) / U
    assert drawn[0].sum_noise_std == pytest.approx(std)
    for column in errors.T:
        assert p_value(column, std) > 1e-4
        assert p_value(column, 0.9 * std) < 1e-4
        assert p_value(column, 1.1 * std) < 1e-4
    assert abs(np.corrcoef(errors.T)[0, 1]) < 5 / np.sqrt(len(errors))


def test_the_stated_std_of_the_mean_is_what_it_scatters_by(rng):
    mechanism = joint(clustered=1, noise_multiplier=1.0, evaluation=U)
    pairs, choices = np.full((200, 2), [0.9, 0.1]), rng.integers(K, size=200)
    drawn = [
        mechanism.release(Reports(np.zeros((200, 1)), choices, evaluations=pairs), rng=rng).evaluation
        for _ in range(1500)
    ]
    means = np.array([one.accuracy for one in drawn])
    assert means.mean() == pytest.approx(0.9, abs=0.005)
    assert np.mean([one.accuracy_noise_std for one in drawn]) == pytest.approx(means.std(), rel=0.1)


def test_without_noise_the_means_are_exact_and_the_loss_is_in_its_own_units():
    mechanism = PrivacyPlan.build(
        coordinates=Coordinates(0, 1),
        num_clusters=2,
        num_clients=1000,
        sample_rate=0.1,
        num_rounds=5,
        update_clip=1.0,
        noise_multiplier=1e-9,
        private_evaluation=0.5,
        evaluation_loss_bound=8.0,
        size_floor=1.0,
    ).mechanism
    pairs = [[1.0, 0.25], [0.5, 0.5]]
    told = mechanism.release(
        Reports(np.zeros((2, 1)), [0, 1], evaluations=pairs), rng=np.random.default_rng(0)
    ).evaluation
    assert (told.accuracy, told.loss) == (pytest.approx(0.75, abs=1e-6), pytest.approx(3.0, abs=1e-6))


def test_averaging_over_rounds_is_the_ratio_of_sums_and_shrinks_the_noise():
    one = NoisyEvaluation(np.array([30.0, -10.0]), 100.0, 4.0, 8.0, 4.0)
    two = NoisyEvaluation(np.array([10.0, -10.0]), 100.0, 3.0, 6.0, 4.0)
    both = one.plus(two)
    assert both.accuracy == pytest.approx(0.5 + 40 / 200)
    assert both.loss == pytest.approx(4 * (0.5 - 20 / 200))
    assert both.sum_noise_std == pytest.approx(5.0)
    assert both.accuracy_noise_std == pytest.approx(np.hypot(5.0, 0.2 * 10.0) / 200)


def test_a_noisy_number_of_clients_below_the_public_floor_is_not_divided_by():
    few = NoisyEvaluation(np.array([6.0, 0.0]), -3.0, 1.0, 1.0, 1.0, least_clients=60.0)
    assert few.accuracy == pytest.approx(0.6)
    assert few.plus(few).accuracy == pytest.approx(0.6)


def test_evaluations_and_plan_must_agree(rng):
    with pytest.raises(ConfigError, match="not given, but the plan has private_evaluation on"):
        joint(evaluation=U).release(Reports(np.zeros((1, 2)), [0]), rng=rng)
    with pytest.raises(ConfigError, match="given, but the plan has private_evaluation off"):
        joint().release(Reports(np.zeros((1, 2)), [0], evaluations=[[0.5, 0.5]]), rng=rng)
    with pytest.raises(PrivacyError, match="needs `joint`"):
        identifier(cohort=1).release(Reports(np.zeros((1, 2)), [0], evaluations=[[0.5, 0.5]]), rng=rng)
    with pytest.raises(PrivacyError, match="belongs to `joint`"):
        NoneMechanism(Coordinates(0, 2), 2, 1, 10, 1.0).release(
            Reports(np.zeros((1, 2)), [0], evaluations=[[0.5, 0.5]]), rng=rng
        )


@pytest.mark.parametrize(
    ("mechanism", "reason"),
    [("identifier", "only noisy identifiers and sums, at sensitivity 2C"), ("none", "exact values")],
)
def test_other_mechanisms_refuse_it_with_the_reason_and_the_way_out(mechanism, reason):
    with pytest.raises(PrivacyError, match=f"{reason}; set it to 0, or use mechanism = joint"):
        PrivacyPlan.build(
            coordinates=Coordinates(0, 1),
            num_clusters=2,
            num_clients=100,
            sample_rate=0.1,
            num_rounds=5,
            update_clip=1.0,
            mechanism=mechanism,
            noise_multiplier=None if mechanism == "none" else 1.0,
            private_evaluation=0.25,
        )


def test_the_event_does_not_change_and_off_draws_the_same_noise_as_ever(rng):
    on, off = joint(evaluation=U, noise_multiplier=1.0), joint(noise_multiplier=1.0)
    assert on.event == off.event
    assert on.noise_std > off.noise_std
    noisy = [
        one.release(Reports(np.zeros((0, 2)), [], evaluations=said), rng=np.random.default_rng(3)).cluster_sums
        / one.noise_std
        for one, said in ((on, np.zeros((0, 2))), (off, None))
    ]
    assert np.allclose(*noisy)


def test_clients_clip_their_loss_at_the_bound_and_nobody_asks_for_one_without_evaluation():
    assert joint(evaluation=U).loss_bound == 1.0
    assert joint().loss_bound is None
    assert identifier(cohort=1).loss_bound is None
    assert NoneMechanism(Coordinates(0, 2), 2, 1, 10, 1.0).loss_bound is None
