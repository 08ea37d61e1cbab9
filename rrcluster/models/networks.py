"""The networks: for images and plain vectors, on fixed features of images, for text, and two of a kind summed.

Each has a plain module and a form for many clients at once; characters of text come as ids. Fixed features are an
untrained map, the same for all clients, before one or two layers: under client-level privacy noise grows with the
number of trained parameters, and a good fixed map leaves few of them. The maps are formulas without any constant learnt
from data, so they cost no privacy.

Layers over many clients at once: `G` clients, each with parameters of its own, as batched matrix products.

Images are channels-last, (G s, height, width, channels), throughout.

The `cnn` with a first layer that starts as edges.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import cos, pi, prod, sin
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad

from rrcluster.errors import ConfigError
from rrcluster.models.model import FixedPart, Model, Parameters

Cell = tuple[Tensor, Tensor, Tensor]  # state, memory, what the backward pass needs of the gates


class Recurrence(torch.autograd.Function):
    """(T, G, s, 4 h) projected inputs, (G, h, 4 h) recurrent weights -> (T, G, s, h) states, from a zero state.

    Gates are in PyTorch's order: input, forget, cell, output.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, projected: Tensor, recurrent: Tensor) -> Tensor:
        """Step through time."""
        steps, groups, samples, _ = projected.shape
        memory = projected.new_zeros(groups, samples, recurrent.shape[1])
        states, memories, saved_gates = projected.new_empty(steps, *memory.shape), [memory], []
        state = memory
        for step in range(steps):
            state, memory, gates = _cell(projected[step], torch.bmm(state, recurrent), memory)
            states[step] = state
            memories.append(memory)
            saved_gates.append(gates)
        ctx.save_for_backward(recurrent, states, *memories, *saved_gates)
        return states

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Step back through time, then one product for the weights."""
        recurrent, states, *saved = ctx.saved_tensors
        steps = len(states)
        memories, saved_gates = saved[: steps + 1], saved[steps + 1 :]
        backwards = recurrent.transpose(1, 2)
        gates = slope.new_empty(*states.shape[:-1], recurrent.shape[2])
        of_memory, of_state = torch.zeros_like(memories[0]), torch.zeros_like(memories[0])
        for step in reversed(range(steps)):
            gates[step], of_memory = _cell_backward(
                slope[step] + of_state, of_memory, saved_gates[step], memories[step], memories[step + 1]
            )
            of_state = torch.bmm(gates[step], backwards)
        before = states[:-1].permute(1, 3, 0, 2).flatten(2)  # (G, h, (T - 1) s)
        return gates, torch.bmm(before, gates[1:].transpose(0, 1).flatten(1, 2))


def _cell(arriving: Tensor, returning: Tensor, memory: Tensor) -> Cell:
    if arriving.is_cuda:
        flat = (value.reshape(-1, value.shape[-1]) for value in (arriving, returning, memory))
        state, later, saved_gates = torch.ops.aten._thnn_fused_lstm_cell(*flat)
        return state.reshape(memory.shape), later.reshape(memory.shape), saved_gates
    admit, keep, fresh, show = (arriving + returning).chunk(4, dim=-1)
    admit, keep, fresh, show = admit.sigmoid(), keep.sigmoid(), fresh.tanh(), show.sigmoid()
    memory = keep * memory + admit * fresh
    return show * memory.tanh(), memory, torch.cat([admit, keep, fresh, show], dim=-1)


def _cell_backward(
    slope: Tensor, of_memory: Tensor, saved_gates: Tensor, before: Tensor, after: Tensor
) -> tuple[Tensor, Tensor]:
    """The slopes of the gates before their nonlinearities, and of the memory before this step."""
    if slope.is_cuda:
        flat = (value.reshape(-1, value.shape[-1]) for value in (slope, of_memory, before, after))
        gates, earlier, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*flat, saved_gates, False)
        return gates.reshape(*slope.shape[:-1], -1), earlier.reshape(slope.shape)
    admit, keep, fresh, show = saved_gates.chunk(4, dim=-1)
    shown = after.tanh()
    of_memory = of_memory + slope * show * (1 - shown**2)
    gates = [
        of_memory * fresh * admit * (1 - admit),
        of_memory * before * keep * (1 - keep),
        of_memory * admit * (1 - fresh**2),
        slope * shown * show * (1 - show),
    ]
    return torch.cat(gates, dim=-1), of_memory * keep


def dense(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(G, s, in), (G, out, in), (G, out) -> (G, s, out).

    Weights first: the gradient then has the weights' own layout, which a CPU computes several times faster.
    """
    return torch.baddbmm(bias[:, :, None], weight, inputs.transpose(1, 2)).transpose(1, 2)


