"""Public slots and correlated noise: who takes part, what it costs, and what is released (Theorem 5, Proposition 6)."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from rrcluster.entropy import secure_rng
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy import sums
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.budget import calibrate
from rrcluster.privacy.events import PoissonGaussian
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import MessageSum, Reports
from rrcluster.privacy.slots import FINER, INDEPENDENT, Correlation, Slots, after, make_correlation, square_root
from rrcluster.privacy.statement import statement
from rrcluster.types import Coordinates

# b, q -> noise multiplier at epsilon 1, 2, 4, 8, for T = 100 and delta = 1e-3: made with another program
CALIBRATION = {
    (1, 0.1): (2.7535, 1.6740, 1.1000, 0.7784),
    (10, 1.0): (8.1418, 4.5702, 2.6028, 1.5179),
    (5, 1.0): (None, 6.4633, 3.6809, 2.1467),
    (20, 1.0): (None, 3.2317, 1.8405, 1.0733),
}
EPSILONS = (1, 2, 4, 8)


def participation(slots, rate):
    if slots == 1:
        return {"participation": "everybody"} if rate == 1 else {"sample_rate": rate}
    return {"participation": "schedule", "slots": slots}


def plan(slots=1, rate=0.5, /, *, width=6, num_rounds=8, num_clients=60, **changes):
    settings = {"noise_multiplier": 1.3, "delta": 1e-3, "update_clip": 1.0} | participation(slots, rate) | changes
    return PrivacyPlan.build(
        coordinates=Coordinates(0, width), num_clusters=2, num_clients=num_clients, num_rounds=num_rounds, **settings
    )


def cells(*keys):
    return [(key, eps, z) for key in keys for eps, z in zip(EPSILONS, CALIBRATION[key], strict=True) if z]


@pytest.mark.parametrize(("key", "eps", "multiplier"), cells((10, 1.0), (5, 1.0), (20, 1.0)))
def test_the_calibration_table_of_schedules(key, eps, multiplier):
    assert calibrated(key, eps) == pytest.approx(multiplier, rel=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "eps", "multiplier"), cells((1, 0.1)))
def test_the_calibration_table_of_samples(key, eps, multiplier):
    assert calibrated(key, eps) == pytest.approx(multiplier, rel=5e-4)


def calibrated(key, eps):
    return calibrate(epsilon=eps, delta=1e-3, num_rounds=100, **participation(*key))


def gaussian_dp_epsilon(mu, delta):
    """Closed form of Gaussian DP (Dong, Roth, Su 2022, Corollary 2.13), solved here: no code of the package."""

    def excess(eps):
        return norm.cdf(-eps / mu + mu / 2) - math.exp(eps + norm.logcdf(-eps / mu - mu / 2)) - delta

    return brentq(excess, 0, 1000)


@pytest.mark.parametrize(("slots", "num_rounds", "z"), [(10, 100, 2.6028), (5, 100, 3.6809), (3, 100, 2.0), (1, 50, 9)])
def test_without_sampling_a_run_is_one_gaussian_by_three_accounts(slots, num_rounds, z):
    participations = math.ceil(num_rounds / slots)
    made = plan(slots, 1.0, num_rounds=num_rounds, noise_multiplier=z, num_clients=1000)
    exact = gaussian_dp_epsilon(math.sqrt(participations) / z, 1e-3)
    assert made.epsilon() == pytest.approx(exact, rel=1e-6)
    composed = PoissonGaussian(z, 1.0).loss_distribution(coarse=False).self_compose(participations)
    assert composed.get_epsilon_for_delta(1e-3) == pytest.approx(exact, rel=1e-3)
    assert exact <= made.epsilon(accountant="rdp") <= 1.15 * exact


def test_both_epsilons_are_stated():
    """The specification's vector: 4.0 for observers of models, 68.6 for somebody who sees cohorts."""
    made = plan(1, 0.1, num_rounds=100, noise_multiplier=1.1, num_clients=1000)
    stated = statement(made)["participation"]
    models, cohorts = stated["towards"]
    assert (round(models["epsilon"], 1), round(cohorts["epsilon"], 1)) == (4.0, 68.6)
    assert (models["neighbours"], cohorts["neighbours"]) == ("add-remove", "zero-out")
    assert stated["secret"] == "Who took part in a round is kept secret."
    assert cohorts["epsilon"] == pytest.approx(gaussian_dp_epsilon(10 / 1.1, 1e-3), rel=1e-6)


