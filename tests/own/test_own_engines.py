"""Networks that people bring: every engine gives the same numbers, and nobody's depend on who else takes part."""

import random

import numpy as np
import pytest
import torch
from own_networks import CASES, SIZES, Encoder, make
from torch import nn
from torch.nn import functional

import rrcluster as rr
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.pick_engine import pick_engine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.reference import CPU, ReferenceEngine
from rrcluster.errors import ConfigError
from rrcluster.methods import METHODS
from rrcluster.models import fitted
from rrcluster.models.stackable import stackable
from rrcluster.rng import Streams
from rrcluster.simulation.hosts import Hosts

KEY = Streams(1).client_key("batches", 0)
OPTIMISERS = {
    "sgd": {"local_lr": 0.1},
    "momentum": {"local_lr": 0.05, "local_momentum": 0.9},
    "adam": {"local_lr": 0.01, "local_optimizer": "adam"},
}


DRAWN_APART = ("dropout", "transformer")  # random only by dropout


def local(**changes):
    return LocalSettings(**({"local_epochs": 2, "batch_size": 5} | changes))


def _felt(model):
    """Coordinates that outputs depend on: a bias of attention's keys has no gradient, and Adam steps by rounding."""
    felt = np.ones(model.num_parameters, dtype=bool)
    for layer in model.layers:
        if layer.name.endswith("in_proj_bias"):
            third = (layer.stop - layer.start) // 3
            felt[layer.start + third : layer.start + 2 * third] = False
    return felt


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("name", CASES)
def test_the_engine_that_runs_equals_the_reference(name, optimiser, rng):
    model, data = make(name, rng)
    cohort, start = data.cohort(np.arange(len(SIZES))), model.starts(len(SIZES), rng=rng)
    slow, settings = ReferenceEngine(model), local(**OPTIMISERS[optimiser])
    expected = calls.train(slow, start, cohort, local=settings, key=KEY)
    assert np.abs(expected - start).max() > 1e-3
    alone = calls.train(slow, start[1:2], data.cohort([1]), local=settings, key=KEY)
    assert np.array_equal(alone[0], expected[1])
    assert (model.not_batched == "") == CASES[name][3], model.not_batched
    assert model.dropout_only == (name in DRAWN_APART)
    fast = BatchedEngine(model)
    if CASES[name][3] or model.dropout_only:
        trained = calls.train(fast, start, cohort, local=settings, key=KEY)
        assert np.abs(trained - expected)[:, _felt(model)].max() < 1e-4
    for ours, theirs in zip(
        calls.measure(fast, start[:2], cohort), calls.measure(slow, start[:2], cohort), strict=True
    ):
        assert np.allclose(ours, theirs, atol=1e-5, equal_nan=True)


def train_and_measure(host, start, ids):
    """What a host computes of some clients."""
    engine, cohort = host.side.engine, host.data.cohort(ids)
    settings = local(local_optimizer="adam", local_lr=0.01)
    return calls.train(engine, start[ids], cohort, local=settings, key=KEY), calls.losses(engine, start, cohort)


@pytest.mark.parametrize("name", ["dropout", "lstm", "recommender", "frozen"])
def test_other_processes_compute_the_same_bits(name, rng):
    model, data = make(name, rng)
    start, ids = model.starts(len(SIZES), rng=rng), np.arange(len(SIZES))
    method, engine = METHODS["ifca"], pick_engine("auto", model=model, device=CPU)
    here, there = (
        Hosts.here(data, method=method, split=method.split(model), engine=engine),
        Hosts(Hosts.here(data, method=method, split=method.split(model), engine=engine).host, processes=2),
    )
    parts = [ids[:2], ids[2:]]
    for ours, theirs in zip(
        here.map(train_and_measure, start, parts), there.map(train_and_measure, start, parts), strict=True
    ):
        assert all(np.array_equal(*pair) for pair in zip(ours, theirs, strict=True))
    assert there._payload, "it was sent"


@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
def test_the_optimisers_are_those_of_torch(optimiser, rng):
    model, data = make("two numbers", rng)
    settings = local(**OPTIMISERS[optimiser])
    module = nn.Linear(4, 2)
    nn.utils.vector_to_parameters(torch.as_tensor(model.given), module.parameters())
    made = {
        "momentum": lambda: torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9),
        "adam": lambda: torch.optim.Adam(module.parameters(), lr=0.01),
    }[optimiser]()
    cohort = data.cohort([0])  # one sample: the order does not matter
    for _ in range(2):
        made.zero_grad()
        outputs = module(torch.as_tensor(cohort.inputs[0]))
        ((outputs - torch.as_tensor(cohort.targets[0])) ** 2).mean().backward()
        made.step()
    expected = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    trained = calls.train(ReferenceEngine(model), model.given[None], cohort, local=settings, key=KEY)
    assert trained[0] == pytest.approx(expected, abs=1e-6)


