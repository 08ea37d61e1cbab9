"""Layers over many clients at once: `G` clients, each with parameters of its own, as batched matrix products.

Images are channels-last, (G s, height, width, channels), throughout.
"""

import torch
from torch import Tensor, nn

from rrcluster.models.model import Parameters
from rrcluster.models.recurrence import Recurrence


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