@pytest.mark.parametrize("slots", [1, 10])
def test_without_sampling_nothing_is_secret_and_both_epsilons_agree(slots):
    stated = statement(plan(slots, 1.0, num_rounds=100, num_clients=1000))["participation"]
    models, cohorts = stated["towards"]
    assert models["epsilon"] == cohorts["epsilon"]
    assert "nothing about participation has to be kept secret" in stated["secret"]
    assert stated["name"] == ("schedule" if slots > 1 else "everybody")
    assert stated["most_participations"] == math.ceil(100 / slots)


def test_replace_one_has_both_epsilons_too():
    made = plan(mechanism="identifier", num_rounds=20, sample_rate=0.1)
    models, cohorts = statement(made)["participation"]["towards"]
    assert models["epsilon"] < cohorts["epsilon"]
    alone = epsilon(made.event.seen(), num_rounds=20, delta=1e-3)
    assert cohorts["epsilon"] == alone > epsilon(made.event, num_rounds=20, delta=1e-3)


# Slots and cohorts


def test_a_client_takes_part_once_in_b_rounds_and_no_more_than_its_cap(rng):
    sampler = plan(4, 1.0, num_rounds=10).sampler
    rounds = [sampler.draw(60, rng=rng, round_index=t) for t in range(10)]
    taken = np.array([[client in set(drawn.tolist()) for client in range(60)] for drawn in rounds])
    assert (taken.sum(axis=0) <= 3).all()
    assert all(taken[start : start + 4].sum(axis=0).max() == 1 for start in range(7))
    assert taken[:4].sum() == 60, "everybody of a slot"


def test_a_sample_of_a_slot_is_refused_where_everybody_of_it_takes_part():
    """Epsilon would be that of a sample: 1.4 instead of 3.5."""
    mechanism = plan(4, 1.0).mechanism
    with pytest.raises(PrivacyError, match=r"sample_rate = 0\.3 with 4 slots"):
        replace(mechanism, sample_rate=0.3)
    with pytest.raises(PrivacyError, match=r"sample_rate = 0\.3 with 4 slots"):
        replace(mechanism.sampler, sample_rate=0.3)


def test_slots_are_those_of_the_key_and_of_the_id_alone():
    """Adding or removing a client changes nobody else's; pinned, because a run goes on with the slots it began with."""
    slots = Slots(5, "rrcluster", 10)
    assert slots.of(range(12)).tolist() == PINNED_SLOTS
    few, many = (np.concatenate([slots.eligible(n, t) for t in range(5)]) for n in (12, 200))
    assert sorted(few) == list(range(12))
    assert {client for client in many.tolist() if client < 12} == set(few.tolist())
    assert slots.of(range(200)).tolist() != Slots(5, "other", 10).of(range(200)).tolist()
    assert slots.of(["7", "8"]).tolist() != slots.of([7, 8]).tolist()


@pytest.mark.parametrize("last", [0, 7, 8, 2**16 - 1, 2**16, 2**62, -1])
def test_arrays_of_ids_have_the_slots_of_the_ids_one_by_one(last):
    """Small numbers come from a table, others do not: a client's slot must not depend on who reports with it."""
    slots, ids = Slots(5, "rrcluster", 10), np.array([3, 0, 4, last])
    assert slots.of(ids).tolist() == slots.of(ids.tolist()).tolist()
    assert slots.of(ids[:0]).tolist() == []


