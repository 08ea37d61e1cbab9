"""Programs recorded from training steps: the same bits, nothing of any client in them, nothing left behind."""

import ctypes
import pickle
import random
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import rrcluster as rr
from benchmarks.own_modules import MODULES
from rrcluster.engine import calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.in_turn import InTurnEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.recording import recorded, resized
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import ConfigError
from rrcluster.models import fitted
from rrcluster.models.made_up import made_up_trial
from rrcluster.models.model import eval_copy

SIZES, KEY = (7, 1, 12, 5), (1, 2)
LOCAL = LocalSettings(local_lr=0.1, local_epochs=3, batch_size=5, local_momentum=0.5, proximal=0.1)


def population(rng, shape, ids=0):
    inputs = [rng.integers(ids, size=(n, *shape)) if ids else rng.normal(size=(n, *shape)) for n in SIZES]
    return rr.from_arrays(inputs, [rng.integers(4, size=n) for n in SIZES], num_classes=4, ids=ids > 0)


def fit(model, data):
    """The model, so that it is recorded although its loss or network is not of the kind that is."""
    model = fitted(model, data)
    trial = model.trial or made_up_trial(model, eval_copy(model.module), data, num_ids=1)
    return replace(model, trial=trial)


def trained(engine, model, data, clients=(0, 1, 2, 3)):
    start = np.stack([model.given] * len(clients))
    return calls.train(engine, start, data.cohort(clients), local=LOCAL, key=KEY)


def programs(engine):
    trainer = engine._trainer
    return (trainer if isinstance(engine, InTurnEngine) else trainer.gradients).recorder.programs


def recording(kind_of_engine, model, data, clients=(0, 1, 2, 3)):
    """An engine that has recorded the steps of these clients, as a process does that has seen none of them."""
    other, engine = kind_of_engine(model), kind_of_engine(model)
    trained(other, model, data, clients)
    engine.record(other.forms)
    return engine


both = pytest.mark.parametrize("kind_of_engine", [BatchedEngine, InTurnEngine])


@both
@pytest.mark.parametrize("name", MODULES)
def test_recorded_steps_give_the_same_bits(name, kind_of_engine, rng):
    make, shape, ids = MODULES[name]
    data = population(rng, shape, ids)
    torch.manual_seed(3)
    model = fit(rr.from_module(make()), data)
    engine = kind_of_engine(model)
    first = trained(engine, model, data)
    if kind_of_engine is InTurnEngine and (model.draws or "LSTM" in name):  # torch's own LSTM cannot be recorded
        return
    engine = recording(kind_of_engine, model, data)
    again = trained(engine, model, data)
    assert programs(engine)
    assert None not in programs(engine).values()
    assert not engine.forms, "no step is computed without a program"
    assert np.array_equal(first, again)
    assert np.abs(first - trained(ReferenceEngine(model), model, data)).max() < 2e-5
    assert np.abs(first - model.given).max() > 1e-3


