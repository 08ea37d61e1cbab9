"""Over 200 random instances the corrected bound holds, and these tests can tell when one does not."""

import numpy as np
import pytest
from quadratic_problem import Problem, RoundSettings, play_round, setting_of
from rrcluster_research.convergence import failed_run, many_rounds, one_round
from rrcluster_research.lemma import misassignment
from theory_instances import TERMS, bounds_and_measured, errors_of, random_instance

FAILURE_PROBABILITY = 0.1
INSTANCES = 200


@pytest.fixture(scope="module")
def results():
    """Bounds and true values of each term and of the next error: one row per cluster of each instance."""
    rng = np.random.default_rng(20250)
    rows = [
        bounds_and_measured(random_instance(rng, failure_probability=FAILURE_PROBABILITY), rng)
        for _ in range(INSTANCES)
    ]
    bounds = {name: np.concatenate([row[0][name] for row in rows]) for name in TERMS}
    measured = {name: np.concatenate([row[1][name] for row in rows]) for name in TERMS}
    return bounds, measured, np.concatenate([row[2] for row in rows])


def assert_at_most(bound, measured, *, allowed):
    """Violated in at most the allowed fraction."""
    fraction = float(np.mean(measured > bound))
    assert fraction <= allowed, f"the bound fails in a fraction {fraction:.3f}, more than {allowed}"


def ratio(bound, measured):
    """bound / measured, infinite where nothing was measured."""
    return np.divide(bound, measured, out=np.full_like(bound, np.inf), where=measured > 0)


def test_the_corrected_bound_holds(results):
    bounds, _, error = results
    whole = sum(bounds.values())
    print(f"{INSTANCES} instances, {len(error)} clusters, violated {np.mean(error > whole):.4f}")
    assert_at_most(whole, error, allowed=FAILURE_PROBABILITY)


def test_the_whole_bound_is_within_two_orders_of_the_truth(results):
    bounds, _, error = results
    ratios = ratio(sum(bounds.values()), error)
    print(f"bound / measured: least {ratios.min():.2f}, median {np.median(ratios):.2f}, most {ratios.max():.0f}")
    assert 1 < ratios.min() < 3
    assert np.median(ratios) < 30


@pytest.mark.parametrize("term", TERMS)
def test_each_term_holds_with_its_own_quarter(results, term):
    bounds, measured, _ = results
    ratios = ratio(bounds[term], measured[term])
    there = ratios[ratios < np.inf]
    print(f"{term}: bound / measured least {there.min():.2f}, median {np.median(there):.2f}, {len(there)} measured")
    assert_at_most(bounds[term], measured[term], allowed=FAILURE_PROBABILITY / 4)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_divided_by_its_own_slack_fails(results, term):
    bounds, measured, _ = results
    slack = np.quantile(ratio(bounds[term], measured[term]), 0.1)
    assert slack < np.inf
    with pytest.raises(AssertionError, match="more than"):
        assert_at_most(bounds[term] / slack, measured[term], allowed=FAILURE_PROBABILITY / 4)


def test_the_whole_bound_divided_by_its_own_slack_fails(results):
    bounds, _, error = results
    whole = sum(bounds.values())
    with pytest.raises(AssertionError, match="more than"):
        assert_at_most(whole / np.quantile(ratio(whole, error), 0.25), error, allowed=FAILURE_PROBABILITY)


def test_wrong_clients_are_in_most_instances(results):
    assert np.mean(results[1]["bias"] > 0) > 0.2  # else the bias would be tested on nothing


def test_the_corollary_holds_in_every_round(rng):
    slowest = []
    for _ in range(10):
        instance = random_instance(rng, failure_probability=1e-3, noise=1e-3, calm=1e-2)
        if failed_run(instance.setting):
            continue
        run, models = many_rounds(instance.setting), instance.models
        bound, error = one_round(instance.setting), instance.setting.radius
        for _ in range(int(run.num_rounds)):
            models = play_round(instance.problem, models, instance.rounds, rng=rng).models
            error = bound.error_after(error)
            assert errors_of(models, instance.problem).max() <= error
        assert errors_of(models, instance.problem).max() <= run.final_error
        slowest.append(run.num_rounds)
    assert len(slowest) >= 5
    assert max(slowest) >= 5


def test_the_lemma_holds_where_many_clients_err(rng):
    # Optima 0 and 1, models off by the radius towards each other, noisy identifiers, groups of 380 and 420.
    problem = Problem(np.array([[0.0], [1.0]]), np.ones((2, 1)), np.array([380, 420]), data_std=0.06)
    rounds = RoundSettings(100, server_lr=0.5, identifier_noise_multiplier=0.4, noise_std=0.0)
    setting = setting_of(problem, rounds, margin=0.3, failure_probability=0.1)
    models = problem.optima + np.array([[setting.radius], [-setting.radius]])
    wrong = np.mean([play_round(problem, models, rounds, rng=rng).wrong_share.mean() for _ in range(50)])
    bound = misassignment(setting)
    assert bound.total < 1
    assert 0.02 < wrong < bound.total
