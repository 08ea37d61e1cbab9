"""Columns of a table as a model sees them: what votes of clients say of ranges, missing cells and texts, and the map.

A row is d values (NaN where a cell is missing or no number) and, where the table has texts, d codes (0, or 1 to H for
the hash bucket of a text). The model has for each column its value, and where clients voted for them an indicator of
"missing" and one for each bucket: a column of numbers alone stays one column.
"""

from dataclasses import dataclass

import numpy as np

from rrcluster.types import Array

_POWERS = 4.0 ** np.arange(-8, 13)
EDGES = np.concatenate([-_POWERS[::-1], _POWERS])  # of the coarse bins: 2^-16 to 2^24 and zero, by factors of 4
COARSE, FINE = len(EDGES) + 1, 32  # bins
ZERO_BIN = len(_POWERS)
LOG_OCTAVES = 3  # bins apart that clients' greatest values lie, from which a column is compressed
MOST_FULL = 40  # columns with full second moments
MOST_VOTED = 120  # columns with votes of their own; with more, all share the votes of those that are not zero
CUT_SIGMAS = 1.5  # of the noise of votes, that may be cut off an end of a range
LEAST_SHARE, LEAST_SIGMAS = 0.02, 4.0  # of clients, or of the noise, that make a bin or an indicator exist
SMALLEST = float(_POWERS[0])


def extreme_bins(values: Array, mask: Array, edges: Array) -> Array:
    """(n, 2, d) bins of each client's least and greatest value of every column, -1 where it has none.

    `values` (n, s, d) with NaN for none, `edges` (e,) for all columns or (d, e) for each.
    """
    present = np.isfinite(values) & mask[..., None]
    least = np.where(present, values, np.inf).min(axis=1, initial=np.inf)
    greatest = np.where(present, values, -np.inf).max(axis=1, initial=-np.inf)
    both = np.stack([least, greatest], axis=1)
    edges = np.broadcast_to(edges, (values.shape[2], edges.shape[-1]))
    bins = np.stack([np.searchsorted(edges[j], both[..., j]) for j in range(len(edges))], axis=-1)
    return np.asarray(np.where(np.isfinite(both), bins, -1))


def one_hot(bins: Array, size: int) -> Array:
    """(..., size) one in the place of each bin; nothing for -1."""
    return np.asarray(bins[..., None] == np.arange(size), dtype=np.float64)


@dataclass(frozen=True)
class Ranges:
    """Of each of d columns: where its numbers lie, after compression if it is compressed. Made of releases."""

    low: Array  # (d,)
    high: Array
    knee: Array  # from which size on a column is compressed to its logarithm; 0: it is not

    def compressed(self, values: Array) -> Array:
        """(..., d) numbers on the scale of the ranges."""
        knee = np.where(self.knee > 0, self.knee, 1.0)
        return np.where(self.knee > 0, knee * np.arcsinh(values / knee), values)

    def scaled(self, values: Array) -> Array:
        """(..., d) numbers in [-1, 1] within the range, cut off outside; 0 for none."""
        middle, half = (self.low + self.high) / 2, np.maximum((self.high - self.low) / 2, 1e-300)
        return np.nan_to_num(np.clip((self.compressed(values) - middle) / half, -1, 1), nan=0.0)

    @property
    def fine_edges(self) -> Array:
        """(d, FINE - 1) inner edges of equal bins of the ranges."""
        share = np.linspace(0, 1, FINE + 1)[1:-1]
        return np.asarray(self.low[:, None] + (self.high - self.low)[:, None] * share)

    def bins_of(self, wider: "Ranges") -> Array:
        """(d, FINE) the middles of a wider range's bins as they are scaled by this one."""
        share = (np.arange(FINE) + 0.5) / FINE
        values = wider.low[:, None] + (wider.high - wider.low)[:, None] * share
        middle, half = (self.low + self.high) / 2, np.maximum((self.high - self.low) / 2, 1e-300)
        return np.asarray(np.clip((values - middle[:, None]) / half[:, None], -1, 1))

    def refined(self, votes: Array, noise: float, clients: float) -> "Ranges":
        """The ranges without outer bins that next to no client voted for; `votes` (2, d, FINE).

        Bins are cut off an end as long as all votes there are few, or no more than their noise.
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

    Where no bin has enough, the whole range.
    """
    enough = votes > max(LEAST_SIGMAS * noise, LEAST_SHARE * clients)
    either, bins = enough[0] | enough[1], votes.shape[2]
    known = either.any(axis=1)
    first = np.where(known, either.argmax(axis=1), 0)
    last = np.where(known, bins - 1 - either[:, ::-1].argmax(axis=1), bins - 1)
    return np.asarray(first), np.asarray(last), np.asarray(known)


def coarse_ranges(votes: Array, noise: float, clients: float) -> Ranges:
    """The ranges that coarse votes say, (2, d, COARSE): factors of 4. Columns without enough votes share all votes."""
    first, last, known = outermost(votes, noise, clients)
    pooled_noise = noise * np.sqrt(votes.shape[1])
    all_votes = votes.sum(axis=1, keepdims=True)
    all_votes[:, :, ZERO_BIN] = 0
    pooled = outermost(all_votes, pooled_noise, clients)
    if pooled[2][0]:  # zero is within what all columns share
        first = np.where(known, first, min(pooled[0][0], ZERO_BIN))
        last = np.where(known, last, max(pooled[1][0], ZERO_BIN))
    else:
        first, last = np.where(known, first, ZERO_BIN - 3), np.where(known, last, ZERO_BIN + 3)
    either, columns = votes.sum(axis=0), np.arange(len(first))  # a bin beside the outermost needs fewer votes
    wider = either > max(LEAST_SHARE * clients, CUT_SIGMAS * noise * np.sqrt(2))
    first = np.where(known & wider[columns, np.maximum(first - 1, 0)], np.maximum(first - 1, 0), first)
    last = np.where(known & wider[columns, np.minimum(last + 1, COARSE - 1)], np.minimum(last + 1, COARSE - 1), last)
    lower, upper = np.concatenate([EDGES[:1] * 4, EDGES]), np.concatenate([EDGES, EDGES[-1:] * 4])
    low, high = lower[first], upper[last]
    ranges = Ranges(low, high, _knees(votes, noise, clients, known))
    return Ranges(ranges.compressed(low), ranges.compressed(high), ranges.knee)


def _knees(votes: Array, noise: float, clients: float, known: Array) -> Array:
    """(d,) the size from which a column is compressed: where clients' largest numbers differ by factors of 64."""
    enough = votes > max(LEAST_SIGMAS * noise, LEAST_SHARE * clients)
    size = np.abs(np.arange(COARSE) - ZERO_BIN)  # of a bin's numbers, in factors of 4; 0: zero
    outward = np.stack([enough[0] & (np.arange(COARSE) < ZERO_BIN), enough[1] & (np.arange(COARSE) > ZERO_BIN)])
    largest = np.where(outward, size, 0).max(axis=(0, 2))
    smallest = np.where(outward, size, COARSE).min(axis=(0, 2))
    wide = known & (largest - smallest >= LOG_OCTAVES)
    return np.where(wide, 4.0 ** (np.minimum(smallest, len(_POWERS)) - 9.0), 0.0)


def indicators(values: Array, codes: Array, buckets: int) -> Array:
    """(..., d, 1 + H) whether a cell is missing, and its bucket."""
    missing = (codes == 0) & ~np.isfinite(values)
    return np.concatenate([missing[..., None].astype(np.float64), one_hot(codes - 1, buckets)], axis=-1)
