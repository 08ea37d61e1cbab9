"""One client's message, the sum of them, and the release made of a noisy sum: one law, bit for bit."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_cases import CLIP, VALUES, WEIGHT, K, joint, update

from rrcluster.entropy import secure_rng
from rrcluster.errors import ConfigError
from rrcluster.privacy.clip import grid_step
from rrcluster.privacy.reports import NoisySum, Reports
from rrcluster.privacy.sums import grid_noise

U, STEP = 0.2, grid_step(CLIP)
PARTS = ("shared_sum", "cluster_sums", "sizes", "denominators", "shared_denominator", "sum_noise_std", "size_noise_std")


class Hostile:
    def __array__(self, *_, **__):
        raise RuntimeError("secret 42")


def hostile_rows(width):
    """Everything a client may send instead of an update."""
    return [
        *(update(value, width, axis) for value in VALUES.values() for axis in (0, 1)),
        None,
        "text",
        [1.0],
        np.ones((1, width)),
        [1j] * width,
        [True] * width,
        [10**400] * width,
        ["0.25"] * width,
        np.full(width, 0.1, dtype=np.float16),
        np.full(width, 0.3, dtype=np.float32),
        np.full(width, np.longdouble("1e4000")),
        torch.full((width,), 0.2, dtype=torch.bfloat16),
        torch.ones(width).to_sparse(),
        Hostile(),
    ]


CLUSTERS = [0, 1, 2, -1, K, 1.5, np.nan, "one", None, [0], np.int8(2), "1"]
SAID = [[0.9, 0.2], [7.0, -3.0], [np.nan, 0.5], [1e300, -1e300], "ab", None, [True, False], np.float16([0.3, 0.1])]


def cohort(width, rng):
    """Hostile and honest rows with hostile and honest clusters and evaluations."""
    rows = [*hostile_rows(width), *(rng.normal(size=(40, width)) * 10.0 ** rng.integers(-8, 8, size=(40, 1)))]

    def some(values):
        return [values[place] for place in rng.integers(len(values), size=len(rows))]

    return rows, some(CLUSTERS[:3] * 4 + CLUSTERS), some(CLUSTERS[:3] * 4 + CLUSTERS), some(SAID[:2] * 4 + SAID)


def units(message):
    """The squared length of a message, exactly."""
    return sum(int(unit) ** 2 for unit in message)


@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("coins", [False, True])
@pytest.mark.parametrize("evaluation", [0.0, U])
def test_the_sum_of_the_messages_is_the_sum_of_the_cohort_bit_for_bit(shared, coins, evaluation, rng):
    mechanism = joint(shared=shared, clustered=3, evaluation=evaluation, min_cluster_size=4 if coins else 0)
    rows, choices, moved, said = cohort(mechanism.coordinates.width, rng)
    moved, said = (moved if coins else None), (said if evaluation else None)
    messages = [
        mechanism.message(
            row,
            choices[place],
            destination=moved[place] if coins else None,
            evaluation=said[place] if evaluation else None,
        )
        # None is how an absent value is spelled: what a client leaves out makes its report invalid
        if not ((coins and moved[place] is None) or (evaluation and said[place] is None))
        else np.zeros(mechanism.message_width, dtype=np.int64)
        for place, row in enumerate(rows)
    ]
    whole = mechanism.sum_messages(Reports(rows, choices, moved, evaluations=said))
    assert whole.shape == (mechanism.message_width,)
    assert whole.dtype == np.int64
    assert sum(messages).tolist() == whole.tolist()
    assert any(message.any() for message in messages)
    assert not all(message.any() for message in messages)
    order = rng.permutation(len(rows))
    shuffled = [[column[place] for place in order] if column else None for column in (rows, choices, moved, said)]
    assert mechanism.sum_messages(Reports(*shuffled[:3], evaluations=shuffled[3])).tolist() == whole.tolist()


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", [7, 9000])
def test_a_stacked_cohort_is_worth_what_its_rows_are(kind, width, rng):
    """Wide rows, longer than the clip, in one table: norms must not depend on where in it a row stands."""
    mechanism = joint(shared=2, clustered=width - 2)
    rows = rng.normal(size=(12, width)) * 10.0 ** rng.integers(-3, 4, size=(12, 1))
    rows[3, 1] = np.nan
    table = torch.tensor(rows, dtype=kind) if isinstance(kind, torch.dtype) else rows.astype(kind)
    choices = rng.integers(K, size=12)
    one_by_one = sum(mechanism.message(row, choice) for row, choice in zip(table, choices, strict=True))
    assert (one_by_one == mechanism.sum_messages(Reports(table, choices))).all()


@pytest.mark.parametrize("weight", [0.0, WEIGHT, 16 * CLIP])
@pytest.mark.parametrize("evaluation", [0.0, U, 16 * CLIP])
def test_no_message_is_longer_than_s(weight, evaluation, rng):
    mechanism = joint(shared=1, clustered=3, count_weight=weight, evaluation=evaluation)
    longest = (mechanism.sensitivity / STEP) ** 2 * (1 + 1e-12)
    for row, choice in itertools.product([*hostile_rows(4), *rng.normal(size=(20, 4))], CLUSTERS):
        for said in [entry for entry in SAID if entry is not None] if evaluation else [None]:
            assert units(mechanism.message(row, choice, destination=1, evaluation=said)) <= longest


@given(
    st.lists(st.floats(width=64), min_size=3, max_size=3),
    st.integers(-1, K),
    st.integers(-1, K),
    st.tuples(st.floats(), st.floats()),
)
@settings(max_examples=300, deadline=None)
def test_no_message_of_any_floats_is_longer_than_s(row, choice, destination, said):
    mechanism = joint(shared=1, evaluation=U)
    message = mechanism.message(row, choice, destination=destination, evaluation=said)
    assert units(message) <= (mechanism.sensitivity / STEP) ** 2 * (1 + 1e-12)


def test_a_message_by_hand():
    """Coordinates: shared, then k blocks, k counts and the evaluation; C = 0.5, w = 0.125, u = 0.2."""
    mechanism = joint(shared=1, clustered=2, evaluation=U)
    assert mechanism.message_width == 1 + K * 3 + 2
    message = mechanism.message([0.25, 0.0, -0.25], 2, destination=0, evaluation=[1.0, 0.25]) * STEP
    expected = [0.25, 0.0, -0.25, 0, 0, 0, 0, 0, 0, WEIGHT, U / 2, -U / 4]
    assert message == pytest.approx(expected, abs=STEP)
    attained = mechanism.message([CLIP, 0, 0], 1, evaluation=[1.0, 0.0])
    assert np.sqrt(units(attained)) * STEP == pytest.approx(mechanism.sensitivity, rel=1e-5)


@pytest.mark.parametrize("broken", [{"update": [np.nan, 0, 0]}, {"choice": K}, {"destination": -1}])
def test_an_invalid_report_is_the_zero_message_in_every_coordinate(broken):
    report = {"update": [0.1, 0.2, 0.3], "choice": 0, "destination": 1, "evaluation": [0.9, 0.1], **broken}
    assert not joint(shared=1, evaluation=U).message(report.pop("update"), report.pop("choice"), **report).any()


@pytest.mark.parametrize("evaluation", [0.0, U])
def test_a_release_is_that_of_the_noise_plus_the_sum(evaluation, rng):
    mechanism = joint(shared=2, clustered=3, evaluation=evaluation, noise_multiplier=1.3, min_cluster_size=4)
    rows, choices, moved, said = cohort(5, rng)
    reports = Reports(rows, choices, moved, evaluations=said if evaluation else None)
    noise = grid_noise(
        mechanism.message_width, noise_std=mechanism.noise_std, step=STEP, exact=False, rng=np.random.default_rng(7)
    )
    told = mechanism.release(reports, rng=np.random.default_rng(7))
    made = mechanism.release_sum(NoisySum(noise + mechanism.sum_messages(reports)))
    for name in PARTS:
        assert np.array_equal(getattr(told, name), getattr(made, name)), name
    if evaluation:
        assert (told.evaluation.sums == made.evaluation.sums).all()
        assert replace(told.evaluation, sums=0) == replace(made.evaluation, sums=0)
    else:
        assert told.evaluation is made.evaluation is None


def test_a_secure_release_adds_whole_numbers_to_the_sum(monkeypatch, rng):
    from rrcluster.privacy import sums

    mechanism = replace(joint(shared=2, clustered=3, noise_multiplier=1.3), exact_noise=True)
    noise = sums.discrete_gaussian(1000, mechanism.message_width)
    monkeypatch.setattr(sums, "discrete_gaussian", lambda sigma, count: noise.copy())
    reports = Reports(rng.normal(size=(9, 5)), rng.integers(K, size=9), unique=True)
    told = mechanism.release(reports, rng=secure_rng())
    made = mechanism.release_sum(NoisySum(noise + mechanism.sum_messages(reports)))
    for name in PARTS:
        assert np.array_equal(getattr(told, name), getattr(made, name)), name


def test_nobody_sends_a_sum_of_zero(rng):
    mechanism = joint(shared=1, evaluation=U)
    assert not mechanism.sum_messages(Reports(np.zeros((0, 3)), [], [], evaluations=np.zeros((0, 2)))).any()


@pytest.mark.parametrize("total", [np.zeros(5), np.zeros((1, 9)), 3.0, [], np.full(11, np.nan), ["x"] * 11])
def test_a_sum_of_another_plan_is_refused(total):
    with pytest.raises(ConfigError, match="must hold 11 finite numbers"):
        joint().release_sum(NoisySum(total))
