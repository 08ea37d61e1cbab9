"""Clip updates, and put them on an integer grid so that their sum is exact.

Norms are computed in float64. Clipped coordinates are rounded *towards zero* to multiples of a power of two, about
2^-30 of the clip: rounding can only shorten a vector, so the sensitivity is still the clip, and a sum of integers does
not depend on order, padding or number of machines.

Updates are numpy arrays, or torch tensors on any device; only `norms` waits for a device. Both use the same float64
operations: each coordinate has the same product and the same rounding.
"""

import math
from typing import Any

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.types import Array

GRID_BITS = 30
SMALLEST_CLIP, LARGEST_CLIP = 1e-30, 1e30  # far from under- and overflow of squares in float64
LARGEST_NORM = 1e150  # of an update; its square is finite, and clip / norm keeps float64 precision
LARGEST_SUM = 2**62  # grid units in one coordinate of a sum: half the range of int64
_MARGIN = 1 - 1e-6  # allowance for the rounding of the float64 norm


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
    """`norms` of a tensor, on its device; NaN or infinite where a coordinate is not finite.

    None of float32 is larger.
    """
    import torch

    size = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    return size if updates.dtype == torch.float32 else torch.where(size <= LARGEST_NORM, size, math.inf)


def check_sums_fit(num_messages: int, *, largest: float, update_clip: float, as_float: bool = False) -> None:
    """Refuse more messages than 64-bit sums can add; `largest` bounds a message's coordinates.

    With `as_float` sums must be exact as float64 numbers.
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
    not finite becomes zero. A row is at most 2^31 units long (`check_sums_fit` bounds the number of rows in a sum).
    `known` are `norms` of these very rows, if already computed: the guarantee relies on them.

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
    """The same rounding on the updates' device, in few operations, since each launch is slower than its computation.

    A norm of 0 gives the factor 1, an infinite one 0, and NaN gives NaN: coordinates that are not finite afterwards
    become 0, and so do the others of their row. The grid's step is a power of two, so dividing by it first changes no
    bit.
    """
    import torch

    step = grid_step(update_clip)
    longest = torch.tensor(update_clip * _MARGIN / step, dtype=torch.float64)  # a Python float would be rounded twice
    scale = torch.div(longest, size).clamp_(max=1.0 / step)
    scaled = torch.mul(updates, scale[:, None]).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return scaled.long()  # float32 times float64 is float64, and long() rounds towards zero


def coarsen(messages: Any, bits: int) -> Any:
    """Integers in steps 2^bits times as long, rounded towards zero: rows only get shorter."""
    return (messages + ((1 << bits) - 1) * (messages < 0)) >> bits if bits else messages
