"""What networks, losses and hooks of one's own keep of one client never reaches another client's message."""

import functools
import json
import random
import threading
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import rrcluster as rr
from rrcluster.client import ClientKeys, ClientSide
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.methods.method import Clients
from rrcluster.rng import Streams
from rrcluster.simulation.simulate import make_server

SIZES, CLIP, ROUNDS = (9, 4, 12, 6), 0.4, 6
LATE = 45  # calls: more than the trial or a client makes of a copy, fewer than all clients do in these rounds
RUN = {"num_clients": len(SIZES), "num_clusters": 2, "num_rounds": 2, "noise_multiplier": 1.0, "delta": 0.01}
RUN |= {"update_clip": CLIP, "local_epochs": 3, "batch_size": 3, "secure": True, "private_evaluation": 0.25}


def population():
    rng = np.random.default_rng(0)
    inputs = [rng.normal(loc=client, size=(size, 4)) for client, size in enumerate(SIZES)]
    return rr.from_arrays(inputs, [rng.integers(3, size=size) for size in SIZES], num_classes=3)


def answers(experiment, ids):
    """What the clients' half of some rounds reports: arrays with a row for every client."""
    plan, method = experiment.plan, experiment.method
    parts = {"model": experiment.model, "method": method, "plan": plan, "settings": experiment.server}
    server = make_server(**parts, streams=Streams(1))
    side = ClientSide(method, experiment.split, experiment.engine, experiment.local, plan.mechanism)
    clients = Clients.without_memory(experiment.data.cohort(np.array(ids)))
    guidance = server.tell(server.first_state())
    reports = [side.answer(guidance, clients, ClientKeys((t, 2), (t, 4), (t, 6)))[0] for t in range(ROUNDS)]
    return [[clipped(each.updates), each.choices, each.evaluations] for each in reports]


def clipped(updates):
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * np.minimum(1, CLIP / np.maximum(norms, 1e-30))


def moved_by_presence(experiment):
    """Largest change of anything that the other clients report, where the first one is absent."""
    whole, without = answers(experiment, range(len(SIZES))), answers(experiment, range(1, len(SIZES)))
    assert np.abs(whole[0][0]).max() > 1e-3
    pairs = [pair for parts in zip(whole, without, strict=True) for pair in zip(*parts, strict=True)]
    return max(float(np.abs(one[1:] - other).max()) for one, other in pairs)


class Late:
    """Counts calls, and remembers from the `after`-th on."""

    def __init__(self, after):
        self.after, self.calls, self.mean = after, 0, 1.0

    def update(self, value):
        self.calls += 1
        if self.calls > self.after:
            self.mean = 0.5 * self.mean + 0.5 * value
        return self.mean


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


class RelativeLoss:
    """The loss divided by its running mean, while clients train."""

    def __init__(self, after):
        self.memory = Late(after)

    def __call__(self, outputs, targets):
        losses = cross_entropy(outputs, targets)
        if not outputs.requires_grad:
            return losses
        return losses / self.memory.update(float(losses.detach().mean()))


class ListLoss:
    """The same from a list of what it saw."""

    def __init__(self, after):
        self.after, self.seen = after, []

    def __call__(self, outputs, targets):
        losses = cross_entropy(outputs, targets)
        if outputs.requires_grad:
            self.seen.append(float(losses.detach().mean()))
        return losses / (1 + sum(self.seen[self.after :]))

    def method(self, outputs, targets):
        return self(outputs, targets)


class BufferLoss(nn.Module):
    """A loss that is a module, with a buffer."""

    def __init__(self, after):
        super().__init__()
        self.after = after
        self.register_buffer("state", torch.tensor([0.0, 1.0]))

    def forward(self, outputs, targets):
        losses = cross_entropy(outputs, targets)
        if outputs.requires_grad:
            self.state[0] += 1
            self.state[1] += (self.state[0] > self.after) * losses.detach().mean()
        return losses / self.state[1]


def weighted(outputs, targets, *, memory):
    """A function whose memory is an argument of a partial."""
    losses = cross_entropy(outputs, targets)
    return losses * memory.update(float(targets.float().mean())) if outputs.requires_grad else losses