PINNED_SLOTS = [1, 1, 0, 4, 2, 3, 4, 0, 2, 2, 3, 2]


def test_cohorts_beyond_the_plan_are_refused(rng):
    with pytest.raises(PrivacyError, match="round 8 is outside of the plan's 8 rounds"):
        plan(4, 1.0).sampler.draw(60, rng=rng, round_index=8)


def test_means_are_divided_by_the_expected_size_and_never_by_the_real_one():
    made = plan(4, 1.0, count_weight=0.0, num_clients=80)
    assert made.sampler.expected_size == 20
    few, many = (release_of(made, n) for n in (3, 19))
    assert few.sizes.tolist() == many.sizes.tolist() == [10, 10]
    assert few.denominators.tolist() == many.denominators.tolist()


def release_of(made, members, rng=None):
    mechanism = made.mechanism
    ids = mechanism.slots.eligible(1000, 0)[:members]
    reports = Reports(np.ones((members, mechanism.coordinates.width)), np.zeros(members, int), client_ids=ids)
    exact = MessageSum(mechanism.sum_messages(reports, round_index=0))
    noisy_sum, _ = mechanism.noisy_sum(exact, mechanism.first_past(), rng=rng or np.random.default_rng(0))
    return mechanism.release_sum(noisy_sum)


def test_a_report_from_outside_of_the_slot_counts_for_nothing():
    mechanism = plan(4, 1.0).mechanism
    inside, outside = mechanism.slots.eligible(60, 0)[0], mechanism.slots.eligible(60, 1)[0]
    rows, choices = np.full((2, 6), 0.3), np.array([0, 1])

    def total(ids, rows, choices):
        reports = Reports(rows, choices, client_ids=ids)
        return mechanism.sum_messages(reports, round_index=0)

    both, alone = total([inside, outside], rows, choices), total([inside], rows[:1], choices[:1])
    assert (both == alone).all()
    assert (total([outside], rows[:1], choices[:1]) == 0).all()
    assert alone.any()
    with pytest.raises(PrivacyError, match="needs client_ids"):
        total(None, rows, choices)


def test_slots_in_a_sum_are_those_of_ids_and_not_of_places():
    mechanism = plan(4, 1.0).mechanism
    for t in range(4):
        ids, rows = np.arange(60)[::-1].copy(), np.full((60, 6), 0.1)
        counted = mechanism.sum_messages(Reports(rows, np.zeros(60, dtype=int), client_ids=ids), round_index=t)
        own = np.flatnonzero(mechanism.slots.of(np.arange(60)) == t)
        rows[np.isin(ids, own, invert=True)] = np.nan
        only = mechanism.sum_messages(Reports(rows, np.zeros(60, dtype=int), client_ids=ids), round_index=t)
        assert (counted == only).all()


# Noise


def outputs(mechanism, rounds, rng, messages=None):
    """(T, width) noisy sums of rounds with these messages: {round: (id, row, choice)}; in steps of the messages."""
    past, totals = mechanism.first_past(), []
    for t in range(rounds):
        client, row, choice = (messages or {}).get(t, (None, None, None))
        reports = Reports(
            np.zeros((0, mechanism.coordinates.width)) if row is None else np.array([row]),
            np.zeros(0, int) if row is None else np.array([choice]),
            client_ids=[] if row is None else [client],
        )
        exact = MessageSum(mechanism.sum_messages(reports, round_index=t))
        noisy_sum, past = mechanism.noisy_sum(exact, past, rng=rng)
        totals.append(noisy_sum.total)
    return np.array(totals)


def whitened(mechanism, totals):
    """C times the noise, C the normalised matrix, written out."""
    c = mechanism.correlation.coefficients
    assert sum(value**2 for value in c) == pytest.approx(1)
    band = [[c[t - s] if 0 <= t - s < len(c) else 0.0 for s in range(len(totals))] for t in range(len(totals))]
    return np.array(band) @ totals


