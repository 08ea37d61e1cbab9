"""Paired t-tests of two methods over seeds: both have the same clients, partition and first models per seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rrcluster.paper.read_reproduction import MeasuredColumn, Reproduced
from rrcluster.report.estimate import Estimate, estimate

LEVEL = 0.05


@dataclass(frozen=True)
class PairedDifference:
    """A mean difference, positive where the first method is better, and one-sided p-values of no difference."""

    difference: Estimate
    p_higher: float
    p_lower: float


def compare(better: Mapping[int, float], worse: Mapping[int, float], *, measure: str) -> PairedDifference | None:
    """The difference over the seeds that both have; None with fewer than two of them. A loss is better when lower."""
    sign = -1.0 if measure == "loss" else 1.0
    differences = [sign * (better[seed] - worse[seed]) for seed in sorted(better) if seed in worse]
    mean = estimate(differences)
    if mean is None or mean.count < 2:
        return None
    p_higher = _p_value(differences)
    return PairedDifference(mean, p_higher, 1.0 - p_higher)


def compare_rows(
    reproduced: Reproduced, pair: tuple[str, str], column: MeasuredColumn, mechanism: str, measure: str | None = None
) -> PairedDifference | None:
    """The difference of two rows in one column; None where one of them has too few runs."""
    first, second = reproduced.row(pair[0]), reproduced.row(pair[1])
    if first is None or second is None:
        return None
    one, two = (reproduced.values(row, column, mechanism, measure) for row in (first, second))
    return compare(one, two, measure=measure or reproduced.measure)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's method, which bounds the probability of any false positive."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _p_value(differences: Sequence[float]) -> float:
    """P(T >= t) for the paired t statistic; by the sign alone if all differences are equal."""
    from scipy.special import stdtr

    n = len(differences)
    mean = math.fsum(differences) / n
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (n - 1))
    if spread == 0:
        return 0.5 if mean == 0 else float(mean < 0)
    return float(stdtr(n - 1, -mean / (spread / math.sqrt(n))))
