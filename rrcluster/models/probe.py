"""A network that a user brings, tried on made-up samples before anything runs: whether it fits, and can be stacked.

The sample has the shape of the data and none of its values: ids and numbers are drawn under a fixed seed. So what is
decided here depends on public shapes alone.
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from rrcluster.data.federated import IDS, Cohort, FederatedData
from rrcluster.errors import ConfigError, DataError
from rrcluster.models.client_state import ClientNetwork, generator_states, own_generators, seed_generators
from rrcluster.models.model import Model, eval_copy
from rrcluster.models.stackable import draw_masks, record_draws, stackable


@contextmanager
def seeded_generator() -> Iterator[None]:
    """Draw under a fixed seed, by torch, numpy or Python; their generators are as before afterwards."""
    with own_generators():
        seed_generators(0)
        yield


def count_ids(model: Model, module: nn.Module, data: FederatedData) -> int:
    """The number of ids of every embedding; 1 where the module does not accept all of those."""
    num_ids = min((part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)), default=1)
    try:
        with seeded_generator(), torch.no_grad():
            model.task.outputs(module, made_up_samples(data, num_ids=num_ids, count=1)[0])
    except Exception:  # any error of a user's network; the next call reports it
        return 1
    return num_ids


def check_ids(model: Model, cohort: Cohort) -> None:
    """DataError for ids that the network cannot take, before a GPU, where they would break every later round.

    From which id on that is, it says itself on a CPU, of made-up samples.
    """
    layout = model.task.layout
    if model.takes_ids or (layout is not None and any(part.ids for part in layout.parts)):
        for part, most in _id_limits(model, cohort.inputs.shape[2:], cohort.inputs.dtype):
            if (cohort.inputs[:, :, part] >= most).any():
                raise DataError("a client has ids that the network cannot take; number them anew.")


@lru_cache(maxsize=4)
def _id_limits(model: Model, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[tuple[slice, int]]:
    """Places in a sample, and the least size of the network's parameters that it cannot take as an id there."""
    layout, module = model.task.layout, eval_copy(model.module)
    places = [slice(part.start, part.stop) for part in layout.parts if part.ids] if layout else [slice(None)]
    sizes = sorted({size for value in module.parameters() for size in value.shape})

    def fails(place: slice, number: int) -> bool:
        inputs = np.zeros((1, *shape), dtype=dtype)
        inputs[:, place] = number
        try:
            with seeded_generator(), torch.no_grad():
                model.task.outputs(module, torch.as_tensor(inputs))
        except Exception:  # whatever a network may raise
            return True
        return False

    firsts = [(place, next((size for size in sizes if fails(place, size)), None)) for place in places]
    return [(place, first) for place, first in firsts if first is not None and not fails(place, 0)]


