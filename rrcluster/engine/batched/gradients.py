"""Gradients of stacked clients, and programs recorded from them: the same operations without the code around them."""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from rrcluster.models.losses import losses_of, plain_losses
from rrcluster.models.model import Model

_STEPS_BEFORE = 50  # of equal shapes: recording a program takes the time of about as many
_MOST_RECORDED = 16

Program = Callable[..., Sequence[Tensor]]


class Gradients:
    """The gradient of each client's mean loss, one tensor (G, *shape) per layer.

    Of a network that a user brings, autograd, vmap and the network's own Python code take a large part of a step on a
    CPU. So what a step of some shapes computes is recorded once it has come often, and then computed without them: the
    same operations in the same order, hence the same bits. A program that does not give them is not used.
    """

    def __init__(self, model: Model, device: torch.device) -> None:
        """Nothing is recorded before it has come often."""
        self._model, self._losses_of = model, losses_of(model, device)
        self._records = model.own and device.type == "cpu"
        self._seen: Counter[Hashable] = Counter()
        self._programs: dict[Hashable, Program | None] = {}  # None: not to be recorded

    def __call__(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, masks: Sequence[Tensor] = ()
    ) -> Sequence[Tensor]:
        """Of params (G, d) on a batch (G, s, ...); `masks` are those of dropout."""
        arguments = list(self._model.unflatten(params).values()), batch, targets, present, list(masks)
        if not self._records:
            return self._computed(*arguments)
        shapes = (batch.shape, targets.shape, tuple(mask.shape for mask in masks))
        self._seen[shapes] += 1
        if shapes not in self._programs and self._seen[shapes] > _STEPS_BEFORE:
            more = len(self._programs) < _MOST_RECORDED
            self._programs[shapes] = _recorded(self._computed, arguments) if more else None
        program = self._programs.get(shapes)
        if program is None:
            return self._computed(*arguments)
        with torch.no_grad():
            return program(*arguments)

    def _computed(
        self, values: Sequence[Tensor], batch: Tensor, targets: Tensor, present: Tensor, masks: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        with torch.enable_grad():
            leaves = [value.detach().requires_grad_() for value in values]
            parameters = {layer.name: leaf for layer, leaf in zip(self._model.layers, leaves, strict=True)}
            losses_of = plain_losses(self._model, masks) if masks else self._losses_of
            losses = losses_of(parameters, batch, targets, present)
            return torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)


def _recorded(function: Program, arguments: Sequence[object]) -> Program | None:
    """The operations of a call as a program; None where it cannot be recorded or gives other bits."""
    try:
        program = make_fx(lambda *given: function(*given))(*arguments)
        for node in program.graph.nodes:
            if node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
                node.replace_all_uses_with(node.args[0])
        program.graph.eliminate_dead_code()
        program.recompile()
        with torch.no_grad():
            pairs = zip(program(*arguments), function(*arguments), strict=True)
            if all(torch.allclose(*pair, rtol=0.0, atol=0.0, equal_nan=True) for pair in pairs):
                return program
    except Exception as error:  # whatever recording may raise
        kind = type(error).__name__  # not its text, which may reveal the number of clients
        logging.getLogger("rrcluster").debug("a training step cannot be recorded (%s).", kind)
    return None