def test_masks_are_the_clients_own_and_differ_from_step_to_step(rng):
    model, data = make("dropout", rng)
    engine, start = ReferenceEngine(model), np.stack([model.given] * 2)
    twice = calls.train(engine, start, data.cohort([2, 2]), local=local(), key=KEY)
    assert np.array_equal(twice[0], twice[1])
    before = torch.get_rng_state()
    other = calls.train(engine, start, data.cohort([2, 2]), local=local(), key=(KEY[0] + 1, KEY[1]))
    assert torch.equal(before, torch.get_rng_state())  # nothing is drawn from the generator of the program around it
    assert not np.array_equal(other[0], twice[0])
    measured = [calls.losses(engine, start[:1], data.cohort([2])) for _ in range(2)]
    assert np.array_equal(*measured)  # no dropout when models are measured


class Heads(nn.Module):
    """Attention in the forms that draw masks, and dropout in place and of transposed numbers."""

    def __init__(self, weights):
        super().__init__()
        self.heads, self.weights = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), weights
        self.inside, self.last = nn.Dropout(0.2, inplace=True), nn.Linear(8, 3)

    def forward(self, sequence):
        p = 0.1 * self.training
        attended = self.heads(sequence, sequence, sequence, need_weights=self.weights)[0]
        causal = functional.scaled_dot_product_attention(sequence, attended, sequence, None, p, is_causal=True)
        turned = functional.dropout(causal.transpose(1, 2), 0.4, self.training).transpose(1, 2)
        return self.last(self.inside(turned + attended).mean(1))


class Noisy(nn.Linear):
    """Draws other numbers than masks."""

    def forward(self, inputs):
        return super().forward(inputs + torch.randn_like(inputs) if self.training else inputs)


@pytest.mark.parametrize("weights", [True, False])
def test_masks_of_stacked_clients_are_those_they_draw_alone(weights, rng):
    sizes = (7, 1, 12, 5)  # batches of 5, 5, 2, 1
    sequences = [rng.normal(size=(size, 4, 8)) for size in sizes]
    data = rr.from_arrays(sequences, [rng.integers(3, size=size) for size in sizes], num_classes=3)
    model = fitted(rr.from_module(Heads(weights)), data)
    assert model.dropout_only
    start, cohort = np.stack([model.given] * 4), data.cohort(np.arange(4))
    settings = local(local_momentum=0.9, local_lr=0.1, proximal=0.1)
    before = torch.get_rng_state()
    trained = [
        calls.train(engine, start, cohort, local=settings, key=KEY)
        for engine in (ReferenceEngine(model), BatchedEngine(model))
    ]
    assert torch.equal(before, torch.get_rng_state())
    assert np.abs(trained[0] - trained[1]).max() < 2e-5
    assert np.abs(trained[0] - start).max() > 1e-2


class Skipping(nn.Linear):
    """Leaves its bias out at random, seldom, by Python's or numpy's generator: stacked clients share the draw."""

    draw = random.random

    def forward(self, inputs):
        if self.training and type(self).draw() < 1e-9:
            return inputs @ self.weight.T
        return super().forward(inputs)


class NumpySkipping(Skipping):
    """The same by numpy's."""

    draw = np.random.random_sample


@pytest.mark.parametrize("module", [Noisy, Skipping, NumpySkipping])
def test_other_random_numbers_than_masks_are_drawn_one_client_at_a_time(module, rng):
    data = rr.from_arrays(rng.normal(size=(2, 3, 4)), rng.integers(3, size=(2, 3)), num_classes=3)
    model = fitted(rr.from_module(module(4, 3)), data)
    assert model.not_batched
    assert not model.dropout_only
    assert isinstance(pick_engine("auto", model=model, device=CPU), ReferenceEngine)


