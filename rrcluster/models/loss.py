"""Per-sample losses: cross-entropy for classes, squared error for numbers."""

import torch
from torch import Tensor, nn


def sample_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """(..., outputs), (...) -> (...). Integer targets are classes, floating ones are numbers to regress on."""
    if targets.is_floating_point():
        return (outputs.squeeze(-1) - targets) ** 2
    flat = nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return flat.reshape(targets.shape)


def masked_mean(losses: Tensor, present: Tensor) -> Tensor:
    """Mean over the last axis of the entries that are present, 0 where there are none: (..., s), (..., s) -> (...).

    Padding is excluded by `where`, never by multiplying: a NaN in the padding does not pass.
    """
    total = torch.where(present, losses, 0.0).sum(-1)
    return total / present.sum(-1).clamp(min=1)
