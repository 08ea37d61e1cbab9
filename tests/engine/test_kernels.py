"""Kernels of the cnn and of linear layers against autograd: on a CUDA device, or in Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from rrcluster_research.fast_cnn import gpu, num_parameters
from rrcluster_research.fast_cnn.gpu import CnnKernels
from rrcluster_research.linear_kernels import LinearKernels, linear_kernels, rows_by_kernel
from torch import nn

from rrcluster.data.federated import TestSet
from rrcluster.engine import local_steps
from rrcluster.engine.batched import kernels
from rrcluster.engine.batched.evaluator import Evaluator
from rrcluster.engine.batched.kernels import own_kernels
from rrcluster.engine.pick_engine import pick_engine
from rrcluster.models import from_module, make_model
from rrcluster.models.networks import additive
from rrcluster.rng import Streams

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_kernels = pytest.mark.skipif(
    not (torch.cuda.is_available() or INTERPRETED), reason="no CUDA device, and not in Triton's interpreter"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RATE = 0.1


def case(rng, *, clients, batch, classes, steps, rows=40):
    """Models, images, and rows to visit: one client's batches end early, one has nothing left in the last step."""
    model = make_model("cnn", input_shape=(1, 28, 28), num_classes=classes)
    vectors = torch.tensor(np.stack([model.init(rng=rng) for _ in range(clients)]), device=DEVICE)
    images = torch.tensor(rng.normal(size=(rows, 1, 28, 28)).astype(np.float32), device=DEVICE)
    targets = torch.tensor(rng.integers(classes, size=rows), device=DEVICE)
    where = torch.tensor(rng.integers(rows, size=(steps, clients, batch)).astype(np.int32), device=DEVICE)
    where[:, 0, -2:] = -1
    where[-1, -1] = -1
    return model, vectors, images, targets, where


def trained_by_autograd(model, vector, images, targets, steps):
    parameters = model.unflatten(vector.double())
    for rows in steps:
        chosen = rows[rows >= 0].long()
        if len(chosen):
            leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            outputs = model.single(leaves, images[chosen].double())
            loss = torch.nn.functional.cross_entropy(outputs, targets[chosen])
            slopes = torch.autograd.grad(loss, list(leaves.values()))
            parameters = {
                name: value - RATE * slope for (name, value), slope in zip(leaves.items(), slopes, strict=True)
            }
    return model.flatten({name: value[None] for name, value in parameters.items()})[0].detach()


@needs_kernels
@pytest.mark.parametrize(("clients", "batch", "classes"), [(3, 6, 10), (2, 3, 47), (1, 4, 2)])
def test_training_by_kernels_is_training_by_autograd(clients, batch, classes, rng):
    model, vectors, images, targets, where = case(rng, clients=clients, batch=batch, classes=classes, steps=2)
    kernels = CnnKernels(classes, "float32")
    ours = kernels.pack(vectors)
    kernels.train(ours, CnnKernels.form(images), targets, where, torch.full((clients,), RATE, device=DEVICE))
    ours = kernels.unpack(ours).double()
    for client in range(clients):
        expected = trained_by_autograd(model, vectors[client], images, targets, where[:, client])
        assert (ours[client] - expected).abs().max() < 1e-5
        assert (expected - vectors[client]).abs().max() > 1e-4 or clients == 1


@needs_kernels
def test_evaluation_by_kernels_is_evaluation_by_the_module(rng):
    model, vectors, images, targets, where = case(
        rng, clients=2, batch=37 if DEVICE == "cuda" else 5, classes=10, steps=1
    )
    kernels = CnnKernels(10, "float32")
    model_of, data_of = (torch.tensor(of, dtype=torch.int32, device=DEVICE) for of in ([0, 1, 0, 1], [0, 0, 1, 1]))
    where[-1, -1] = 3
    losses, hits = kernels.evaluate(
        kernels.pack(vectors), CnnKernels.form(images), targets, where[0], model_of, data_of
    )
    for group in range(4):
        chosen = where[0, int(data_of[group])]
        real = chosen >= 0
        outputs = model.single(model.unflatten(vectors[int(model_of[group])]), images[chosen[real].long()])
        expected = torch.nn.functional.cross_entropy(outputs, targets[chosen[real].long()], reduction="none")
        assert torch.allclose(losses[group][real], expected, atol=1e-4)
        assert (losses[group][~real] == 0).all()
        assert torch.equal(hits[group][real] > 0, outputs.argmax(-1) == targets[chosen[real].long()])


def linear_case(rng, *, features, classes, rows=70):
    model = make_model("linear", input_shape=(features,), num_classes=classes)
    vectors = torch.tensor(np.stack([model.init(rng=rng) for _ in range(3)]), device=DEVICE)
    inputs = torch.tensor(rng.normal(size=(rows, features)).astype(np.float32), device=DEVICE)
    return model, vectors, inputs, torch.tensor(rng.integers(classes, size=rows), device=DEVICE)


