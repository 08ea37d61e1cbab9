"""Stacked clients' images with their channels last, on a CPU: the channels of all clients lie beside each other.

Convolutions, pools and group normalisation are then one call over (samples, clients x channels, height, width), which
torch computes several times faster than images in the order of their shape. What is not written here is left to vmap.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import _add_batch_dim, _remove_batch_dim, current_level
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_LAST = torch.channels_last


def laid_out(images: Tensor) -> Tensor:
    """(G, s, channels, height, width), the same numbers, in memory as (s, height, width, G, channels)."""
    return images.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2)


class ChannelsLast(TorchFunctionMode):
    """A context in which vmap over `clients` computes the functions below for all of them at once."""

    def __init__(self, clients: int) -> None:
        """To be entered outside of vmap."""
        super().__init__()
        self._clients = clients

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _OURS.get(function)
        if ours is None or not args or not isinstance(args[0], Tensor) or args[0].dim() != 4 or current_level() != 1:
            return function(*args, **(kwargs or {}))
        return ours(self._clients, *args, **(kwargs or {}))


def _apply(call: Callable[..., Tensor], clients: int, images: Tensor, *weights: Tensor | None) -> Tensor:
    """`call` on the images and weights of all clients, under vmap."""
    merged = _remove_batch_dim(images, 1, clients, 1).flatten(1, 2).contiguous(memory_format=_LAST)
    vectors = [None if value is None else _remove_batch_dim(value, 1, clients, 0).flatten(0, 1) for value in weights]
    with temporarily_pop_interpreter_stack():
        outputs = call(merged, *vectors)
    return _add_batch_dim(outputs.reshape(len(outputs), clients, -1, *outputs.shape[2:]), 1, 1)


def _laid_out_slope(outputs: Tensor, biases: Tensor | None = None) -> Tensor:
    same: Tensor = _LaidOutSlope.apply(outputs, biases)  # type: ignore[no-untyped-call]
    return same


class _LaidOutSlope(torch.autograd.Function):
    """The outputs of a convolution or pool as they are, with a faster way back.

    A pool whose slopes have another layout takes ten times as long. The slopes of biases, which the outputs include
    already, are sums that torch takes five times as long for.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, _: Tensor | None) -> Tensor:
        """(s, c, h, w), (c,) -> (s, c, h, w)."""
        ctx.mark_dirty(outputs)  # not changed, but so that layers in place may follow, which they may not on a view
        return outputs

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None]:
        """The slopes of outputs and biases."""
        slope = slope.contiguous(memory_format=_LAST)
        return slope, slope.sum((0, 2, 3)) if ctx.needs_input_grad[1] else None


def _conv2d(
    clients: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    def call(images: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
        added = None if biases is None else biases.detach()
        outputs = torch.conv2d(images, weights, added, stride, padding, dilation, groups * clients)
        return _laid_out_slope(outputs, biases)

    return _apply(call, clients, input, weight, bias)


def _group_norm(
    clients: int,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    def call(images: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
        channels = images.shape[1]
        scale = images.new_ones(channels) if scale is None else scale
        shift = images.new_zeros(channels) if shift is None else shift
        normal: Tensor = _GroupNorm.apply(images, scale, shift, num_groups * clients, eps)  # type: ignore[no-untyped-call]
        return normal

    return _apply(call, clients, input, weight, bias)


def _pooled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def pool(clients: int, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _apply(lambda images: _laid_out_slope(function(images, *args, **kwargs)), clients, input)

    return pool


def _average(images: Tensor, output_size: Any) -> Tensor:
    """`adaptive_avg_pool2d`; to a single pixel by a mean whose gradient has the layout of the images."""
    if output_size not in (1, (1, 1), [1, 1]):
        return functional.adaptive_avg_pool2d(images, output_size)
    return _pixels(images).mean(1)[:, :, None, None]


class _GroupNorm(torch.autograd.Function):
    """Group normalisation of images with channels last: torch's own takes several times as long for those."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> Tensor:
        """(s, c, h, w), (c,), (c,) -> (s, c, h, w)."""
        pixels = _pixels(images)
        count = pixels.shape[1] * pixels.shape[2] // groups
        mean = _of_groups(pixels.sum(1), groups) / count
        centred = pixels - _per_channel(mean, pixels)
        variance = _of_groups(torch.linalg.vecdot(centred, centred, dim=1), groups) / count
        inverse = _per_channel((variance + eps).rsqrt(), pixels)  # of the standard deviation
        ctx.save_for_backward(centred, inverse, scale)
        ctx.groups, ctx.count = groups, count
        outputs = torch.empty(images.shape, dtype=images.dtype, memory_format=_LAST)  # no view: in place may follow
        torch.addcmul(shift, centred, inverse * scale, out=outputs.permute(0, 2, 3, 1).view(centred.shape))
        return outputs

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """The slopes of images, scale and shift."""
        centred, inverse, scale = ctx.saved_tensors
        slopes = _pixels(slope.contiguous(memory_format=_LAST))
        of_shift = slopes.sum(1)
        of_scale = torch.linalg.vecdot(slopes, centred, dim=1) * inverse[:, 0]
        means = [_of_groups(of * scale, ctx.groups) / ctx.count for of in (of_shift, of_scale)]
        mean, along = (_per_channel(of, centred) * inverse for of in means)
        moved = torch.addcmul(-mean, centred, along * inverse, value=-1).addcmul_(slopes, inverse * scale)
        return _as_images(moved, slope), of_scale.sum(0), of_shift.sum(0), None, None


def _of_groups(of_channels: Tensor, groups: int) -> Tensor:
    """(s, c) -> (s, groups) sums."""
    return of_channels.reshape(len(of_channels), groups, -1).sum(2)


def _per_channel(of_groups: Tensor, pixels: Tensor) -> Tensor:
    """(s, groups) -> (s, 1, c)."""
    return of_groups.repeat_interleave(pixels.shape[2] // of_groups.shape[1], dim=1)[:, None]


def _pixels(images: Tensor) -> Tensor:
    """(s, c, h, w) -> (s, h w, c)."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)


def _as_images(pixels: Tensor, like: Tensor) -> Tensor:
    return pixels.reshape(len(pixels), *like.shape[2:], -1).permute(0, 3, 1, 2)


_OURS: dict[Any, Callable[..., Tensor]] = {
    torch.conv2d: _conv2d,
    functional.group_norm: _group_norm,
    functional.max_pool2d: _pooled(functional.max_pool2d),
    functional.avg_pool2d: _pooled(functional.avg_pool2d),
    functional.adaptive_avg_pool2d: _pooled(_average),
}
