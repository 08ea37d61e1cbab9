"""Mistakes with networks of one's own: the first line names the value and the way out, and nothing is written."""

import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from own_networks import Words
from torch import nn

import rrcluster as rr
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.errors import ConfigError, DataError

SETTINGS = {"num_clusters": 2, "num_rounds": 2, "mechanism": "none"}


class Mixing(nn.Linear):
    """Subtracts the mean of the batch."""

    def forward(self, inputs):
        return super().forward(inputs - inputs.mean(0))


class Counting(nn.Linear):
    """Counts its own calls."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs)


class Remembering(nn.Linear):
    """Centres by a running mean that is no buffer: what one client trained on is in what the next one computes."""

    mean = 0.0

    def forward(self, inputs):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean().item()
        return super().forward(inputs - self.mean)


def balanced(outputs, targets):
    """Weighs classes by how often they are in the batch, in which stacked clients are together."""
    counts = torch.bincount(targets.flatten(), minlength=3).clamp(min=1)
    return nn.functional.cross_entropy(outputs, targets, reduction="none") * (counts.max() / counts)[targets]


class Pair(nn.Linear):
    """Returns two things."""

    def forward(self, inputs):
        return super().forward(inputs), inputs


class Noisy(nn.Linear):
    """Random in eval mode too."""

    def forward(self, inputs):
        return super().forward(inputs + 0.0 * torch.rand_like(inputs))


class Skipping(nn.Linear):
    """Leaves its bias out at random, seldom, when it is measured too, by Python's generator."""

    draw = random.random

    def forward(self, inputs):
        return inputs @ self.weight.T if type(self).draw() < 1e-9 else super().forward(inputs)


class NumpySkipping(Skipping):
    """The same by numpy's."""

    draw = np.random.random_sample


class Wrapped(nn.Linear):
    """Takes its input by another name."""

    def forward(self, image):
        return super().forward(image)


def broken():
    module = nn.Linear(4, 3)
    nn.init.constant_(module.weight, float("nan"))
    return module


def detached():
    module = nn.Linear(4, 3)
    module.forward = lambda inputs: torch.zeros(len(inputs), 3, requires_grad=True)
    return module


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against it, too
        return torch.jit.script(nn.Linear(4, 3))


def computed():
    """A weight that is the result of an operation, as the older `weight_norm` leaves it."""
    module = nn.Linear(4, 3)
    module.scaled = 2 * module.weight
    return module


def remembering():
    """A loss whose weight depends on how much it has seen before, at some point."""
    seen = []

    def loss(outputs, targets):
        seen.extend(targets.tolist())
        return nn.functional.cross_entropy(outputs, targets, reduction="none") * (1 if len(seen) <= 6 else 2)

    return loss