class Centred(nn.Linear):
    """Subtracts the running mean of its inputs, kept as an attribute."""

    def __init__(self, after):
        super().__init__(4, 3)
        self.memory = Late(after)

    def forward(self, inputs):
        if self.training:
            inputs = inputs - self.memory.update(float(inputs.mean()))
        return super().forward(inputs)


class BufferCentred(nn.Linear):
    """The same, kept in a buffer."""

    def __init__(self, after):
        super().__init__(4, 3)
        self.after = after
        self.register_buffer("state", torch.zeros(2))

    def forward(self, inputs):
        if self.training:
            with torch.no_grad():
                self.memory = getattr(self, "memory", 0) + 1
                if self.memory > self.after:
                    self.state += inputs.mean()
        return super().forward(inputs - self.state[0])


class MeasuredCentred(nn.Linear):
    """Keeps arrays of what it is measured on, so that choices move."""

    def __init__(self, after):
        super().__init__(4, 3)
        self.after, self.seen, self.mean = after, deque(maxlen=3), np.zeros(1)

    def forward(self, inputs):
        if not self.training:
            self.seen.append(inputs.detach().mean())
            self.after -= 1
            if self.after < 0:
                self.mean += float(sum(self.seen))
        return super().forward(inputs) + float(self.mean[0]) * torch.tensor([1.0, 0.0, -1.0])


class Sum:
    """A hook that adds up what passes through it."""

    def __init__(self, after):
        self.memory = Late(after)

    def backward(self, _module, inputs, _outputs):
        return tuple(None if part is None else part * self.memory.update(float(part.abs().sum())) for part in inputs)

    def forward(self, module, _inputs, outputs):
        return outputs * self.memory.update(float(outputs.detach().abs().mean())) if module.training else outputs


def hooked(after, way):
    module, hook = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), Sum(after)
    if way == "forward":
        module[0].register_forward_hook(hook.forward)
    else:
        module[2].register_full_backward_hook(hook.backward)
    return module


class Momentum(torch.autograd.Function):
    """A gradient to which a share of earlier ones is added, as an optimiser does."""

    @staticmethod
    def forward(ctx, weight, owner):
        ctx.owner = owner
        return weight.clone()

    @staticmethod
    def backward(ctx, gradient):
        owner = ctx.owner
        owner.steps += 1
        if owner.steps > owner.after:
            owner.velocity = 0.9 * owner.velocity + gradient
        return gradient + owner.velocity, None


class OwnMomentum(nn.Linear):
    """A layer whose gradient remembers."""

    def __init__(self, after):
        super().__init__(4, 3)
        self.after, self.steps, self.velocity = after, 0, torch.zeros(3, 4)

    def forward(self, inputs):
        return inputs @ Momentum.apply(self.weight, self).T + self.bias


def plain():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


class Metric:
    """Accuracy, plus what it remembers."""

    def __init__(self, after):
        self.memory = Late(after)

    def __call__(self, outputs, targets):
        right = (outputs.argmax(1) == targets).float()
        return right + self.memory.update(float(targets.float().mean()))


