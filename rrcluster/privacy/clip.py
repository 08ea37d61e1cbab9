"""Clip updates, and put them on an integer grid so that their sum is exact.

Norms are computed in float64. Clipped coordinates are rounded *towards zero* to multiples of a power of two, about
2^-30 of the clip: rounding can only shorten a vector, so the sensitivity is still the clip, and a sum of integers
does not depend on the order, the padding or the number of machines it was computed on.

Updates are numpy arrays, or torch tensors on any device: norms and factors are float64 on the host either way, and what
is done to a coordinate is the same product and the same rounding.
"""

import math
from typing import Any

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.types import Array

GRID_BITS = 30
SMALLEST_CLIP, LARGEST_CLIP = 1e-30, 1e30  # far from where squares underflow or overflow in float64
LARGEST_COHORT = 2**30  # sums of this many clipped rows fit an int64 twice over
_MARGIN = 1 - 1e-6  # room for the rounding of the float64 norm itself


def check_clip(update_clip: float) -> None:
    """Refuse a clip at which float64 norms would under- or overflow and the bound would not hold."""
    checks.positive(update_clip=update_clip)
    if not SMALLEST_CLIP <= update_clip <= LARGEST_CLIP:
        raise ConfigError(
            f"update_clip = {update_clip:g} must lie between {SMALLEST_CLIP:g} and {LARGEST_CLIP:g}; scale the updates."
        )


def norms(updates: Any) -> Array:
    """(n,) L2 norms in float64; not finite where a coordinate is not finite or the square overflows."""
    if not isinstance(updates, np.ndarray):
        import torch

        return np.asarray(torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64).cpu().numpy())
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.einsum("nd,nd->n", updates, updates, dtype=np.float64, casting="unsafe")))


def grid_step(update_clip: float) -> float:
    """The grid's step: a power of two, at most 2^-30 of the clip."""
    return float(2.0 ** (math.floor(math.log2(update_clip)) - GRID_BITS))


def clip_to_grid(updates: Any, *, update_clip: float, known: Array | None = None) -> Any:
    """Scale each row to norm at most `update_clip` and round towards zero: (n, d) float -> (n, d) int64 grid units.

    Guarantee: for every finite row, ||row of the result|| * grid_step(update_clip) <= update_clip. A row whose norm is
    not finite becomes zero. A row is at most 2^31 units long, so sums of 2^31 rows cannot overflow. `known` are `norms`
    of these very rows where the caller has them: the guarantee rests on them.
    """
    check_clip(update_clip)
    size = norms(updates) if known is None else known
    usable = np.isfinite(size)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(usable, np.minimum(1.0, update_clip * _MARGIN / size), 0.0)
    factor = np.where(size == 0, 1.0, factor) / grid_step(update_clip)
    if not isinstance(updates, np.ndarray):
        return _on_device(updates, usable, factor)
    rows = updates if usable.all() else np.where(usable[:, None], updates, 0.0)
    scaled = np.multiply(rows, factor[:, None], dtype=np.float64)
    return scaled.astype(np.int64)  # rounds towards zero


def _on_device(updates: Any, usable: Array, factor: Array) -> Any:
    """The same rounding where the updates are."""
    import torch

    if not usable.all():
        updates = torch.where(torch.as_tensor(usable, device=updates.device)[:, None], updates, 0.0)
    scale = torch.as_tensor(factor, device=updates.device)[:, None]
    return (updates * scale).long()  # a product of float32 and float64 is float64, and whole numbers round towards zero