def of_ones_own(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


LOSSES = {  # and whether steps with them may be recorded
    "none": (None, True),
    "torch's function": (partial(nn.functional.cross_entropy, reduction="none"), True),
    "torch's module": (nn.CrossEntropyLoss(reduction="none"), True),
    "a function": (of_ones_own, False),
    "a partial one": (partial(of_ones_own), False),
    "a module": (type("Own", (nn.CrossEntropyLoss,), {"__module__": __name__})(reduction="none"), False),
}


@pytest.mark.parametrize("name", LOSSES)
def test_only_losses_that_keep_nothing_are_recorded(name, rng):
    loss, may = LOSSES[name]
    model = fitted(rr.from_module(nn.Linear(6, 4), loss=loss), population(rng, (6,)))
    assert (model.trial is not None) == may


def test_only_networks_that_do_not_leave_torch_are_recorded(rng):
    class Leaves(nn.Linear):
        def forward(self, inputs):
            return super().forward(torch.as_tensor(inputs.numpy()))

    data = population(rng, (6,))
    assert fitted(rr.from_module(nn.Linear(6, 4)), data).trial is not None
    for network in (Leaves(6, 4), Refers()):
        model = fitted(rr.from_module(network), data)
        assert model.not_batched
        assert model.trial is None


def weighed(weights):
    """Cross-entropy times what `weights` makes of the labels."""
    table = torch.tensor([1.0, 5.0, 0.2, 3.0])

    def loss(outputs, labels):
        return nn.functional.cross_entropy(outputs, labels, reduction="none") * weights(table, labels)

    return loss


class OfItsOwn(torch.autograd.Function):
    """Leaves torch where autograd does not look."""

    @staticmethod
    def forward(ctx, table, labels):
        return torch.as_tensor(table.numpy()[labels.numpy()])

    @staticmethod
    def backward(ctx, slope):
        return None, None


LEAVES_TORCH = {
    "numpy": lambda table, labels: table[labels.numpy()],
    "an array": lambda table, labels: table[np.asarray(labels)],
    "a list": lambda table, labels: table[labels.tolist()],
    "items": lambda table, labels: torch.stack([table[label.item()] for label in labels]),
    "a branch": lambda table, labels: torch.stack([table[0] if label > 1 else table[1] for label in labels]),
    "a function of its own": lambda table, labels: OfItsOwn.apply(table, labels),
    "a cast": lambda table, labels: torch.tensor([float(table[int(label)]) for label in labels]),
    "a mask": lambda table, labels: torch.ones(len(labels)).index_put((labels > 1,), table[labels[labels > 1]]),
    "dlpack": lambda table, labels: table[torch.as_tensor(np.from_dlpack(labels))],
    "an address": lambda table, labels: table[list((ctypes.c_int64 * len(labels)).from_address(labels.data_ptr()))],
    "its storage": lambda table, labels: table[np.frombuffer(bytes(labels.clone().untyped_storage()), np.int64)],
    "pickling": lambda table, labels: table[pickle.loads(pickle.dumps(labels.clone())).numpy()],
}


@both
@pytest.mark.parametrize("kind", LEAVES_TORCH)
def test_what_one_client_s_labels_are_never_shows_in_another_s_update(kind, kind_of_engine, rng):
    """Steps of clients 0 and 1 come first, and are recorded if they can be; those of 2 and 3 have the same shapes."""
    inputs, labels = rng.normal(size=(4, 20, 6)).astype(np.float32), rng.integers(4, size=(4, 20))
    updates = []
    for changed in (labels[0], (labels[0] + 1) % 4):
        data = rr.from_arrays(list(inputs), [changed, *labels[1:]], num_classes=4)
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        model = fit(rr.from_module(module, loss=weighed(LEAVES_TORCH[kind])), data)
        engine = recording(kind_of_engine, model, data, [0, 1])
        assert set(programs(engine).values()) == {None}, "a step that needs values cannot be recorded"
        updates += [trained(engine, model, data, clients) for clients in ([0, 1], [2, 3])]
    assert not np.array_equal(updates[0], updates[2])
    assert np.array_equal(updates[1], updates[3])


def keeps_memory(table, kept):
    """A buffer that every call fills and then reads, outside of torch."""

    def weights(labels):
        memory = kept.setdefault(len(labels), np.zeros(len(labels), np.int64))
        torch.from_numpy(memory).copy_(labels)
        return table[memory.tolist()]

    return weights


def keeps_what_it_can(table, kept):
    def weights(labels):
        with suppress(Exception):
            kept["weights"] = table.numpy()[labels.numpy()]
        return torch.as_tensor(kept["weights"])

    return weights


def falls_back(table, _):
    """The same as without weights, unless a label is 3."""

    def weights(labels):
        try:
            return torch.tensor([1.0, 1.0, 1.0, 7.0])[labels.numpy()]
        except Exception:
            return torch.ones(len(labels))

    return weights


def forms_of(kind_of_engine, data):
    """Of the steps of a network of the same shape, which keeps nothing."""
    model = fit(rr.from_module(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))), data)
    engine = kind_of_engine(model)
    trained(engine, model, data, [0, 1])
    return engine.forms


