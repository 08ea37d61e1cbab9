"""What a report is worth does not depend on the container and the type in which it, or anybody else's, came in."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import rrcluster as rr
from rrcluster.errors import ConfigError
from rrcluster.types import Coordinates

K = 3


def plan(width=4, clip=0.7, w=0.25, u=0.0, *, num_clients=1000):
    """A joint plan without noise: what it releases is the exact sum."""
    made = rr.PrivacyPlan.build(
        coordinates=Coordinates(0, width),
        num_clusters=K,
        num_clients=num_clients,
        sample_rate=0.1,
        num_rounds=10,
        update_clip=clip,
        noise_multiplier=1.0,
        count_weight=w,
        private_evaluation=u,
        delta=1e-10,
    )
    return replace(made, mechanism=replace(made.mechanism, noise_multiplier=0.0))


def released(plan, updates, choices, evaluations=None):
    """Everything that noise is added to, in units of the messages' grid."""
    release = rr.release(updates, choices, plan=plan, evaluations=evaluations, rng=np.random.default_rng(0))
    mechanism = plan.mechanism
    parts = [release.shared_sum, release.cluster_sums.ravel(), release.sizes * mechanism.count_weight]
    if release.evaluation is not None:
        parts.append(release.evaluation.sums * mechanism.evaluation_weight)
    return np.concatenate(parts)


def moved(plan, before, after):
    """How far two releases are apart, in units of the sensitivity."""
    return np.linalg.norm(released(plan, *after) - released(plan, *before)) / plan.mechanism.sensitivity


ODD = {"none": None, "over 1e308": 10**400, "complex": 1 + 2j, "text": "x", "not a number": float("nan")}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_one_odd_row_of_an_array_moves_nobody_else(odd):
    honest = [[0.7, 0.1, 0.0, 0.0]] * 500
    stacked = np.array([*honest, [odd, 0.0, 0.0, 0.0]])
    alone = released(plan(), np.array(honest), [0] * 500)
    assert alone[0] == pytest.approx(346.5, abs=1)
    assert released(plan(), stacked, [0] * 501) == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_one_odd_choice_or_evaluation_of_an_array_moves_nobody_else(odd):
    updates, judged = np.full((5, 4), 0.1), [[0.9, 0.2]] * 4
    with_u = plan(u=0.25)
    alone = released(with_u, updates[:4], np.array([0, 1, 2, 1]), np.array(judged))
    assert released(with_u, updates, np.array([0, 1, 2, 1, odd]), np.array([*judged, [0.5, 0.5]])) == pytest.approx(
        alone
    )
    assert released(with_u, updates, [0, 1, 2, 1, 0], np.array([*judged, [odd, 0.5]])) == pytest.approx(alone)


def test_a_stack_of_truth_values_is_what_it_is_beside_a_number():
    yes = [[True, False, False, False]] * 50
    for last in ([0.5, 0.0, 0.0, 0.0], ["x", "y", "z", "?"], [1j, 0, 0, 0]):
        before, after = (np.array(yes), [0] * 50), (np.array([*yes, last]), [0] * 51)
        assert moved(plan(), before, after) <= 1


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, torch.float16, torch.bfloat16, torch.float32])
def test_evaluations_of_any_precision_stay_within_the_sensitivity(kind):
    judged = torch.ones(1, 2, dtype=kind) if isinstance(kind, torch.dtype) else np.ones((1, 2), dtype=kind)
    for clip, u in itertools.product((0.3, 0.7, 0.9, 1.1), (0.25, 16.0)):
        at = plan(clip=clip, u=u)
        nothing = (np.zeros((0, 4)), [], judged[:0])
        assert moved(at, nothing, (np.full((1, 4), 1e9), [1], judged)) <= 1
        assert moved(at, nothing, (np.full((1, 4), -1e9), [1], 0 * judged)) <= 1


@pytest.mark.parametrize("clip", [1e-30, 1e-12, 4e-10, 0.5, 1e30])
@pytest.mark.parametrize("size", [1e-300, 1.0, 1e150, 1e155, 1e300, 1.7e308])
def test_the_clip_holds_for_tensors_of_one_coordinate(clip, size):
    at = plan(width=1, clip=clip)
    for row in (np.array([[size]]), torch.tensor([[size]], dtype=torch.float64)):
        assert moved(at, (row[:0], []), (row, [0])) <= 1