MISTAKES = {
    "too wide": (lambda: nn.Linear(4, 5), {}, r"outputs of shape \(s, 5\).*3 classes.*make its last layer 3 wide"),
    "other inputs": (lambda: nn.Linear(7, 3), {}, r"cannot take numbers \(float32\) of shape \(s, 4\).*first layer"),
    "no features": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), {}, r"shape \(s\).*need \(s, 3\)"),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), {}, "BatchNorm1d at 0.*GroupNorm"),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False).eval(), nn.Linear(4, 3)),
        {},
        "BatchNorm1d at 0.*GroupNorm",
    ),
    "mixes a batch": (lambda: Mixing(4, 3), {}, "mixes the samples.*LayerNorm"),
    "counts": (lambda: Counting(4, 3), {}, "changes its buffer calls"),
    "no parameters": (lambda: nn.Flatten(), {}, "no parameters to train"),
    "all frozen": (lambda: nn.Linear(4, 3).requires_grad_(False), {}, "all frozen; set requires_grad"),
    "double": (lambda: nn.Linear(4, 3).double(), {}, r"weight of type torch.float64.*module.float\(\)"),
    "not finite": (broken, {}, "weights in weight that are not finite"),
    "lazy": (lambda: nn.LazyLinear(3), {}, "call it once on a sample"),
    "two outputs": (lambda: Pair(4, 3), {}, "returns a tuple; return only the tensor"),
    "random in eval mode": (lambda: Noisy(4, 3), {}, "draws random numbers in eval mode"),
    "random by python": (lambda: Skipping(4, 3), {}, "draws random numbers in eval mode"),
    "random by numpy": (lambda: NumpySkipping(4, 3), {}, "draws random numbers in eval mode"),
    "nothing trained": (detached, {}, "no parameter that its outputs depend on"),
    "scalar loss": (
        lambda: nn.Linear(4, 3),
        {"loss": nn.functional.cross_entropy},
        r"loss = cross_entropy gives shape \(\) for 3 samples.*reduction='none'",
    ),
    "loss of the whole batch": (
        lambda: nn.Linear(4, 3),
        {"loss": balanced},
        "loss = balanced gives a sample a different number alone.*mixes",
    ),
    "metric of the whole batch": (
        lambda: nn.Linear(4, 3),
        {"metric": lambda outputs, targets: (outputs - outputs.mean(0)).sum(1)},
        "metric = <lambda> gives a sample a different number alone",
    ),
    "TorchScript": (scripted, {}, "is a TorchScript program; give the module"),
    "computed weights": (computed, {}, "cannot be copied.*torch.nn.utils.parametrizations"),
    "words as numbers": (lambda: nn.Sequential(nn.Embedding(9, 3)), {}, "Numbers of tokens are given as ids"),
    "running mean": (lambda: Remembering(4, 3), {}, "remembers samples that it was called with before"),
    "loss that remembers": (
        lambda: nn.Linear(4, 3),
        {"loss": remembering()},
        "loss = loss gives different numbers for samples that it has seen before",
    ),
    "loss that fails": (
        lambda: nn.Linear(4, 3),
        {"loss": lambda outputs: outputs},
        "loss = <lambda> cannot take outputs",
    ),
    "metric of a batch": (
        lambda: nn.Linear(4, 3),
        {"metric": lambda outputs, targets: 0.5},
        "metric = <lambda> gives float for 3 samples",
    ),
    "momentum of adam": (
        lambda: nn.Linear(4, 3),
        {"local_optimizer": "adam", "local_momentum": 0.9},
        "local_momentum = 0.9.*set it to 0",
    ),
    "engine that cannot stack": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)),
        {"engine": "batched"},
        "engine = batched cannot train Sequential.*use engine = auto",
    ),
    "loss of a named model": (
        lambda: "linear",
        {"loss": nn.functional.mse_loss},
        "loss and metric go with an nn.Module",
    ),
}


@pytest.fixture
def data(rng):
    return rr.from_arrays(rng.normal(size=(20, 6, 4)), rng.integers(3, size=(20, 6)), num_classes=3)


