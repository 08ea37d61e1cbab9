"""Clip updates, and put them on an integer grid so that their sum is exact.

Norms are computed in float64. Clipped coordinates are rounded *towards zero* to multiples of a power of two, about
2^-30 of the clip: rounding can only shorten a vector, so the sensitivity is still the clip, and a sum of integers
does not depend on the order, the padding or the number of machines it was computed on.

Updates are numpy arrays, or torch tensors on any device, which nothing here waits for but `norms`: the same float64
operations either way, and what is done to a coordinate is the same product and the same rounding.
"""

import math
from typing import Any

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.types import Array

GRID_BITS = 30
SMALLEST_CLIP, LARGEST_CLIP = 1e-30, 1e30  # far from where squares underflow or overflow in float64
LARGEST_NORM = 1e150  # of an update; its square is finite, and clip / norm is far from where float64 loses digits
LARGEST_SUM = 2**62  # grid units in one coordinate of a sum: half of what an int64 holds
_MARGIN = 1 - 1e-6  # room for the rounding of the float64 norm itself


def check_clip(update_clip: float) -> None:
    """Refuse a clip at which float64 norms would under- or overflow and the bound would not hold."""
    checks.positive(update_clip=update_clip)
    if not SMALLEST_CLIP <= update_clip <= LARGEST_CLIP:
        raise ConfigError(
            f"update_clip = {update_clip:g} must lie between {SMALLEST_CLIP:g} and {LARGEST_CLIP:g}; scale the updates."
        )


def norms(updates: Any) -> Array:
    """(n,) L2 norms in float64; infinite where a coordinate is not finite or the norm is above `LARGEST_NORM`."""
    if not isinstance(updates, np.ndarray):
        size = norms_on_device(updates).cpu().numpy()
        return np.where(np.isfinite(size), size, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.sqrt(np.einsum("nd,nd->n", updates, updates, dtype=np.float64, casting="unsafe"))
    return np.where(size <= LARGEST_NORM, size, np.inf)


def norms_on_device(updates: Any) -> Any:
    """`norms` of a tensor, where it is; NaN or infinite where a coordinate is not finite. None of float32 is larger."""
    import torch

    size = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    return size if updates.dtype == torch.float32 else torch.where(size <= LARGEST_NORM, size, math.inf)


def check_sums_fit(num_messages: int, *, largest: float, update_clip: float, as_float: bool = False) -> None:
    """Refuse more messages than 64-bit sums hold; `largest` is the most that one adds to a coordinate.

    With `as_float` they must be exact as float64 numbers.
    """
    most = int((2**53 if as_float else LARGEST_SUM) * grid_step(update_clip) / max(largest, update_clip))
    if num_messages > most:
        raise ConfigError(
            f"sums of messages with coordinates up to {largest:g} hold {most} clients at most in 64 bits; lower "
            "count_weight, private_evaluation or num_clients."
        )


def grid_step(update_clip: float, bits: int = GRID_BITS) -> float:
    """The grid's step: a power of two, at most 2^-bits of the clip and more than half of that."""
    return float(2.0 ** (math.floor(math.log2(update_clip)) - bits))


def clip_to_grid(updates: Any, *, update_clip: float, known: Any = None) -> Any:
    """Scale each row to norm at most `update_clip` and round towards zero: (n, d) float -> (n, d) int64 grid units.

    Guarantee: for every finite row, ||row of the result|| * grid_step(update_clip) <= update_clip. A row whose norm is
    not finite becomes zero. A row is at most 2^31 units long (`check_sums_fit` says how many may be summed). `known`
    are `norms` of these very rows where the caller has them: the guarantee rests on them.

    >>> messages = clip_to_grid(np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0]]), update_clip=1.0)
    >>> (messages * grid_step(1.0)).round(3).tolist()
    [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]
    """
    check_clip(update_clip)
    if not isinstance(updates, np.ndarray):
        return _on_device(updates, norms_on_device(updates) if known is None else known, update_clip)
    size = norms(updates) if known is None else known
    usable = np.isfinite(size)
    with np.errstate(all="ignore"):
        factor = np.where(usable, np.minimum(1.0, update_clip * _MARGIN / size), 0.0)
    factor = np.where(size == 0, 1.0, factor) / grid_step(update_clip)
    rows = updates if usable.all() else np.where(usable[:, None], updates, 0.0)
    scaled = np.multiply(rows, factor[:, None], dtype=np.float64)
    return scaled.astype(np.int64)  # rounds towards zero


def _on_device(updates: Any, size: Any, update_clip: float) -> Any:
    """The same rounding where the updates are, in few operations: launching one takes longer than what it computes.

    A norm of 0 gives the factor 1, an infinite one 0, and one that is no number, none: coordinates that are not finite
    afterwards are 0, and so are the others of their row. The grid's step is a power of two, so dividing by it first
    changes no bit.
    """
    import torch

    step = grid_step(update_clip)
    longest = torch.tensor(update_clip * _MARGIN / step, dtype=torch.float64)  # a plain number would be rounded twice
    scale = torch.div(longest, size).clamp_(max=1.0 / step)
    scaled = torch.mul(updates, scale[:, None]).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return scaled.long()  # a product of float32 and float64 is float64, and whole numbers round towards zero


def coarsen(messages: Any, bits: int) -> Any:
    """Whole numbers in steps that are 2^bits as long, rounded towards zero: a row only gets shorter."""
    return (messages + ((1 << bits) - 1) * (messages < 0)) >> bits if bits else messages
