from itertools import permutations

import numpy as np
import pytest

from rrcluster.data.build import load_federated
from rrcluster.data.synthetic import linear_regression
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.methods import METHODS
from rrcluster.models import make_model
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Streams, stream
from rrcluster.settings import LocalSettings
from rrcluster.simulation.evaluate import clustering_accuracy, confusion, evaluate, judged_clients
from rrcluster.simulation.simulate import Checkpoint, simulate


@pytest.fixture(scope="module")
def data():
    return linear_regression(num_clients=60, rng=stream(0, "partition"), ratio=(1, 1), dimension=6).data


def rounds(data, *, engine=BatchedEngine, seed=0, method="ifca", checkpoint=None, num_rounds=4, **changes):
    model = make_model("linear", input_shape=data.input_shape, num_classes=0)
    method = METHODS[method]
    settings = {"mechanism": "joint", "noise_multiplier": 0.5, "num_clusters": method.num_clusters(2)}
    settings["sample_rate"] = 0.5
    plan = PrivacyPlan.build(
        coordinates=method.split(model).coordinates,
        num_clients=60,
        num_rounds=num_rounds,
        update_clip=1.0,
        delta=1e-3,
        **(settings | changes),
    )
    return list(
        simulate(
            data=data,
            model=model,
            method=method,
            plan=plan,
            engine=engine(model),
            streams=Streams(seed),
            local=LocalSettings(0.05, 1, 10),
            checkpoint=checkpoint,
        )
    )


def same(one, two):
    return all(
        (getattr(a.state.models, part) == getattr(b.state.models, part)).all()
        for a, b in zip(one, two, strict=True)
        for part in ("shared", "clustered")
    )


@pytest.mark.parametrize("mechanism", ["joint", "identifier", "none"])
@pytest.mark.parametrize("method", ["fedavg", "ifca"])
def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(data, mechanism, method):
    changes = {"mechanism": mechanism, "method": method}
    if mechanism == "none":
        changes["noise_multiplier"] = None
    first, again, other = (rounds(data, seed=seed, **changes) for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)


def test_b_zero_is_the_base_method_bit_for_bit_under_joint(data, monkeypatch):
    zero = rounds(data, min_cluster_size=0)

    def flip_coins(*_, **__):
        raise AssertionError("there are no coins without B")

    monkeypatch.setattr("rrcluster.client.flip_coins", flip_coins)
    assert same(rounds(data), zero)


@pytest.mark.parametrize("mechanism", ["identifier", "none"])
def test_b_zero_is_the_base_method_bit_for_bit_with_the_exact_rule(data, mechanism, monkeypatch):
    changes = {"mechanism": mechanism, "noise_multiplier": 0.5 if mechanism == "identifier" else None}
    zero = rounds(data, min_cluster_size=0, **changes)
    monkeypatch.setattr(f"rrcluster.privacy.{mechanism}.rebalance", lambda assignment, **_: assignment)
    assert same(rounds(data, **changes), zero)


def test_b_above_zero_is_not_the_base_method(data):
    assert not same(rounds(data, num_rounds=6), rounds(data, num_rounds=6, min_cluster_size=14))


def test_engines_agree_after_one_round(data):
    (fast,), (slow,) = rounds(data, num_rounds=1), rounds(data, num_rounds=1, engine=ReferenceEngine)
    assert np.abs(fast.state.models.clustered - slow.state.models.clustered).max() < 1e-4


def test_stopping_and_going_on_changes_nothing(data):
    whole = rounds(data, num_rounds=6, min_cluster_size=10)
    resumed = rounds(data, num_rounds=6, min_cluster_size=10, checkpoint=Checkpoint(whole[2].state))
    assert same(whole[3:], resumed)


def test_without_noise_ifca_finds_the_groups_of_a_linear_problem(data):
    last = rounds(data, mechanism="none", noise_multiplier=None, num_rounds=60, seed=3)[-1]
    method = METHODS["ifca"]
    model = make_model("linear", input_shape=data.input_shape, num_classes=0)
    found = evaluate(last.state.average, data, method=method, split=method.split(model), engine=BatchedEngine(model))
    assert found.clustering_accuracy == 1.0
    assert found.loss < 0.05  # the noise of the labels alone is 0.01
    assert np.isnan(found.accuracy)


def test_more_clusters_than_groups_and_label_permutations():
    groups = np.array([0, 0, 1, 1])
    assert clustering_accuracy(np.array([1, 1, 0, 0]), groups, 2, 2) == 1.0
    assert clustering_accuracy(np.array([2, 1, 0, 0]), groups, 3, 2) == 0.75  # a surplus cluster counts as wrong
    assert clustering_accuracy(np.array([0, 0, 0, 0]), groups, 1, 2) == 0.5


def test_the_best_matching_is_the_best_of_all():
    rng = np.random.default_rng(0)
    for k, num_groups in [(1, 1), (2, 4), (4, 2), (4, 4)]:
        choices, groups = rng.integers(k, size=50), rng.integers(num_groups, size=50)
        wide = np.zeros((max(k, num_groups), num_groups), dtype=int)
        wide[:k] = confusion(choices, groups, k, num_groups)
        best = max(wide[list(rows), range(num_groups)].sum() for rows in permutations(range(len(wide)), num_groups))
        assert clustering_accuracy(choices, groups, k, num_groups) == best / 50


