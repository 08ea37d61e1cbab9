"""Dropout of stacked clients: each client's masks come from a generator of its own, as they do where it runs alone.

Stacked clients would share torch's generator, so that the draws of one depended on the others. So the masks of a step
are drawn before it, client by client, in the order in which the network uses them, and passed to the network.
Whatever else draws random numbers is left as it is, and such a network runs one client at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Draw:
    """A mask that a step of one client draws: its layout in memory, and the chance that a number is kept."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    keep: float


Mask = Callable[[Callable[[], Tensor], float], Tensor]  # a tensor of the mask's layout, the chance to be kept -> mask


class _GivenMasks(TorchFunctionMode):
    """Dropout and attention of torch with masks from `mask`, called in the order in which they would be drawn."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self._mask = mask
        heads = functional.multi_head_attention_forward
        names = {"dropout": self._dropout, "scaled_dot_product_attention": self._attention}
        inside = {**vars(functional), **names, "has_torch_function": lambda _: False}  # what its code looks up
        self._ours: dict[Any, Callable[..., Any]] = {
            functional.dropout: self._dropout,
            functional.scaled_dot_product_attention: self._attention,
            heads: FunctionType(heads.__code__, inside, None, heads.__defaults__),
        }

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._ours.get(function, function)(*args, **(kwargs or {}))

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not 0 < p < 1:
            return functional.dropout(input, p, training, inplace)
        mask = self._mask(partial(torch.empty_like, input), 1 - p) / (1 - p)
        return input.mul_(mask) if inplace else input * mask

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        if not dropout_p:
            plain = functional.scaled_dot_product_attention
            return plain(query, key, value, attn_mask, dropout_p, is_causal, **options)
        drawn = self._mask(partial(query.new_empty, (*query.shape[:-1], key.shape[-2])), 1 - dropout_p)
        by_definition = torch.ops.aten._scaled_dot_product_attention_math  # what draws a mask on a CPU
        weights: Tensor = by_definition(query, key, value, attn_mask, 0.0, is_causal, **options)[1]
        return weights * (drawn / (1 - dropout_p)) @ value


def record_draws(call: Callable[[], object]) -> tuple[Draw, ...]:
    """The masks that a call draws, in order."""
    draws = []

    def mask(empty: Callable[[], Tensor], keep: float) -> Tensor:
        like = empty()
        draws.append(Draw(tuple(like.shape), like.stride(), keep))
        return like.fill_(1.0)

    with _GivenMasks(mask):
        call()
    return tuple(draws)


def draw_masks(draws: Sequence[Draw], seeds: Sequence[int]) -> list[Tensor]:
    """(n, *shape) for each draw, one row per seed: what dropout draws where torch's generator has that seed."""
    masks = [torch.empty(len(seeds), *draw.shape) for draw in draws]
    generator = torch.Generator()
    for row, seed in enumerate(seeds):
        generator.manual_seed(seed)
        for mask, draw in zip(masks, draws, strict=True):
            mask[row] = torch.empty_strided(draw.shape, draw.stride).bernoulli_(draw.keep, generator=generator)
    return masks


def with_masks(masks: Sequence[Tensor]) -> TorchFunctionMode:
    """A context in which a network takes these masks, one after the other, instead of drawing its own."""
    left: Iterator[Tensor] = iter(masks)
    return _GivenMasks(lambda _, __: next(left))
