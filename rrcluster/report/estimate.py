"""Means over seeds with confidence intervals."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` seeds with the half width of its 95% t-interval (None for a single seed)."""

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean itself when there is none."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean itself when there is none."""
        return self.mean + (self.half_width or 0.0)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Mean and t-interval of the values that are not None; None if there are none.

    Half width: t(0.975, n - 1) s / sqrt(n), with the sample standard deviation s (n - 1 in its denominator).
    """
    present = [value for value in values if value is not None]
    n = len(present)
    if n == 0:
        return None
    mean = math.fsum(present) / n
    if n == 1:
        return Estimate(mean, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in present) / (n - 1))
    return Estimate(mean, _quantile(n - 1) * deviation / math.sqrt(n), n)


def clear_best(estimates: list[Estimate]) -> int | None:
    """The index of the largest mean if its interval lies above all others, else None.

    None also with fewer than two estimates, or if one of them has no interval.
    """
    if len(estimates) < 2 or any(entry.half_width is None for entry in estimates):
        return None
    best = max(range(len(estimates)), key=lambda place: estimates[place].mean)
    others = [entry.high for place, entry in enumerate(estimates) if place != best]
    return best if estimates[best].low > max(others) else None


def _quantile(degrees: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