def test_without_true_groups_there_is_no_clustering_accuracy():
    """Dirichlet: every client has its own test set, and nobody knows a group."""
    data = load_federated("fashion-mini", partition="dirichlet", num_clients=30, seed=0)
    model = make_model("linear", input_shape=data.input_shape, num_classes=10)
    method = METHODS["ifca"]
    models = method.init(model, num_clusters=3, rng=stream(0, "init"))
    split, engine = method.split(model), ReferenceEngine(model)
    found = evaluate(models, data, method=method, split=split, engine=BatchedEngine(model))
    vectors, own = split.vectors(models), []
    for client in range(30):
        choice = calls.losses(engine, vectors, data.cohort(np.array([client])))[0].argmin()
        own.append(calls.test(engine, vectors[[choice]], data.test_sets[client])[1][0])
    assert found.accuracy == pytest.approx(np.mean(own), abs=1e-6)
    assert np.isnan(found.clustering_accuracy)
    assert found.group_accuracy == ()
    assert np.isnan(clustering_accuracy(np.array([0, 1]), np.array([0, 0]), 2, 0))


def test_the_confusion_by_hand():
    """Clients 0 and 1 of group 0 chose cluster 2; client 2 of group 1 chose cluster 0; nobody chose cluster 1."""
    table = confusion(np.array([2, 2, 0]), np.array([0, 0, 1]), 3, 2)
    assert table.tolist() == [[0, 1], [0, 0], [2, 0]]
    assert confusion(np.array([1]), np.array([0]), 2, 0).tolist() == []


def test_the_protocol_on_images_by_the_slow_twin():
    """Accuracy: least training loss picks the model, the test images of the client's rotation judge it."""
    data = load_federated("fashion-mini", num_clients=40, seed=0)
    model = make_model("linear", input_shape=data.input_shape, num_classes=10)
    method = METHODS["ifca"]
    models = method.init(model, num_clusters=3, rng=stream(0, "init"))
    split, engine = method.split(model), ReferenceEngine(model)
    found = evaluate(models, data, method=method, split=split, engine=BatchedEngine(model))
    own = []
    for client in range(40):
        choice = calls.losses(engine, split.vectors(models), data.cohort(np.array([client])))[0].argmin()
        tests = data.test_sets[data.test_of[client]]
        own.append(calls.test(engine, split.vectors(models)[[choice]], tests)[1][0])
    assert found.accuracy == pytest.approx(np.mean(own), abs=1e-6)
    assert found.worst_decile == pytest.approx(np.mean(sorted(own)[:4]), abs=1e-6)
    assert sum(found.choice_sizes) == 40
    assert tuple(map(sum, found.confusion)) == found.choice_sizes
    assert [sum(column) for column in zip(*found.confusion, strict=True)] == np.bincount(data.groups).tolist()


class SpyStreams(Streams):
    """Remembers every stream that was asked for."""

    def __init__(self, seed):
        object.__setattr__(self, "asked", [])
        super().__init__(seed)

    def __call__(self, name, *key):
        self.asked.append((name, *key))
        return super().__call__(name, *key)

    def client_key(self, name, round_index):
        self.asked.append((name, round_index))
        return super().client_key(name, round_index)


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_every_round_draws_from_streams_of_its_own(data, mechanism, monkeypatch):
    """The same noise, cohort, coins or batches in two rounds would void everything: no key may come twice."""
    from rrcluster.simulation import simulate as module

    spies = []
    original = module.simulate

    def spied(**settings):
        spies.append(SpyStreams(settings["streams"].seed))
        return original(**(settings | {"streams": spies[0]}))

    monkeypatch.setitem(globals(), "simulate", spied)
    rounds(data, mechanism=mechanism, num_rounds=5, min_cluster_size=3)
    asked = spies[0].asked
    assert len(asked) == len(set(asked))
    for name in ("cohort", "release", "choice", "batches", *(["coin"] if mechanism == "joint" else [])):
        assert [key for key in asked if key[0] == name] == [(name, t) for t in range(5)]


def test_noise_of_two_rounds_is_uncorrelated(data):
    """Two rounds on the same (empty) cohort differ by noise alone: the difference has twice the variance."""
    empty = rounds(data, num_rounds=2, sample_rate=1e-9, noise_multiplier=1.0)
    first, second = (record.release.cluster_sums.ravel() for record in empty)
    std = empty[0].release.sum_noise_std
    assert not np.allclose(first, second, atol=std / 10)
    assert np.std(first - second) > 0.5 * std


def test_memory_under_fixed_size_sampling_is_refused_whoever_asks(data):
    from rrcluster.errors import PrivacyError

    with pytest.raises(PrivacyError, match="keeps memory on the clients"):
        rounds(data, mechanism="identifier", method="fesem")


def judged(data):
    model, method = make_model("linear", input_shape=data.input_shape, num_classes=0), METHODS["ifca"]
    models = method.init(model, num_clusters=2, rng=stream(0, "init"))
    return evaluate(models, data, method=method, split=method.split(model), engine=BatchedEngine(model))


def test_large_populations_are_judged_by_a_fixed_sample(data):
    assert judged_clients(10_000).tolist() == list(range(10_000))
    sample = judged_clients(1_000_000)
    assert np.array_equal(sample, judged_clients(1_000_000))
    assert len(np.unique(sample)) == 2_000
    assert 450_000 < sample.mean() < 550_000
    assert len(judged_clients(1_000_000, personal=True)) == 200
    found = judged(load_federated("synthetic", num_clients=30_000, num_groups=2, seed=0))
    assert (found.evaluated_clients, sum(found.choice_sizes)) == (2_000, 2_000)
    assert np.isfinite(found.loss)
    assert judged(data).evaluated_clients is None
