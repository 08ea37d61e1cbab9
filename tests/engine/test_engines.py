"""Every fast path equals the slow one that reads like the definition."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rrcluster_research.deep_networks import NETWORKS, lstm
from torch import nn

from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import TestSet
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.batched.training import Trainer
from rrcluster.engine.local_steps import batch_orders
from rrcluster.engine.pick_engine import pick_device, pick_engine
from rrcluster.engine.protocol import LocalSettings, Question, TrainingCall
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import ConfigError
from rrcluster.models import OURS, from_module, make_model
from rrcluster.models.networks import additive
from rrcluster.rng import Streams

MODELS = [name for name, shipped in (OURS | NETWORKS).items() if not shipped.cells]  # those that clients train by steps
KEY = Streams(1).client_key("batches", 0)


class UserNet(nn.Module):
    """What a user might bring: layers of several kinds, a residual, an activation."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(784, 16)
        self.norm = nn.LayerNorm(16)
        self.mix = nn.Linear(16, 16, bias=False)
        self.head = nn.Linear(16, 10)

    def forward(self, inputs):
        hidden = torch.tanh(self.norm(self.embed(inputs.flatten(1))))
        return self.head(hidden + self.mix(hidden))


NGRAMS = {"bigram": 1, "trigram": 2, "fourgram": 3}  # characters that it looks at
TEXT = ["lstm", *NGRAMS]
SHAPES = {"cifar-cnn": (3, 32, 32)} | dict.fromkeys(TEXT, (24,))  # of the inputs; 28 x 28 images otherwise
CLASSES = dict.fromkeys(TEXT, 80)


def model_named(name):
    if name == "user":
        return from_module(UserNet())
    return make_model(name, input_shape=SHAPES.get(name, (1, 28, 28)), num_classes=CLASSES.get(name, 10))


def population(rng, sizes, name="linear"):
    shape, classes, ids = SHAPES.get(name, (1, 28, 28)), CLASSES.get(name, 10), name in TEXT
    inputs = [rng.integers(80, size=(size, *shape)) if ids else rng.normal(size=(size, *shape)) for size in sizes]
    targets = [rng.integers(classes, size=size) for size in sizes]
    return from_arrays(inputs, targets, num_classes=classes, ids=ids)


