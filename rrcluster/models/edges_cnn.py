"""The `cnn` with a first layer that starts as edges."""

from dataclasses import replace
from math import cos, pi, sin

import torch

from rrcluster.models.model import Model
from rrcluster.models.networks import cnn


def edges_cnn(input_shape: tuple[int, ...], outputs: int) -> Model:
    """The `cnn` with a first layer that starts as edge filters: eight directions, each with its negative.

    Noise leaves the first layers of a network close to where they start, so a good start helps. Every layer is trained.
    The filters are odd Gabor functions of wavelength 6 pixels and norm 1: a formula, which holds nobody's data.
    """
    made = cnn(input_shape, outputs)
    along = torch.arange(8) - 3.5
    near = torch.exp(-(along[:, None] ** 2 + along[None, :] ** 2) / 8)
    turns = [pi / 8 * turn for turn in range(8)]
    across = torch.stack([along[:, None] * sin(turn) + along[None, :] * cos(turn) for turn in turns])
    edge = near * torch.sin(2 * pi / 6 * across)
    edge = edge / edge.flatten(1).norm(dim=1)[:, None, None]
    first = made.module.get_submodule("0")
    with torch.no_grad():
        first.get_parameter("weight").copy_(torch.stack([edge, -edge], dim=1).flatten(0, 1)[:, None])
        first.get_parameter("bias").zero_()
    return replace(made, name="edges-cnn", starts_as_is=("0.weight", "0.bias"))