@both
@pytest.mark.parametrize("kind", [keeps_memory, keeps_what_it_can, falls_back])
def test_neither_a_program_nor_whether_there_is_one_depends_on_clients(kind, kind_of_engine, rng):
    """Clients 0 and 1 come first, once with labels below 3 and once with others; updates of 2 and 3 are the same."""
    inputs, labels = rng.normal(size=(4, 20, 6)).astype(np.float32), rng.integers(4, size=(4, 20))
    updates = []
    for first in (labels[:2] % 3, (labels[:2] + 1) % 4):
        data = rr.from_arrays(list(inputs), [*first, *labels[2:]], num_classes=4)
        torch.manual_seed(3)
        weights = kind(torch.tensor([1.0, 5.0, 0.2, 3.0]), {})
        module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        model = fit(rr.from_module(module, loss=weighed(lambda _, given, weights=weights: weights(given))), data)
        engine = kind_of_engine(model)
        engine.record(forms_of(kind_of_engine, data))
        updates += [trained(engine, model, data, clients) for clients in ([0, 1], [2, 3])]
    assert not np.array_equal(updates[0], updates[2])
    assert np.array_equal(updates[1], updates[3])
    assert np.abs(updates[1] - trained(ReferenceEngine(model), model, data, [2, 3])).max() < 2e-5


def keeps_some(kept):
    """Writes and reads entries of a buffer for targets above 5 alone, which need not be among made-up ones."""

    def loss(outputs, targets):
        memory = kept.setdefault(len(targets), np.ones(len(targets), np.float32))
        large, values = targets > 5, torch.from_numpy(memory)
        values.copy_(torch.where(large, 1 / targets, values))
        weights = torch.where(large, torch.tensor(memory.tolist()), 1.0)
        return (outputs.reshape(targets.shape) - targets) ** 2 * weights

    return loss


@both
def test_what_a_loss_keeps_of_some_clients_alone_is_in_no_program(kind_of_engine, rng):
    inputs, targets = rng.normal(size=(4, 20, 6)).astype(np.float32), rng.uniform(0, 10, size=(4, 20))
    updates, forms = [], None
    for first in (targets[0], targets[0][::-1].copy()):
        data = rr.from_arrays(list(inputs), [first, *targets[1:]])
        torch.manual_seed(3)
        model = fit(rr.from_module(nn.Linear(6, 1), loss=keeps_some({})), data)
        if forms is None:
            other = kind_of_engine(model)
            trained(other, model, data, [0, 1])
            forms = other.forms
            torch.manual_seed(3)
            model = fit(rr.from_module(nn.Linear(6, 1), loss=keeps_some({})), data)
        engine = kind_of_engine(model)
        engine.record(forms)
        updates += [trained(engine, model, data, clients) for clients in ([0, 1], [2, 3])]
    assert not np.array_equal(updates[0], updates[2])
    assert np.array_equal(updates[1], updates[3])
    assert np.abs(updates[1] - trained(ReferenceEngine(model), model, data, [2, 3])).max() < 2e-5


