"""Sum messages per block, and turn noisy sums and sizes into a release."""

from typing import Any

import numpy as np

from rrcluster.entropy import check_secure
from rrcluster.privacy.discrete import discrete_gaussian, grid_sigma
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, NoisyEvaluation, Release


def cluster_sums(messages: Any, assignment: Array, *, num_clusters: int) -> Any:
    """Sum the rows of `messages` per cluster: (n, d) -> (k, d). Empty clusters give zero rows, never fewer rows.

    Messages on a device are integers, so that their order cannot matter; the sums stay on it.
    """
    if not isinstance(messages, np.ndarray):
        import torch

        sums = messages.new_zeros(num_clusters, messages.shape[1])
        rows = torch.as_tensor(assignment).to(messages.device, non_blocking=True)  # does not wait for the messages
        return sums.index_add_(0, rows, messages)
    return np.stack([messages[assignment == cluster].sum(axis=0) for cluster in range(num_clusters)])


def on_host(*parts: Any) -> tuple[Array, ...]:
    """Arrays of tensors of 64-bit numbers, fetched together so that a device is waited for once."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return parts
    import torch

    fetched = torch.cat([part.reshape(-1).view(torch.int64) for part in parts]).cpu().numpy()
    places = np.cumsum([part.numel() for part in parts])[:-1]
    kinds = [np.float64 if part.is_floating_point() else np.int64 for part in parts]
    split = zip(np.split(fetched, places), parts, kinds, strict=True)
    return tuple(numbers.view(kind).reshape(part.shape) for numbers, part, kind in split)


def grid_noise(count: int, *, noise_std: float, step: float, exact: bool, rng: Rng) -> Array:
    """(count,) independent noise of std `noise_std` in units of `step`, also for empty clusters and empty cohorts.

    Not exact: the floating-point Gaussian from `rng`. Exact: whole numbers from the discrete Gaussian, drawn from the
    operating system, so that a noisy sum of messages is again a point of their grid (Proposition 4, docs/privacy.md);
    then a seeded `rng` raises PrivacyError, because the rest of the round would use it.
    """
    if exact:
        check_secure(rng)
        return discrete_gaussian(grid_sigma(noise_std, step), count)
    return noise_std / step * rng.standard_normal(count)


def make_release(
    shared_sum: Array,
    sums: Array,
    sizes: Array,
    *,
    block_sizes: Array | None = None,
    size_floor: float,
    min_cluster_size: int,
    sum_noise_std: float,
    size_noise_std: float,
    evaluation: NoisyEvaluation | None = None,
) -> Release:
    """Attach denominators max(size_floor, B, size) and, for shared coordinates, max(k size_floor, sum of sizes).

    `block_sizes` are the sizes after exact rebalancing, if it moved anybody. Post-processing: reads noisy or public
    sizes only.
    """
    divided_by = sizes if block_sizes is None else block_sizes
    return Release(
        shared_sum=shared_sum,
        cluster_sums=sums,
        sizes=sizes,
        denominators=np.maximum(divided_by, max(size_floor, min_cluster_size, 1.0)),
        shared_denominator=float(max(len(sizes) * size_floor, sizes.sum(), 1.0)),
        sum_noise_std=sum_noise_std,
        size_noise_std=size_noise_std,
        evaluation=evaluation,
    )


def split_columns(messages: Any, coordinates: Coordinates) -> tuple[Any, Any]:
    """(n, d_s + d_c) -> (n, d_s), (n, d_c)."""
    return messages[:, : coordinates.shared], messages[:, coordinates.shared :]
