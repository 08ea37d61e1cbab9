"""The networks: for images and plain vectors, on fixed features of images, for text, and two of a kind summed.

Each has a plain module and a form for many clients at once; characters of text come as ids. Fixed features are an
untrained map, the same for all clients, before one or two layers: under client-level privacy noise grows with the
number of trained parameters, and a good fixed map leaves few of them. The maps are formulas without any constant learnt
from data, so they cost no privacy.

Deeper ones, with convolutions and an LSTM, are in rrcluster-research, found by entry points.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import cos, pi, prod, sin

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad

from rrcluster.errors import ConfigError
from rrcluster.models.model import FixedPart, Model, Parameters


def dense(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(G, s, in), (G, out, in), (G, out) -> (G, s, out).

    Weights first: the gradient then has the weights' own layout, which a CPU computes several times faster.
    """
    return torch.baddbmm(bias[:, :, None], weight, inputs.transpose(1, 2)).transpose(1, 2)


HIDDEN = 200  # of the mlp
_shipped = partial(Model, own=False)  # their code is here, and keeps no state of a client


def linear(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on the flattened input: 7,850 parameters on 28 x 28 images with 10 classes.

    It starts close to zero (a twentieth of the default law): training has to undo the random start's contribution to
    the outputs, and k close starts suffice to tell clusters apart.
    """
    module = nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), outputs))
    return _shipped("linear", module, grouped_form=_linear_grouped, init_scale=0.05, one_linear_layer=outputs > 1)


def _linear_grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    return dense(inputs.flatten(2), parameters["1.weight"], parameters["1.bias"])


def mlp(input_shape: tuple[int, ...], outputs: int) -> Model:
    """Linear(->200) ReLU Linear(200->): IFCA's network; 159,010 parameters on 28 x 28 images with 10 classes."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))
    return _shipped("mlp", module, grouped_form=_mlp_grouped)


def _mlp_grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    hidden = torch.relu(dense(inputs.flatten(2), parameters["1.weight"], parameters["1.bias"]))
    return dense(hidden, parameters["3.weight"], parameters["3.bias"])


class CharacterNgram(nn.Module):
    """The next character from the last few: a row of weights for each of them by position, plus a bias.

    One linear layer on one-hot inputs, so the loss is convex. The bias is a table of one row, and the last layer: it is
    personal in FedPer and clustered where the base is shared.
    """

    def __init__(self, vocabulary: int, before: int) -> None:
        """Weights for `before` characters of a vocabulary of this size."""
        super().__init__()
        self.vocabulary, self.before = vocabulary, before
        self.table = nn.Embedding(before * vocabulary, vocabulary)
        self.bias = nn.Embedding(1, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """(s, steps) int64 -> (s, vocabulary)."""
        rows = ids[:, -self.before :] + self.vocabulary * torch.arange(self.before, device=ids.device)
        outputs: Tensor = self.table(rows).sum(1) + self.bias.weight
        return outputs


def character_ngram(input_shape: tuple[int, ...], outputs: int, *, name: str, before: int) -> Model:
    """Additive n-gram model of `before` characters: (80 before + 1) 80 parameters with a vocabulary of 80.

    It starts close to zero, for the same reasons as `linear`.
    """
    if input_shape[0] < before:
        raise ConfigError(
            f"model = {name} needs the last {before} characters, but inputs have {input_shape[0]}; use longer windows."
        )
    form = partial(_ngram_grouped, before)
    return _shipped(name, CharacterNgram(outputs, before), grouped_form=form, takes_ids=True, init_scale=0.05)


bigram = partial(character_ngram, name="bigram", before=1)
trigram = partial(character_ngram, name="trigram", before=2)
fourgram = partial(character_ngram, name="fourgram", before=3)


def _ngram_grouped(before: int, parameters: Parameters, inputs: Tensor) -> Tensor:
    """A product with one-hot rows: its gradient is a product too, summed in a fixed order; that of a gather is not."""
    table, bias = parameters["table.weight"], parameters["bias.weight"]
    places = torch.arange(table.shape[2], device=inputs.device)
    one_hot = (inputs[:, :, -before:, None] == places).flatten(2)  # (G, s, before x vocabulary)
    return torch.baddbmm(bias, one_hot.to(table.dtype), table)


class AdditiveNet(nn.Module):
    """h(x) + f(x)."""

    def __init__(self, network: nn.Module) -> None:
        """Two copies; their parameters are the flat vector's first and second half."""
        super().__init__()
        self.common, self.residual = copy.deepcopy(network), copy.deepcopy(network)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Sum of the outputs."""
        outputs: Tensor = self.common(*inputs, **named) + self.residual(*inputs, **named)
        return outputs


def additive(model: Model) -> Model:
    """`model` twice, summed. Grouped form: the sum of the two grouped forms. Fixed features are those of `model`.

    Given weights start as the first of the two; the last layer of the second is 0, so that the sum is what was given.
    """

    def grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
        return model.grouped(_half("common.", parameters), inputs) + model.grouped(
            _half("residual.", parameters), inputs
        )

    fixed = None if model.fixed is None else FixedPart(model.fixed.features, additive(model.fixed.rest))
    name, module = f"{model.name}+{model.name}", AdditiveNet(model.module)
    if not model.fresh:
        last = [layer.name for layer in model.layers if layer.start in model.head]
        for place, parameter in module.residual.named_parameters():
            if place in last:
                nn.init.zeros_(parameter)
    started = tuple(f"{half}.{of}" for half in ("common", "residual") for of in model.starts_as_is)
    twice = replace(model, name=name, module=module, grouped_form=grouped, fixed=fixed, starts_as_is=started)
    return replace(twice, accelerated="", one_linear_layer=False)


def _half(prefix: str, parameters: Parameters) -> Parameters:
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


DIRECTIONS = 8  # of edges
LENGTH = 20.0  # Euclidean norm of an image's edges, and of its cells' means; normalised 28 x 28 pixels have about 28
_POOLED = {28: 2, 32: 4}  # side -> factor by which pooled-linear shrinks it
_COARSE = {28: 7, 32: 8}  # side -> side of a cell: 4 x 4 cells
_FINE = 4  # side of a cell: 7 x 7 or 8 x 8 cells
_MEANS = {28: 4, 32: 8}  # side -> side of the squares whose means are additional features: 7 x 7, or 4 x 4 x 3
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
    """Edge strength in each of 8 directions in each cell of a grid, and the means of larger squares.

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
        """(s, 1, h, w) the gradient along a direction -> (s, 1, h / cell, w / cell) mean of its positive part."""
        edge = torch.relu(slope)
        return avg_pool2d(edge.square() if self.squared else edge, self.cell)


def _standard(features: Tensor) -> Tensor:
    flat = features.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    return LENGTH * centred / (centred.square().sum(1, keepdim=True).sqrt() + _TINY)


def pooled_linear(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on an image made smaller, 28 x 28 to 14 x 14 and 32 x 32 to 8 x 8: 1,970 or 1,930 parameters."""
    return on_features("pooled-linear", Pooled(_POOLED[input_shape[-1]]), linear, input_shape, outputs)


def edges_coarse(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on squared edges in 4 x 4 cells, and means: 1,780 parameters on 28 x 28, 1,770 on 32 x 32."""
    side = input_shape[-1]
    return on_features("edges-coarse", Edges(_COARSE[side], _MEANS[side], squared=True), linear, input_shape, outputs)


def edges(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on edges in cells of 4 x 4 pixels, and means: 4,420 parameters on 28 x 28, 5,610 on 32 x 32."""
    return on_features("edges", Edges(_FINE, _MEANS[input_shape[-1]], squared=False), linear, input_shape, outputs)


def edges_mlp(input_shape: tuple[int, ...], outputs: int) -> Model:
    """The features of `edges` and 200 hidden units, where there is little noise: 90,410 parameters, or 114,210."""
    return on_features("edges-mlp", Edges(_FINE, _MEANS[input_shape[-1]], squared=False), mlp, input_shape, outputs)


def on_features(
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
    return _shipped(name, module, grouped_form=grouped, init_scale=rest.init_scale, fixed=FixedPart(features, rest))
