"""Where a printed form is false, an instance on which it fails; where only its proof is, the step that fails."""

import math
from dataclasses import replace

import numpy as np
import pytest
from quadratic_problem import Problem, RoundSettings, play_round, setting_of
from rrcluster_research import convergence as theorem
from rrcluster_research import lemma
from rrcluster_research.convergence import failed_round, one_round, one_round_printed, rounds, rounds_printed


def noiseless(server_lr, min_cluster_size=50):
    return RoundSettings(min_cluster_size, server_lr, identifier_noise_multiplier=0.0, noise_std=0.0)


def next_error(problem, models, rounds, rng):
    played = play_round(problem, models, rounds, rng=rng)
    return np.linalg.norm(played.models - problem.optima, axis=1)


def test_contraction_by_smoothness_is_false(rng):
    # lambda = 0.01, L = 1, gamma = 0.9, no noise of any kind. The error lies in the weak direction: it shrinks by
    # 1 - 0.9 * 0.01 = 0.991. Printed: 1 - 0.9 * 1 / 2 = 0.55, up to B / rho = 99 / 101.
    problem = Problem(np.array([[0.0, 0.0], [0.0, 1.0]]), np.array([[0.01, 1.0]] * 2), np.array([100, 100]), 0.0)
    rounds, models = noiseless(0.9, min_cluster_size=99), problem.optima + np.array([0.03, 0.0])
    setting = setting_of(problem, rounds, margin=0.1, failure_probability=0.1)
    assert failed_round(setting) == ()
    printed, corrected = one_round_printed(setting), one_round(setting)
    assert printed.contraction == pytest.approx(1 - 0.45 * 99 / 101)
    assert printed.contraction < 0.56
    assert corrected.contraction == pytest.approx(0.991)
    assert printed.floor == corrected.floor == 0
    error = next_error(problem, models, rounds, rng)
    assert error == pytest.approx([0.991 * 0.03] * 2)
    assert (error > printed.error_after(0.03)).all()
    assert (error <= corrected.error_after(0.03) * (1 + 1e-12)).all()


@pytest.mark.parametrize("strong", [0.01, 0.3, 0.99])
def test_the_harmonic_rate_is_at_least_half_of_strong_convexity_not_of_smoothness(strong):
    rate = strong * 1.0 / (strong + 1.0)
    assert strong / 2 <= rate < 1.0 / 2


def test_the_bias_needs_the_largest_separation(rng):
    # Optima at 0, 1 and 100000: a single client of the third group in the first cluster outweighs the printed bias.
    problem = Problem(np.array([[0.0], [1.0], [1e5]]), np.ones((3, 1)), np.array([10_000] * 3), 0.0)
    rounds = RoundSettings(5_000, server_lr=0.9, identifier_noise_multiplier=0.2, noise_std=0.0)
    setting = setting_of(problem, rounds, margin=0.25, failure_probability=0.1)
    assert failed_round(setting) == ()
    errors = np.array([next_error(problem, problem.optima, rounds, rng)[0] for _ in range(60)])
    assert np.mean(errors > one_round_printed(setting).error_after(0.0)) > 0.5
    assert np.mean(errors > one_round(setting).error_after(0.0)) <= 0.1
    gradient = 1.0 * 1e5  # L |theta_1 - theta_3*| at theta_1 = theta_1*
    assert gradient > 1.5 * setting.smoothness * setting.separation
    assert gradient <= 1.5 * setting.smoothness * setting.largest_separation


def test_own_noise_needs_the_step_size(rng):
    # lambda = L = 1e-4 allows gamma = 10000; the printed term has no gamma, though the noise is multiplied by it.
    problem = Problem(np.array([[0.0], [1.0]]), np.full((2, 1), 1e-4), np.array([100, 100]), data_std=2e-3)
    rounds = noiseless(server_lr=9e3)
    setting = setting_of(problem, rounds, margin=0.4, failure_probability=0.1)
    assert failed_round(setting) == ()
    at = one_round_printed(setting)
    assert math.isfinite(at.own_noise)
    noise = np.array([play_round(problem, problem.optima, rounds, rng=rng).own_noise for _ in range(60)])
    assert np.mean(noise > at.own_noise) > 0.5
    assert np.mean(noise > one_round(setting).own_noise) <= 0.1


def test_two_where_markov_gives_four():
    # A count of mean tau M that is 3 tau M / delta_c with probability delta_c / 3: Markov's bound at delta_c / 4 is
    # four, not two, times tau M / delta_c.
    delta, mean = 0.1, 1.0
    value, probability = 3 * mean / delta, delta / 3
    assert value * probability == pytest.approx(mean)
    assert value > 2 * mean / delta
    assert probability > delta / 4  # exceeds the printed level more often than its share of delta_c
    assert value < 4 * mean / delta


