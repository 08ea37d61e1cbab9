"""The deep networks of the literature: two for images of 28 x 28 pixels, one for CIFAR, and LEAF's for text.

Each has a plain module and a form for many clients at once, `G` clients with parameters of their own, as batched matrix
products. Images are channels-last, (G s, height, width, channels), throughout. On a CPU clients train one at a time.
"""

from dataclasses import replace
from functools import partial
from math import cos, pi, sin
from typing import Any

import torch
from torch import Tensor, nn

from rrcluster.models import Shipped
from rrcluster.models.model import Model, Parameters
from rrcluster.models.networks import dense

Cell = tuple[Tensor, Tensor, Tensor]  # state, memory, and the gate values for the backward pass
NORM_GROUPS = 8  # for the cifar-cnn
EMBEDDING, LSTM_HIDDEN, LAYERS = 8, 256, 2  # for the lstm
_WIDTHS = (32, 64, 128, 128)
_ours = partial(Model, own=False)  # their code is here, and keeps no state of a client


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
    fast = "fast_cnn" if outputs > 1 else ""  # computes cross-entropy only, not squared error
    return _ours("cnn", module, grouped_form=_cnn_grouped, convolutional=True, accelerated=fast)


def _cnn_grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    groups, samples = inputs.shape[:2]
    images = inputs.flatten(0, 1).squeeze(1)[:, :, :, None]  # (G s, 28, 28, 1): channels last throughout
    hidden = convolve(images, parameters["0.weight"], parameters["0.bias"], stride=2, padding=3, groups=groups)
    hidden = pool_overlapping(torch.relu(hidden))
    hidden = convolve(hidden, parameters["3.weight"], parameters["3.bias"], stride=2, padding=0, groups=groups)
    hidden = pool_overlapping(torch.relu(hidden)).permute(0, 3, 1, 2).reshape(groups, samples, -1)
    hidden = torch.relu(dense(hidden, parameters["7.weight"], parameters["7.bias"]))
    return dense(hidden, parameters["9.weight"], parameters["9.bias"])


def edges_cnn(input_shape: tuple[int, ...], outputs: int) -> Model:
    """The `cnn` with a first layer that starts as edge filters: eight directions, each with its negative.

    Noise leaves the first layers of a network close to their initial values, so a good start helps. Every layer is
    trained. The filters are odd Gabor functions of wavelength 6 pixels and norm 1: a formula that contains nobody's
    data.
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


def cifar_cnn(input_shape: tuple[int, ...], outputs: int) -> Model:  # noqa: ARG001  # the shape is checked by name
    """Four times Conv(3x3, pad 1) GroupNorm(8) ReLU Pool, then Linear(512->128) ReLU Linear(128->10).

    32, 64, 128 and 128 channels; pools are max, 2 x 2, stride 2. Group normalisation keeps no running statistics, so
    nothing of a client leaves unclipped. 308,490 parameters on 3 x 32 x 32 with 10 classes.
    """
    layers: list[nn.Module] = []
    for before, after in zip((3, *_WIDTHS), _WIDTHS, strict=False):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(NORM_GROUPS, after), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, outputs)]
    return _ours(
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


class CharacterLSTM(nn.Module):
    """Embedding(8), two LSTM layers of 256, a linear layer on the last state, which predicts the next character."""

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
    return _ours(
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


_GREY = ((1, 28, 28),)
NETWORKS = {
    "cnn": Shipped(cnn, "1 x 28 x 28 images", shapes=_GREY),
    "edges-cnn": Shipped(edges_cnn, "1 x 28 x 28 images", shapes=_GREY),
    "cifar-cnn": Shipped(cifar_cnn, "3 x 32 x 32 images", shapes=((3, 32, 32),)),
    "lstm": Shipped(character_lstm, "sequences of character ids", ids=True),
}