class Refers(nn.Module):
    """Reads a weight by another way than its name."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.weights = [self.layer.weight]

    def forward(self, inputs):
        return self.layer(inputs) / (1 + self.weights[0].detach().norm())


class Compares(Refers):
    """The same, so that what is not a number does not show."""

    def forward(self, inputs):
        return self.layer(inputs) * (self.weights[0].detach() > 0).float().mean()


@pytest.mark.parametrize("kind", [Refers, Compares])
def test_networks_that_read_weights_by_other_ways_are_neither_stacked_nor_recorded(kind, rng):
    data = population(rng, (6,))
    torch.manual_seed(3)
    model = fit(rr.from_module(kind()), data)
    assert "stacked clients differ" in model.not_batched
    engine = recording(InTurnEngine, model, data)
    assert set(programs(engine).values()) == {None}
    reference = trained(ReferenceEngine(model), model, data)
    assert np.abs(trained(engine, model, data) - reference).max() < 1e-6


@both
def test_random_numbers_that_depend_on_labels_are_each_client_s_own(kind_of_engine, rng):
    """Or refused, where clients are stacked."""

    def loss(outputs, labels):
        noise, rare = torch.zeros(len(labels)), labels == 3
        noise[rare] = torch.rand(int(rare.sum()))
        return nn.functional.cross_entropy(outputs, labels, reduction="none") * (1 + noise)

    inputs, labels = rng.normal(size=(2, 20, 6)).astype(np.float32), rng.integers(3, size=(2, 20))
    labels[1, :5] = 3
    updates = []
    for first in (0, 3):
        labels[0, :5] = first
        data = rr.from_arrays(list(inputs), list(labels), num_classes=4)
        torch.manual_seed(3)
        model = fit(rr.from_module(nn.Linear(6, 4), loss=loss), data)
        if kind_of_engine is BatchedEngine:
            with pytest.raises(ConfigError, match="random numbers for some samples"):
                trained(BatchedEngine(model), model, data, [0, 1])
            return
        updates.append(trained(InTurnEngine(model), model, data, [0, 1]))
    assert not np.array_equal(updates[0][0], updates[1][0])
    assert np.array_equal(updates[0][1], updates[1][1])


def test_results_of_several_kinds_in_given_memory_are_not_written_over():
    def function(value):
        least, most = torch.empty(256, 128), torch.empty(256, 128)
        flat = most.view(-1)
        torch.aminmax(value[None], dim=0, out=(least, most))
        return torch.relu(most), flat * 1

    program = recorded(function, function, [[torch.rand(256, 128) + 0.1] for _ in range(2)])
    value = torch.randn(256, 128)
    assert program is None or torch.equal(program(value)[1], function(value)[1])


LAST = {}


def remembers_its_last_call(outputs, labels):
    """Writes in every call what the next one reads, though it makes no difference."""
    last = LAST.pop("last", None)
    LAST["last"] = torch.ones(len(labels))
    return nn.functional.cross_entropy(outputs, labels, reduction="none") * (1 if last is None else last.mean())


@both
def test_no_tensor_without_values_stays_behind(kind_of_engine, rng):
    data = population(rng, (6,))
    torch.manual_seed(3)
    model = fit(rr.from_module(nn.Linear(6, 4), loss=remembers_its_last_call), data)
    engine = recording(kind_of_engine, model, data, [0, 1])
    for clients in ([0, 1], [2], [3], [0, 1]):
        moved = trained(engine, model, data, clients) - model.given
        assert np.abs(moved).max(axis=1).min() > 1e-3
        assert type(LAST["last"]) is torch.Tensor


@both
def test_a_loss_within_torch_is_recorded_and_follows_the_labels(kind_of_engine, rng):
    inputs, labels = rng.normal(size=(4, 20, 6)).astype(np.float32), rng.integers(4, size=(4, 20))
    data = rr.from_arrays(list(inputs), list(labels), num_classes=4)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    model = fit(rr.from_module(module, loss=weighed(lambda table, labels: table[labels])), data)
    engine = recording(kind_of_engine, model, data, [0, 1])
    assert None not in programs(engine).values()
    assert np.array_equal(trained(engine, model, data, [2, 3]), trained(kind_of_engine(model), model, data, [2, 3]))


class KeepsMask(nn.Module):
    """Keeps a mask for the number of samples it saw last, as implementations of attention do."""

    def __init__(self):
        super().__init__()
        self.layer, self.mask = nn.Linear(6, 4), None

    def forward(self, inputs):
        if self.mask is None or len(self.mask) != len(inputs):
            self.mask = torch.ones(len(inputs), 1)
        return self.layer(inputs) * self.mask


@both
def test_what_a_network_keeps_of_a_call_is_not_what_was_recorded(kind_of_engine, rng):
    data = population(rng, (6,))
    torch.manual_seed(3)
    model = fit(rr.from_module(KeepsMask()), data)
    engine = recording(kind_of_engine, model, data)
    assert any(programs(engine).values())
    first = trained(engine, model, data)
    programs(engine).clear()
    assert np.array_equal(first, trained(engine, model, data))


class Counts(nn.Module):
    """Computes something else in every call."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 2), 0

    def forward(self, inputs):
        self.calls += 1
        return self.layer(inputs) * self.calls