def test_the_module_that_was_given_never_changes(rng):
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = rr.from_module(module)
    _, data = make("scaled", rng)
    model = fitted(model, data)
    for engine in (ReferenceEngine(model), BatchedEngine(model)):
        calls.train(engine, model.starts(4, rng=rng), data.cohort(np.arange(4)), local=local(), key=KEY)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert np.array_equal(model.given, torch.cat([value.flatten() for value in before.values()]).numpy())


def test_frozen_parameters_and_buffers_are_no_coordinates(rng):
    model, data = make("frozen", rng)
    assert [layer.name for layer in model.layers] == ["1.weight", "1.bias"]
    assert model.num_parameters == 8 * 3 + 3
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    start = model.starts(4, rng=rng)
    trained = calls.train(ReferenceEngine(model), start, data.cohort(np.arange(4)), local=local(), key=KEY)
    assert np.abs(trained - start).max() > 1e-3
    assert all(torch.equal(before[name], value) for name, value in model.module.state_dict().items())


def test_every_cluster_starts_from_the_given_weights(rng):
    model, _ = make("frozen", rng)
    starts = model.starts(3, rng=np.random.default_rng(0))
    assert np.array_equal(starts[0], model.given)
    apart = np.abs(starts - model.given).max(axis=1)
    assert (apart[1:] > 0).all()
    assert (apart <= 0.1 * 8**-0.5).all()
    assert np.array_equal(starts, model.starts(3, rng=np.random.default_rng(0)))
    fresh = rr.from_module(model.module, fresh=True).starts(3, rng=np.random.default_rng(0))
    assert np.abs(fresh - model.given).max(axis=1).min() > 0.1 * 8**-0.5


def test_given_weights_are_those_of_the_sum_under_fedcam(rng):
    from rrcluster.models.networks import additive

    model, data = make("scaled", rng)
    inputs = torch.as_tensor(data.cohort([1]).inputs[0])
    both = additive(model)
    summed = both.single(both.unflatten(torch.as_tensor(both.given)), inputs)
    assert torch.allclose(summed, model.single(model.unflatten(torch.as_tensor(model.given)), inputs))


def test_a_network_that_cannot_be_stacked_says_which_engine_runs(rng, caplog):
    model, _ = make("two directions", rng)
    assert isinstance(pick_engine("auto", model=model, device=CPU), ReferenceEngine)
    (line,) = (record.getMessage() for record in caplog.records)
    assert "one at a time" in line
    assert "lstm" in line
    with pytest.raises(ConfigError, match="engine = batched cannot train NextToken"):
        pick_engine("batched", model=model, device=CPU)


def test_a_transformer_in_eval_mode_trains_without_dropout(rng):
    data = rr.from_arrays(rng.normal(size=(2, 3, 5, 8)), rng.integers(3, size=(2, 3)), num_classes=3)
    quiet = fitted(rr.from_module(Encoder(dropout=0.1).eval()), data)
    assert "random" not in quiet.not_batched


class LowRank(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices (LoRA, Hu et al. 2022)."""

    def __init__(self, frozen, rank):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs):
        return self.frozen(inputs) + self.up(self.down(inputs))


def test_low_rank_adapters_of_a_frozen_network(rng):
    _, data = make("scaled", rng)
    model = fitted(rr.from_module(nn.Sequential(LowRank(nn.Linear(4, 8), 2), nn.Tanh(), nn.Linear(8, 3))), data)
    assert model.num_parameters == 4 * 2 + 2 * 8 + 8 * 3 + 3
    start, cohort = model.starts(4, rng=rng), data.cohort(np.arange(4))
    slow, fast = (
        calls.train(engine(model), start, cohort, local=local(), key=KEY) for engine in (ReferenceEngine, BatchedEngine)
    )
    assert np.abs(slow - fast).max() < 1e-4
    assert np.abs(slow - start).max() > 1e-3


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [True, False])
def test_unrolled_recurrences_are_those_of_torch(kind, batch_first):
    torch.manual_seed(0)
    cell = kind(3, 4, num_layers=2, batch_first=batch_first)
    loop = stackable(cell)
    inputs = torch.randn(5, 6, 3)
    start = torch.randn(2, 5 if batch_first else 6, 4)
    for hx in (None, (start, start + 1) if kind is nn.LSTM else start):
        (expected, last), (outputs, end) = cell(inputs, hx), loop(inputs, hx)
        assert torch.allclose(outputs, expected, atol=1e-6)
        pairs = [(end, last)] if kind is nn.GRU else zip(end, last, strict=True)
        assert all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in pairs)
    assert loop.weight_hh_l1 is cell.weight_hh_l1
