"""Ranks as threads: whoever computes a client, the numbers are the same."""

import queue
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrcluster.data import from_arrays
from rrcluster.engine import calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.distributed import DistributedEngine, Message, PreparedRank, Ranks, _limit, serve, split_work
from rrcluster.engine.protocol import LocalSettings, TrainingCall
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import ConfigError, DataError, PrivacyError, RankError
from rrcluster.experiments.config import from_flat
from rrcluster.experiments.setup import _machines, make_distributed
from rrcluster.methods import ALGORITHMS
from rrcluster.models import make_model
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Streams, stream
from rrcluster.simulation.evaluate import evaluate
from rrcluster.simulation.simulate import simulate


class Wire:
    """A channel between threads; messages pass through their bytes."""

    def __init__(self, rank, size, lines):
        self.rank, self.size, self.lines = rank, size, lines

    def send(self, message, *, to):
        self.lines[self.rank, to].put(message.encoded())

    def receive(self, *, sender):
        return Message.decoded(self.lines[sender, self.rank].get(timeout=20))


def wires(size):
    lines = {(one, two): queue.Queue() for one in range(size) for two in range(size)}
    return [Wire(rank, size, lines) for rank in range(size)]


@contextmanager
def crew(size, prepare):
    """Rank 0 here, the others in threads; what they raised is kept."""
    ends, raised = wires(size), []

    def work(end):
        try:
            serve(end, prepare)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(end,)) for end in ends[1:]]
    for thread in threads:
        thread.start()
    ranks = Ranks(ends[0])
    try:
        ranks.prepare({"any": "settings"})
        assert ranks.fingerprints() == [{"machine": "here"}] * (size - 1)
        yield ranks, raised
    finally:
        ranks.dismiss()
        for thread in threads:
            thread.join(timeout=20)


def population(sizes, seed=0):
    rng = stream(seed, "ranks")
    inputs = [rng.standard_normal((size, 5)).astype(np.float32) for size in sizes]
    return from_arrays(inputs, [rng.integers(0, 3, size=size) for size in sizes], num_classes=3)


def model():
    return make_model("mlp", input_shape=(5,), num_classes=3)


def worker(data, engine=ReferenceEngine):
    return lambda _: PreparedRank(engine(model()), data, {"machine": "here"})


@pytest.mark.parametrize(("engine", "exact"), [(ReferenceEngine, True), (BatchedEngine, False)])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("clients", [[0, 1, 2, 3, 4, 5, 6], [3], [], [6, 6, 0]], ids=["uneven", "one", "none", "twice"])
def test_ranks_give_the_rows_of_one_engine(engine, exact, size, clients):
    data = population([4, 9, 1, 30, 5, 2, 7])
    alone, cohort, rng = engine(model()), data.cohort(np.array(clients, dtype=np.int64)), stream(1, "models")
    vectors = rng.standard_normal((2, alone.model.num_parameters)) * 0.1
    start, anchor = (
        vectors[rng.integers(0, 2, size=len(clients))],
        rng.standard_normal((len(clients), vectors.shape[1])),
    )
    masked = {"local": LocalSettings(0.1, 2, 4, proximal=0.5), "key": (3, 4), "anchor": anchor}
    plain = {"local": LocalSettings(0.1, 1, 5), "key": (5, 6)}
    masked["trainable"] = np.arange(vectors.shape[1]) % 3 > 0
    with crew(size, worker(data, engine)) as (ranks, raised):
        shared = DistributedEngine(engine(model()), ranks, (), data)
        pairs = [
            (calls.losses(alone, vectors, cohort), calls.losses(shared, vectors, cohort)),
            (np.stack(calls.measure(alone, vectors, cohort)), np.stack(calls.measure(shared, vectors, cohort))),
            (calls.train(alone, start, cohort, **masked), calls.train(shared, start, cohort, **masked)),
            (calls.train(alone, start, cohort, **plain), calls.train(shared, start, cohort, **plain)),
        ]
    for one, many in pairs:
        assert (one.shape, one.dtype) == (many.shape, many.dtype)
        np.testing.assert_allclose(many, one, atol=0 if exact else 1e-6)
    assert not raised


def simulated(engine, data):
    net, method = model(), ALGORITHMS["ifca"]
    plan = PrivacyPlan.build(
        coordinates=method.split(net).coordinates,
        num_clusters=2,
        num_clients=data.num_clients,
        sample_rate=0.3,
        num_rounds=4,
        update_clip=0.5,
        delta=1e-3,
        noise_multiplier=1.0,
        min_cluster_size=2,
    )
    return list(
        simulate(
            data=data,
            model=net,
            algorithm=method,
            plan=plan,
            engine=engine(net),
            streams=Streams(7),
            local=LocalSettings(0.05, 1, 4),
        )
    )


def test_a_whole_simulation_is_bit_for_bit_that_of_one_process():
    data = population(list(range(1, 26)))
    one = simulated(ReferenceEngine, data)
    with crew(3, worker(data)) as (ranks, _):
        many = simulated(lambda net: DistributedEngine(ReferenceEngine(net), ranks, (), data), data)
    assert len(one) == len(many) == 4
    for a, b in zip(one, many, strict=True):
        assert np.array_equal(a.state.models.clustered, b.state.models.clustered)
        assert np.array_equal(a.release.sizes, b.release.sizes)


