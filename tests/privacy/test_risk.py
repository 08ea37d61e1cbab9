"""What a guesser can achieve: bounds from the loss distribution, against integrals of the densities themselves."""

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

import rrcluster as rr
from rrcluster.privacy.cost import risk_text
from rrcluster.privacy.events import FixedSize, PoissonGaussian
from rrcluster.privacy.evidence import risk
from rrcluster.privacy.profiles import fixed_size_delta

ALARMS = {"at_1_percent": 0.01, "at_5_percent": 0.05}


def bounds(event, num_rounds=1, delta=1e-4, accountant="pld"):
    return risk(event, num_rounds=num_rounds, delta=delta, accountant=accountant)


@pytest.mark.parametrize(("noise", "rounds"), [(6.063, 40), (1.0, 1), (3.0, 100), (40.0, 10), (0.5, 4)])
def test_one_gaussian_has_the_trade_off_of_its_mu(noise, rounds):
    """Dong, Roth, Su 2022: true positives Phi(Phi^-1(a) + mu), advantage 2 Phi(mu / 2) - 1."""
    mu = math.sqrt(rounds) / noise
    stated = bounds(PoissonGaussian(noise_multiplier=noise, sample_rate=1.0), rounds)
    for name, alarms in ALARMS.items():
        true = norm.cdf(norm.ppf(alarms) + mu)
        assert true <= stated[name] <= true + 2e-4
    assert 2 * norm.cdf(mu / 2) - 1 <= stated["advantage"] <= 2 * norm.cdf(mu / 2) - 1 + 1e-8


def neyman_pearson(noise, rate, alarms, *, joins):
    """True positives of the best test between N(0, z^2) and its mixture with N(1, z^2), by the densities alone."""

    def mixture(x):
        return (1 - rate) * norm.sf(x, 0, noise) + rate * norm.sf(x, 1, noise)

    at = np.linspace(-12 * noise, 12 * noise + 1, 400_001)  # the likelihood ratio grows with x
    if joins:  # guess "took part" above a threshold
        return float(np.interp(alarms, norm.sf(at, 0, noise)[::-1], mixture(at)[::-1]))
    return float(np.interp(alarms, 1 - mixture(at), norm.cdf(at, 0, noise)))  # the reverse order of the neighbours


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.5, 0.3), (2.0, 0.5), (0.3, 0.02)])
def test_one_sampled_round_is_bounded_by_the_best_test_in_either_order(noise, rate):
    stated = bounds(PoissonGaussian(noise_multiplier=noise, sample_rate=rate))
    for name, alarms in ALARMS.items():
        best = max(neyman_pearson(noise, rate, alarms, joins=joins) for joins in (True, False))
        assert best - 1e-6 <= stated[name] <= best + 5e-3
    apart = rate * (norm.cdf(0.5 / noise) - norm.cdf(-0.5 / noise))  # the densities cross at one half
    assert apart <= stated["advantage"] <= 1.001 * apart + 1e-9


def composed(noise, rate, rounds, alarms):
    """True positives of the best test after many rounds: densities of the summed log likelihood ratio, by FFT."""
    step, most = 2e-4, 8.0
    edges = np.arange(math.log1p(-rate), most, step)
    x = noise**2 * np.log(np.maximum(np.expm1(edges) + rate, 1e-300) / rate) + 0.5  # where the ratio is at an edge
    without = np.diff(norm.cdf(x, 0, noise), prepend=0.0)
    size = 2 ** math.ceil(math.log2(len(edges) * 4))
    losses = (edges[0] - step / 2) * rounds + step * np.arange(size)
    total = np.fft.irfft(np.fft.rfft(without, size) ** rounds, size)
    total[total < 1e-14] = 0.0  # what the FFT rounds to
    took_part = total * np.exp(np.minimum(losses, 50.0))
    false, true = np.cumsum(total[::-1]), np.cumsum(took_part[::-1])
    removed = float(np.interp(alarms, false, true))
    return max(removed, float(np.interp(alarms, np.cumsum(took_part), np.cumsum(total))))


