import math

import numpy as np
import pytest

from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.events import FixedSize, KaryChoice, PoissonGaussian
from rrcluster.privacy.identifier import NoIdentifier
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import NoisySum, Reports
from rrcluster.privacy.statement import statement
from rrcluster.registry import MECHANISMS
from rrcluster.settings import FIELDS, REMOVED, PrivacySettings
from rrcluster.types import Coordinates


def build(**changes):
    settings = {
        "coordinates": Coordinates(0, 5),
        "num_clusters": 4,
        "num_clients": 1000,
        "sample_rate": 0.1,
        "num_rounds": 100,
        "update_clip": 0.2,
        "noise_multiplier": 1.0,
    }
    return PrivacyPlan.build(**(settings | changes))


def test_sampler_noise_and_event_agree():
    plan = build()
    assert plan.event == PoissonGaussian(1.0, 0.1)
    assert plan.sampler.expected_size == 100
    assert plan.mechanism.noise_std == pytest.approx(math.hypot(0.2, 0.05))
    assert plan.mechanism.size_floor == pytest.approx(15)


def test_identifier_splits_the_budget_by_its_share():
    plan = build(mechanism="identifier", identifier_share=0.3)
    assert plan.mechanism.identifier.noise_multiplier == pytest.approx(math.sqrt(2 / 0.3))
    assert plan.mechanism.noise_multiplier == pytest.approx(1 / math.sqrt(0.7))
    assert isinstance(plan.event, FixedSize)
    assert plan.event.noise_multiplier == pytest.approx(1.0)
    assert plan.event.cohort_size == 100


def test_equal_split_of_the_paper():
    plan = build(mechanism="identifier", noise_multiplier=1.5)
    assert plan.mechanism.identifier.noise_multiplier == pytest.approx(3.0)  # sigma_s = 2 z
    assert plan.mechanism.noise_multiplier == pytest.approx(1.5 * math.sqrt(2))  # sigma_theta = sqrt(2) z


def test_one_cluster_needs_no_identifier():
    plan = build(mechanism="identifier", num_clusters=1)
    assert plan.mechanism.identifier == NoIdentifier()
    assert plan.event.noise_multiplier == pytest.approx(1.0)


def test_kary_identifiers_cost_less_than_gaussian_ones():
    gaussian, kary = (
        build(mechanism="identifier", identifier=kind, noise_multiplier=1.2) for kind in ("gaussian", "kary")
    )
    assert isinstance(kary.event.choice, KaryChoice)
    assert gaussian.event.choice.is_free
    assert kary.epsilon() < 0.9 * gaussian.epsilon()


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_calibration_reaches_the_target_and_never_overspends(mechanism):
    plan = build(mechanism=mechanism, noise_multiplier=None, epsilon=3.0, num_rounds=20)
    assert 2.98 < plan.epsilon() <= 3.0


def test_none_has_no_epsilon_and_takes_none():
    plan = build(mechanism="none", noise_multiplier=None)
    assert not plan.private
    with pytest.raises(PrivacyError, match="it has no epsilon"):
        plan.epsilon()
    with pytest.raises(PrivacyError, match="epsilon, noise_multiplier, secure and reserve_rounds do not apply"):
        build(mechanism="none")


REFUSED = {
    "delta above 1/M": ({"delta": 2e-3}, "delta = 0.002 is more than 1/num_clients = 0.001.*Use at most 0.0001"),
    "unprotected choices": ({"mechanism": "identifier", "identifier_share": 0.0}, "leaves the choices unprotected"),
    "paper bound under joint": (
        {"accountant": "paper", "noise_multiplier": None, "epsilon": 8.0},
        "fixed-size cohorts under replace-one",
    ),
    "unreachable budget": (
        {"mechanism": "identifier", "accountant": "paper", "noise_multiplier": None, "epsilon": 2.0, "delta": 1e-3},
        "no noise reaches epsilon = 2.*2.2",
    ),
}


