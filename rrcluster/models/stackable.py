"""Layers in a form that can be stacked over clients, where PyTorch's own cannot.

`nn.LSTM` and `nn.GRU` are written step by step, because vmap has no rule for them. Weights have PyTorch's names and
order of gates. What is not written here (two directions, projections, packed sequences, dropout between layers) is left
as it is, and then runs one client at a time. An embedding's `padding_idx` is lost under vmap, so that its row would be
trained.

Dropout of stacked clients: each client's masks come from a generator of its own, as they do where it runs alone.

Stacked clients would share torch's generator, so that the draws of one depended on the others. So the masks of a step
are drawn before it, client by client, in the order in which the network uses them, and passed to the network. Whatever
else draws random numbers is left as it is, and such a network runs one client at a time.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import embedding, linear
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Draw:
    """A dropout mask of one client's step: its layout in memory, and the probability of keeping a number."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    keep: float


Mask = Callable[[Callable[[], Tensor], float], Tensor]  # a tensor of the mask's layout, the chance to be kept -> mask


class _GivenMasks(TorchFunctionMode):
    """torch's dropout and attention with masks from `mask`, called in the order in which they would be drawn."""

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
    """(n, *shape) for each draw, one row per seed: the masks that dropout draws under that seed."""
    masks = [torch.empty(len(seeds), *draw.shape) for draw in draws]
    generator = torch.Generator()
    for row, seed in enumerate(seeds):
        generator.manual_seed(seed)
        for mask, draw in zip(masks, draws, strict=True):
            mask[row] = torch.empty_strided(draw.shape, draw.stride).bernoulli_(draw.keep, generator=generator)
    return masks


def with_masks(masks: Sequence[Tensor]) -> TorchFunctionMode:
    """A context in which a network uses these masks, in order, instead of drawing its own."""
    left: Iterator[Tensor] = iter(masks)
    return _GivenMasks(lambda _, __: next(left))


class UnrolledLSTM(nn.LSTM):
    """An LSTM as a loop over steps."""

    def forward(self, inputs: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> Any:  # type: ignore[override]
        """As `nn.LSTM`, for three axes."""
        sequence = inputs.transpose(0, 1) if self.batch_first else inputs
        first = [None] * self.num_layers if hx is None else list(zip(*hx, strict=True))
        ends = []
        for layer in range(self.num_layers):
            into, recurrent, bias_into, bias_within = _weights(self, layer)
            projected = flat_linear(sequence, into, bias_into + bias_within)
            zero = projected[0, :, : self.hidden_size] * 0
            state, memory = first[layer] or (zero, zero)
            states = []
            for arriving in projected:
                gates = arriving + linear(state, recurrent)
                admit, keep, fresh, show = gates.chunk(4, dim=-1)
                memory = torch.addcmul(admit.sigmoid() * fresh.tanh(), keep.sigmoid(), memory)
                state = show.sigmoid() * memory.tanh()
                states.append(state)
            sequence = torch.stack(states)
            ends.append((state, memory))
        last = tuple(torch.stack(part) for part in zip(*ends, strict=True))
        return sequence.transpose(0, 1) if self.batch_first else sequence, last


class UnrolledGRU(nn.GRU):
    """A GRU as a loop over steps."""

    def forward(self, inputs: Tensor, hx: Tensor | None = None) -> Any:  # type: ignore[override]
        """As `nn.GRU`, for three axes."""
        sequence = inputs.transpose(0, 1) if self.batch_first else inputs
        ends = []
        for layer in range(self.num_layers):
            into, recurrent, bias_into, bias = _weights(self, layer)
            projected = flat_linear(sequence, into, bias_into)
            state = projected[0, :, : self.hidden_size] * 0 if hx is None else hx[layer]
            states = []
            for arriving in projected:
                reset, update, fresh = arriving.chunk(3, dim=-1)
                reset_own, update_own, fresh_own = (linear(state, recurrent) + bias).chunk(3, dim=-1)
                mixed = (update + update_own).sigmoid()
                candidate = (fresh + (reset + reset_own).sigmoid() * fresh_own).tanh()
                state = (1 - mixed) * candidate + mixed * state
                states.append(state)
            sequence = torch.stack(states)
            ends.append(state)
        return sequence.transpose(0, 1) if self.batch_first else sequence, torch.stack(ends)


def _weights(cell: nn.RNNBase, layer: int) -> Iterator[Tensor]:
    """Weights into the layer and within it, and their biases."""
    return (getattr(cell, f"{part}_l{layer}") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))


def flat_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` of sequences as one product per client: vmap would copy the weights for every sample."""
    return linear(inputs.flatten(0, -2), weight, bias).reshape(*inputs.shape[:-1], weight.shape[0])


class FlatLinear(nn.Linear):
    """A linear layer that uses `flat_linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.Linear`."""
        return flat_linear(input, self.weight, self.bias) if input.dim() > 2 else super().forward(input)


class PaddedEmbedding(nn.Embedding):
    """An embedding whose row `padding_idx` has no gradient."""

    def forward(self, inputs: Tensor) -> Tensor:
        """As `nn.Embedding`."""
        rows = torch.arange(self.num_embeddings, device=self.weight.device)
        padding = torch.eq(rows, cast(int, self.padding_idx))[:, None]
        return embedding(inputs, torch.where(padding, self.weight.detach(), self.weight))


_STACKABLE: dict[type, type] = {
    nn.LSTM: UnrolledLSTM,
    nn.GRU: UnrolledGRU,
    nn.Linear: FlatLinear,
    nn.Embedding: PaddedEmbedding,
}


def stackable(module: nn.Module) -> nn.Module:
    """The module with its layers replaced by stackable ones, sharing its tensors; itself if it has none."""
    if not any(_is_replaced(part) for part in module.modules()):
        return module
    tensors = {id(value): value for value in (*module.parameters(), *module.buffers())}
    copied: nn.Module = copy.deepcopy(module, tensors)
    for part in copied.modules():
        if _is_replaced(part):
            part.__class__ = _STACKABLE[type(part)]
    return copied


def _is_replaced(part: nn.Module) -> bool:
    if type(part) is nn.Linear:
        return True
    if type(part) is nn.Embedding:
        plain = not (part.scale_grad_by_freq or part.sparse or part.max_norm is not None)
        return plain and part.padding_idx is not None
    return type(part) in _STACKABLE and not (part.bidirectional or part.proj_size or part.dropout) and bool(part.bias)