def test_tensors_and_arrays_are_worth_the_same():
    for size in (1e-200, 1.0, 1e149, 1e151, 1e200):
        rows = np.array([[size, -size, 0, 0]])
        assert (released(plan(), rows, [0]) == released(plan(), torch.tensor(rows), [0])).all()


@pytest.mark.parametrize("weights", [{"w": 16.0}, {"u": 32.0 / 2}])
def test_messages_that_64_bits_cannot_sum_are_refused(weights):
    with pytest.raises(ConfigError, match="64 bits"):
        plan(num_clients=2**29, **weights)
    assert plan(num_clients=2**29).mechanism.num_clients == 2**29


def row(rng, width):
    """A row that a client may send, and the types that it may come in."""
    value = float(rng.choice([0.0, 0.3, 0.7, 5.0, 1e30, 1e160, np.nan, np.inf]))
    numbers = rng.standard_normal(width) * value if np.isfinite(value) else np.full(width, value)
    as_type = rng.choice(["list", "float16", "float32", "float64", "longdouble", "torch", "bfloat16", "int", "complex"])
    with np.errstate(all="ignore"):
        if as_type == "torch":
            return torch.tensor(numbers)
        if as_type == "bfloat16":
            return torch.tensor(numbers).bfloat16()
        if as_type == "int":
            return [int(number) if np.isfinite(number) else 10**400 for number in numbers]
        if as_type == "complex":
            return numbers + (1j if rng.random() < 0.3 else 0)
        return numbers.tolist() if as_type == "list" else numbers.astype(as_type)


def containers(rows, rng):
    """The reports as one value, of some kind that can hold them."""
    kind = rng.choice(["list", "tuple", "object", "stacked", "torch"])
    plain = [np.asarray(entry.double() if isinstance(entry, torch.Tensor) else entry) for entry in rows]
    if kind == "object":
        whole = np.empty(len(rows), dtype=object)
        for place, entry in enumerate(rows):
            whole[place] = entry
        return whole
    if kind == "stacked":
        return np.array([entry.tolist() for entry in plain]) if plain else np.zeros((0, 4))
    if kind == "torch" and all(entry.dtype.kind in "fiu" for entry in plain) and plain:
        return torch.tensor(np.array(plain, dtype=np.float64))
    return tuple(rows) if kind == "tuple" else rows


def pair(rng):
    """A round and its neighbour, which has one client more; both in a container of their own."""
    width, n = 4, int(rng.integers(0, 6))
    rows = [row(rng, width) for _ in range(n + 1)]
    choices = rng.integers(0, K, size=n + 1)
    judged = rng.uniform(-1, 2, size=(n + 1, 2)).astype(rng.choice(["float16", "float32", "float64"]))
    return tuple((containers(rows[:m], rng), choices[:m].tolist(), judged[:m]) for m in (n, n + 1))


def check_pairs(count, rng):
    plans = [plan(clip=clip, w=w, u=u) for clip in (1e-9, 0.7, 1e9) for w in (0.0, 0.25, 16.0) for u in (0.25, 16.0)]
    for _ in range(count):
        at = plans[int(rng.integers(len(plans)))]
        before, after = pair(rng)
        assert moved(at, before, after) <= 1 + 1e-12


def test_no_neighbour_in_any_container_moves_the_sum_by_more_than_the_sensitivity(rng):
    check_pairs(2000, rng)


@pytest.mark.slow
def test_twenty_thousand_neighbours_in_any_container(rng):
    check_pairs(20_000, rng)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_plan_is_worth_the_same_whatever_type_its_settings_come_in(kind):
    exact, typed = plan(clip=0.5, w=0.25, u=0.25), plan(clip=kind(0.5), w=kind(0.25), u=kind(0.25))
    assert typed == exact
    reports = np.zeros((3, 4)), [0, 1, 2], np.full((3, 2), 0.9)
    assert (released(typed, *reports) == released(exact, *reports)).all()


def test_whole_numbers_of_few_bits_do_not_wrap():
    small = rr.PrivacyPlan.build(
        coordinates=Coordinates(0, 4),
        num_clusters=K,
        num_clients=1000,
        num_rounds=np.uint8(200),
        reserve_rounds=np.uint8(100),
        noise_multiplier=1.0,
    )
    assert small.num_releases == 300


def test_masked_client_ids_are_refused():
    ids = np.ma.array([5, 5], mask=[False, True])
    with pytest.raises(ConfigError, match="whole numbers or texts"):
        rr.release(np.ones((2, 4)), [0, 0], plan=plan(), rng=np.random.default_rng(0), client_ids=ids)