def test_a_program_that_gives_other_bits_is_not_used():
    module, inputs = Counts(), torch.ones(2, 3)

    def function(given):
        return torch.autograd.grad(module(given).sum(), list(module.parameters()))

    assert recorded(function, function, [[inputs], [2 * inputs]]) is None


def test_a_comparison_that_tells_nothing_is_none():
    for outcome, told in ((0.0, False), (torch.nan, False), (torch.inf, False), (1.0, True)):
        function = partial(lambda outcome, value: (value * 0 + outcome,), outcome)
        assert (recorded(function, function, [[torch.ones(3)]] * 2) is not None) == told


def test_a_network_that_cannot_be_copied_is_not_recorded(rng, monkeypatch):
    data = population(rng, (6,))
    model = fit(rr.from_module(nn.Linear(6, 4)), data)

    def refuses(*_):
        raise RuntimeError

    monkeypatch.setattr(type(model), "__deepcopy__", refuses, raising=False)
    engine = recording(BatchedEngine, model, data)
    assert set(programs(engine).values()) == {None}


OPERATIONS = [torch.relu, torch.tanh, lambda x: x + 1.5, lambda x: x * 2, lambda x: x.T, lambda x: x.reshape(-1, 128)]
OPERATIONS += [lambda x: x.unsqueeze(0)[0], lambda x: x.flip(0), lambda x: x[1:], lambda x: x.expand(x.shape)]
OPERATIONS += [lambda x: torch.unsafe_chunk(x, 2)[0], lambda x: x.masked_scatter(x > 0, x), lambda x: x.cumsum(1)]
OPERATIONS += [lambda x: x.chunk(2)[1], lambda x: x.unfold(0, 2, 1)[..., 0], lambda x: x.softmax(1), torch.sigmoid]


@pytest.mark.parametrize("seed", range(60))
def test_writing_over_operands_changes_nothing(seed):
    """Random programs whose values are used again and again; arguments stay as they are."""
    draws = random.Random(seed)
    plan = [(draws.randrange(len(OPERATIONS)), draws.random(), draws.random(), draws.random()) for _ in range(25)]

    def function(first, second):
        values = [first, second]
        for chosen, place, other, kind in plan:
            value = OPERATIONS[chosen](values[int(place * len(values))])
            alike = [known for known in values if known.shape == value.shape and known is not value]
            if alike and kind < 0.7:
                partner = alike[int(other * len(alike))]
                value = value + partner if kind < 0.4 else torch.where(partner > 0, value, partner)
            if value.numel() >= 2**14:
                values.append(value)
        return tuple(value.contiguous() for value in draws_of(values))

    def draws_of(values):
        return values[-6:]

    arguments = [torch.randn(256, 128, generator=torch.Generator().manual_seed(seed + which)) for which in (0, 1000)]
    positive = [value.abs() for value in arguments]
    program = recorded(function, function, [positive, positive])
    assert program is not None
    copies = [value.clone() for value in arguments]
    with torch.no_grad():
        wanted = function(*arguments)
        found = program(*arguments)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    assert all(torch.equal(*pair) for pair in zip(arguments, copies, strict=True))


def test_results_are_written_over_operands():
    def function(value):
        return (torch.relu(value + 1) * 2,)

    program = recorded(function, function, [[torch.ones(256, 128)], [torch.zeros(256, 128)]])
    assert [str(node.target) for node in program.graph.nodes][1:-1] == [
        "aten.add.Tensor",
        "aten.relu_.default",
        "aten.mul_.Tensor",
    ]


@pytest.mark.parametrize("name", ["small ResNet", "transformer encoder", "LSTM"])
def test_forms_of_other_numbers_of_clients(name, rng):
    """Processes record the steps of parts that are larger or smaller than those which have come."""
    make, shape, _ = MODULES[name]
    data = rr.from_arrays(rng.normal(size=(5, 6, *shape)), rng.integers(4, size=(5, 6)), num_classes=4)
    model = fit(rr.from_module(make()), data)
    forms = {}
    for count in (1, 2, 5):
        engine = BatchedEngine(model)
        trained(engine, model, data, range(count))
        forms[count] = engine.forms
    for count, expected in forms.items():
        assert [resized(form, count) for form in forms[5]] == expected
