"""The split of a round's budget between identifiers and updates: the total is kept, and `auto` is what it says."""

import math

import numpy as np
import pytest

from rrcluster.errors import ConfigError
from rrcluster.privacy.budget import account
from rrcluster.privacy.budget_split import AUTO_SHARES, auto_share, make_identifier, split_budget, split_error
from rrcluster.privacy.identifier_noise import ByLossIdentifier, ProjectionIdentifier
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.rules import IDENTIFIERS
from rrcluster.types import Coordinates


def build(**changes):
    settings = {
        "coordinates": Coordinates(0, 7850),
        "num_clusters": 4,
        "num_clients": 1000,
        "sample_rate": 0.1,
        "num_rounds": 100,
        "update_clip": 0.2,
        "mechanism": "identifier",
        "noise_multiplier": 0.9,
    }
    return PrivacyPlan.build(**(settings | changes))


@pytest.mark.parametrize("share", [0.05, 0.21, 0.5, 0.9, "auto"])
@pytest.mark.parametrize("kind", ["gaussian", "projection"])
def test_the_fold_is_the_whole_round_exactly(share, kind):
    assert build(identifier=kind, identifier_share=share).event.noise_multiplier == pytest.approx(0.9, rel=1e-12)


@pytest.mark.parametrize("z", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_both_parts_add_up(z, share):
    sigma_s, sigma_theta = split_budget(z, identifier_share=share)
    assert 2 / sigma_s**2 + 1 / sigma_theta**2 == pytest.approx(1 / z**2, rel=1e-12)
    by_loss = make_identifier("exponential", sigma_s, num_clusters=4, loss_bound=1.0)
    assert isinstance(by_loss, ByLossIdentifier)
    assert by_loss.epsilon**2 / 8 == pytest.approx(share / (2 * z**2), rel=1e-12)  # the zCDP of the share
    projection = make_identifier("projection", sigma_s, num_clusters=4, loss_bound=1.0)
    assert isinstance(projection, ProjectionIdentifier)
    assert projection.noise_multiplier**-2 == pytest.approx(share / z**2, rel=1e-12)


@pytest.mark.parametrize("kind", IDENTIFIERS)
def test_auto_is_within_its_bounds_and_the_least_of_its_formula(kind):
    rng = np.random.default_rng(5)
    for _ in range(8):
        settings = {
            "kind": kind,
            "num_clusters": int(rng.integers(2, 9)),
            "coordinates": Coordinates(int(rng.integers(0, 1000)), int(10 ** rng.uniform(0, 6))),
            "cohort": int(10 ** rng.uniform(1, 4)),
            "rounds": int(rng.integers(1, 500)),
        }
        z = float(10 ** rng.uniform(-0.5, 0.5))
        found = auto_share(z, **settings)
        assert 0.05 <= found <= 0.95
        assert auto_share(z, **settings) == found
        assert all(split_error(found, z, **settings) <= split_error(s, z, **settings) for s in AUTO_SHARES[::15])


def test_the_formula_by_hand():
    """k = 2, d = 100, m = 10, T = 8, z = 1, share 1/2: sigma_s = 2, so p = Phi(1 / (2 sqrt 2)), and V = 400 2 / 400."""
    keep = 0.5 * (1 + math.erf(1 / (2 * math.sqrt(2)) / math.sqrt(2)))
    got = split_error(0.5, 1.0, kind="gaussian", num_clusters=2, coordinates=Coordinates(0, 100), cohort=10, rounds=8)
    assert got == pytest.approx((1 - keep) ** 2 + 2.0)


def test_many_coordinates_want_quiet_updates_and_few_want_clear_choices():
    shares = [
        auto_share(0.9, kind="gaussian", num_clusters=4, coordinates=Coordinates(0, d), cohort=100, rounds=100)
        for d in (100, 7850, 1_000_000)
    ]
    assert shares[0] > 0.7 > shares[1] > shares[2] == 0.05


@pytest.mark.parametrize("kind", ["exponential", "kary"])
def test_a_plan_calibrated_with_auto_meets_its_epsilon(kind):
    plan = build(identifier=kind, identifier_share="auto", noise_multiplier=None, epsilon=6.0, num_rounds=20)
    assert 5.9 < plan.epsilon() <= 6.0


def test_account_weighs_the_number_of_parameters():
    few, many = (
        account(mechanism="identifier", identifier_share="auto", noise_multiplier=0.9, num_parameters=d, num_rounds=5)
        for d in (100, 100_000)
    )
    noise = "identifier noise std"
    assert few["rdp"].noise[noise] < many["rdp"].noise[noise]
    assert few["rdp"].epsilon == pytest.approx(many["rdp"].epsilon)


@pytest.mark.parametrize("share", ["half", "", "Auto"])
def test_other_words_are_refused(share):
    with pytest.raises(ConfigError, match="must be auto or a number"):
        build(identifier_share=share)
