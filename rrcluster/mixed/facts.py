"""What the releases have established so far: ranges, the map to columns, centres, models. Public."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from rrcluster.mixed.raw_columns import MOST_FULL, Ranges, indicators
from rrcluster.types import Array

WIDEST = 4.0  # columns are cut off at so many standard deviations
ROWS_CLIP, MEANS_CLIP = 0.6, 0.5  # clips of second moments, relative to the number of columns within [-1, 1]


def _unknown() -> Array:
    return np.zeros(0)


@dataclass(frozen=True)
class Facts:
    """Arrays made of releases; an empty one has not been released yet.

    `active` lists the columns that exist among all possible ones. A client's mean columns along `axes` have variance 1
    over clients. Models are weights of uncorrelated columns, the intercept first.
    """

    low: Array = field(default_factory=_unknown)  # of d columns, and of a numeric target
    high: Array = field(default_factory=_unknown)
    knee: Array = field(default_factory=_unknown)
    density: Array = field(default_factory=_unknown)  # (1,) share of a row's numbers that are nonzero
    active: Array = field(default_factory=_unknown)  # (a,) places of the columns that exist
    middle: Array = field(default_factory=_unknown)  # (a,) approximate means, from votes
    reach: Array = field(default_factory=_unknown)  # (a, 2) mean squares of rows and of clients' means about `middle`
    centre: Array = field(default_factory=_unknown)  # (a,) their means
    scale: Array = field(default_factory=_unknown)  # (a,) their standard deviations
    whiten: Array = field(default_factory=_unknown)  # (a, a) the map to uncorrelated columns, if any
    target: Array = field(default_factory=_unknown)  # (2,) mean and standard deviation of a numeric target
    length: Array = field(default_factory=_unknown)  # (1,) mean squared length of a row
    axes: Array = field(default_factory=_unknown)  # (a, r) directions in which clients differ
    # (2 + 3 + ..., r) cluster centres for every candidate number of clusters
    centres: Array = field(default_factory=_unknown)
    first: Array = field(default_factory=_unknown)  # (1 + 2 + ..., l, p) models of the first training
    second: Array = field(default_factory=_unknown)  # (k, l, p) models of the second
    chosen: Array = field(default_factory=_unknown)  # (k, size of intercepts, size of slopes)
    start: Array = field(default_factory=_unknown)  # (2 k, l, p) initial weights of a resumed run, then their bases

    def tensors(self) -> dict[str, Array]:
        """The arrays by name."""
        return {part.name: np.asarray(getattr(self, part.name), dtype=np.float64) for part in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "Facts":
        """The inverse of `tensors`."""
        names = [part.name for part in fields(cls) if part.name in tensors]
        return cls(**{name: np.asarray(tensors[name], dtype=np.float64) for name in names})

    @property
    def full(self) -> bool:
        """Whether there are few enough columns to release all second moments."""
        return len(self.active) <= MOST_FULL

    @property
    def moment_clips(self) -> tuple[float, float]:
        """Clips of second moments about the middles, of a client's rows and of its mean row: their usual length."""
        largest = 1.0 + len(self.active)
        rows, means = self.reach.sum(axis=0).tolist()
        return min(math.sqrt(2 * rows + rows**2), ROWS_CLIP * largest), min(2 * means, MEANS_CLIP * largest)

    @property
    def sparse_clip(self) -> float:
        """Clip of means and mean squares, where there are too many columns for all second moments."""
        return 1.5 * math.sqrt(max(len(self.active) * self.density.item(), 1.0))

    @property
    def ranges(self) -> Ranges:
        """The ranges of all columns, and of the target."""
        return Ranges(self.low, self.high, self.knee)

    def of_family(self, k: int, families: tuple[int, ...], values: Array) -> Array:
        """The rows of `centres` (families without 1) or of `first` for k clusters."""
        start = sum(other for other in families if other < k)
        return values[start : start + k]

    def columns_of(self, values: Array, codes: Array | None, mask: Array, *, buckets: int) -> Array:
        """(n, s, a) the existing columns, each within [-1, 1]; zero for empty cells and in padded rows."""
        d = values.shape[-1]
        numbers = Ranges(self.low[:d], self.high[:d], self.knee[:d]).scaled(values)
        active = self.active.astype(np.int64)
        if not (active >= d).any():
            columns = numbers if len(active) == d else numbers[..., active]
        else:
            assert codes is not None
            flags = indicators(values, codes, buckets)
            place = np.divmod(active[active >= d] - d, 1 + buckets)
            columns = np.concatenate([numbers[..., active[active < d]], flags[..., place[0], place[1]]], axis=-1)
        return np.ascontiguousarray(columns * mask[..., None])

    def standardised(self, columns: Array, mask: Array) -> Array:
        """(n, s, 1 + a) a one and the columns with mean 0 and variance 1, cut off; zero in padded rows."""
        clipped = np.clip((columns - self.centre) / self.scale, -WIDEST, WIDEST)
        return np.ascontiguousarray(
            np.concatenate([np.ones_like(clipped[..., :1]), clipped], axis=-1) * mask[..., None]
        )

    def correlated(self, weights: Array) -> Array:
        """(n, l, p) weights for uncorrelated columns -> weights for standardised columns."""
        if not self.whiten.size:
            return weights
        turned = np.stack([weight[:, 1:] @ self.whiten for weight in weights]) if len(weights) else weights[..., 1:]
        return np.concatenate([weights[..., :1], turned], axis=-1)  # the map is symmetric

    def uncorrelated(self, weights: Array) -> Array:
        """(n, l, p) the inverse of `correlated`."""
        if not self.whiten.size:
            return weights
        return np.concatenate([weights[..., :1], np.linalg.solve(self.whiten, weights[..., 1:, None])[..., 0]], axis=-1)

    def described(self, columns: Array, mask: Array) -> Array:
        """(n, r) coordinates of each client's mean row along the axes."""
        rows = np.maximum(mask.sum(axis=1), 1)
        mean = columns[..., 1:].sum(axis=1) / rows[:, None]
        # a matrix product would round differently with the other clients of the batch
        return np.asarray((mean[:, :, None] * self.axes).sum(axis=1))

    def nearest(self, described: Array, k: int, families: tuple[int, ...]) -> Array:
        """(n,) the cluster of each client among k."""
        if k == 1:
            return np.zeros(len(described), dtype=np.int64)
        centres = self.of_family(k, tuple(f for f in families if f > 1), self.centres)
        apart = described[:, None, :] - centres
        return np.asarray((apart * apart).sum(axis=2).argmin(axis=1))