def convolve(images: Tensor, weight: Tensor, bias: Tensor, *, stride: int, padding: int, groups: int) -> Tensor:
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


def pool_overlapping(images: Tensor) -> Tensor:
    """2 x 2 max with stride 1."""
    rows = torch.maximum(images[:, :-1], images[:, 1:])
    return torch.maximum(rows[:, :, :-1], rows[:, :, 1:])


def pool_halving(images: Tensor) -> Tensor:
    """2 x 2 max with stride 2; height and width must be even."""
    rows = torch.maximum(images[:, 0::2], images[:, 1::2])
    return torch.maximum(rows[:, :, 0::2], rows[:, :, 1::2])


def group_norm(
    images: Tensor, weight: Tensor, bias: Tensor, *, num_groups: int, groups: int, eps: float = 1e-5
) -> Tensor:
    """Group normalisation of each image over `num_groups` blocks of channels; weight and bias are (G, c)."""
    count, height, width, channels = images.shape
    blocks = images.reshape(count, height * width, num_groups, channels // num_groups)
    variance, mean = torch.var_mean(blocks, dim=(1, 3), correction=0, keepdim=True)
    normal = ((blocks - mean) * torch.rsqrt(variance + eps)).reshape(groups, -1, channels)
    return torch.addcmul(bias[:, None, :], normal, weight[:, None, :]).reshape(images.shape)


def embed(ids: Tensor, table: Tensor) -> Tensor:
    """(G, n) ids, (G, vocabulary, width) -> (G, n, width).

    A product with one-hot rows: its gradient is a product too, summed in a fixed order, where that of a gather is not.
    """
    one_hot = ids[:, :, None] == torch.arange(table.shape[1], device=ids.device)
    return torch.bmm(one_hot.to(table.dtype), table)


def lstm(inputs: Tensor, parameters: Parameters, prefix: str, layer: int) -> Tensor:
    """One LSTM layer from a zero state: (G, steps, s, in) -> (G, steps, s, hidden). Parameters as `nn.LSTM` names them.

    The inputs are projected for all steps in one product; each step is then one product over the clients.
    """
    into, within, bias_into, bias_within = (
        parameters[f"{prefix}.{part}_l{layer}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    groups, steps, samples = inputs.shape[:3]
    projected = dense(inputs.flatten(1, 2), into, bias_into + bias_within).reshape(groups, steps, samples, -1)
    states: Tensor = Recurrence.apply(projected.transpose(0, 1).contiguous(), within.transpose(1, 2))  # type: ignore[no-untyped-call]
    return states.transpose(0, 1)


HIDDEN = 200  # of the mlp
NORM_GROUPS = 8  # of the cifar-cnn
_WIDTHS = (32, 64, 128, 128)
_shipped = partial(Model, own=False)  # their code is here, and keeps nothing of a client


def linear(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on the flattened input: 7,850 parameters on 28 x 28 images with 10 classes.

    It starts close to zero (a twentieth of the default law): what the random start contributes to the outputs is noise
    that training has to undo, and k close starts are enough to tell clusters apart.
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


def cnn(input_shape: tuple[int, ...], outputs: int) -> Model:  # noqa: ARG001  # the shape is checked by name
    """Conv(1->16, 8x8, stride 2, pad 3) Pool Conv(16->32, 4x4, stride 2) Pool Linear(512->32) Linear(32->10).

    ReLU after each but the last; pools are max, 2 x 2, stride 1. 26,010 parameters on 1 x 28 x 28 with 10 classes.
    """
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
    fast = "fast_cnn" if outputs > 1 else ""  # which computes cross-entropy, not squared error
    return _shipped("cnn", module, grouped_form=_cnn_grouped, convolutional=True, accelerated=fast)


def _cnn_grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    groups, samples = inputs.shape[:2]
    images = inputs.flatten(0, 1).squeeze(1)[:, :, :, None]  # (G s, 28, 28, 1): channels last throughout
    hidden = convolve(images, parameters["0.weight"], parameters["0.bias"], stride=2, padding=3, groups=groups)
    hidden = pool_overlapping(torch.relu(hidden))
    hidden = convolve(hidden, parameters["3.weight"], parameters["3.bias"], stride=2, padding=0, groups=groups)
    hidden = pool_overlapping(torch.relu(hidden)).permute(0, 3, 1, 2).reshape(groups, samples, -1)
    hidden = torch.relu(dense(hidden, parameters["7.weight"], parameters["7.bias"]))
    return dense(hidden, parameters["9.weight"], parameters["9.bias"])


def cifar_cnn(input_shape: tuple[int, ...], outputs: int) -> Model:  # noqa: ARG001  # the shape is checked by name
    """Four times Conv(3x3, pad 1) GroupNorm(8) ReLU Pool, then Linear(512->128) ReLU Linear(128->10).

    32, 64, 128 and 128 channels; pools are max, 2 x 2, stride 2. Group normalisation keeps no running statistics, so
    nothing of a client leaves unclipped. 308,490 parameters on 3 x 32 x 32 with 10 classes.
    """
    layers: list[nn.Module] = []
    for before, after in zip((3, *_WIDTHS), _WIDTHS, strict=False):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(NORM_GROUPS, after), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, outputs)]
    return _shipped(
        "cifar-cnn", nn.Sequential(*layers), grouped_form=_cifar_cnn_grouped, convolutional=True, clients_at_once=256
    )


def _cifar_cnn_grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    groups, samples = inputs.shape[:2]
    hidden = inputs.flatten(0, 1).permute(0, 2, 3, 1)  # (G s, 32, 32, 3): channels last throughout
    for place in range(0, 4 * len(_WIDTHS), 4):
        weight, bias = parameters[f"{place}.weight"], parameters[f"{place}.bias"]
        hidden = convolve(hidden, weight, bias, stride=1, padding=1, groups=groups)
        scale, shift = parameters[f"{place + 1}.weight"], parameters[f"{place + 1}.bias"]
        hidden = group_norm(hidden, scale, shift, num_groups=NORM_GROUPS, groups=groups)
        hidden = pool_halving(torch.relu(hidden))
    hidden = hidden.permute(0, 3, 1, 2).reshape(groups, samples, -1)
    hidden = torch.relu(dense(hidden, parameters["17.weight"], parameters["17.bias"]))
    return dense(hidden, parameters["19.weight"], parameters["19.bias"])


EMBEDDING, LSTM_HIDDEN, LAYERS = 8, 256, 2


class CharacterLSTM(nn.Module):
    """Embedding(8), two LSTM layers of 256, a linear layer on the last state: the character that comes next."""

    def __init__(self, vocabulary: int) -> None:
        """Layers for a vocabulary of this size."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, LSTM_HIDDEN, num_layers=LAYERS, batch_first=True)
        self.head = nn.Linear(LSTM_HIDDEN, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """(s, steps) int64 -> (s, vocabulary)."""
        states, _ = self.lstm(self.embedding(ids))
        outputs: Tensor = self.head(states[:, -1])
        return outputs


def character_lstm(input_shape: tuple[int, ...], outputs: int) -> Model:  # noqa: ARG001  # any length will do
    """LEAF's network for Shakespeare: 819,920 parameters with a vocabulary of 80.

    At 2,048 windows of 80 characters at once, the projected inputs of a layer take 670 MB.
    """
    return _shipped(
        "lstm",
        CharacterLSTM(outputs),
        grouped_form=_lstm_grouped,
        recurrent=True,
        takes_ids=True,
        samples_at_once=2048,
        clients_at_once=384,
    )


def _lstm_grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    steps_first = inputs.transpose(1, 2)  # (G, steps, s)
    hidden = embed(steps_first.flatten(1), parameters["embedding.weight"]).reshape(*steps_first.shape, -1)
    for layer in range(LAYERS):
        hidden = lstm(hidden, parameters, "lstm", layer)
    return dense(hidden[:, -1], parameters["head.weight"], parameters["head.bias"])


class CharacterNgram(nn.Module):
    """The next character from the last few: one row of weights for each of them by its place, and a bias, added up.

    One linear layer on one-hot inputs, so the loss is convex. The bias is a table of one row, and the last layer: what
    is personal in FedPer and clustered where the base is shared.
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

    It starts close to zero, as `linear` does and for the same reasons.
    """
    if input_shape[0] < before:
        raise ConfigError(
            f"model = {name} looks at the last {before} characters, and the inputs have {input_shape[0]}; "
            "use longer windows."
        )
    form = partial(_ngram_grouped, before)
    return _shipped(name, CharacterNgram(outputs, before), grouped_form=form, takes_ids=True, init_scale=0.05)


bigram = partial(character_ngram, name="bigram", before=1)
trigram = partial(character_ngram, name="trigram", before=2)
fourgram = partial(character_ngram, name="fourgram", before=3)


def _ngram_grouped(before: int, parameters: Parameters, inputs: Tensor) -> Tensor:
    """A product with one-hot rows, for the reason given in `embed`."""
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
