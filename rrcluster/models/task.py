"""How a network is called and judged: the arrays it takes, the loss of a sample, and the metric that is reported."""

import copy
import copyreg
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from rrcluster.data.federated import Layout
from rrcluster.errors import ConfigError

PerSample = Callable[[Tensor, Tensor], Tensor]  # outputs (s, ...), targets (s, ...) -> (s,)


@dataclass(frozen=True)
class Task:
    """The defaults: one input; cross-entropy for classes, squared error for numbers; accuracy for classes.

    `loss` and `metric` are functions of outputs (s, ...) and targets (s, ...) that give one number per sample, (s,).
    """

    loss: PerSample | None = None
    metric: PerSample | None = None
    layout: Layout | None = None  # of inputs that consist of several arrays

    def outputs(self, module: Callable[..., Any], inputs: Tensor) -> Any:
        """What the network returns for inputs (s, ...), unpacked where they consist of several arrays."""
        arguments, named = self.arguments(inputs)
        return module(*arguments, **named)

    def arguments(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The arguments that the network is called with, by position and by name."""
        if self.layout is None:
            return (inputs,), {}
        values = []
        for part in self.layout.parts:
            value = inputs[..., part.start : part.stop].reshape(*inputs.shape[:-1], *part.shape)
            values.append(value.long() if part.ids else value)
        if not self.layout.by_name:
            return tuple(values), {}
        return (), {part.name: value for part, value in zip(self.layout.parts, values, strict=True)}

    def losses(self, outputs: Tensor, targets: Tensor, *, axes: int = 1) -> Tensor:
        """One loss per sample. The first `axes` axes count samples: 1, or 2 for (clients, samples)."""
        return _per_sample(self.loss or default_losses, outputs, targets, axes)

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean of the losses of a batch."""
        if self.loss is None and targets.ndim == 1 and not targets.is_floating_point():
            return nn.functional.cross_entropy(outputs, targets)  # the same bits, in fewer steps
        return self.losses(outputs, targets).mean()

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One figure per sample, (s,): more is better. NaN for numbers without a metric of their own."""
        return _per_sample(self.metric or default_metrics, outputs, targets, 1)


def copied(name: str, module: nn.Module, task: Task, memo: dict[int, Any] | None = None) -> tuple[nn.Module, Task]:
    """A network, its loss and its metric with all that these objects keep; what they share, the copies share.

    `memo`, as that of copy.deepcopy: id of an object -> what stands in for it in the copies.
    """
    known: dict[int, Any] = memo or {}
    try:
        module, loss, metric = (_copy(part, known) for part in (module, task.loss, task.metric))
    except Exception as error:  # whatever an object of a user's may raise
        raise ConfigError(
            f"model {name} cannot be copied: {str(error).partition('. ')[0][:200]}. Build it anew, or detach what it "
            "has computed (for weight_norm use torch.nn.utils.parametrizations); keep files, locks and the like out of "
            "the network, its loss and its metric: every client has copies of its own."
        ) from error
    return module, replace(task, loss=loss, metric=metric)


_CONSTANTS = {type(None), bool, int, float, str}


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """As copy.deepcopy, in a third of its time for modules: most of what they keep is constants and empty tables."""
    kind: Any = type(value)
    if kind in _CONSTANTS:
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind in (dict, OrderedDict, set) and not value and not getattr(value, "__dict__", None):
        made = memo[id(value)] = kind()
    elif kind is dict and all(type(key) is str for key in value):
        made = memo[id(value)] = {}
        for key, part in value.items():
            made[key] = part if type(part) in _CONSTANTS else _copy(part, memo)
    elif isinstance(value, nn.Module) and _copied_by_state(kind) and "__deepcopy__" not in vars(value):
        made = memo[id(value)] = kind.__new__(kind)
        state = value.__getstate__()  # type: ignore[no-untyped-call]
        memo.setdefault(id(memo), []).append(state)  # lives as long as its id is in the memo
        made.__setstate__(_copy(state, memo))
    else:
        made = copy.deepcopy(value, memo)
    return made


@cache
def _copied_by_state(kind: Any) -> bool:
    """Whether copy.deepcopy makes such an object without calling __init__ and gives it a copy of the other's state."""
    usual = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    usual = usual and kind not in copyreg.dispatch_table and not issubclass(kind, (dict, list))
    return usual and not any(hasattr(kind, name) for name in ("__deepcopy__", "__getnewargs__", "__getnewargs_ex__"))


def _per_sample(function: PerSample, outputs: Tensor, targets: Tensor, axes: int) -> Tensor:
    shape = targets.shape[:axes]
    figures = function(outputs.flatten(0, axes - 1), targets.flatten(0, axes - 1))
    return figures.reshape(shape)


def default_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Integer targets are classes: cross-entropy; floating ones are numbers: squared error. The mean over a sequence.

    Classes: outputs (s, ..., classes), targets (s, ...). Numbers: outputs of the shape of the targets, or (s, 1) for
    targets (s,).
    """
    if targets.is_floating_point():
        return _mean((outputs.reshape(targets.shape) - targets) ** 2)
    flat = nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return _mean(flat.reshape(targets.shape))


def default_metrics(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is the class, else 0; NaN for numbers."""
    if targets.is_floating_point():
        return torch.full(targets.shape[:1], float("nan"), device=targets.device)
    return _mean((outputs.argmax(-1) == targets).float())


def _mean(figures: Tensor) -> Tensor:
    """(s, ...) -> (s,)."""
    return figures if figures.ndim == 1 else figures.flatten(1).mean(1)


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function, compiled at its first call; where that fails (no compiler, say), it warns and is run as is."""
    chosen: list[Callable[..., Tensor]] = []

    def call(*arguments: Any) -> Tensor:
        if not chosen:
            fast = torch.compile(function, dynamic=False)
            try:
                value: Tensor = fast(*arguments)
            except Exception as error:  # whatever a compiler may raise
                kind = type(error).__name__  # not its text, which may reveal the number of clients
                logging.getLogger("rrcluster").warning("torch.compile failed (%s); running uncompiled.", kind)
                chosen.append(function)
            else:
                chosen.append(fast)
                return value
        return chosen[0](*arguments)

    return call