SIZES = {
    "equal": [12, 12, 12],
    "ragged": [1, 7, 12, 5],
    "one client": [9],
    "one sample": [1],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("name", [*MODELS, "user"])
def test_batched_equals_reference(name, sizes, rng):
    model = model_named(name)
    cohort = population(rng, sizes, name).cohort(np.arange(len(sizes)))
    start = np.stack([model.init(rng=rng) for _ in sizes])
    local = LocalSettings(local_lr=0.1, local_epochs=2, batch_size=5)
    slow, fast = ReferenceEngine(model), BatchedEngine(model)
    expected = calls.train(slow, start, cohort, local=local, key=KEY)
    trained = calls.train(fast, start, cohort, local=local, key=KEY)
    assert np.abs(trained - expected).max() < 1e-4
    assert np.abs(expected - start).max() > 1e-3  # something was learnt at all
    vectors = start[:1].repeat(3, axis=0) + 0.01 * rng.normal(size=(3, start.shape[1])).astype(np.float32)
    assert np.allclose(calls.losses(fast, vectors, cohort), calls.losses(slow, vectors, cohort), atol=1e-4)
    tests = TestSet(targets=cohort.targets[0], make_inputs=lambda: cohort.inputs[0])
    for ours, theirs in zip(calls.test(fast, vectors, tests), calls.test(slow, vectors, tests), strict=True):
        assert np.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("name", [*MODELS, "user"])
def test_the_grouped_form_is_the_module_for_each_client(name, rng):
    model = model_named(name)
    cohort = population(rng, [4, 4, 4], name).cohort(np.arange(3))
    vectors = torch.as_tensor(np.stack([model.init(rng=rng) for _ in range(3)]))
    inputs = torch.as_tensor(cohort.inputs)
    together = model.grouped(model.unflatten(vectors), inputs)
    alone = torch.stack([model.single(model.unflatten(vectors[i]), inputs[i]) for i in range(3)])
    assert (together - alone).abs().max() < 1e-5
    assert (alone[0] - alone[1]).abs().max() > 1e-3  # each client has its own parameters and inputs
    swapped = model.grouped(model.unflatten(vectors[[1, 0, 2]]), inputs[[1, 0, 2]])
    assert (together[[1, 0, 2]] - swapped).abs().max() < 1e-6


def test_the_lstm_by_hand():
    """One step from a zero state: c = sigmoid(i) tanh(g), h = sigmoid(o) tanh(c); there is nothing to forget."""
    parameters = {
        "r.weight_ih_l0": torch.tensor([[[1.0], [9.0], [2.0], [3.0]]]),
        "r.weight_hh_l0": torch.zeros(1, 4, 1),
        "r.bias_ih_l0": torch.zeros(1, 4),
        "r.bias_hh_l0": torch.full((1, 4), 0.5),
    }
    (found,) = lstm(torch.full((1, 1, 1, 1), 0.5), parameters, "r", 0).flatten().tolist()
    i, g, o = (torch.tensor(0.5 * w + 0.5) for w in (1.0, 2.0, 3.0))
    assert found == pytest.approx(float(torch.sigmoid(o) * torch.tanh(torch.sigmoid(i) * torch.tanh(g))), abs=1e-6)


@pytest.mark.parametrize(("name", "before"), NGRAMS.items())
def test_an_ngram_adds_a_row_for_each_of_the_last_characters_and_a_bias(name, before, rng):
    model = make_model(name, input_shape=(5,), num_classes=4)
    vector, ids = model.init(rng=rng), rng.integers(4, size=5)
    rows, bias = vector[:-4].reshape(before, 4, 4), vector[-4:]  # by place, character and next character
    expected = bias + sum(rows[place, character] for place, character in enumerate(ids[-before:]))
    (found,) = model.single(model.unflatten(torch.as_tensor(vector)), torch.as_tensor(ids)[None])
    assert found.numpy() == pytest.approx(expected, abs=1e-6)
    assert (model.head == np.arange(len(vector) - 4, len(vector))).all()  # personal in FedPer: the bias alone
    assert model.one_layer  # so that a survey applies


@pytest.mark.parametrize("name", NGRAMS)
def test_an_ngram_reads_no_character_before_its_own(name, rng):
    model, ids = make_model(name, input_shape=(6,), num_classes=5), rng.integers(5, size=(1, 6))
    parameters = model.unflatten(torch.as_tensor(model.init(rng=rng)))
    first = model.single(parameters, torch.as_tensor(ids))
    for place in range(6):
        other = ids.copy()
        other[0, place] = (ids[0, place] + 1) % 5
        changed = not torch.equal(model.single(parameters, torch.as_tensor(other)), first)
        assert changed == (place >= 6 - NGRAMS[name])


@pytest.mark.parametrize("engine", [ReferenceEngine, BatchedEngine])
def test_an_empty_cohort_gives_empty_results(engine, rng):
    model = model_named("linear")
    cohort = population(rng, [3]).cohort(np.zeros(0, dtype=np.int64))
    empty = np.zeros((0, model.num_parameters), dtype=np.float32)
    assert calls.train(engine(model), empty, cohort, local=LocalSettings(), key=KEY).shape == empty.shape
    assert calls.losses(engine(model), np.zeros((2, model.num_parameters)), cohort).shape == (0, 2)


@pytest.mark.parametrize("capacity", [1, 2, 3, 100])
def test_capacity_changes_nothing(capacity, rng):
    model = model_named("linear")
    cohort = population(rng, [4, 9, 2, 7, 7]).cohort(np.arange(5))
    start = np.stack([model.init(rng=rng) for _ in range(5)])
    whole = calls.train(BatchedEngine(model), start, cohort, local=LocalSettings(), key=KEY)
    parts = calls.train(BatchedEngine(model, capacity=capacity), start, cohort, local=LocalSettings(), key=KEY)
    assert np.abs(whole - parts).max() < 1e-6
    losses = [calls.losses(BatchedEngine(model, capacity=c), start[:2], cohort) for c in (capacity, 100)]
    assert np.allclose(*losses, atol=1e-6)


def test_a_client_trains_the_same_whoever_else_is_in_the_cohort(rng):
    model, data = model_named("linear"), population(rng, [5, 11, 8, 3])
    start = np.repeat(model.init(rng=rng)[None], 4, axis=0)
    engine = BatchedEngine(model)
    together = calls.train(engine, start, data.cohort(np.arange(4)), local=LocalSettings(), key=KEY)
    alone = calls.train(engine, start[:1], data.cohort(np.array([2])), local=LocalSettings(), key=KEY)
    assert np.abs(together[2] - alone[0]).max() < 1e-6


def test_one_diverging_client_spoils_only_itself(rng):
    model, data = model_named("linear"), population(rng, [5, 5])
    cohort = data.cohort(np.arange(2))
    cohort.inputs[1] = 1e20
    start = np.repeat(model.init(rng=rng)[None], 2, axis=0)
    trained = calls.train(BatchedEngine(model), start, cohort, local=LocalSettings(), key=KEY)
    alone = calls.train(BatchedEngine(model), start[:1], data.cohort(np.array([0])), local=LocalSettings(), key=KEY)
    assert np.abs(trained[0] - alone[0]).max() < 1e-6
    assert not np.isfinite(trained[1]).all() or np.abs(trained[1]).max() > 1e10


def test_training_descends_and_matches_plain_sgd_by_hand():
    # One sample x = 1, y = 1, prediction w x + b from zero, squared error: the gradient is -2 in both coordinates.
    data = from_arrays([np.ones((1, 1), dtype=np.float32)], [np.ones(1, dtype=np.float32)], num_classes=0)
    model = make_model("linear", input_shape=(1,), num_classes=0)
    for engine in (ReferenceEngine(model), BatchedEngine(model)):
        trained = calls.train(
            engine, np.zeros((1, 2)), data.cohort(np.array([0])), local=LocalSettings(0.1, 1, 5), key=KEY
        )
        assert trained[0].tolist() == pytest.approx([0.2, 0.2])


def test_batch_orders_are_permutations_and_follow_the_client():
    orders = batch_orders(KEY, np.array([4, 9]), np.array([6, 3]), epochs=3)
    assert orders.shape == (2, 3, 6)
    assert (np.sort(orders[0], axis=1) == np.arange(6)).all()
    assert (np.sort(orders[1, :, :3], axis=1) == np.arange(3)).all()
    assert (orders[1, :, 3:] == np.arange(3, 6)).all()
    assert (batch_orders(KEY, np.array([9]), np.array([3]), epochs=3)[0] == orders[1, :, :3]).all()


def test_the_models_have_the_sizes_they_are_known_by():
    assert model_named("linear").num_parameters == 7_850
    assert model_named("cnn").num_parameters == model_named("edges-cnn").num_parameters == 26_010
    assert model_named("pooled-linear").num_parameters == 1_970
    assert model_named("edges").num_parameters == 4_420
    assert model_named("edges-coarse").num_parameters == 1_780
    assert model_named("edges-mlp").num_parameters == 90_410
    assert [
        make_model(name, input_shape=(3, 32, 32), num_classes=10).num_parameters
        for name in ("pooled-linear", "edges", "edges-coarse", "edges-mlp")
    ] == [1_930, 5_610, 1_770, 114_210]
    assert model_named("mlp").num_parameters == 159_010
    assert model_named("cifar-cnn").num_parameters == 308_490
    assert model_named("lstm").num_parameters == 819_920
    assert [model_named(name).num_parameters for name in NGRAMS] == [6_480, 12_880, 19_280]


def test_init_depends_on_the_stream_alone_and_follows_the_default_law():
    model = model_named("cnn")
    vectors = [model.init(rng=np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert (vectors[0] == vectors[1]).all()
    assert not np.allclose(vectors[0], vectors[2])
    head = next(layer for layer in model.layers if layer.name == "7.weight")
    weights = vectors[0][head.start : head.stop]
    assert np.abs(weights).max() <= 512**-0.5
    assert weights.std() == pytest.approx(512**-0.5 / np.sqrt(3), rel=0.05)


def test_what_a_module_keeps_is_not_drawn_anew():
    model = from_module(UserNet())
    norm = next(layer for layer in model.layers if layer.name == "norm.weight")
    assert (model.init(rng=np.random.default_rng(0))[norm.start : norm.stop] == 1).all()


def test_the_first_layer_of_edges_cnn_starts_as_edges_and_the_rest_at_random():
    """Each filter is another one's negative, sees no even light, and is best seen by an edge of its own direction."""
    model = model_named("edges-cnn")
    first, second = (model.starts(2, rng=np.random.default_rng(0))[place] for place in (0, 1))
    filters = first[:1024].reshape(8, 2, 64)
    assert (filters[:, 0] == -filters[:, 1]).all()
    assert np.abs(filters.sum(axis=-1)).max() < 1e-6
    assert np.linalg.norm(filters, axis=-1) == pytest.approx(1.0)
    along = np.arange(8) - 3.5
    turned = [along[None, :] * np.cos(turn) + along[:, None] * np.sin(turn) for turn in np.pi / 8 * np.arange(8)]
    steps = np.stack([np.tanh(across) * np.exp(-(across**2) / 8) for across in turned]).reshape(8, 64)
    assert ((steps @ filters[:, 0].T).argmax(axis=1) == np.arange(8)).all()
    assert (first[:1024] == second[:1024]).all()
    assert (first[1024:1040] == 0).all()
    assert (first[1040:] != second[1040:]).mean() > 0.99
    assert np.abs(first[1040:9232]).max() <= 256**-0.5
    twice = additive(model).starts(1, rng=np.random.default_rng(0))[0]
    assert (twice[:1024] == first[:1024]).all()
    assert (twice[26_010 : 26_010 + 1024] == first[:1024]).all()


def test_models_that_cannot_be_private_are_refused():
    with pytest.raises(ConfigError, match="GroupNorm"):
        from_module(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    with pytest.raises(ConfigError, match="no parameters"):
        from_module(nn.ReLU())
    with pytest.raises(ConfigError, match="28 x 28"):
        make_model("cnn", input_shape=(3, 32, 32), num_classes=10)


@pytest.mark.parametrize(
    ("name", "shape", "ids", "expected"),
    [
        (
            "cnn",
            (3, 32, 32),
            False,
            "use model = linear or pooled-linear or edges or edges-coarse or edges-mlp or scattering or mlp or cifar",
        ),
        ("cifar-cnn", (1, 28, 28), False, "3 x 32 x 32 images.*use model = linear or .*mlp or cnn"),
        ("linear", (80,), True, "not ids of shape .*use model = bigram or trigram or fourgram or lstm"),
        ("lstm", (80,), False, "character ids.*use model = linear or mlp"),
        ("lstm", (80, 2), True, "use model = one of your own"),
        ("trigram", (80,), False, "character ids.*use model = linear or mlp"),
        ("fourgram", (2,), True, "the last 3 characters, but inputs have 2; use longer windows"),
    ],
)
def test_a_pair_that_does_not_fit_names_the_models_that_do(name, shape, ids, expected):
    with pytest.raises(ConfigError, match=expected):
        make_model(name, input_shape=shape, num_classes=10, ids=ids)


def test_every_shipped_model_has_a_hand_written_grouped_form():
    assert all(model_named(name).grouped_form is not None for name in MODELS)
    assert {name for name in MODELS if model_named(name).takes_ids} == set(TEXT)


def test_engine_and_device_by_name():
    model, cpu = model_named("cnn"), pick_device("cpu")
    assert isinstance(pick_engine("batched", model=model, device=cpu), BatchedEngine)
    assert isinstance(pick_engine("auto", model=model_named("linear"), device=cpu), BatchedEngine)
    assert isinstance(pick_engine("auto", model=model_named("lstm"), device=cpu), ReferenceEngine)
    assert isinstance(pick_engine("auto", model=model_named("trigram"), device=cpu), BatchedEngine)
    with pytest.raises(ConfigError, match="abacus"):
        pick_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            pick_device("cuda")


@pytest.mark.parametrize("sizes", [[12, 12, 12], [1, 7, 3, 5]], ids=["equal", "ragged"])
def test_measures_on_own_data_agree_between_engines_and_with_the_losses(sizes, rng):
    model = model_named("linear")
    cohort = population(rng, sizes).cohort(np.arange(len(sizes)))
    vectors = np.stack([model.init(rng=rng) for _ in range(3)])
    (loss, accuracy), slow = calls.measure(BatchedEngine(model, capacity=2), vectors, cohort), ReferenceEngine(model)
    assert loss.shape == accuracy.shape == (len(sizes), 3)
    assert np.abs(loss - calls.measure(slow, vectors, cohort)[0]).max() < 1e-4
    assert np.allclose(accuracy, calls.measure(slow, vectors, cohort)[1], atol=1e-6)
    assert np.abs(loss - calls.losses(slow, vectors, cohort)).max() < 1e-4
    outputs = model.single(model.unflatten(torch.as_tensor(vectors[2])), torch.as_tensor(cohort.inputs[1]))
    right = outputs.argmax(-1).numpy() == cohort.targets[1]
    assert accuracy[1, 2] == pytest.approx(right[: sizes[1]].mean())


@pytest.mark.parametrize("engine", [BatchedEngine, ReferenceEngine])
def test_regression_has_no_accuracy_to_measure(engine, rng):
    data = from_arrays([rng.normal(size=(4, 3)).astype(np.float32)], [rng.normal(size=4).astype(np.float32)])
    model = make_model("linear", input_shape=(3,), num_classes=0)
    loss, accuracy = calls.measure(engine(model), np.stack([model.init(rng=rng)]), data.cohort(np.arange(1)))
    assert np.isfinite(loss).all()
    assert np.isnan(accuracy).all()


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize("place", [0, 2])
def test_one_client_s_enormous_numbers_change_no_bit_of_another_s_update(name, place, rng):
    """Finite, and so let in: whatever they overflow to must stay with their client, also where batches are padded."""
    model = model_named(name)
    data = population(rng, [7, 7, 7, 4], name)
    inputs = [data.cohort([client]).inputs[0].copy() for client in range(4)]
    targets = [data.cohort([client]).targets[0] for client in range(4)]
    inputs[place][:] = 3e38
    wild = from_arrays(inputs, targets, num_classes=10).cohort(np.arange(4))
    start = np.stack([model.init(rng=rng)] * 4)
    local = LocalSettings(local_lr=0.1, local_epochs=2, batch_size=5)
    trained = calls.train(BatchedEngine(model), start, wild, local=local, key=KEY)
    calm = calls.train(BatchedEngine(model), start, data.cohort(np.arange(4)), local=local, key=KEY)
    others = np.arange(4) != place
    assert np.isfinite(trained[others]).all()
    assert (trained[others] == calm[others]).all()


def test_a_process_with_part_of_a_device_uploads_no_population_larger_than_a_share_of_that(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=1000))
    monkeypatch.setattr("torch.cuda.device", nullcontext)
    engine = BatchedEngine(model_named("linear"), torch.device("cuda"))
    for part in (1.0, 0.125):
        monkeypatch.setattr("torch.cuda.get_per_process_memory_fraction", lambda part=part: part)
        assert engine._population_limit() == 300 * part


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_has_room_for_a_population_by_whatever_name_it_is_called():
    for name in ("cuda", "cuda:0"):
        assert BatchedEngine(model_named("linear"), torch.device(name))._population_limit() > 2**30


@pytest.mark.parametrize("proximal", [0.0, 0.1])
def test_calls_that_move_the_same_coordinates_run_as_one_program_and_change_nothing(proximal, rng, monkeypatch):
    model, data = model_named("edges"), population(rng, [4, 3, 5])  # its features of a population stay on the device
    cohort, local = data.cohort(np.arange(3)), LocalSettings(local_epochs=2, batch_size=2, proximal=proximal)
    moving = np.arange(model.num_parameters) % 2 == 0

    def call(mask):
        start, anchor = (rng.normal(size=(3, model.num_parameters)).astype(np.float32) for _ in range(2))
        return TrainingCall(start, np.arange(3), cohort, local, (1, 2), anchor if proximal else None, mask)

    requests = [call(moving), call(moving.copy()), call(~moving)]
    engine, passes, train = BatchedEngine(model), [], Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self, part, table: passes.append(part) or train(self, part, table))
    together = engine.train(requests)
    assert [len(part.clients) for part in passes] == [6, 3]
    for changed, one in zip(together, requests, strict=True):
        alone = engine.train([one])[0]
        assert np.abs(changed - alone).max() < 1e-6
        assert (changed[:, ~one.trainable] == 0).all()
        assert (changed[:, one.trainable] != 0).any(axis=1).all()


@pytest.mark.parametrize("engine", [ReferenceEngine, BatchedEngine])
def test_many_questions_at_once_have_the_answers_of_each(engine, rng):
    model, data = model_named("edges"), population(rng, [4, 3, 5])
    models = [np.stack([model.init(rng=rng) for _ in range(count)]) for count in (2, 3, 2, 2)]
    images = rng.normal(size=(7, 1, 28, 28)).astype(np.float32)
    tests = TestSet(rng.integers(10, size=7), lambda: images)
    samples = [data.cohort(np.arange(3)), data.cohort([1]), tests, data.cohort([2, 0])]
    questions = [Question(*pair) for pair in zip(models, samples, strict=True)]
    answers = engine(model).measure(questions)
    assert [answer.loss.shape for answer in answers] == [(3, 2), (1, 3), (1, 2), (2, 2)]
    for question, answer in zip(questions, answers, strict=True):
        assert np.allclose(answer, engine(model).measure([question])[0], atol=1e-6)
    assert engine(model).measure([]) == engine(model).train([]) == []


def test_a_pass_holds_the_models_of_its_own_clients_alone(rng, monkeypatch):
    model, data, held, one_pass = model_named("linear"), population(rng, [4, 3, 5, 2, 6]), [], Trainer._pass
    monkeypatch.setattr(
        Trainer, "_pass", lambda self, part, table: held.append(part.models.shape[0]) or one_pass(self, part, table)
    )
    start = np.stack([model.init(rng=rng) for _ in range(5)])
    cohort = data.cohort(np.arange(5))
    few = calls.train(BatchedEngine(model, capacity=2), start, cohort, local=LocalSettings(), key=KEY)
    assert held == [2, 2, 1]
    whole = calls.train(BatchedEngine(model), start, cohort, local=LocalSettings(), key=KEY)
    assert np.abs(few - whole).max() < 1e-6