def test_ranks_judge_test_sets_not_training_samples():
    """More than a few test sets are judged as a population of their own, which the other ranks do not have."""
    rng = stream(0, "own tests")

    def samples(size):
        return rng.standard_normal((40, size, 5)).astype(np.float32), rng.integers(0, 3, size=(40, size))

    (inputs, targets), (test_inputs, test_targets) = samples(6), samples(4)
    data = from_arrays(inputs, targets, test_inputs=list(test_inputs), test_targets=list(test_targets), num_classes=3)
    net, algorithm = model(), ALGORITHMS["ifca"]
    models = algorithm.init(net, num_clusters=2, rng=stream(1, "models"))
    common = {"algorithm": algorithm, "split": algorithm.split(net)}
    alone = evaluate(models, data, engine=ReferenceEngine(net), **common)
    with crew(3, worker(data)) as (ranks, _):
        shared = evaluate(models, data, engine=DistributedEngine(ReferenceEngine(net), ranks, (), data), **common)
    assert 0.1 < alone.accuracy < 0.9
    assert (shared.accuracy, shared.loss, shared.worst_decile) == (alone.accuracy, alone.loss, alone.worst_decile)


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (DataError("the file of rank 1 is damaged; get it anew."), "rank 1 failed: the file of rank 1 is damaged"),
        (IndexError("value 83.6501927"), "rank 1 failed: IndexError; see its stderr"),
    ],
)
def test_a_rank_that_fails_ends_the_run_and_is_named(problem, told):
    data = population([3, 3, 3, 3])

    class Broken:
        def measure(self, questions):
            raise problem

    prepare = lambda _: PreparedRank(Broken(), data, {"machine": "here"})  # noqa: E731
    with crew(2, prepare) as (ranks, raised):
        shared = DistributedEngine(ReferenceEngine(model()), ranks, (), data)
        with pytest.raises(RankError, match=told) as caught:
            calls.losses(shared, np.zeros((1, shared.own.model.num_parameters)), data.cohort(np.arange(4)))
    assert "83.65" not in str(caught.value)
    assert raised == [problem]


def test_work_before_data_is_refused():
    leader, other = wires(2)
    leader.send(Message("losses"), to=1)
    with pytest.raises(RankError, match="before any data"):
        serve(other, worker(None))
    with pytest.raises(RankError, match="rank 1 failed: asked for losses"):
        Ranks(leader).answer(1)


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 6))
def test_shares_cover_the_cohort_in_order_and_are_even(sizes, num_ranks):
    shares = split_work(np.array(sizes, dtype=np.int64), num_ranks)
    assert len(shares) == num_ranks
    places = [place for share in shares for place in range(share.start, share.stop)]
    assert places == list(range(len(sizes)))
    work = np.array(sizes, dtype=np.int64) + 1
    for share in shares:
        assert work[share].sum() <= work.sum() / num_ranks + work.max(initial=0)


def test_one_client_is_for_rank_0():
    assert split_work(np.array([5]), 2) == [slice(0, 1), slice(1, 1)]


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 6))
def test_a_share_has_the_starts_of_its_clients_and_each_model_once(model_of, last):
    data = population([1] * 12)
    models, clients = stream(0, "rows").standard_normal((4, 3)).astype(np.float32), np.arange(len(model_of))
    call = TrainingCall(models, np.array(model_of, dtype=np.int64), data.cohort(clients), LocalSettings(), (0, 0))
    share = call.select(slice(0, last), data.cohort(clients[:last]))
    assert np.array_equal(share.start, call.start[:last])
    assert len(share.models) == len(set(model_of[:last]))


def test_messages_keep_their_arrays():
    arrays = {"empty": np.zeros((0, 3), dtype=np.float32), "flags": np.array([True, False]), "ids": np.arange(2)}
    back = Message.decoded(Message("word", {"a": [1, 0.5, None]}, arrays).encoded())
    assert (back.word, back.settings) == ("word", {"a": [1, 0.5, None]})
    for name, values in arrays.items():
        assert np.array_equal(back.arrays[name], values)
        assert back.arrays[name].dtype == values.dtype


def test_secure_runs_stay_in_one_process():
    config = from_flat({"secure": True, "seed": None})
    with pytest.raises(PrivacyError, match=r"secure = true with 2 ranks.*without torchrun"):
        make_distributed(config, Ranks(wires(2)[0]))


def test_ranks_of_another_version_are_refused():
    from rrcluster.experiments.fingerprint import fingerprint

    same = fingerprint(from_flat({}), ReferenceEngine(model()))
    assert _machines(same, [same]) == (f"{same['machine']}, {same['threads']} threads",)
    with pytest.raises(RankError, match=r"rank 2 has torch 1\.0"):
        _machines(same, [same, same | {"torch": "1.0"}])
    assert "ranks" not in same
    shared = fingerprint(from_flat({}), DistributedEngine(None, None, ("a machine",), None))
    assert shared["ranks"] == ["a machine"]


@pytest.mark.parametrize("given", ["0", "soon", "-1", "nan"])
def test_a_time_limit_that_is_none(monkeypatch, given):
    monkeypatch.setenv("RRCLUSTER_RANK_TIMEOUT", given)
    with pytest.raises(ConfigError, match="RRCLUSTER_RANK_TIMEOUT"):
        _limit()
