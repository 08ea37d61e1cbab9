"""A model: an `nn.Module` as reference, flattened at the border, and optionally a faster form over many clients.

Everywhere outside this folder a model is one flat float32 vector, in the order of `module.named_parameters()`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from rrcluster.errors import ConfigError
from rrcluster.rng import Rng
from rrcluster.types import Array

Parameters = Mapping[str, Tensor]
Grouped = Callable[[Parameters, Tensor], Tensor]
_SAMPLES_AT_ONCE = 512  # whose features are computed together: more of them leave a core's cache


@dataclass(frozen=True)
class Layer:
    """One named parameter and its place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class FastCnn:
    """Marks the `cnn` of image_networks.py, which engine/fast_cnn trains with C code and GPU kernels of its own."""

    outputs: int  # classes, two or more


@dataclass(frozen=True, eq=False)
class FixedPart:
    """A model that begins with an untrained map: features that an engine may compute once per sample, and the rest."""

    features: Callable[[Tensor], Tensor]  # (s, *input) -> (s, *features), each sample by itself
    rest: "Model"  # takes the features; its flat vector is that of the whole model

    def of(self, inputs: Tensor) -> Tensor:
        """The features of many samples, some at a time."""
        with torch.no_grad():
            return torch.cat([self.features(part) for part in torch.split(inputs, _SAMPLES_AT_ONCE)])


def _draws_random_numbers(module: nn.Module) -> bool:
    """Whether a layer uses torch's own generator when it trains: dropout of any kind, and RReLU."""
    if isinstance(module, nn.RReLU):
        return True
    rate = (
        getattr(module, "p", 0) if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0)
    )
    return isinstance(rate, (int, float)) and rate > 0


@dataclass(frozen=True, eq=False)
class Model:
    """A network in two equal forms.

    `module`: the plain form, (s, *input) -> (s, outputs). `grouped`: G clients at once, each with parameters of its
    own: {name: (G, *shape)}, (G, s, *input) -> (G, s, outputs). Without a hand-written `grouped` form,
    `torch.func.vmap` of the module serves; any module without buffers will do.
    """

    name: str
    module: nn.Module
    grouped_form: Grouped | None = None
    convolutional: bool = False
    recurrent: bool = False
    init_scale: float = 1.0  # on the law of `init`
    takes_ids: bool = False  # inputs are int64 ids, not float32 numbers
    samples_at_once: int = 16384  # most samples of one forward pass without gradients: bounds memory
    clients_at_once: int = 1024  # most clients that train together, likewise
    fixed: FixedPart | None = None  # the same model in two parts, where it begins with an untrained map
    accelerated: FastCnn | None = None  # set only for the exact network that faster code computes

    def __post_init__(self) -> None:
        buffers = [name for name, _ in self.module.named_buffers()]
        if buffers:
            raise ConfigError(
                f"model {self.name} has buffers ({', '.join(buffers[:3])}), such as BatchNorm's running statistics: "
                "they would leave the client unclipped. Use GroupNorm or LayerNorm."
            )
        random = [
            name or type(part).__name__ for name, part in self.module.named_modules() if _draws_random_numbers(part)
        ]
        if random:
            raise ConfigError(
                f"model {self.name} draws random numbers while it trains ({', '.join(random[:3])}): clients would "
                "share one generator, and a report would depend on who else takes part. Set dropout to 0."
            )
        if not self.layers:
            raise ConfigError(f"model {self.name} has no parameters to train.")
        if self.fixed is not None and self.fixed.rest.num_parameters != self.num_parameters:
            raise ConfigError(
                f"model {self.name} has {self.num_parameters} parameters, and what follows its fixed features has "
                f"{self.fixed.rest.num_parameters}; both must be the same vector."
            )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Every parameter with its place in the flat vector."""
        layers, start = [], 0
        for name, parameter in self.module.named_parameters():
            layers.append(Layer(name, tuple(parameter.shape), start, start + parameter.numel()))
            start += parameter.numel()
        return tuple(layers)

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
        return {
            layer.name: vectors[..., layer.start : layer.stop].reshape(*lead, *layer.shape) for layer in self.layers
        }

    def flatten(self, parameters: Parameters) -> Tensor:
        """{name: (G, *shape)} -> (G, d)."""
        return torch.cat([parameters[layer.name].flatten(1) for layer in self.layers], dim=1)

    def grouped(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Outputs of G models on G batches: (G, s, *input) -> (G, s, outputs)."""
        if self.grouped_form is not None:
            return self.grouped_form(parameters, inputs)
        outputs: Tensor = vmap(self.single)(dict(parameters), inputs)
        return outputs

    def single(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Outputs of one model: (s, *input) -> (s, outputs).

        On CUDA a recurrent model is a group of one: cuDNN needs contiguous weights, which ours are not.
        """
        if self.recurrent and inputs.is_cuda and self.grouped_form is not None:
            group_of_one = {name: value[None] for name, value in parameters.items()}
            return self.grouped_form(group_of_one, inputs[None])[0]
        outputs: Tensor = functional_call(self.module, dict(parameters), (inputs,))
        return outputs

    def init(self, *, rng: Rng) -> Array:
        """A fresh random vector (d,), float32, that depends only on `rng`, never on data.

        Linear, convolutional and recurrent weights and biases: uniform within 1/sqrt(fan in), PyTorch's own default
        law. Embeddings: standard normal. Both times `init_scale`. Anything else (norm scales, say) keeps the value it
        has in `module`.
        """
        values = {name: value.detach().cpu().numpy() for name, value in self.module.named_parameters()}
        for prefix, part in self.module.named_modules():
            for name, parameter in part.named_parameters(recurse=False):
                drawn = _draw(part, tuple(parameter.shape), rng)
                if drawn is not None:
                    values[f"{prefix}.{name}" if prefix else name] = self.init_scale * drawn
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


def from_module(module: nn.Module, *, name: str | None = None) -> Model:
    """Any `nn.Module` a user brings, as a model. Batched over clients by `torch.func.vmap`."""
    return Model(name or type(module).__name__, module)