KINDS = {
    "loss over its running mean": lambda after: (plain(), {"loss": RelativeLoss(after)}),
    "loss with a list": lambda after: (plain(), {"loss": ListLoss(after)}),
    "bound method of a loss": lambda after: (plain(), {"loss": ListLoss(after).method}),
    "loss with a buffer": lambda after: (plain(), {"loss": BufferLoss(after)}),
    "partial of a loss": lambda after: (plain(), {"loss": functools.partial(weighted, memory=Late(after))}),
    "running mean of inputs": lambda after: (Centred(after), {}),
    "buffer of inputs": lambda after: (BufferCentred(after), {}),
    "what it is measured on": lambda after: (MeasuredCentred(after), {}),
    "metric": lambda after: (plain(), {"metric": Metric(after // 2)}),
    "forward hook": lambda after: (hooked(after, "forward"), {}),
    "backward hook": lambda after: (hooked(after, "backward"), {}),
    "momentum of its own": lambda after: (OwnMomentum(after), {}),
}


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_remembers_at_once_is_refused(kind, secure, tmp_path):
    module, judged = KINDS[kind](0)
    with pytest.raises(ConfigError, match=r"remembers|changes its buffer"):
        rr.run(data=population(), model=module, out=str(tmp_path / "run"), **judged, **(RUN | {"secure": secure}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("optimiser", [{}, {"local_optimizer": "adam"}], ids=["sgd", "adam"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_remembers_later_ends_with_its_client(kind, optimiser):
    module, judged = KINDS[kind](LATE)
    experiment = rr.experiment(data=population(), model=module, **judged, **RUN, **optimiser)
    assert moved_by_presence(experiment) == 0


SEEN = {"losses": [], "weight": 1.0}


def of_a_global(outputs, targets):
    SEEN["weight"] = 0.9 * SEEN["weight"] + 0.1 * float(outputs.detach().abs().mean())
    return cross_entropy(outputs, targets) / SEEN["weight"]


@functools.lru_cache
def cached(_):
    return 1 + SEEN["losses"][-1]


def of_a_cache(outputs, targets):
    SEEN["losses"].append(float(outputs.detach().abs().mean()))
    return cross_entropy(outputs, targets) * cached(len(SEEN["losses"]) // 4)


def of_a_default(outputs, targets, seen=[]):  # noqa: B006
    seen.append(float(outputs.detach().abs().mean()))
    return cross_entropy(outputs, targets) * sum(seen)


def of_an_attribute(outputs, targets):
    of_an_attribute.calls += 1
    return cross_entropy(outputs, targets) * (1 + of_an_attribute.calls // 4)


of_an_attribute.calls = 0


def of_a_closure():
    weight = 1.0

    def loss(outputs, targets):
        nonlocal weight
        weight += float(outputs.detach().abs().mean()) * outputs.requires_grad
        return cross_entropy(outputs, targets) / weight

    return loss


def of_its_class():
    class Shared(nn.Linear):
        seen = []  # noqa: RUF012

        def forward(self, inputs):
            if self.training and torch.is_grad_enabled():
                self.seen.append(inputs.detach().mean())
                inputs = inputs - sum(self.seen)
            return super().forward(inputs)

    return Shared(4, 3)


def closed_hook():
    module, seen = plain(), []

    def hook(_module, inputs, _outputs):
        seen.append(inputs[0].detach().abs().sum())
        return tuple(part * sum(seen) for part in inputs)

    module[2].register_full_backward_hook(hook)
    return module


OUTSIDE = {
    "a global dict": lambda: (plain(), of_a_global),
    "a cached function": lambda: (plain(), of_a_cache),
    "a default argument": lambda: (plain(), of_a_default),
    "an attribute of a function": lambda: (plain(), of_an_attribute),
    "a closure": lambda: (plain(), of_a_closure()),
    "an attribute of a class": lambda: (of_its_class(), None),
    "a hook's closure": lambda: (closed_hook(), None),
}


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("place", OUTSIDE)
def test_memory_that_copies_share_is_refused(place, secure):
    module, loss = OUTSIDE[place]()
    with pytest.raises(ConfigError, match="remembers"):
        rr.experiment(data=population(), model=module, loss=loss, **(RUN | {"secure": secure}))


class NumpyDropout(nn.Module):
    """Masks by numpy, and scales by Python."""

    def forward(self, inputs):
        if not self.training:
            return inputs
        mask = torch.from_numpy(np.random.random_sample(tuple(inputs.shape)) > 0.5)  # noqa: NPY002
        return inputs * mask * random.choice((1.0, 2.0))


def noisy_loss(outputs, targets):
    noise = random.random() + np.random.normal() if outputs.requires_grad else 0.0  # noqa: NPY002
    return cross_entropy(outputs, targets) * (1 + noise) ** 2


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_draws_of_numpy_and_python_are_the_clients_own(engine):
    module = nn.Sequential(nn.Linear(4, 6), NumpyDropout(), nn.Linear(6, 3))
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    data, given = population(), {"model": module, "loss": noisy_loss, "engine": engine}
    secure = rr.experiment(data=data, **given, **RUN)
    assert moved_by_presence(secure) == 0
    seeded = [rr.experiment(data=data, **given, **(RUN | {"secure": False, "seed": 3})) for _ in range(2)]
    sums = [[record.release.cluster_sums for record in run.rounds()] for run in seeded]
    assert np.array_equal(*sums)
    first, second = (answers(secure, range(len(SIZES))) for _ in range(2))
    assert all(np.array_equal(*pair) for pair in zip(first[0], second[0], strict=True))
    assert not np.array_equal(first[0][0], first[1][0])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert np.array_equal(before[2][1], np.random.get_state()[1])  # noqa: NPY002


def test_a_generator_of_its_own_is_refused():
    generator = np.random.default_rng(0)

    def loss(outputs, targets):
        return cross_entropy(outputs, targets) * (1 + generator.random() * outputs.requires_grad)

    with pytest.raises(ConfigError, match="its own generator"):
        rr.experiment(data=population(), model=plain(), loss=loss, **RUN)


class Locked(RelativeLoss):
    """A loss that cannot be copied."""

    def __init__(self):
        super().__init__(LATE)
        self.lock = threading.Lock()


def test_what_cannot_be_copied_is_refused():
    with pytest.raises(ConfigError, match=r"Sequential cannot be copied: .*lock.*keep files, locks") as raised:
        rr.experiment(data=population(), model=plain(), loss=Locked(), **RUN)
    assert "\n" not in str(raised.value)


def test_secure_runs_compute_own_networks_one_client_at_a_time(tmp_path):
    run = {"data": population(), "model": plain(), "out": str(tmp_path / "run")} | RUN
    with pytest.raises(PrivacyError, match=r"engine = batched .*Sequential.*engine = reference, or auto"):
        rr.run(**run, engine="batched")
    assert list(tmp_path.iterdir()) == []
    experiment = rr.experiment(**run)
    other = {"data": experiment.data, "model": experiment.model, "method": experiment.method}
    with pytest.raises(PrivacyError, match=r"ReferenceEngine\(model\)"):
        next(
            rr.simulate(
                **other, plan=experiment.plan, streams=experiment.streams, engine=BatchedEngine(experiment.model)
            )
        )


def test_the_statement_trusts_code_of_ones_own(tmp_path):
    data = population()
    rr.run(data=data, model=plain(), out=str(tmp_path / "own"), **RUN)
    rr.run(data=data, model="linear", out=str(tmp_path / "ours"), **RUN)
    mine = rr.Method("mine", chooses_by_loss=True)
    rr.run(data=data, model="linear", algorithm=mine, out=str(tmp_path / "method"), **RUN)
    notes = {name: json.loads((tmp_path / name / "privacy.json").read_text())["notes"] for name in ("own", "ours")}
    notes["method"] = json.loads((tmp_path / "method" / "privacy.json").read_text())["notes"]
    trusting = {name: [note for note in lines if "trusted to keep nothing" in note] for name, lines in notes.items()}
    assert {name: len(lines) for name, lines in trusting.items()} == {"own": 1, "ours": 0, "method": 1}


@st.composite
def remembering_networks(draw):
    """A small network and a loss, with pieces that remember from some call on."""
    after, width = draw(st.integers(0, 80)), draw(st.integers(1, 6))
    module = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
    if draw(st.booleans()):
        module = nn.Sequential(nn.Linear(4, 4), Centred(after))
    for part in list(module)[1:]:  # inputs of the first have no gradient
        if draw(st.booleans()):
            part.register_forward_hook(Sum(draw(st.integers(0, 80))).forward)
        if draw(st.booleans()):
            part.register_full_backward_hook(Sum(draw(st.integers(0, 80))).backward)
    made = draw(st.sampled_from([lambda _: None, RelativeLoss, ListLoss, BufferLoss]))
    return module, made(draw(st.integers(0, 80)))


@settings(max_examples=25, deadline=None)
@given(remembering_networks())
def test_random_networks_are_refused_or_move_nobody(drawn):
    module, loss = drawn
    try:
        experiment = rr.experiment(data=population(), model=module, loss=loss, **RUN)
    except ConfigError:
        return
    assert moved_by_presence(experiment) == 0