@pytest.mark.parametrize("secure", [False, True])
def test_correlated_noise_is_white_behind_c(secure, rng):
    mechanism = plan(4, 1.0, width=500, secure=secure).mechanism
    white = whitened(mechanism, outputs(mechanism, 8, secure_rng() if secure else rng))
    std = 1.3 * mechanism.sensitivity * 2**30
    assert white.std() == pytest.approx(std, rel=0.04)  # 8 x 1004 numbers: five standard errors
    off = np.corrcoef(white) - np.eye(8)
    assert abs(off).max() < 6 / math.sqrt(white.shape[1])
    assert (abs(white.std(axis=1) / std - 1) < 6 / math.sqrt(2 * white.shape[1])).all()


def test_one_slot_is_the_mechanism_without_slots_bit_by_bit():
    """The release of a round as it was before there were slots, written out."""
    mechanism = plan(1, 0.5).mechanism
    updates, choices = np.random.default_rng(5).standard_normal((9, 6)), np.arange(9) % 2
    released = mechanism.release(Reports(updates, choices), rng=np.random.default_rng(3))
    step = 2.0**-30
    noise = 1.3 * math.sqrt(1 + 0.25**2) / step * np.random.default_rng(3).standard_normal(mechanism.message_width)
    noise += mechanism.sum_messages(Reports(updates, choices))
    assert (released.cluster_sums.ravel() == noise[:12] * step).all()
    assert (released.sizes == noise[12:14] / mechanism.count_units).all()
    assert mechanism.noise_std == 1.3 * mechanism.sensitivity


def test_two_runs_differ_by_c_times_the_messages_of_one_client_in_disjoint_blocks():
    """With the same draws: neighbours' outputs, put through C, differ in every block by at most S; for every b."""
    for slots in (2, 3, 5):
        mechanism = plan(slots, 1.0, num_rounds=11).mechanism
        client = int(mechanism.slots.eligible(60, 1)[0])
        row = np.full(6, 7.0)  # clipped to 1
        messages = {t: (client, row * (-1) ** t, t % 2) for t in range(1, 11, slots)}
        one, two = (outputs(mechanism, 11, np.random.default_rng(2), given) for given in ({}, messages))
        apart = whitened(mechanism, two - one) * 2.0**-30
        for start in range(1, 11, slots):
            block = np.linalg.norm(apart[start : start + slots])
            assert block <= mechanism.sensitivity * (1 + 1e-9)
            if start + slots <= 11:
                assert block == pytest.approx(mechanism.sensitivity, rel=1e-5)
        assert np.abs(apart[0]).max() == 0