def made_up_samples(data: FederatedData, *, num_ids: int, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets; ids are below `num_ids`."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(count, *data.input_shape)).astype(data.input_dtype)
    ids = generator.integers(num_ids, size=inputs.shape)
    if data.input_dtype == IDS:
        inputs[:] = ids
    if data.layout is not None:
        for part in data.layout.parts:
            if part.ids:
                inputs[:, part.start : part.stop] = ids[:, part.start : part.stop]
    labels = np.arange(count) // 2 % (data.num_classes or 2)  # 0, 0, 1: exposes a loss that counts labels
    targets = np.zeros((count, *data.target_shape), dtype=np.int64 if data.num_classes else np.float32)
    targets += labels.reshape(-1, *[1] * len(data.target_shape)).astype(targets.dtype)
    return torch.as_tensor(inputs), torch.as_tensor(targets)


_SAMPLES, _SEEDS = 3, (1, 2)
_NUMBERS_AT_ONCE = 2**27  # about half a gigabyte of float32, for samples or clients that are computed together
_CLOSE = 1e-4  # relative difference between two orders of the same float32 sums
_SAME = 1e-6  # the same computation twice
_OTHERS = ((100.0, 3), (0.0, 1), (-1.0, 5), (10.0, 2), (1.0, 4))  # scale and number of samples of other clients


def fitted(model: Model, data: FederatedData) -> Model:
    """The model for this data: its inputs laid out, and `not_batched` set where clients cannot be stacked.

    `ConfigError` where the network cannot be trained on such samples. Built-in networks are checked by name and shape
    instead (models/__init__.py).
    """
    if model.for_cells is not None and data.columns is not None:
        return model.for_cells({"buckets": data.columns.buckets})
    if not model.own:
        return model
    ids = data.input_dtype == IDS
    unused = replace(model, takes_ids=ids, task=replace(model.task, layout=data.layout)).copied()
    model = unused.copied()  # the trial uses a copy
    module = eval_copy(model.module)
    num_ids = count_ids(model, module, data)
    inputs, targets = made_up_samples(data, num_ids=num_ids, count=_SAMPLES)
    with seeded_generator(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = _outputs(model, module, inputs, data)
        _check_outputs(model, outputs, targets, data)
        drawn = _trained_once(model, inputs, targets)
        first = _answers(unused, [(inputs, targets)])
        _check_constant(model, module, inputs)
        numbers = _numbers_per_sample(model, inputs, targets)
        _check_forgets(unused, first, [*_others(data), (inputs, targets)])
        _check_alone(model, module, inputs, outputs)
    why_not = _why_not_stacked(model, inputs, targets, draws=bool(drawn))
    return replace(
        unused,
        not_batched="it draws random numbers while it trains" if drawn else why_not,
        dropout_only=drawn == {"torch"} and not why_not,
        samples_at_once=min(max(_NUMBERS_AT_ONCE // numbers, 16), model.samples_at_once),
        clients_at_once=min(
            max(_NUMBERS_AT_ONCE // (4 * model.num_parameters + 20 * numbers), 8), model.clients_at_once
        ),
    )


def _outputs(model: Model, module: nn.Module, inputs: Tensor, data: FederatedData) -> Tensor:
    try:
        with torch.no_grad():
            outputs = model.task.outputs(module, inputs)
    except Exception as error:  # whatever a network may raise
        embeds = any(isinstance(part, nn.Embedding) for part in module.modules())
        tokens = " Numbers of tokens are given as ids (ids=True)." if embeds and data.input_dtype != IDS else ""
        raise ConfigError(
            f"model {model.name} cannot take {_described(data)}: {_first_line(error)}. Change its first layer or "
            f"forward, or the shape of the data.{tokens}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"model {model.name} returns a {type(outputs).__name__}; return only the tensor of outputs.")
    if not outputs.is_floating_point() or not torch.isfinite(outputs).all():
        raise ConfigError(f"model {model.name} returns {outputs.dtype} outputs that are not all finite numbers.")
    return outputs


def _described(data: FederatedData) -> str:
    if data.layout is None:
        kind = "ids (int64)" if data.input_dtype == IDS else "numbers (float32)"
        return f"{kind} of shape (s, {', '.join(map(str, data.input_shape))})".replace(", )", ")")
    kinds = (f"{part.name}: {'ids' if part.ids else 'numbers'} {part.shape}" for part in data.layout.parts)
    return f"samples of {', '.join(kinds)}"


def _check_outputs(model: Model, outputs: Tensor, targets: Tensor, data: FederatedData) -> None:
    shape = tuple(outputs.shape)
    if model.task.loss is None:
        wanted = (*targets.shape, data.num_classes) if data.num_classes else tuple(targets.shape)
        if shape != wanted and not (not data.num_classes and shape == (*wanted, 1)):
            what = f"{data.num_classes} classes" if data.num_classes else "numbers"
            fix = f"make its last layer {wanted[-1]} wide" if shape[:-1] == wanted[:-1] else "change its last layer"
            if data.num_classes and data.target_shape:
                fix += "; targets that are 0 or 1 for each of several labels must be floats, and need a loss"
            raise ConfigError(
                f"model {model.name} gives outputs of shape {_per(shape)} for targets of {what}, which need "
                f"{_per(wanted if data.num_classes or data.target_shape else (*wanted, 1))}; {fix}."
            )
    for what, function in (("loss", model.task.loss), ("metric", model.task.metric)):
        if function is not None:
            _check_function(what, function, outputs, targets)


def _check_function(what: str, function: Any, outputs: Tensor, targets: Tensor) -> None:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        figures = function(outputs, targets)
    except Exception as error:
        raise ConfigError(
            f"{what} = {name} cannot take outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of type "
            f"{targets.dtype}: {_first_line(error)}."
        ) from error
    if not isinstance(figures, Tensor) or tuple(figures.shape) != (len(outputs),):
        given = f"shape {tuple(figures.shape)}" if isinstance(figures, Tensor) else type(figures).__name__
        raise ConfigError(
            f"{what} = {name} gives {given} for {len(outputs)} samples; it must give one number per sample, shape "
            f"({len(outputs)},): use reduction='none' and the mean over all other axes."
        )
    try:
        alone = torch.stack([function(outputs[i : i + 1], targets[i : i + 1])[0] for i in range(len(outputs))])
    except Exception as error:
        raise ConfigError(f"{what} = {name} cannot take a single sample: {_first_line(error)}.") from error
    if not torch.equal(function(outputs, targets).nan_to_num(), figures.nan_to_num()):
        raise ConfigError(
            f"{what} = {name} gives different numbers for samples that it has seen before: it remembers clients, or "
            "draws random numbers. Compute it from outputs and targets alone."
        )
    if not torch.allclose(alone, figures, rtol=_CLOSE, atol=_CLOSE, equal_nan=True):
        raise ConfigError(
            f"{what} = {name} gives a sample a different number alone than among others: it mixes the samples "
            "of a batch, and clients with them. Let each number depend on its own sample; weights must be constants."
        )


def _check_alone(model: Model, module: nn.Module, inputs: Tensor, outputs: Tensor) -> None:
    """Refuse networks whose output for one sample depends on others: samples of many clients are measured together."""
    with torch.no_grad():
        alone = torch.cat([model.task.outputs(module, row[None]) for row in inputs])
    if alone.shape != outputs.shape or not _equal(alone, outputs):
        raise ConfigError(
            f"model {model.name} gives a sample different outputs alone than among others: it mixes the samples "
            "of a batch, and clients with them. Normalise each sample by itself (GroupNorm, LayerNorm)."
        )


def _check_constant(model: Model, module: nn.Module, inputs: Tensor) -> None:
    """Refuse random numbers and changing weights in evaluation: one client's samples would change another's result."""
    states, embeddings = generator_states(), _Embeddings()
    before = [value.clone() for value in module.parameters()]
    with torch.no_grad(), embeddings:
        model.task.outputs(module, inputs)
    changed = any(not torch.equal(*pair) for pair in zip(before, module.parameters(), strict=True))
    if changed or "max_norm" in embeddings.options:
        raise ConfigError(
            f"model {model.name} changes its weights when it is called, as an embedding with max_norm does, and one "
            "client's samples would change the model that others see; leave max_norm out, or scale in forward."
        )
    if states != generator_states():
        raise ConfigError(f"model {model.name} draws random numbers in eval mode; draw them in training mode alone.")


Samples = tuple[Tensor, Tensor]  # synthetic inputs and targets


def _others(data: FederatedData) -> list[Samples]:
    """Samples of several clients: other numbers, some large, and other sizes."""
    drawn = [(scale, made_up_samples(data, num_ids=1, count=count)) for scale, count in _OTHERS]
    return [(scale * inputs, targets.flip(0)) for scale, (inputs, targets) in drawn]


def _answers(model: Model, calls: Sequence[Samples]) -> list[Tensor]:
    """Results of fresh copies for the last of these samples, after the earlier ones: gradients, losses, metrics."""
    trained, measured = ClientNetwork.of(model), ClientNetwork.of(model, measured=True)
    for inputs, targets in calls[:-1]:
        with suppress(Exception):  # a client would not report such samples
            trained.gradients(inputs, targets)
        with suppress(Exception):
            measured.figures(inputs, targets)
    gradient = torch.cat([part.flatten() for part in trained.gradients(*calls[-1])])
    return [figures.nan_to_num() for figures in (gradient, *measured.figures(*calls[-1]))]


def _check_forgets(model: Model, first: Sequence[Tensor], calls: Sequence[Samples]) -> None:
    """A client's training and evaluation must not depend on earlier calls with other clients' samples.

    The calls are repeated with used copies, and then with fresh ones, which reveal state outside of the copies; both
    are compared with `first`, the results of fresh copies on the last call.
    """
    for again in (_answers(model, calls), _answers(model, calls[-1:])):
        if not all(_equal(*pair, close=_SAME) for pair in zip(again, first, strict=True)):
            raise ConfigError(
                f"model {model.name}, its loss or its metric remembers samples that it was called with "
                "before, or draws random numbers from its own generator: clients would learn from each "
                "other, unclipped. Compute from inputs, parameters and the random numbers of torch, "
                "numpy.random or random alone."
            )


def _trained_once(model: Model, inputs: Tensor, targets: Tensor) -> set[str]:
    """The generators that a training step uses; a `ConfigError` if it changes a buffer or moves no parameter."""
    before = {name: value.clone() for name, value in model.module.named_buffers()}
    states = generator_states()
    losses = model.task.losses(model.task.outputs(model.module, inputs), targets)
    trained = [value for value in model.module.parameters() if value.requires_grad]
    try:
        gradients = torch.autograd.grad(losses.mean(), trained, allow_unused=True)
    except RuntimeError as error:
        raise ConfigError(f"model {model.name} cannot be trained: {_first_line(error)}.") from error
    if all(gradient is None for gradient in gradients):
        raise ConfigError(f"model {model.name} has no parameter that its outputs depend on; check its forward.")
    for name, value in model.module.named_buffers():
        if not torch.equal(before[name], value):
            raise ConfigError(
                f"model {model.name} changes its buffer {name} while it trains, which would leave the client "
                "unclipped; use layers without running statistics, or put that layer into eval mode."
            )
    return {name for name, state in generator_states().items() if state != states[name]}


def _numbers_per_sample(model: Model, inputs: Tensor, targets: Tensor) -> int:
    """Numbers that a training step keeps per sample for its backward pass, which determine its memory."""
    kept: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model.task.losses(model.task.outputs(model.module, inputs), targets)
    weights = sum(value.numel() for value in model.module.parameters())
    return max((sum(kept) - weights) // _SAMPLES, inputs[0].numel(), 1)


def _why_not_stacked(model: Model, inputs: Tensor, targets: Tensor, *, draws: bool) -> str:
    """Why the stacked form fails or differs from the module itself; empty where it is equal."""
    start = torch.cat([value.detach().flatten() for value in model.module.parameters() if value.requires_grad])
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    vectors = torch.stack([start, 0.9 * start + 0.2 * noise])
    batches = torch.stack([inputs, inputs.flip(0)])
    labels = torch.stack([targets, targets])
    embeddings = _Embeddings()
    try:
        with seeded_generator(), warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it loops over clients one at a time
            with embeddings, torch.no_grad():
                model.task.outputs(stackable(model.module), inputs)
            masks = draw_masks(record_draws(partial(model.task.outputs, model.module, inputs)), _SEEDS) if draws else []
            stacked = _gradients(model, vectors, batches, labels, masks)
    except Exception as error:
        return f"torch cannot stack it ({_first_line(error)})"
    if embeddings.options:
        return f"torch cannot stack an embedding with {min(embeddings.options)}"
    with seeded_generator():
        one_by_one = [_own_gradient(model, *one) for one in zip(vectors, batches, labels, _SEEDS, strict=True)]
    return "" if _equal(stacked, torch.stack(one_by_one)) else "stacked clients differ from single ones"


class _Embeddings(TorchFunctionMode):
    """Options of embeddings that are called: torch loses them, or counts all clients' ids, when clients are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.options: set[str] = set()

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if function is functional.embedding:
            names = ("padding_idx", "max_norm", "scale_grad_by_freq")
            self.options |= {name for name in names if options.get(name) not in (None, False)}
        return function(*args, **options)


def _gradients(model: Model, vectors: Tensor, inputs: Tensor, targets: Tensor, masks: Sequence[Tensor]) -> Tensor:
    leaves = {name: value.detach().requires_grad_() for name, value in model.unflatten(vectors).items()}
    losses = model.task.losses(model.grouped(leaves, inputs, masks), targets, axes=2)
    parts = torch.autograd.grad(losses.mean(1).sum(), list(leaves.values()), materialize_grads=True)
    return model.flatten(dict(zip(leaves, parts, strict=True)))


def _own_gradient(model: Model, vector: Tensor, inputs: Tensor, targets: Tensor, seed: int) -> Tensor:
    """The gradient of the module itself with these weights, which other code paths to the weights must match."""
    module = copy.deepcopy(model.module)
    leaves = [value for value in module.parameters() if value.requires_grad]
    with torch.no_grad():
        for leaf, value in zip(leaves, model.unflatten(vector).values(), strict=True):
            leaf.copy_(value)
    seed_generators(seed)
    losses = model.task.losses(model.task.outputs(module, inputs), targets)
    parts = torch.autograd.grad(losses.mean(), leaves, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def _equal(first: Tensor, second: Tensor, close: float = _CLOSE) -> bool:
    return bool((first - second).abs().max() <= close * (1 + second.abs().max()))


def _per(shape: tuple[int, ...]) -> str:
    """A shape without its number of samples."""
    return f"({', '.join(('s', *map(str, shape[1:])))})"


def _first_line(error: BaseException) -> str:
    line = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {line[:200]}"
