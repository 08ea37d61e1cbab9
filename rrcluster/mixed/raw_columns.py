"""Model columns of a table: ranges and indicators from clients' votes, and the map of values to columns.

A row is d values (NaN where a cell is missing or no number) and, where the table has texts, d codes (0, or 1 to H for
the hash bucket of a text). The model has for each column its value, and where clients voted for them an indicator of
"missing" and one for each bucket: a column of numbers alone stays one column.
"""

from dataclasses import dataclass

import numpy as np

from rrcluster.types import Array

_POWERS = 4.0 ** np.arange(-8, 13)
EDGES = np.concatenate([-_POWERS[::-1], _POWERS])  # edges of the coarse bins: 2^-16 to 2^24 and zero, by factors of 4
COARSE, FINE = len(EDGES) + 1, 32  # numbers of bins
ZERO_BIN = len(_POWERS)
LOG_OCTAVES = 3  # columns whose greatest values differ by so many coarse bins between clients are compressed
MOST_FULL = 40  # most columns with full second moments
MOST_VOTED = 120  # most columns with votes of their own; beyond, all share the votes on nonzero values
CUT_SIGMAS = 1.5  # standard errors of the votes that may be cut off either end of a range
# a bin or an indicator exists if votes exceed this share of clients and so many standard errors
LEAST_SHARE, LEAST_SIGMAS = 0.02, 4.0
SMALLEST = float(_POWERS[0])


def extreme_bins(values: Array, mask: Array, edges: Array) -> Array:
    """(n, 2, d) bins of each client's least and greatest value of every column, -1 where it has none.

    `values` (n, s, d), NaN where missing; `edges` (e,) for all columns or (d, e) for each.
    """
    present = np.isfinite(values) & mask[..., None]
    least = np.where(present, values, np.inf).min(axis=1, initial=np.inf)
    greatest = np.where(present, values, -np.inf).max(axis=1, initial=-np.inf)
    extremes = np.stack([least, greatest], axis=1)
    edges = np.broadcast_to(edges, (values.shape[2], edges.shape[-1]))
    bins = np.stack([np.searchsorted(edges[j], extremes[..., j]) for j in range(len(edges))], axis=-1)
    return np.asarray(np.where(np.isfinite(extremes), bins, -1))


def one_hot(bins: Array, size: int) -> Array:
    """(..., size) one-hot vectors of bins; all zero for -1."""
    return np.asarray(bins[..., None] == np.arange(size), dtype=np.float64)