def test_exact_noise_rounds_by_what_is_released_alone(monkeypatch):
    """With the same draws Z the difference of neighbours behind C is the message times whole coefficients, exactly."""
    mechanism = plan(3, 1.0, num_rounds=9, secure=True).mechanism
    client = int(mechanism.slots.eligible(60, 2)[0])
    messages = {t: (client, np.linspace(-1, 1, 6), 1) for t in (2, 5, 8)}

    def run(given):
        draws = np.random.default_rng(4)
        monkeypatch.setattr(sums, "discrete_gaussian", lambda sigma, n: draws.integers(-(2**40), 2**40, n))
        return (outputs(mechanism, 9, secure_rng(), given) * FINER).astype(np.int64)

    one, two = run({}), run(messages)
    parts = mechanism.correlation.parts

    def centres(totals):
        """What is released, plus the rounded multiples of what was released before: whole message sums plus Z."""
        owed = [sum(parts[i] * totals[t - i] for i in range(1, len(parts)) if t >= i) for t in range(len(totals))]
        return np.array([total + ((value + FINER // 2) >> 8) for total, value in zip(totals, owed, strict=True)])

    apart = centres(two) - centres(one)
    message = mechanism.sum_messages(Reports([np.linspace(-1, 1, 6)], [1], client_ids=[client]), round_index=2)
    assert message.any()
    for start in (2, 5, 8):
        for i in range(min(3, 9 - start)):
            assert (apart[start + i] == parts[i] * message).all()
    assert not apart[:2].any()
    sigma = sums.grid_sigma(mechanism.fresh_noise_std, 2.0**-30 / FINER)
    longest = math.sqrt(sum(part**2 for part in parts)) * np.linalg.norm(message)
    assert sigma**2 - 64 >= (1.3 * longest) ** 2


def test_the_noise_of_a_round_is_at_most_what_is_stated(rng):
    mechanism = plan(5, 1.0, width=400, num_rounds=30).mechanism
    noise = outputs(mechanism, 30, rng) * 2.0**-30
    assert noise[0].std() == pytest.approx(mechanism.fresh_noise_std, rel=0.1)
    assert noise[-8:].std() == pytest.approx(mechanism.noise_std, rel=0.06)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_correlated_noise_lowers_the_noise_of_the_models_handed_out(momentum, rng):
    """Computed, and measured on noise alone: the mean of the models over the last half, as the server makes them."""
    correlation = make_correlation(slots=5, num_rounds=40, momentum=momentum, average_last=0.5)
    stated = correlation.model_noise
    assert stated.chosen < 0.7 * stated.independent
    for each, std in ((correlation, stated.chosen), (INDEPENDENT, stated.independent)):
        assert noise_of_models(each, momentum, rng) == pytest.approx(std, rel=0.06)


def noise_of_models(correlation, momentum, rng):
    """Std over 4,000 coordinates of the mean of the last 20 of 40 models, moved by noise alone."""
    past = correlation.first_past(4000, exact=False)
    velocity, model, average = np.zeros(4000), np.zeros(4000), np.zeros(4000)
    for t in range(40):
        noise = correlation.next_noise(rng.standard_normal(4000) * correlation.lengthening, past)
        past = after(past, noise)
        velocity = momentum * velocity + noise
        model = model + velocity
        average += model / 20 if t >= 20 else 0
    return average.std()


def test_the_square_root_starts_with_known_coefficients():
    assert square_root(4).tolist() == [1, 1 / 2, 3 / 8, 5 / 16]
    root = square_root(12)
    assert np.allclose(np.convolve(root, root)[:12], 1), "its square is the matrix of prefix sums"


# Bad input


def test_bad_input_is_refused_in_one_sentence():
    for settings, words in (
        ({"participation": "schedule"}, "needs slots"),
        ({"participation": "poisson", "slots": 3}, "which has none"),
        ({"participation": "schedule", "slots": 9, "num_rounds": 8}, "slots = 9 is more than num_rounds = 8"),
        ({"participation": "schedule", "slots": 1}, "at least 2"),
        ({"participation": "schedule", "slots": 4, "reserve_rounds": 2}, "repeated exactly"),
        ({"participation": "schedule", "slots": 3, "correlation": "1,2"}, "'correlation' is gone: a schedule"),
        ({"participation": "within-slot", "slots": 3}, "within-slot is gone: use schedule"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan(1, 0.5, **settings)
    with pytest.raises(ConfigError, match=r"slots = 8 for 8 clients would leave 2\.7 slots without any"):
        plan(8, 1.0, num_clients=8)
    with pytest.raises(ConfigError, match=r"noise vectors of .* GiB, more than 4 GiB; use fewer slots"):
        plan(8, 1.0, width=10**8)
    with pytest.raises(PrivacyError, match="no proof for mechanism = identifier"):
        plan(4, 1.0, mechanism="identifier")
    with pytest.raises(PrivacyError, match="no proof for mechanism = none"):
        plan(mechanism="none", participation="everybody", noise_multiplier=None)
    with pytest.raises(ConfigError, match="their inverse grows"):
        Correlation((FINER, 2 * FINER), 8)
    with pytest.raises(ConfigError, match=r"the first of the coefficients must be 1"):
        Correlation((0, FINER), 8)
    with pytest.raises(ConfigError, match="must not take part again"):
        Correlation((FINER, 100, 50), 8).check_applies(slots=2, width=10)


def test_a_round_with_slots_is_not_released_by_itself(rng):
    import rrcluster as rr

    with pytest.raises(PrivacyError, match="cannot be released by itself"):
        rr.release(np.zeros((1, 6)), [0], plan=plan(4, 1.0), rng=rng, client_ids=[0])
    mechanism = plan(4, 1.0).mechanism
    with pytest.raises(PrivacyError, match="cannot be released by itself"):
        mechanism.release_total(MessageSum(np.zeros(mechanism.message_width)), rng=rng)
    with pytest.raises(PrivacyError, match="cannot be released by itself"):  # nor summed: by which slot?
        mechanism.sum_messages(Reports(np.zeros((1, 6)), [0], client_ids=[0]))
    with pytest.raises(PrivacyError, match="cannot be released by itself"):
        mechanism.message(np.zeros(6), 0)


def test_account_gives_both_epsilons_and_the_cap():
    from rrcluster.privacy.budget import account

    budget = account(noise_multiplier=2.6028, delta=1e-3, num_rounds=100, participation="schedule", slots=10)
    assert (budget.participation, budget.most_participations) == ("schedule", 10)
    assert budget["pld"].epsilon == budget["pld"].epsilon_seen == pytest.approx(4, rel=1e-3)
    secret = account(noise_multiplier=1.1, delta=1e-3, num_rounds=10, sample_rate=0.1)
    assert secret["rdp"].epsilon < secret["rdp"].epsilon_seen


def test_an_account_counts_the_participations_that_its_epsilon_covers():
    from rrcluster.privacy.budget import account

    settings = {"participation": "schedule", "slots": 7, "num_rounds": 64, "delta": 1e-5, "num_clients": 10_000}
    budget = account(noise_multiplier=2.2, max_epsilon=6, **settings)
    covered = [row.recompute["event"]["count"] for row in budget.rows if row.recompute is not None]
    assert covered == [8, 7]  # max_epsilon ends the plan, later by the tighter accountant
    assert budget.most_participations == 8
    ample = account(noise_multiplier=40.0, max_epsilon=1, **settings)  # one round at noise 1 would cost more than that
    assert ample.most_participations == 10


def test_a_run_with_slots_is_composed_by_its_participations(tmp_path):
    """Two runs together: the event of a schedule happens ceil(T / b) times to a client, not T times."""
    import json

    from rrcluster.privacy.composition import account_runs

    made = plan(5, 1.0, num_rounds=20)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "privacy.json").write_text(json.dumps(statement(made)))
    together = account_runs([tmp_path / "one", tmp_path / "two"])
    assert together.epsilon == pytest.approx(epsilon(made.event, num_rounds=8, delta=1e-3))


def test_a_secure_plan_with_slots_is_calibrated_to_an_epsilon():
    """A calibration tries noise that exact sums could not hold; the plan that comes out fits, or is refused."""
    made = plan(5, 1.0, secure=True, epsilon=2.0, noise_multiplier=None, num_rounds=20)
    assert made.epsilon() <= 2.0 < 1.001 * made.epsilon()
    with pytest.raises(ConfigError, match="does not fit 64-bit whole numbers"):
        plan(5, 1.0, secure=True, noise_multiplier=1000.0)


def test_sums_that_exact_correlated_noise_could_round_are_refused():
    """The noise is in parts of a step, so it is added to float64 sums: those are exact up to 2^53 steps."""
    given = {"secure": True, "noise_multiplier": 1.0, "delta": 1e-9}
    mechanism = plan(4, num_clients=2**23, **given).mechanism
    assert mechanism.update_clip / mechanism.step * 2**23 == 2**53
    with pytest.raises(ConfigError, match=f"hold {2**23} clients at most in 64 bits"):
        plan(4, num_clients=2**23 + 1, **given)
    assert plan(4, num_clients=2**23 + 1, **given | {"secure": False}).mechanism.num_clients == 2**23 + 1