def test_two_contradicts_the_papers_own_other_terms(calm):
    # The same count |S_1 - S_1*| <= x tau M / delta_c stands in two printed terms; one has x = 2, the other x = 4.
    tau = 1e-4
    printed = theorem.contraction_printed(calm, misassignment=tau)
    rho = calm.num_clients - (calm.num_clusters - 1) * calm.min_cluster_size
    pull = calm.server_lr * calm.smoothness
    in_contraction = calm.min_cluster_size - (1 - printed) * 2 * rho / pull
    own = theorem.own_noise_printed(calm, misassignment=tau)
    in_own_noise = calm.min_cluster_size - (4 * calm.gradient_std / own / calm.failure_probability) ** 2
    unit = tau * calm.num_clients / calm.failure_probability
    assert (in_contraction / unit, in_own_noise / unit) == (pytest.approx(2), pytest.approx(4))


def test_factor_three_bounds_the_wrong_tail(rng):
    # 100 clients choose among 4 clusters at random: |S_j| is binomial, mean 25, variance 18.75; B = 10.
    sizes = rng.multinomial(100, [0.25] * 4, size=4000)
    known = {"cluster_size_std": math.sqrt(18.75), "num_clients": 100, "num_clusters": 4, "min_cluster_size": 10}
    claimed = lemma.large_cluster_probability_printed(**known)
    assert claimed == pytest.approx(18.75 / 225)
    assert np.mean(sizes > 10) > 0.99 > claimed
    assert np.mean(sizes < 10) <= lemma.small_cluster_probability(**known)
    assert lemma.rebalance_error(**known) <= lemma.rebalance_error_printed(**known)  # the printed end holds


def test_cantelli_is_not_allowed_around_the_average_size():
    # |S_1| = 15 always, M / k = 25: mu = 10 and B = 16. Cantelli would say 100 / (100 + 81) < 1; the truth is 1.
    known = {"cluster_size_std": 10.0, "num_clients": 50, "num_clusters": 2, "min_cluster_size": 16}
    assert lemma.small_cluster_probability(**known) == 1


def test_the_middle_display_of_factor_one_lacks_a_half():
    margin, strong, separation = 0.1, 1.0, 1.0
    display = strong * separation**2 / 2 * ((0.5 + margin) ** 2 - (0.5 - margin) ** 2)
    claimed_equal_to = margin * strong * separation**2 / 2
    assert display == pytest.approx(2 * claimed_equal_to)


def test_the_number_of_rounds_must_not_depend_on_the_unit_of_length(calm):
    longer = replace(calm, separation=1000 * calm.separation, largest_separation=1000 * calm.largest_separation)
    assert rounds(calm, rate=0.1, floor=1e-3) == rounds(longer, rate=0.1, floor=1.0)
    metres, millimetres = rounds_printed(calm, rate=0.1, floor=1e-3), rounds_printed(longer, rate=0.1, floor=1.0)
    assert millimetres - metres == pytest.approx(math.log(1000) / math.log(0.9))  # the stray Delta
    assert millimetres < 0


def test_k_for_K_in_the_second_part_of_the_rounds_is_sufficient_but_not_what_follows():
    # T'' >= log(k r / eps) / K is displayed with the number of clusters; the next line needs only log(K r / eps) / K.
    k, K, start, eps = 4, 0.1, 1.0, 0.01
    displayed, meant = (math.log(factor * start / eps) / K for factor in (k, K))
    assert displayed > 2 * meant
    assert (1 - K) ** meant * start <= eps / K


def test_the_condition_on_the_number_of_clients_is_empty_without_its_stray_separation(calm):
    # K < 1 reads delta_c (B / 2 - rho / (gamma L)) < tau M; with gamma <= 1 / L and rho >= B the left is negative.
    # As printed, without delta_c and with a Delta, it fails for a large Delta: it then asks for *more* misassignment.
    s = replace(calm, separation=10.0, largest_separation=10.0)
    rho = s.num_clients - (s.num_clusters - 1) * s.min_cluster_size
    assert s.min_cluster_size / 2 - rho / (s.server_lr * s.smoothness) < 0
    assert s.min_cluster_size * s.separation / 2 - rho / (s.server_lr * s.smoothness) > 0


def test_strong_convexity_excludes_gradients_bounded_everywhere(rng):
    # The paper assumes both. A strongly convex loss has |gradient| >= lambda |theta - optimum|, without end.
    problem = Problem(np.zeros((1, 1)), np.full((1, 1), 0.5), np.array([1]), 0.0)
    gradient_bound = 3.0
    theta = 2 * gradient_bound / 0.5
    slope = (
        problem.losses(np.array([[theta + 1e-6]]), np.zeros((1, 1)))
        - problem.losses(np.array([[theta]]), np.zeros((1, 1)))
    ) / 1e-6
    assert slope > gradient_bound


def test_one_set_of_data_for_choice_and_gradient_is_biased(rng):
    # The theorem takes gradients of a cluster's clients as unbiased given the assignment. If the choice was made on the
    # same data they are not: those with a small z chose the left cluster, whatever their group.
    problem = Problem(np.array([[0.0], [1.0]]), np.ones((2, 1)), np.array([20_000, 20_000]), data_std=0.5)
    data = problem.draw(rng=rng)
    left = (problem.losses(problem.optima, data).argmin(axis=1) == 0) & (problem.groups == 0)
    fresh = problem.draw(rng=rng)
    assert data[left].mean() < -0.1
    assert abs(fresh[left].mean()) < 0.02
