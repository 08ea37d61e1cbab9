"""The models we ship: linear and the 26,010-parameter CNN that is standard in work on private image classification."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.models.model import Model, Parameters


def linear(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on the flattened input: 7,850 parameters on 28 x 28 images with 10 classes.

    It starts close to zero (a twentieth of the default law): what the random start contributes to the outputs is noise
    that training has to undo, and k close starts are enough to tell clusters apart.
    """
    width = 1
    for side in input_shape:
        width *= side
    module = nn.Sequential(nn.Flatten(), nn.Linear(width, outputs))
    return Model("linear", module, grouped_form=_linear_grouped, init_scale=0.05)


def _linear_grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    weight, bias = parameters["1.weight"], parameters["1.bias"]
    return torch.baddbmm(bias[:, None, :], inputs.flatten(2), weight.transpose(1, 2))


def cnn(input_shape: tuple[int, ...], outputs: int) -> Model:
    """Conv(1->16, 8x8, stride 2, pad 3) Pool Conv(16->32, 4x4, stride 2) Pool Linear(512->32) Linear(32->10).

    ReLU after each but the last; pools are max, 2 x 2, stride 1. 26,010 parameters on 1 x 28 x 28 with 10 classes.
    """
    if tuple(input_shape) != (1, 28, 28):
        raise ConfigError(f"model = cnn takes 1 x 28 x 28 images, not {tuple(input_shape)}; use model = linear.")
    module = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, outputs),
    )
    return Model("cnn", module, grouped_form=_cnn_grouped, convolutional=True)


def _cnn_grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    groups, samples = inputs.shape[:2]
    images = inputs.flatten(0, 1).squeeze(1)[:, :, :, None]  # (G s, 28, 28, 1): channels last throughout
    hidden = _convolve(images, parameters["0.weight"], parameters["0.bias"], stride=2, padding=3, groups=groups)
    hidden = _pool(torch.relu(hidden))
    hidden = _convolve(hidden, parameters["3.weight"], parameters["3.bias"], stride=2, padding=0, groups=groups)
    hidden = _pool(torch.relu(hidden)).permute(0, 3, 1, 2).reshape(groups, samples, -1)
    hidden = torch.relu(_dense(hidden, parameters["7.weight"], parameters["7.bias"]))
    return _dense(hidden, parameters["9.weight"], parameters["9.bias"])


def _convolve(images: Tensor, weight: Tensor, bias: Tensor, *, stride: int, padding: int, groups: int) -> Tensor:
    """A convolution per group as one batched matrix product over strided patches.

    images (G s, h, w, c); weight (G, out, c, r, r). `Tensor.unfold` makes views, so the patches are copied once.
    """
    out, channels, side = weight.shape[1], weight.shape[2], weight.shape[3]
    if padding:
        images = nn.functional.pad(images, (0, 0, padding, padding, padding, padding))
    patches = images.unfold(1, side, stride).unfold(2, side, stride)  # (G s, h', w', c, r, r)
    height, width = patches.shape[1], patches.shape[2]
    columns = patches.reshape(groups, -1, channels * side * side)
    kernels = weight.reshape(groups, out, -1).transpose(1, 2)
    return torch.baddbmm(bias[:, None, :], columns, kernels).reshape(-1, height, width, out)


def _pool(images: Tensor) -> Tensor:
    """2 x 2 max with stride 1 on (N, h, w, c)."""
    rows = torch.maximum(images[:, :-1], images[:, 1:])
    return torch.maximum(rows[:, :, :-1], rows[:, :, 1:])


def _dense(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias[:, None, :], inputs, weight.transpose(1, 2))


MODELS: dict[str, Callable[[tuple[int, ...], int], Model]] = {"linear": linear, "cnn": cnn}


def make_model(name: str, *, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """A shipped model by name. `num_classes = 0` means regression: one output."""
    checks.one_of(MODELS, model=name)
    return MODELS[name](tuple(input_shape), max(num_classes, 1))
