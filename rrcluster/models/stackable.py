"""Layers in a form that can be stacked over clients, where PyTorch's own cannot.

`nn.LSTM` and `nn.GRU` are written step by step, because vmap has no rule for them. Weights have PyTorch's names and
order of gates. What is not written here (two directions, projections, packed sequences, dropout between layers) is left
as it is, and then runs one client at a time. An embedding's `padding_idx` is lost under vmap, so that its row would be
trained.
"""

import copy
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear


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
    """A linear layer that is computed so."""

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
    """The module with these layers in their place, its tensors those of the original; itself if it has none."""
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
