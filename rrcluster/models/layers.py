"""Layers over many clients at once: `G` clients, each with parameters of its own, as batched matrix products.

Images are channels-last, (G s, height, width, channels), throughout.
"""

from typing import Any

import torch
from torch import Tensor, nn

from rrcluster.models.model import Parameters

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