@pytest.mark.parametrize(("noise", "rate", "rounds"), [(0.8, 0.1, 20), (1.5, 0.2, 50)])
def test_many_sampled_rounds_are_bounded_by_the_best_test(noise, rate, rounds):
    stated = bounds(PoissonGaussian(noise_multiplier=noise, sample_rate=rate), rounds)
    for name, alarms in ALARMS.items():
        best = composed(noise, rate, rounds, alarms)
        assert best - 5e-4 <= stated[name] <= best + 1e-2


@pytest.mark.parametrize(("noise", "rate", "rounds"), [(1.1, 0.1, 100), (6.063, 1.0, 40)])
def test_riskcal_finds_the_same(noise, rate, rounds):
    """Kulynych et al. 2024; the package has no wheel, so it is no dependency: `pip install riskcal` to compare."""
    analysis = pytest.importorskip("riskcal.analysis", reason="riskcal is not installed")
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    one = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-3)
    whole = one.self_compose(rounds)
    stated = bounds(PoissonGaussian(noise_multiplier=noise, sample_rate=rate), rounds)
    for name, alarms in ALARMS.items():
        assert stated[name] == pytest.approx(1 - float(analysis.get_beta_from_pld(whole, alarms)), abs=5e-3)
    assert stated["advantage"] == pytest.approx(float(analysis.get_advantage_from_pld(whole)), abs=2e-3)


def test_a_fixed_cohort_has_the_profile_of_one_round():
    event = FixedSize(noise_multiplier=1.0, cohort_size=20, num_clients=100)
    exact = float(fixed_size_delta(0.0, lambda at: 0 * at + norm.cdf(0.5 - at) - np.exp(at) * norm.cdf(-0.5 - at), 0.2))
    stated = bounds(event)
    assert exact <= stated["advantage"] <= exact + 1e-6
    assert stated["at_1_percent"] <= 0.01 + exact + 1e-6


def test_a_looser_accountant_states_more_and_more_noise_less():
    event = PoissonGaussian(noise_multiplier=1.1, sample_rate=0.1)
    tight, loose = bounds(event, 100), bounds(event, 100, accountant="rdp")
    noisier = bounds(PoissonGaussian(noise_multiplier=2.2, sample_rate=0.1), 100)
    for name, alarms in {**ALARMS, "advantage": 0.0}.items():
        assert alarms < noisier[name] < tight[name] <= loose[name] <= 1


@pytest.mark.parametrize("noise", [0.02, 1e5])
def test_extremes_stay_probabilities_and_never_below_chance(noise):
    stated = bounds(PoissonGaussian(noise_multiplier=noise, sample_rate=1.0), 10)
    for name, alarms in ALARMS.items():
        assert alarms <= stated[name] <= 1
    assert 0 <= stated["advantage"] <= 1


def test_statement_and_account_tell_it_and_the_sentence_is_rounded_up(tmp_path):
    run = {"data": "fashion-mini", "num_clients": 100, "num_rounds": 2, "noise_multiplier": 2.0, "delta": 1e-3}
    rr.run(**run, participation="everybody", init="independent", out=tmp_path / "run", progress=False)
    stated = json.loads((tmp_path / "run" / "privacy.json").read_text())
    mu = math.sqrt(2) / 2
    true = norm.cdf(norm.ppf(0.05) + mu)
    assert stated["risk"]["at_5_percent"] == pytest.approx(true, abs=1e-3)
    said = float(stated["risk_in_words"].split("not, ")[1].split("%")[0])
    assert true <= said / 100 <= true + 2e-3
    budget = rr.account(noise_multiplier=2.0, delta=1e-3, participation="everybody", num_rounds=2, num_clients=100)
    assert budget["pld"].risk == pytest.approx(stated["risk"])
    words = risk_text(stated["risk"], "replace-one", sampled=True)
    assert "whether a data set is yours" in words
    assert "everything else but who was drawn" in words
    assert "drawn" not in stated["risk_in_words"]