@needs_kernels
@pytest.mark.parametrize(("features", "classes", "batch"), [(21, 10, 6), (150, 47, 20), (9, 2, 1)])
def test_linear_training_by_kernels_is_training_by_autograd(features, classes, batch, rng):
    model, vectors, inputs, targets = linear_case(rng, features=features, classes=classes)
    where = torch.tensor(rng.integers(len(inputs), size=(3, 4, batch)).astype(np.int32), device=DEVICE)
    where[:, 0, batch // 2 + 1 :] = -1
    where[1:, -1] = -1
    model_of = torch.tensor([2, 0, 1, 2], device=DEVICE)
    integers = torch.nn.functional.pad(model_of[:, None], (0, 5))
    kernels, rates = LinearKernels(features, classes, "float32"), torch.full((4,), RATE, device=DEVICE)
    changes = kernels.changes(kernels.form(inputs), targets, where, vectors, integers, rates)
    for client, start in enumerate(model_of.tolist()):
        expected = trained_by_autograd(model, vectors[start], inputs, targets, where[:, client]) - vectors[start]
        assert (changes[client].double() - expected).abs().max() < 1e-5
        assert expected.abs().max() > 1e-3


@needs_kernels
def test_linear_evaluation_by_kernels_is_evaluation_by_the_module(rng):
    model, vectors, inputs, targets = linear_case(rng, features=21, classes=10)
    about = torch.tensor([[0, 40, 1], [40, 7, 0], [47, 0, 0]], device=DEVICE)  # first row, size, first model
    kernels = LinearKernels(21, 10, "float32")
    figures = kernels.means(kernels.form(inputs), targets, about, vectors, k=2, width=40)
    for client, (first, size, base) in enumerate(about.tolist()[:2]):
        own = slice(first, first + size)
        for place in range(2):
            outputs = model.single(model.unflatten(vectors[base + place]), inputs[own])
            loss = torch.nn.functional.cross_entropy(outputs, targets[own])
            right = (outputs.argmax(-1) == targets[own]).double().mean()
            assert torch.allclose(figures[client, place], torch.stack([loss.double(), right]), atol=1e-5)
    assert (figures[2] == 0).all()


@needs_kernels
@pytest.mark.parametrize("count", [0, 300])
def test_a_test_set_by_linear_kernels_is_one_by_the_module(count, rng):
    model = make_model("linear", input_shape=(7,), num_classes=3)
    inputs, targets = rng.normal(size=(count, 7)).astype(np.float32), rng.integers(3, size=count)
    tests, vectors = TestSet(targets, lambda: inputs), np.stack([model.init(rng=rng) * 20 for _ in range(2)])
    ours, theirs = (Evaluator(model, torch.device(DEVICE), 8, "float32") for _ in range(2))
    ours._kernels, theirs._kernels = LinearKernels(7, 3, "float32"), None
    assert np.allclose(ours.test_set(vectors, tests), theirs.test_set(vectors, tests), atol=1e-6)


@needs_kernels
def test_rows_of_steps_by_kernels_is_what_torch_draws(rng):
    sizes, clients = np.array([7, 12, 0, 5]), rng.choice(10**12, size=4)
    keys = np.array([Streams(seed).client_key("batches", 3) for seed in range(4)])
    columns = np.zeros(4, dtype=np.int64), clients, np.array([3, 10, 22, 30]), sizes, keys[:, 0], keys[:, 1]
    integers = torch.tensor(np.stack(columns, axis=1), device=DEVICE)
    drawn = rows_by_kernel(integers, 3, 3, 5)
    expected = local_steps.step_rows(integers.cpu(), epochs=3, width=12, step=5)
    assert torch.equal(drawn.cpu().long(), expected)


def test_only_our_linear_layer_with_classes_has_linear_kernels():
    ours, regression = (make_model("linear", input_shape=(8,), num_classes=count) for count in (3, 0))
    theirs = from_module(ours.module, name="linear")
    assert [model.one_linear_layer for model in (ours, regression, theirs, additive(ours))] == [True, *[False] * 3]
    edges = make_model("edges", input_shape=(1, 28, 28), num_classes=10)
    assert edges.fixed.rest.one_linear_layer
    assert not additive(edges).fixed.rest.one_linear_layer
    assert linear_kernels(ours, torch.device("cpu"), "tf32") is None


def test_the_kernels_order_of_parameters_is_a_permutation(rng):
    kernels = CnnKernels(10, "float32")
    vectors = torch.tensor(rng.normal(size=(2, num_parameters(10))))
    assert torch.equal(kernels.unpack(kernels.pack(vectors)), vectors)


def test_only_our_cnn_is_trained_by_its_kernels_whatever_a_network_is_called(monkeypatch):
    monkeypatch.setattr(gpu, "_kernels", lambda: None)  # as if Triton were installed
    ours, regression = (make_model("cnn", input_shape=(1, 28, 28), num_classes=count) for count in (10, 0))
    layers = [nn.Tanh() if isinstance(layer, nn.ReLU) else layer for layer in ours.module]
    theirs = from_module(nn.Sequential(*layers), name="cnn")
    assert theirs.num_parameters == ours.num_parameters
    picked = [own_kernels(model, torch.device("cuda"), "tf32") for model in (ours, theirs, regression, additive(ours))]
    assert [isinstance(kernels, CnnKernels) for kernels in picked] == [True, False, False, False]
    assert picked[1:] == [None] * 3
    assert own_kernels(ours, torch.device("cpu"), "tf32") is None


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the device itself")
def test_the_kernels_in_triton_s_interpreter():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            "-k",
            "kernels_is",
            __file__,
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "11 passed" in done.stdout


def test_the_cnn_is_computed_by_torch_where_its_code_is_not_installed(monkeypatch):
    model, cpu = make_model("cnn", input_shape=(1, 28, 28), num_classes=10), torch.device("cpu")
    monkeypatch.setattr(kernels, "ACCELERATORS", {})
    assert pick_engine("auto", model=model, device=cpu).described == "reference, cpu"
    assert pick_engine("auto", model=model, device=cpu, alone=True).described == "single, cpu"
