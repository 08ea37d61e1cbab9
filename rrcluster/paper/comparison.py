"""Is one method better than another? Paired by seed: both had the same clients, partition and start."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rrcluster.paper.read_reproduction import Column, Reproduced
from rrcluster.report.estimate import Estimate, estimate

LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """A paired difference, positive where the first is better, and how likely as much is by chance.

    `p_higher`, `p_lower`: one-sided paired t-tests against no difference.
    """

    difference: Estimate
    p_higher: float
    p_lower: float


def compare(better: Mapping[int, float], worse: Mapping[int, float], *, measure: str) -> Comparison | None:
    """The comparison over the seeds that both have; None with fewer than two of them. A loss is better when lower."""
    sign = -1.0 if measure == "loss" else 1.0
    differences = [sign * (better[seed] - worse[seed]) for seed in sorted(better) if seed in worse]
    mean = estimate(differences)
    if mean is None or mean.count < 2:
        return None
    p_higher = _p_value(differences)
    return Comparison(mean, p_higher, 1.0 - p_higher)


def cell(
    it: Reproduced, pair: tuple[str, str], column: Column, mechanism: str, measure: str | None = None
) -> Comparison | None:
    """Two rows compared in one column; None where one of them has no answer there."""
    first, second = it.row(pair[0]), it.row(pair[1])
    if first is None or second is None:
        return None
    one, two = (it.values(row, column, mechanism, measure) for row in (first, second))
    return compare(one, two, measure=measure or it.measure)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's method: with those below a level, the chance of any mistake stays below it."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _p_value(differences: Sequence[float]) -> float:
    """P(T >= t) for the paired t statistic; differences without spread are decided by their sign."""
    from scipy.special import stdtr

    n = len(differences)
    mean = math.fsum(differences) / n
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (n - 1))
    if spread == 0:
        return 0.5 if mean == 0 else float(mean < 0)
    return float(stdtr(n - 1, -mean / (spread / math.sqrt(n))))
