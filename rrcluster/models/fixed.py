"""Models on fixed features of images: an untrained map, the same for all clients, then one or two layers.

Under client-level privacy noise grows with the number of trained parameters, and a good fixed map leaves few of them.
The maps here are formulas without any constant learnt from data, so they cost no privacy.
"""

from collections.abc import Callable
from dataclasses import replace
from math import cos, pi, sin

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad

from rrcluster.models.model import FixedPart, Model, Parameters
from rrcluster.models.networks import linear, mlp

DIRECTIONS = 8  # of edges
LENGTH = 20.0  # Euclidean norm of an image's edges, and of its cells' means; normalised 28 x 28 pixels have about 28
_POOLED = {28: 2, 32: 4}  # side -> how much smaller pooled-linear makes it
_COARSE = {28: 7, 32: 8}  # side -> side of a cell: 4 x 4 cells
_FINE = 4  # side of a cell: 7 x 7 or 8 x 8 cells
_MEANS = {28: 4, 32: 8}  # side -> side of the squares whose means are features beside the edges: 7 x 7, or 4 x 4 x 3
_TINY = 1e-6  # a blank image has no edges: its features are 0


class Pooled(nn.Module):
    """Sums over factor x factor pixels, divided by the factor: a smooth image keeps its norm."""

    def __init__(self, factor: int) -> None:
        """`factor` divides height and width."""
        super().__init__()
        self.factor = factor

    def forward(self, images: Tensor) -> Tensor:
        """(s, c, h, w) -> (s, c h w / factor^2)."""
        return (self.factor * avg_pool2d(images, self.factor)).flatten(1)


class Edges(nn.Module):
    """How much edge there is in each of 8 directions in each cell of a grid, and the means of larger squares.

    Differences of the image, averaged over colours, give a gradient per pixel; its part along each direction, where
    that is positive, is averaged over the cell (its square, if `squared`). Edges and means are each centred and brought
    to norm `LENGTH`, whatever the image's contrast.
    """

    def __init__(self, cell: int, square: int, *, squared: bool) -> None:
        """`cell` and `square` are sides in pixels that divide height and width."""
        super().__init__()
        self.cell, self.square, self.squared = cell, square, squared

    def forward(self, images: Tensor) -> Tensor:
        """(s, c, h, w) -> (s, 8 h w / cell^2 + c h w / square^2)."""
        grey = pad(images.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        right = grey[:, :, 1:-1, 2:] - grey[:, :, 1:-1, :-2]
        down = grey[:, :, 2:, 1:-1] - grey[:, :, :-2, 1:-1]
        angles = (2 * pi * place / DIRECTIONS for place in range(DIRECTIONS))
        in_cells = torch.cat([self._along(cos(angle) * right + sin(angle) * down) for angle in angles], dim=1)
        return torch.cat([_standard(in_cells), _standard(avg_pool2d(images, self.square))], dim=1)

    def _along(self, slope: Tensor) -> Tensor:
        """(s, 1, h, w) the gradient's part along a direction -> (s, 1, h / cell, w / cell) mean of what is positive."""
        edge = torch.relu(slope)
        return avg_pool2d(edge.square() if self.squared else edge, self.cell)


def _standard(features: Tensor) -> Tensor:
    flat = features.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    return LENGTH * centred / (centred.square().sum(1, keepdim=True).sqrt() + _TINY)


def pooled_linear(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on an image made smaller, 28 x 28 to 14 x 14 and 32 x 32 to 8 x 8: 1,970 or 1,930 parameters."""
    return _on("pooled-linear", Pooled(_POOLED[input_shape[-1]]), linear, input_shape, outputs)


def edges_coarse(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on squared edges in 4 x 4 cells, and means: 1,780 parameters on 28 x 28, 1,770 on 32 x 32."""
    side = input_shape[-1]
    return _on("edges-coarse", Edges(_COARSE[side], _MEANS[side], squared=True), linear, input_shape, outputs)


def edges(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on edges in cells of 4 x 4 pixels, and means: 4,420 parameters on 28 x 28, 5,610 on 32 x 32."""
    return _on("edges", Edges(_FINE, _MEANS[input_shape[-1]], squared=False), linear, input_shape, outputs)


def edges_mlp(input_shape: tuple[int, ...], outputs: int) -> Model:
    """The features of `edges` and 200 hidden units, where there is little noise: 90,410 parameters, or 114,210."""
    return _on("edges-mlp", Edges(_FINE, _MEANS[input_shape[-1]], squared=False), mlp, input_shape, outputs)


def _on(
    name: str,
    features: nn.Module,
    make: Callable[[tuple[int, ...], int], Model],
    input_shape: tuple[int, ...],
    outputs: int,
) -> Model:
    """A network on `features`. They have no parameters, so all clients' images go through at once."""
    width = features(torch.zeros(1, *input_shape)).shape[1]
    rest = replace(make((width,), outputs), name=f"{name}, after its features")

    def grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
        values = features(inputs.flatten(0, 1)).reshape(*inputs.shape[:2], width)
        return rest.grouped({place.removeprefix("1."): value for place, value in parameters.items()}, values)

    module = nn.Sequential(features, rest.module)
    return Model(name, module, grouped_form=grouped, init_scale=rest.init_scale, fixed=FixedPart(features, rest))