@dataclass(frozen=True)
class Ranges:
    """The range of each of d columns, on the compressed scale where a column is compressed. Made of releases."""

    low: Array  # (d,)
    high: Array
    knee: Array  # magnitude above which a column is on a log scale; 0: linear

    def compressed(self, values: Array) -> Array:
        """(..., d) numbers on the scale of the ranges."""
        knee = np.where(self.knee > 0, self.knee, 1.0)
        return np.where(self.knee > 0, knee * np.arcsinh(values / knee), values)

    def scaled(self, values: Array) -> Array:
        """(..., d) numbers scaled to [-1, 1], clipped to the range; 0 where missing."""
        middle, half = (self.low + self.high) / 2, np.maximum((self.high - self.low) / 2, 1e-300)
        return np.nan_to_num(np.clip((self.compressed(values) - middle) / half, -1, 1), nan=0.0)

    @property
    def fine_edges(self) -> Array:
        """(d, FINE - 1) inner edges of equal bins of the ranges."""
        share = np.linspace(0, 1, FINE + 1)[1:-1]
        return np.asarray(self.low[:, None] + (self.high - self.low)[:, None] * share)

    def bins_of(self, wider: "Ranges") -> Array:
        """(d, FINE) the middles of a wider range's bins, on this range's scale."""
        share = (np.arange(FINE) + 0.5) / FINE
        values = wider.low[:, None] + (wider.high - wider.low)[:, None] * share
        middle, half = (self.low + self.high) / 2, np.maximum((self.high - self.low) / 2, 1e-300)
        return np.asarray(np.clip((values - middle[:, None]) / half[:, None], -1, 1))

    def refined(self, votes: Array, noise: float, clients: float) -> "Ranges":
        """The ranges without outer bins that hardly any client voted for; `votes` (2, d, FINE).

        Bins are cut off an end while the votes cut so far are few or within their noise.
        """
        either, width = votes.sum(axis=0), (self.high - self.low) / FINE
        few = LEAST_SHARE * clients + CUT_SIGMAS * noise * np.sqrt(2 * np.arange(1, FINE + 1))
        first, last = (
            np.minimum((np.cumsum(side, axis=1) <= few).cumprod(axis=1).sum(axis=1), FINE // 2 - 1)
            for side in (either, either[:, ::-1])
        )
        return Ranges(self.low + first * width, self.high - last * width, self.knee)


def outermost(votes: Array, noise: float, clients: float) -> tuple[Array, Array, Array]:
    """First and last bin of each column with enough votes, (d,) each, and which columns have any; (2, d, bins) votes.

    The full range where no bin has enough.
    """
    enough = votes > max(LEAST_SIGMAS * noise, LEAST_SHARE * clients)
    either, bins = enough[0] | enough[1], votes.shape[2]
    has_votes = either.any(axis=1)
    first = np.where(has_votes, either.argmax(axis=1), 0)
    last = np.where(has_votes, bins - 1 - either[:, ::-1].argmax(axis=1), bins - 1)
    return np.asarray(first), np.asarray(last), np.asarray(has_votes)


def coarse_ranges(votes: Array, noise: float, clients: float) -> Ranges:
    """Ranges from coarse votes (2, d, COARSE), in factors of 4; columns without enough votes share all votes."""
    first, last, has_votes = outermost(votes, noise, clients)
    pooled_noise = noise * np.sqrt(votes.shape[1])
    all_votes = votes.sum(axis=1, keepdims=True)
    all_votes[:, :, ZERO_BIN] = 0
    pooled = outermost(all_votes, pooled_noise, clients)
    if pooled[2][0]:  # zero always lies within the shared range
        first = np.where(has_votes, first, min(pooled[0][0], ZERO_BIN))
        last = np.where(has_votes, last, max(pooled[1][0], ZERO_BIN))
    else:
        first, last = np.where(has_votes, first, ZERO_BIN - 3), np.where(has_votes, last, ZERO_BIN + 3)
    either, columns = votes.sum(axis=0), np.arange(len(first))  # a bin next to the outermost needs fewer votes
    wider = either > max(LEAST_SHARE * clients, CUT_SIGMAS * noise * np.sqrt(2))
    first = np.where(has_votes & wider[columns, np.maximum(first - 1, 0)], np.maximum(first - 1, 0), first)
    last = np.where(
        has_votes & wider[columns, np.minimum(last + 1, COARSE - 1)], np.minimum(last + 1, COARSE - 1), last
    )
    lower, upper = np.concatenate([EDGES[:1] * 4, EDGES]), np.concatenate([EDGES, EDGES[-1:] * 4])
    low, high = lower[first], upper[last]
    ranges = Ranges(low, high, _knees(votes, noise, clients, has_votes))
    return Ranges(ranges.compressed(low), ranges.compressed(high), ranges.knee)


def _knees(votes: Array, noise: float, clients: float, has_votes: Array) -> Array:
    """(d,) knees of columns whose largest numbers differ by factors of 64 or more between clients.

    The lower quartile of clients counts as the least: of any column around zero a few clients have tiny numbers alone.
    """
    enough = votes > max(LEAST_SIGMAS * noise, LEAST_SHARE * clients)
    size = np.abs(np.arange(COARSE) - ZERO_BIN)  # a bin's magnitude in factors of 4
    outward = np.stack([enough[0] & (np.arange(COARSE) < ZERO_BIN), enough[1] & (np.arange(COARSE) > ZERO_BIN)])
    largest = np.where(outward, size, 0).max(axis=(0, 2))
    smallest = np.where(outward, size, COARSE).min(axis=(0, 2))
    by_size = np.stack([np.where(outward & (size == s), votes, 0).sum(axis=(0, 2)) for s in range(size.max() + 1)])
    quartile = (by_size.cumsum(axis=0) < 0.25 * by_size.sum(axis=0)).sum(axis=0)
    wide = has_votes & (largest - quartile >= LOG_OCTAVES)
    return np.where(wide, 4.0 ** (np.minimum(smallest, len(_POWERS)) - 9.0), 0.0)


def indicators(values: Array, codes: Array, buckets: int) -> Array:
    """(..., d, 1 + H) indicators of a missing cell and of its bucket."""
    missing = (codes == 0) & ~np.isfinite(values)
    return np.concatenate([missing[..., None].astype(np.float64), one_hot(codes - 1, buckets)], axis=-1)