@pytest.mark.parametrize(("changes", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_what_would_void_the_guarantee_is_refused(changes, text):
    with pytest.raises(PrivacyError, match=text):
        build(**changes)


MISTAKES = {
    "B too large": (
        {"min_cluster_size": 26},
        "B\\) = 26 needs 104 clients for 4 clusters, but a cohort has 100; lower B to",
    ),
    "both": ({"epsilon": 2.0}, "exactly one of epsilon"),
    "neither": ({"noise_multiplier": None}, "exactly one of epsilon"),
    "coin without sizes": ({"count_weight": 0.0, "min_cluster_size": 5}, "needs released sizes"),
    "unknown mechanism": ({"mechanism": "laplace"}, "choose one of joint, identifier, none"),
    "rate": ({"sample_rate": 1.5}, "sample_rate = 1.5"),
    "rounds": ({"num_rounds": 0}, "num_rounds = 0"),
    "clip": ({"update_clip": 0.0}, "update_clip = 0"),
}


@pytest.mark.parametrize(("changes", "text"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_named(changes, text):
    with pytest.raises(ConfigError, match=text):
        build(**changes)


@pytest.mark.parametrize(
    ("mechanism", "b", "coins"),
    [("joint", 0, False), ("joint", 5, True), ("identifier", 5, False), ("none", 5, False)],
)
def test_only_joint_helps_small_clusters_by_coins_and_only_if_asked(mechanism, b, coins):
    noise = {"noise_multiplier": None} if mechanism == "none" else {}
    made = build(mechanism=mechanism, min_cluster_size=b, **noise).mechanism
    assert made.flips_coins is coins
    assert made.min_cluster_size == b
    assert MECHANISMS.load(mechanism).rebalancing == ("coin" if mechanism == "joint" else "exact")


def test_no_mechanism_can_be_given_the_sampling_or_the_relation_of_another():
    """What used to be settings, and refused when they disagreed, belongs to the mechanism and cannot be asked for."""
    for name in ("rebalance", "sampling", "adjacency", "identifier_loss_bound"):
        assert name in REMOVED
        assert name not in FIELDS
        with pytest.raises((TypeError, ConfigError), match=name):
            build(**{name: "fixed-size"})
    assert (build().event.sampling, build().event.adjacency) == ("Poisson", "add-remove")
    paper = build(mechanism="identifier").event
    assert (paper.sampling, paper.adjacency) == ("fixed-size without replacement", "replace-one")


def test_a_plan_takes_settings_whole_by_name_or_both():
    known = {"coordinates": Coordinates(0, 5), "num_clusters": 4, "num_clients": 1000}
    whole = PrivacySettings(sample_rate=0.1, num_rounds=100, update_clip=0.2, noise_multiplier=1.0)
    assert PrivacyPlan.build(whole, **known) == build()
    assert PrivacyPlan.build(whole, **known, update_clip=0.3) == build(update_clip=0.3)


def test_exact_rebalancing_has_no_place_in_the_joint_event(rng):
    """Without coins of the clients' own a plan with B above 0 releases nothing, rather than balance by raw counts."""
    with pytest.raises(ConfigError, match="none were given"):
        build(min_cluster_size=5).mechanism.release(Reports(np.zeros((1, 5)), [0]), rng=rng)
    told = build(min_cluster_size=5).mechanism.release(Reports(np.zeros((1, 5)), [0], [1]), rng=rng)
    assert told.cluster_sums.shape == (4, 5)


@pytest.mark.parametrize("mechanism", ["identifier", "none"])
def test_who_rebalances_exactly_takes_no_coins(mechanism, rng):
    noise = {"noise_multiplier": None} if mechanism == "none" else {}
    with pytest.raises(PrivacyError, match=r"only `joint` uses coins.*Leave destinations out"):
        build(mechanism=mechanism, **noise).mechanism.release(Reports(np.zeros((1, 5)), [0], [1]), rng=rng)


@pytest.mark.parametrize("mechanism", ["identifier", "none"])
def test_only_joint_can_use_a_sum(mechanism):
    noise = {"noise_multiplier": None} if mechanism == "none" else {}
    with pytest.raises(PrivacyError, match=r"cannot use a .*sum; use"):
        build(mechanism=mechanism, **noise).mechanism.release_sum(NoisySum(np.zeros(26)))


def test_the_statement_says_what_a_reviewer_asks():
    told = statement(build(delta=1e-4))
    assert not told["private"], "seeded"
    assert statement(build(delta=1e-4, secure=True))["private"]
    assert told["adjacency"] == "add-remove"
    assert told["sampling"] == "Poisson"
    assert told["epsilon"] == pytest.approx(5.9659, rel=1e-3)  # z = 1, q = 0.1, T = 100
    by_name = {row["accountant"]: row for row in told["accountants"]}
    assert by_name["rdp"]["epsilon"] > by_name["pld"]["epsilon"]
    assert by_name["paper"]["epsilon"] is None
    assert by_name["paper"]["reason"]
    assert told["artefacts"].startswith("NOT PRIVATE")
    assert any("tun" in line or "Choosing settings" in line for line in told["not_covered"])
    assert not any("is weak" in note for note in told["notes"])


@pytest.mark.parametrize(
    ("num_clients", "delta"),
    [(200, 1e-4), (10_000, 1e-4), (10_001, 1e-6), (100_000, 1e-6), (100_001, 1e-7), (10**6, 1e-7)],
)
def test_the_default_delta_follows_the_number_of_clients(num_clients, delta):
    plan = build(num_clients=num_clients)
    assert plan.delta == delta
    assert any(
        f"delta = {delta:g} is the default for {num_clients:,} clients" in n for n in statement(plan)["notes"]
    ) == (num_clients > 10_000)


def test_a_weak_delta_runs_and_the_statement_says_so():
    told = statement(build(delta=1e-3))
    assert any("delta = 0.001 is weak" in note for note in told["notes"])


def test_the_statement_of_no_mechanism_claims_nothing():
    told = statement(build(mechanism="none", noise_multiplier=None))
    assert told["epsilon"] is None
    assert not told["private"]
