"""Copies of networks for single clients: as copy.deepcopy makes them, with the weights that are given."""

import copy
from collections import OrderedDict
from functools import partial

import numpy as np
import own_networks
import pytest
import torch
from torch import nn

import rrcluster as rr
from rrcluster.models.client_state import ClientNetwork
from rrcluster.models.model import Task, copied

MADE = []


class Shares(nn.Module):
    """One layer under two names, a list and a table that hold it, and a tensor beside the buffers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.again, self.listed, self.table = self.first, [self.first, {"of": self.first}], {"empty": {}, "kept": []}
        self.table["kept"] = self.table["empty"]
        self.ordered = OrderedDict([("second", 2), ("first", self.first.weight)])
        self.plain, self.numbers = torch.arange(3.0), np.arange(3)
        self.register_buffer("scale", torch.ones(2))
        self.by_number = {1: self.first, (2, 3): None}

    def forward(self, inputs):
        return self.again(inputs)


class MakesItsOwnCopies(nn.Linear):
    def __deepcopy__(self, memo):
        MADE.append("deepcopy")
        made = type(self)(self.in_features, self.out_features)
        made.load_state_dict(self.state_dict())
        return made


class HasItsOwnState(nn.Linear):
    def __getstate__(self):
        return {**self.__dict__, "fresh": [0, 0], "other": {"fresh": True}}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.restored = True


class OwnKind(nn.Parameter):
    """A parameter of a class of its own."""


def hooked():
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2))
    calls = []
    module.calls = calls
    module[0].register_forward_hook(partial(lambda calls, *_: calls.append(1), calls))
    return module


def of_a_kind():
    module = nn.Linear(4, 3)
    module.weight = OwnKind(module.weight.detach().clone())
    return module


NETWORKS = {
    "dense": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "shares": Shares,
    "hooked": hooked,
    "copies itself": lambda: nn.Sequential(MakesItsOwnCopies(4, 3), nn.Linear(3, 3)),
    "own state": lambda: nn.Sequential(HasItsOwnState(4, 3), HasItsOwnState(3, 3)),
    "own kind": of_a_kind,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval(),
    "lists of modules": lambda: nn.ModuleDict({"a": nn.ModuleList([nn.Linear(2, 2)]), "b": nn.ParameterList([])}),
    **{name: getattr(own_networks, name) for name in ("NextToken", "Encoder", "Recommender", "Scaled", "Words")},
    "frozen_backbone": own_networks.frozen_backbone,
}


def shape_of(value, seen):
    """What an object is made of, with a number for every object that was met before: equal for true copies."""
    if id(value) in seen:
        return seen[id(value)]
    if not isinstance(value, (int, float, str, type(None))):
        seen[id(value)] = ("met", len(seen))
    if isinstance(value, torch.Tensor):
        bits = value.detach().numpy().tobytes()
        return (type(value).__name__, tuple(value.shape), value.stride(), value.requires_grad, bits)
    if isinstance(value, dict):
        return (type(value).__name__, [(repr(key), shape_of(part, seen)) for key, part in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [shape_of(part, seen) for part in value])
    if isinstance(value, nn.Module):
        return (type(value).__name__, shape_of(dict(sorted(vars(value).items())), seen))
    return (type(value).__name__, repr(value) if isinstance(value, (np.ndarray, set, int, float, str)) else "")


def shape(module):
    return shape_of(module, {})


def parts_of(value, seen):
    """Everything mutable below an object, by identity."""
    if id(value) in seen or isinstance(value, (int, float, str, type(None))):
        return seen
    seen[id(value)] = value
    below = vars(value).values() if isinstance(value, nn.Module) else ()
    below = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else below
    for part in below:
        parts_of(part, seen)
    return seen


@pytest.mark.parametrize("name", NETWORKS)
def test_a_copy_is_what_deepcopy_makes(name):
    torch.manual_seed(0)
    module = NETWORKS[name]()
    before = shape(module)
    made, task = copied("mine", module, Task())
    assert shape(made) == shape(copy.deepcopy(module))
    assert shape(module) == before
    mutable = (nn.Module, torch.Tensor, dict, list, set, np.ndarray)
    both = parts_of(made, {}).keys() & parts_of(module, {}).keys()
    assert not [value for value in parts_of(module, {}).values() if id(value) in both and isinstance(value, mutable)]
    assert task == Task()


def test_modules_that_copy_themselves_are_asked_to():
    MADE.clear()
    copied("mine", NETWORKS["copies itself"](), Task())
    made, _ = copied("mine", NETWORKS["own state"](), Task())
    assert MADE == ["deepcopy"]
    assert made[0].restored
    assert made[0].fresh == [0, 0]
    assert made[0].fresh is not made[1].fresh


def test_what_a_network_and_its_loss_share_their_copies_share():
    module = Shares()
    loss = nn.Module()
    loss.forward = None
    loss.weight, loss.seen = module.first.weight, module.listed
    made, task = copied("mine", module, Task(loss))
    assert task.loss.weight is made.first.weight is not module.first.weight
    assert task.loss.seen is made.listed is not module.listed


class Marks(nn.Linear):
    """Leaves marks on its weights, its list, its buffer and its hooks."""

    def __init__(self):
        super().__init__(4, 3)
        self.seen = []
        self.register_buffer("count", torch.zeros(1))

    def forward(self, inputs):
        self.seen.append(1)
        self.weight.mark = 1
        with torch.no_grad():
            self.bias += 1
        self.bias.data = self.bias.data.clone()
        return super().forward(inputs)


@pytest.mark.parametrize("make", [Marks, of_a_kind, NETWORKS["frozen_backbone"], own_networks.NextToken])
def test_a_fresh_copy_holds_nothing_but_the_weights_it_is_given(make):
    module = make()
    model = rr.from_module(module)
    template = ClientNetwork.of(model)
    untouched = shape(template.module)
    ids = make is own_networks.NextToken
    inputs = torch.zeros(2, 5, dtype=torch.long) if ids else torch.ones(2, 4)
    targets = torch.zeros(2, 5, dtype=torch.long) if ids else torch.zeros(2, dtype=torch.long)
    for value in (1.0, 2.0):
        network = template.fresh(np.full(model.num_parameters, value, dtype=np.float32))
        expected = copy.deepcopy(template.module)
        for parameter in expected.parameters():
            if parameter.requires_grad:
                parameter.data.fill_(value)
        assert shape(network.module) == shape(expected)
        assert not any(hasattr(parameter, "mark") or parameter.grad is not None for parameter in network.parameters)
        network.gradients(inputs, targets)
        network.load(np.full(model.num_parameters, 9.0, dtype=np.float32))
    assert shape(template.module) == untouched
