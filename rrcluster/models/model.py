"""A model: an `nn.Module` as reference, a flat vector elsewhere, and optionally a faster form over many clients.

Everywhere outside this folder a model is one flat float32 vector, in the order of `module.named_parameters()`.
"""

import copy
import copyreg
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from rrcluster.data.federated import Layout
from rrcluster.errors import ConfigError
from rrcluster.mixed.questions import Form
from rrcluster.models.stackable import stackable, with_masks
from rrcluster.rng import Rng
from rrcluster.types import Array

PerSample = Callable[[Tensor, Tensor], Tensor]  # outputs (s, ...), targets (s, ...) -> (s,)


@dataclass(frozen=True)
class Task:
    """Defaults: one input; cross-entropy for classes, squared error for numbers; accuracy for classes.

    `loss` and `metric` are functions of outputs (s, ...) and targets (s, ...) that give one number per sample, (s,).
    """

    loss: PerSample | None = None
    metric: PerSample | None = None
    layout: Layout | None = None  # of inputs that consist of several arrays

    def outputs(self, module: Callable[..., Any], inputs: Tensor) -> Any:
        """The network's outputs for inputs (s, ...), unpacked where a sample consists of several arrays."""
        arguments, keywords = self.arguments(inputs)
        return module(*arguments, **keywords)

    def arguments(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The network's arguments, by position and by name."""
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
        """One figure per sample, (s,): more is better. NaN for numbers without a metric."""
        return _per_sample(self.metric or default_metrics, outputs, targets, 1)


def copied(name: str, module: nn.Module, task: Task, memo: dict[int, Any] | None = None) -> tuple[nn.Module, Task]:
    """Copies of a network, its loss and its metric with all their state; shared objects stay shared among the copies.

    `memo`, as that of copy.deepcopy: id of an object -> its copy.
    """
    known: dict[int, Any] = memo or {}
    try:
        module = _copy(module, known)
        if task.loss is None and task.metric is None:
            return module, task
        loss, metric = (_copy(part, known) for part in (task.loss, task.metric))
    except Exception as error:  # whatever an object of a user's may raise
        raise ConfigError(
            f"model {name} cannot be copied: {str(error).partition('. ')[0][:200]}. Build it anew, or detach "
            "what it has computed (for weight_norm use torch.nn.utils.parametrizations); keep files, locks "
            "and the like out of the network, its loss and its metric: every client gets fresh copies."
        ) from error
    return module, replace(task, loss=loss, metric=metric)


_CONSTANTS, _TABLES = {type(None), bool, int, float, str}, {dict, OrderedDict, set}


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """As copy.deepcopy, in a third of its time for modules, whose state is mostly constants and empty tables."""
    kind: Any = type(value)
    if kind in _CONSTANTS:
        return value
    if (made := memo.get(id(value))) is not None:
        return made
    if kind in _TABLES and not value and (kind is not OrderedDict or not value.__dict__):
        made = memo[id(value)] = kind()
    elif kind is dict:
        made = memo[id(value)] = {}
        for key, part in value.items():
            own = key if type(key) is str else _copy(key, memo)
            made[own] = part if type(part) in _CONSTANTS else _copy(part, memo)
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
    """Whether copy.deepcopy creates such an object without __init__ and copies its state."""
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
    """The same function, compiled at its first call; if that fails (no compiler, say), it warns and runs uncompiled."""
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


_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # of any number of dimensions
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def check_parameters(name: str, module: nn.Module) -> None:
    """Refuse a network without trainable float32 numbers, and layers whose output mixes the samples of a batch."""
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ConfigError(f"model {name} has no parameters to train; give it at least one layer that has some.")
    if any(isinstance(value, nn.UninitializedParameter) for value in parameters.values()):
        raise ConfigError(f"model {name} has uninitialised (lazy) layers; call it once on a sample first.")
    trained = {place: value for place, value in parameters.items() if value.requires_grad}
    if not trained:
        raise ConfigError(
            f"model {name} has {len(parameters)} parameters, all frozen; set requires_grad on those to train, "
            "for example a new last layer."
        )
    for place, value in trained.items():
        if value.dtype != torch.float32:
            raise ConfigError(f"model {name} has {place} of type {value.dtype}; train in float32: module.float().")
    for place, weights in (*parameters.items(), *module.named_buffers()):
        if weights.is_floating_point() and not torch.isfinite(weights).all():
            raise ConfigError(f"model {name} has weights in {place} that are not finite; load or draw them again.")
    for place, part in module.named_modules():
        if isinstance(part, _BATCH_NORM) and (part.training or part.running_mean is None):
            raise ConfigError(
                f"model {name} has {type(part).__name__} at {place or 'its top'}, which mixes the samples of a batch "
                "and keeps statistics that would leave the client unclipped. Use GroupNorm or LayerNorm, or freeze its "
                "statistics: put it into eval mode before you pass the module."
            )


Parameters = Mapping[str, Tensor]
Grouped = Callable[[Parameters, Tensor], Tensor]
PERTURBATION = 0.1  # distance between the initial clusters of a network with given weights, in units of random weights
_SAMPLES_AT_ONCE = 512  # for features; larger batches leave a core's cache


@dataclass(frozen=True)
class Layer:
    """One named parameter and its place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class FixedPart:
    """A model that begins with an untrained map: features that an engine may compute once per sample, and the rest."""

    features: Callable[[Tensor], Tensor]  # (s, *input) -> (s, *features), each sample by itself
    rest: "Model"  # takes the features; its flat vector is that of the whole model

    def of(self, inputs: Tensor) -> Tensor:
        """The features of many samples, some at a time."""
        with torch.no_grad():
            return torch.cat([self.features(part) for part in torch.split(inputs, _SAMPLES_AT_ONCE)])


@dataclass(frozen=True, eq=False)
class Model:
    """A network in two equal forms.

    `module`: the plain form, (s, *input) -> (s, outputs). `grouped`: G clients at once, each with parameters of its
    own: {name: (G, *shape)}, (G, s, *input) -> (G, s, outputs). Without a hand-written `grouped` form,
    `torch.func.vmap` of the module serves, where it can (models/probe.py). Frozen parameters (`requires_grad` False)
    and buffers are constants: they are no part of the flat vector.
    """

    name: str
    module: nn.Module
    grouped_form: Grouped | None = None
    convolutional: bool = False
    recurrent: bool = False
    init_scale: float = 1.0  # on the law of `init`
    starts_as_is: tuple[str, ...] = ()  # parameters that `init` leaves unchanged
    takes_ids: bool = False  # inputs are int64 ids, not float32 numbers
    samples_at_once: int = 16384  # limit of one forward pass without gradients: bounds memory
    clients_at_once: int = 1024  # limit of clients that train together, likewise
    fixed: FixedPart | None = None  # the same model in two parts, where it begins with an untrained map
    accelerated: str = ""  # name of code for exactly this network: a CPU engine, GPU kernels
    one_linear_layer: bool = False  # set only for `linear` with classes, for which engine/batched has GPU kernels
    own: bool = True  # from a user, so that anything may be in it
    fresh: bool = True  # starts from random weights, not from those of `module`
    task: Task = field(default_factory=Task)  # its inputs, its loss and its metric
    form: Form | None = None  # for a linear model of a table: its columns and questions
    for_cells: "Callable[[Mapping[str, Any]], Model] | None" = None  # the same model for cells encoded as described
    not_batched: str = ""  # why clients must run one at a time; empty: they can be stacked
    dropout_only: bool = False  # dropout masks are its only random draws: it can be stacked on a CPU (stackable.py)

    def __post_init__(self) -> None:
        check_parameters(self.name, self.module)
        if self.fixed is not None and self.fixed.rest.num_parameters != self.num_parameters:
            raise ConfigError(
                f"model {self.name} has {self.num_parameters} parameters, and what follows its fixed features has "
                f"{self.fixed.rest.num_parameters}; both must be the same vector."
            )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Every trained parameter, with its place in the flat vector."""
        layers, start = [], 0
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                layers.append(Layer(name, tuple(parameter.shape), start, start + parameter.numel()))
                start += parameter.numel()
        return tuple(layers)

    @property
    def one_layer(self) -> bool:
        """Whether a single layer is trained, on inputs or fixed features: a linear model."""
        tables = ((name, part) for name, part in self.module.named_modules() if isinstance(part, nn.Embedding))
        biases = {f"{name}.weight" for name, table in tables if table.num_embeddings == 1}
        return sum(len(layer.shape) > 1 and layer.name not in biases for layer in self.layers) <= 1

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions: stacked on a CPU, they are no faster than one client at a time."""
        return self.convolutional or any(isinstance(part, _CONVOLUTIONS) for part in self.module.modules())

    @property
    def recurs(self) -> bool:
        """Whether it has recurrent layers."""
        return self.recurrent or any(isinstance(part, nn.RNNBase) for part in self.module.modules())

    @property
    def num_parameters(self) -> int:
        """d."""
        return self.layers[-1].stop

    @property
    def head(self) -> Array:
        """Places of the last layer's parameters in the flat vector."""
        last = self.layers[-1].name.rpartition(".")[0]
        return np.concatenate(
            [np.arange(layer.start, layer.stop) for layer in self.layers if layer.name.rpartition(".")[0] == last]
        )

    def unflatten(self, vectors: Tensor) -> dict[str, Tensor]:
        """(..., d) -> {name: (..., *shape)}."""
        lead = vectors.shape[:-1]
        return {part.name: vectors[..., part.start : part.stop].reshape(*lead, *part.shape) for part in self.layers}

    def flatten(self, parameters: Parameters) -> Tensor:
        """{name: (G, *shape)} -> (G, d)."""
        return torch.cat([parameters[layer.name].flatten(1) for layer in self.layers], dim=1)

    def grouped(self, parameters: Parameters, inputs: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Outputs of G models on G batches: (G, s, *input) -> (G, s, outputs); `masks` are dropout masks, if any.

        Attention is computed by its definition: torch's faster implementations cannot be stacked.
        """
        if self.grouped_form is not None:
            return self.grouped_form(parameters, inputs)
        constants = self._constants(inputs.device)

        def call(own: dict[str, Tensor], batch: Tensor, *drawn: Tensor) -> Any:
            with with_masks(drawn) if drawn else nullcontext():
                return functional_call(self._stackable, {**constants, **own}, *self.task.arguments(batch))

        with sdpa_kernel(SDPBackend.MATH):
            outputs: Tensor = vmap(call)(dict(parameters), inputs, *masks)
        return outputs

    def single(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Outputs of one model in evaluation, in eval mode: (s, *input) -> (s, outputs).

        On CUDA our recurrent models are a group of one: cuDNN needs contiguous weights, which ours are not.
        """
        if self.recurrent and inputs.is_cuda and self.grouped_form is not None:
            group_of_one = {name: value[None] for name, value in parameters.items()}
            return self.grouped_form(group_of_one, inputs[None])[0]
        values = {**self._constants(inputs.device), **parameters}
        outputs: Tensor = functional_call(self._measured, values, *self.task.arguments(inputs))
        return outputs

    def copied(self) -> "Model":
        """The same with fresh copies of the network, the loss and the metric."""
        module, task = copied(self.name, self.module, self.task)
        return replace(self, module=module, task=task)

    @cached_property
    def _stackable(self) -> nn.Module:
        return stackable(self.module)

    @cached_property
    def _measured(self) -> nn.Module:
        return eval_copy(self.module)

    def _constants(self, device: torch.device) -> dict[str, Tensor]:
        """Frozen parameters and buffers, on a device other than the module's own."""
        if device.type == "cpu":
            return {}
        if device not in self._moved:
            frozen = {name: value for name, value in self.module.named_parameters() if not value.requires_grad}
            constants = {**frozen, **dict(self.module.named_buffers())}
            self._moved[device] = {name: value.detach().to(device) for name, value in constants.items()}
        return self._moved[device]

    @cached_property
    def _moved(self) -> dict[torch.device, dict[str, Tensor]]:
        return {}

    @property
    def input_kind(self) -> Any:
        """The kind of inputs as plain data for files: numbers, ids, or the arrays of a sample."""
        if self.task.layout is not None:
            return self.task.layout.described
        if self.form is not None and self.form.buckets:
            return {"buckets": self.form.buckets}
        return "ids" if self.takes_ids else "numbers"

    def taking(self, kind: Any) -> "Model":
        """The network for inputs of a kind; built-in ones know theirs."""
        if self.for_cells is not None and isinstance(kind, Mapping):
            return self.for_cells(kind)
        if not self.own:
            return self
        layout = Layout.restored(kind) if isinstance(kind, Mapping) else None
        return replace(self, takes_ids=kind == "ids", task=replace(self.task, layout=layout))

    def input_tensor(self, inputs: Any) -> Tensor:
        """Inputs (s, ...) in a user's form: an array, or a dict or tuple of arrays."""
        if self.task.layout is not None:
            return torch.as_tensor(self.task.layout.pack(inputs, "the data given"))
        return torch.as_tensor(np.asarray(inputs, dtype=np.int64 if self.takes_ids else np.float32))

    @cached_property
    def signature(self) -> str:
        """Digest of the network's computation: its layers, loss and metric, and a user network's weights.

        Constants and given weights are public, as the class of the module is.
        """
        judged = [getattr(function, "__qualname__", "") for function in (self.task.loss, self.task.metric)]
        about = [self.name, f"{type(self.module).__module__}.{type(self.module).__qualname__}", repr(self.module)]
        digest = hashlib.blake2b(repr([about, judged, self.layers, self.fresh]).encode(), digest_size=8)
        if self.own:
            for name, value in (*self.module.named_parameters(), *self.module.named_buffers()):
                digest.update(name.encode())
                digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def given(self) -> Array:
        """The weights that `module` has, (d,) float32."""
        parts = [value.detach().cpu().flatten() for value in self.module.parameters() if value.requires_grad]
        return np.asarray(torch.cat(parts).numpy())

    def starts(self, count: int, *, rng: Rng) -> Array:
        """The first models of `count` clusters, (count, d) float32; a function of `rng` and public weights alone.

        Random ones, independent of each other; or, unless `fresh`, the given weights: exactly in the first cluster, and
        in the others with a random vector of the same law, times `PERTURBATION`, added. Equal clusters would be
        separated by chance and noise alone.
        """
        if self.fresh:
            return np.stack([self.init(rng=rng) for _ in range(count)])
        weights = self.given
        changes = [self.init(rng=rng, elsewhere=0.0) for _ in range(count - 1)]
        return np.stack([weights, *(weights + np.float32(PERTURBATION) * change for change in changes)])

    def init(self, *, rng: Rng, elsewhere: float | None = None) -> Array:
        """A fresh random vector (d,), float32, that depends only on `rng`, never on data.

        Linear, convolutional and recurrent weights and biases: uniform within 1/sqrt(fan in), PyTorch's own default
        law. Embeddings: standard normal. Both times `init_scale`. Anything else (norm scales, say, and what
        `starts_as_is`) keeps the value it has in `module`, or is `elsewhere`.
        """
        values = {name: value.detach().cpu().numpy() for name, value in self.module.named_parameters()}
        if elsewhere is not None:
            values = {name: np.full_like(value, elsewhere) for name, value in values.items()}
        for prefix, part in self.module.named_modules():
            for name, parameter in part.named_parameters(recurse=False):
                whole = f"{prefix}.{name}" if prefix else name
                drawn = None if whole in self.starts_as_is else _draw(part, tuple(parameter.shape), rng)
                if drawn is not None and parameter.requires_grad:
                    values[whole] = self.init_scale * drawn
        return np.concatenate([values[layer.name].reshape(-1) for layer in self.layers]).astype(np.float32)


def _draw(part: nn.Module, shape: tuple[int, ...], rng: Rng) -> Array | None:
    if isinstance(part, nn.Embedding):
        return rng.standard_normal(shape)
    if isinstance(part, nn.Linear):
        bound = part.in_features**-0.5
    elif isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        bound = float(np.prod(part.weight.shape[1:])) ** -0.5
    elif isinstance(part, nn.RNNBase):
        bound = part.hidden_size**-0.5
    else:
        return None
    return rng.uniform(-bound, bound, size=shape)


def eval_copy(module: nn.Module) -> nn.Module:
    """The module in eval mode; its tensors are those of the original."""
    tensors = {id(value): value for value in (*module.parameters(), *module.buffers())}
    copied: nn.Module = copy.deepcopy(module, tensors)
    return copied.eval()


def from_module(
    module: nn.Module,
    *,
    name: str | None = None,
    fresh: bool = False,
    loss: PerSample | None = None,
    metric: PerSample | None = None,
) -> Model:
    """Any user's `nn.Module` as a model: a copy, so that the module, loss and metric are never changed.

    Every cluster starts from the module's weights; `fresh` draws new ones from the run's own randomness (`Model.init`
    has the law). `loss` and `metric` are functions of outputs (s, ...) and targets (s, ...) that give one number per
    sample, (s,); without them: cross-entropy and accuracy for classes, squared error for numbers.
    """
    module = getattr(module, "_orig_mod", module)  # the module that torch.compile wraps
    name = name or type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigError(f"model {name} is a TorchScript program; give the module it was made from.")
    module, task = copied(name, module, Task(loss, metric))
    return Model(name, module, fresh=fresh, task=task)
