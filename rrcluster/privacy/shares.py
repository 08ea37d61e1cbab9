"""Noise made by the clients: each adds a discrete Gaussian share to its message, and nobody knows the sum's noise.

**Proposition** (docs/secure-aggregation.md). Let a sum hold messages of norm at most S and shares of parameter
`share_sigma` from at least `least_honest` clients that follow the protocol. Then towards everybody else, the server
included, its noise is that of one discrete Gaussian of std at least `noise_std`, up to a factor of
1 +- 8 h exp(-40000) on every probability: Proposition 4 and the accountants carry over. The relation is *zero-out*: the
neighbour takes part with a zero message and its share. Add-remove does not hold, since an absent client's share is
absent too, and the noise level of many coordinates shows how many there were.

Shares are calibrated to the clients that must be honest, never to those that happen to take part: more of them make
the noise larger than claimed, and fewer than agreed on are never unmasked (secagg/terms.py).
"""

import math

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.privacy.discrete import LEAST_SIGMA, grid_sigma

SUM_BITS = 32  # of a word of a secure aggregation: sums are whole numbers modulo 2^32
FINEST_GRID, COARSEST_GRID = 20, 14  # bits of the clip: finer gains nothing, coarser loses a percent of an update
_DEVIATIONS = 16  # of the noise, within which sums must not wrap


def share_sigma(noise_std: float, step: float, *, least_honest: int) -> int:
    """The parameter of one client's share in grid steps: h shares have at least the variance of `grid_sigma`.

    ConfigError below 64 steps, where a sum of shares is no longer one discrete Gaussian for all purposes.
    """
    checks.count(least_honest=least_honest)
    total = grid_sigma(noise_std, step)
    sigma = math.isqrt((total**2 - 1) // least_honest) + 1
    if sigma < LEAST_SIGMA:
        raise ConfigError(
            f"noise shares of {sigma} grid steps are too coarse for {least_honest} clients, {LEAST_SIGMA} at least are "
            "needed; use a finer grid."
        )
    return sigma


def bits_needed(*, num_messages: int, largest: int, sigma: int, num_shares: int) -> int:
    """Bits of a signed word that holds any sum of messages with coordinates up to `largest`, and 16 std of noise."""
    most = num_messages * largest + math.ceil(_DEVIATIONS * sigma * math.sqrt(num_shares))
    return most.bit_length() + 1


def finest_grid(*, num_messages: int, longest: float, noise_std: float, least_honest: int, num_shares: int) -> int:
    """The most grid bits, up to 20, whose sums fit 32-bit words; `longest` and `noise_std` are in units of the clip.

    ConfigError where only grids coarser than 14 bits fit: rounding would cost more than a percent of an update.
    """
    for bits in range(FINEST_GRID, COARSEST_GRID - 1, -1):
        step = 2.0 ** -(bits + 1)  # a step is more than half of 2^-bits of the clip
        sigma = share_sigma(noise_std, step, least_honest=least_honest)
        largest = math.ceil(longest / step)
        if bits_needed(num_messages=num_messages, largest=largest, sigma=sigma, num_shares=num_shares) <= SUM_BITS:
            return bits
    raise ConfigError(
        f"sums of {num_messages} messages do not fit {SUM_BITS} bits on a grid of {COARSEST_GRID} bits or finer; lower "
        "num_clients, count_weight or private_evaluation, or ask for less noise."
    )
