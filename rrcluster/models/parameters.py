"""What a network must be to be trained privately, seen from its parameters and layers alone."""

import torch
from torch import nn

from rrcluster.errors import ConfigError

_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # of any number of dimensions


def check_parameters(name: str, module: nn.Module) -> None:
    """Refuse a network without trainable float32 numbers, and layers whose output mixes the samples of a batch."""
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ConfigError(f"model {name} has no parameters to train; give it at least one layer that has some.")
    if any(isinstance(value, nn.UninitializedParameter) for value in parameters.values()):
        raise ConfigError(f"model {name} has layers without a size yet; call it once on a sample before you pass it.")
    trained = {place: value for place, value in parameters.items() if value.requires_grad}
    if not trained:
        raise ConfigError(
            f"model {name} has {len(parameters)} parameters, all frozen; set requires_grad on those to train, a new "
            "last layer say."
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
