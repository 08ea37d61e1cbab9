"""The terms with numbers written out, their edges, and what they are linear in."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from rrcluster_research import convergence as theorem
from rrcluster_research import lemma
from rrcluster_research.convergence import (
    failed_round,
    failed_run,
    many_rounds,
    many_rounds_printed,
    one_round,
    one_round_printed,
    rounds,
)
from scipy.special import ndtr
from scipy.stats import chi2

from rrcluster.privacy.rebalancing import rebalance


def test_choice_error_by_hand():
    known = {"margin": 0.25, "strong_convexity": 0.5, "separation": 2.0, "num_clusters": 3}  # gap 0.5
    assert lemma.loss_gap(margin=0.25, strong_convexity=0.5, separation=2.0) == 0.5
    assert lemma.choice_error_printed(loss_std=0.1, **known) == pytest.approx(8 * 0.01 * 3 / 0.25)
    assert lemma.choice_error(loss_std=0.1, **known) == pytest.approx(2 * 0.04 / 0.29)
    assert lemma.choice_error(loss_std=0.0, **known) == 0
    assert lemma.choice_error(loss_std=1e9, **known) == 1


def test_identifier_error_by_hand():
    # Two clusters: one entry must pass the other by 1, std sqrt(2) sigma.
    two = lemma.identifier_error(identifier_noise_multiplier=0.5, num_clusters=2)
    assert two == pytest.approx(float(ndtr(-1 / (math.sqrt(2) * 0.5))), rel=1e-8)
    assert lemma.identifier_error(identifier_noise_multiplier=1.0, num_clusters=4) == pytest.approx(1 - 0.552, abs=5e-4)
    assert lemma.identifier_error(identifier_noise_multiplier=0.4079, num_clusters=4) == pytest.approx(0.1, abs=1e-4)
    assert lemma.identifier_error(identifier_noise_multiplier=0.0, num_clusters=4) == 0
    tiny = lemma.identifier_error(identifier_noise_multiplier=0.03, num_clusters=2)
    assert tiny == pytest.approx(float(ndtr(-1 / (math.sqrt(2) * 0.03))), rel=1e-8)
    assert lemma.identifier_error(identifier_noise_multiplier=100.0, num_clusters=4) == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("sigma", [0.03, 0.1, 0.3, 0.72, 2.0])
@pytest.mark.parametrize("k", [2, 4, 10])
def test_the_printed_identifier_error_holds(sigma, k):
    exact = lemma.identifier_error(identifier_noise_multiplier=sigma, num_clusters=k)
    union = (k - 1) * float(ndtr(-1 / (math.sqrt(2) * sigma)))
    printed = lemma.identifier_error_printed(identifier_noise_multiplier=sigma, num_clusters=k)
    assert 0 < exact <= union * (1 + 1e-9) <= printed


def test_the_printed_identifier_error_is_vacuous_from_there_on():
    assert lemma.identifier_error_printed(identifier_noise_multiplier=0.71, num_clusters=4) < 1
    assert lemma.identifier_error_printed(identifier_noise_multiplier=0.72, num_clusters=4) > 1


def test_rebalance_error_by_hand():
    known = {"cluster_size_std": 5.0, "num_clients": 100, "num_clusters": 4}
    assert lemma.rebalance_error_printed(**known, min_cluster_size=10) == pytest.approx(16 * 25 / 225)
    assert lemma.rebalance_error(**known, min_cluster_size=10) == pytest.approx(3 * 25 / 225 * 30 / 90)
    assert lemma.rebalance_error(**known, min_cluster_size=0) == 0
    assert lemma.rebalance_error(**known, min_cluster_size=25) == 1  # B = M / k: everybody may move
    assert lemma.rebalance_error_printed(**known, min_cluster_size=25) == math.inf
    assert lemma.rebalance_error_printed(**{**known, "cluster_size_std": 0.0}, min_cluster_size=25) == 0


def test_rebalance_moves_no_client_more_often_than_bounded(rng):
    sizes = [20, 30, 35, 35]  # M = 120, mu = 10 around 30, B = 22
    assignment = np.repeat(np.arange(4), sizes)
    moved = np.mean(
        [rebalance(assignment, num_clusters=4, min_cluster_size=22, rng=rng) != assignment for _ in range(2000)], axis=0
    )
    bound = lemma.rebalance_error(cluster_size_std=10.0, num_clients=120, num_clusters=4, min_cluster_size=22)
    assert 0.02 < moved.max() < bound


def test_the_round_by_hand(calm):
    tau = 0.002  # w = 4 * 0.002 * 1000 / (0.1 * 250) = 0.32
    assert theorem.wrong_share(calm, misassignment=tau) == pytest.approx(0.32)
    assert theorem.contraction(calm, misassignment=tau) == pytest.approx(1 - 0.8 * 0.5 * 0.68)
    assert theorem.contraction_printed(calm, misassignment=tau) == pytest.approx(1 - 0.8 * (250 - 40) / (2 * 750))
    assert theorem.own_noise(calm) == pytest.approx(2 * 0.8 * 0.01 / math.sqrt(0.1 * 250))
    assert theorem.own_noise_printed(calm, misassignment=tau) == pytest.approx(0.04 / math.sqrt(0.1 * (25 - 8)))
    radius = 0.25 * math.sqrt(0.5) * 2
    assert calm.radius == pytest.approx(radius)
    assert theorem.bias(calm, misassignment=tau) == pytest.approx(0.8 * (2 + radius) * 0.32)
    assert theorem.bias_printed(calm, misassignment=tau) == pytest.approx(6 * tau * 0.8 * 2 * 1000 / (0.1 * 250))
    assert theorem.wrong_noise(calm, misassignment=tau) == pytest.approx(4 * 0.8 * 0.01 * math.sqrt(2) / (0.1 * 250))
    printed = 8 * 0.8 * 0.01 * 2 * math.sqrt(tau * 2 * 1000) / (250 * 0.1 * math.sqrt(0.1))
    assert theorem.wrong_noise_printed(calm, misassignment=tau) == pytest.approx(printed)
    log = math.log(40)
    length = math.sqrt(10 + 2 * math.sqrt(10 * log) + 2 * log)
    assert theorem.privacy_noise(calm) == pytest.approx(0.8 * 0.5 / 250 * length)


@pytest.mark.parametrize("d", [1, 10, 1000])
def test_the_privacy_noise_is_above_the_exact_quantile_but_not_by_much(calm, d):
    exact = 0.8 * 0.5 / 250 * math.sqrt(chi2.isf(0.1 / 4, d))
    assert exact <= theorem.privacy_noise(replace(calm, num_coordinates=d)) <= 1.6 * exact


@pytest.mark.parametrize(
    ("field", "terms"),
    [
        ("noise_std", ["privacy_noise"]),
        ("gradient_std", ["own_noise", "wrong_noise"]),
        ("server_lr", ["own_noise", "wrong_noise", "bias", "privacy_noise"]),
    ],
)
def test_halving_what_a_term_is_linear_in_halves_it(calm, field, terms):
    half = replace(calm, **{field: getattr(calm, field) / 2})
    for name in ("own_noise", "wrong_noise", "bias", "privacy_noise"):
        factor = 0.5 if name in terms else 1.0
        assert getattr(one_round(half), name) == pytest.approx(factor * getattr(one_round(calm), name))


def test_without_a_least_size_there_is_no_bound(calm):
    nobody = replace(calm, min_cluster_size=0)
    assert one_round(nobody).floor == math.inf
    assert one_round_printed(nobody).floor == math.inf
    assert math.isnan(many_rounds(nobody).num_rounds)


def test_the_corollary_by_hand(calm):
    assert rounds(calm, rate=0.5, floor=calm.radius / 8) == 2  # (1/2)^2 r = r / 4 = floor / rate
    assert rounds(calm, rate=0.5, floor=calm.radius) == 0
    assert rounds(calm, rate=1.0, floor=0.0) == 1
    assert rounds(calm, rate=0.5, floor=0.0) == math.inf
    bound, run = one_round(calm), many_rounds(calm)
    assert run.final_error == pytest.approx(2 * bound.floor / (1 - bound.contraction))
    assert run.failure_probability == pytest.approx(2 * run.num_rounds * 0.1)
    error = calm.radius
    for _ in range(int(run.num_rounds)):
        error = bound.error_after(error)
    assert error <= run.final_error * (1 + 1e-12)
    assert many_rounds_printed(calm).num_rounds < 0  # the stray separation


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"strong_convexity": 0.0}, "strong convexity"),
        ({"smoothness": 0.1}, "smoothness"),
        ({"server_lr": 1.5}, "step size"),
        ({"largest_separation": 1.0}, "separation"),
        ({"separation": 0.0}, "separation"),
        ({"margin": 0.5}, "margin"),
        ({"min_cluster_size": 0}, "cluster size"),
        ({"min_cluster_size": 500}, "cluster size"),
        ({"gradient_std": math.inf}, "variances"),
        ({"failure_probability": 1.0}, "failure probability"),
        ({"identifier_noise_multiplier": 1.0}, "misassignment"),
    ],
)
def test_the_failing_assumption_is_named(calm, change, name):
    assert failed_round(calm) == ()
    assert [failure.assumption for failure in failed_round(replace(calm, **change))] == [name]


def test_the_failing_assumption_of_the_run_is_named(calm):
    steady = replace(calm, failure_probability=0.01, loss_std=1e-5, cluster_size_std=0.5)
    assert failed_run(steady) == ()
    (failure,) = failed_run(replace(steady, noise_std=500.0))
    assert failure.assumption == "stability"
    assert re.match(r"floor = .* must be at most", failure.reason)
    often = replace(steady, failure_probability=0.2)
    assert [failure.assumption for failure in failed_run(often)] == ["failure probability"]


def test_no_corrected_factor_of_the_lemma_is_above_the_printed_one(calm, rng):
    for _ in range(200):
        k = int(rng.integers(2, 8))
        setting = replace(
            calm,
            num_clusters=k,
            num_clients=1000,
            min_cluster_size=int(rng.integers(0, 1000 // k)),
            loss_std=float(10 ** rng.uniform(-4, 2)),
            cluster_size_std=float(10 ** rng.uniform(-1, 3)),
            identifier_noise_multiplier=float(10 ** rng.uniform(-1.5, 1)),
        )
        printed, corrected = lemma.misassignment_printed(setting), lemma.misassignment(setting)
        for name in ("choice", "identifier", "rebalance"):
            assert 0 <= getattr(corrected, name) <= min(1.0, getattr(printed, name))
