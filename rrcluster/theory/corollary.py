"""The corollary over T rounds: how many rounds, how small the error, how likely.

A round shrinks the error by the factor 1 - K and adds at most epsilon; summed up, epsilon / K remains.
"""

import math
from dataclasses import dataclass

from rrcluster.theory.round import RoundBound, one_round, one_round_printed
from rrcluster.theory.setting import Setting


@dataclass(frozen=True)
class RunBound:
    """With probability at least 1 - failure_probability every model is within `final_error` after `num_rounds`."""

    rate: float  # K
    floor: float  # epsilon of one round
    num_rounds: float  # T; whole in the corrected form, and not even positive for certain in the printed one
    final_error: float  # epsilon_T = 2 epsilon / K
    failure_probability: float  # k T delta_c


def many_rounds_printed(setting: Setting) -> RunBound:
    """The corollary as printed: K and epsilon of the printed theorem, T with a stray Delta in its second part."""
    bound = one_round_printed(setting)
    return _run(setting, bound, rounds_printed(setting, rate=1 - bound.contraction, floor=bound.floor))


def many_rounds(setting: Setting) -> RunBound:
    """The corollary as corrected (Corollary 3 of docs/theory.md): K = gamma lambda (1 - w)."""
    bound = one_round(setting)
    return _run(setting, bound, rounds(setting, rate=1 - bound.contraction, floor=bound.floor))


def rounds_printed(setting: Setting, *, rate: float, floor: float) -> float:
    """log(Delta sqrt(lambda) / (2 eps_T sqrt(L))) / K + log(Delta sqrt(lambda) / (8 (1/2 - a) sqrt(L))) / log(1 - K).

    The second Delta does not cancel as it should: T depends on the unit of length, and is negative for a large Delta.
    NaN where K is outside (0, 1).
    """
    if not 0 < rate < 1 or floor == math.inf:
        return math.nan
    root = math.sqrt(setting.strong_convexity / setting.smoothness)
    final = 2 * floor / rate
    first = math.inf if final == 0 else math.log(setting.separation * root / (2 * final)) / rate
    second = math.log(setting.separation * root / (8 * (0.5 - setting.margin))) / math.log1p(-rate)
    return first + second


def rounds(setting: Setting, *, rate: float, floor: float) -> float:
    """The least whole T with (1 - K)^T radius <= epsilon / K; NaN if K is outside (0, 1], infinite without a floor."""
    if not 0 < rate <= 1 or floor == math.inf:
        return math.nan
    if rate == 1:
        return 1.0
    if floor == 0:
        return math.inf
    return float(max(0, math.ceil(math.log(floor / (rate * setting.radius)) / math.log1p(-rate))))


def error_at(setting: Setting, round_index: int) -> float:
    """The corrected bound after `round_index` rounds, on all clusters, with probability 1 - k round_index delta_c."""
    bound = one_round(setting)
    left = bound.contraction**round_index
    return left * setting.radius + bound.floor * (1 - left) / (1 - bound.contraction)


def _run(setting: Setting, bound: RoundBound, num_rounds: float) -> RunBound:
    rate = 1 - bound.contraction
    return RunBound(
        rate=rate,
        floor=bound.floor,
        num_rounds=num_rounds,
        final_error=2 * bound.floor / rate if rate > 0 else math.inf,
        failure_probability=setting.num_clusters * num_rounds * setting.failure_probability,
    )