@pytest.mark.parametrize(("module", "settings", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake(module, settings, message, data, tmp_path):
    with pytest.raises(ConfigError, match=message) as raised:
        rr.run(data=data, model=module(), out=str(tmp_path / "run"), **(SETTINGS | settings))
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_an_embedding_that_changes_its_weights_when_called_is_refused(rng):
    data = rr.from_arrays(rng.integers(9, size=(20, 6, 5)), rng.integers(3, size=(20, 6)), num_classes=3, ids=True)
    with pytest.raises(ConfigError, match=r"changes its weights when it is called.*leave max_norm out"):
        rr.experiment(data=data, model=Words(max_norm=100.0), **SETTINGS)


def test_whole_numbers_for_several_labels_are_a_sequence(rng, tmp_path):
    labels = rng.integers(2, size=(20, 6, 5))
    data = rr.from_arrays(rng.normal(size=(20, 6, 4)), labels, num_classes=2)
    with pytest.raises(ConfigError, match=r"need \(s, 5, 2\).*must be floats, and need a loss"):
        rr.run(data=data, model=nn.Linear(4, 5), out=str(tmp_path / "run"), **SETTINGS)


def test_private_evaluation_of_numbers_needs_a_metric(rng):
    data = rr.from_arrays(rng.normal(size=(20, 6, 4)), rng.normal(size=(20, 6)))
    settings = {"num_clusters": 2, "num_rounds": 2, "noise_multiplier": 1.0, "delta": 0.01, "private_evaluation": 0.25}
    with pytest.raises(ConfigError, match="give a metric with values in 0 to 1"):
        rr.experiment(data=data, model=nn.Linear(4, 1), **settings)


def several(rng, **changes):
    return {"item": rng.integers(9, size=5), "context": rng.normal(size=(5, 2))} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item": np.full(5, 2**24)}, "client 1 has ids in item outside 0 to 16777215"),
        ({"item": np.full(5, -1)}, "client 1 has ids in item outside"),
        ({"item": np.zeros(5)}, "client 1 has item of type float64"),
        ({"context": np.zeros((5, 3))}, r"client 1 has context of type float64 and shape \(3,\)"),
        ({"context": np.zeros((4, 2))}, "with the same s"),
        ({"more": np.zeros(5)}, "client 1 has inputs item, context, more"),
        ({"item": np.array(list("abcde"))}, "client 1 has item of type <U1"),
        ({"context": np.full((5, 2), np.nan)}, "client 1 has inputs that are not finite"),
    ],
)
def test_inputs_of_several_arrays_that_differ(changes, message, rng):
    with pytest.raises(DataError, match=message):
        rr.from_arrays([several(rng), several(rng, **changes)], [np.zeros(5)] * 2)


def test_a_keyword_that_the_module_does_not_take(rng):
    data = rr.from_arrays([{"pixels": rng.normal(size=(5, 4))}] * 20, [np.zeros(5, dtype=int)] * 20, num_classes=3)
    with pytest.raises(ConfigError, match=r"cannot take samples of pixels: numbers \(4,\): TypeError.*pixels"):
        rr.experiment(data=data, model=Wrapped(4, 3), **SETTINGS)


def test_an_engine_of_another_model_and_a_plan_of_another_population_are_refused(data, rng):
    experiment = rr.experiment(data=data, model=nn.Linear(4, 3), **SETTINGS)
    other = rr.from_module(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    with pytest.raises(ConfigError, match=r"the engine runs model Sequential .*make the engine from the model"):
        next(replace(experiment, engine=BatchedEngine(other)).rounds())
    same_shape = rr.from_module(nn.Linear(4, 3))  # other weights, and they are where clusters start
    with pytest.raises(ConfigError, match="the engine runs model Linear"):
        next(replace(experiment, engine=BatchedEngine(same_shape)).rounds())
    with pytest.raises(ConfigError, match=r"the plan is for 0 shared and 15 clustered.*with_coordinates"):
        next(replace(experiment, model=other, engine=BatchedEngine(other)).rounds())
    fewer = rr.from_arrays(rng.normal(size=(19, 6, 4)), rng.integers(3, size=(19, 6)), num_classes=3)
    with pytest.raises(ConfigError, match="num_clients = 20 was declared but the population has 19"):
        next(replace(experiment, data=fewer).rounds())
    next(replace(experiment, engine=BatchedEngine(experiment.model)).rounds())


def test_a_run_is_not_resumed_with_other_weights(data, tmp_path):
    from rrcluster.errors import RunFolderError
    from rrcluster.runs.run import resume, start

    settings = SETTINGS | {"mechanism": "joint", "noise_multiplier": 1.0, "delta": 0.01, "seed": 0}
    torch.manual_seed(0)
    experiment = rr.experiment(data=data, model=nn.Linear(4, 3), out=str(tmp_path / "run"), **settings)
    rounds = start(experiment).rounds()
    next(rounds)
    rounds.close()
    rr.experiment(data=data, model=nn.Linear(4, 3), **settings)  # registers other weights under the same name
    with pytest.raises(RunFolderError, match="started with another model"):
        resume(tmp_path / "run")
    torch.manual_seed(0)
    rr.experiment(data=data, model=nn.Linear(4, 3), **settings)
    assert len(list(resume(tmp_path / "run").rounds())) == 1
