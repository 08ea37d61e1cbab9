"""Updates that come as torch tensors are clipped, checked and summed as numpy's are, without leaving their device."""

import numpy as np
import pytest
import torch

from rrcluster.privacy.clip import clip_to_grid, grid_step, norms
from rrcluster.privacy.joint import JointMechanism
from rrcluster.privacy.reports import Reports
from rrcluster.privacy.sums import cluster_sums, on_host
from rrcluster.types import Coordinates

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
CLIPS = [1e-20, 0.1, 3.0, 1e20]


def hard_rows(rng):
    """Short, long, exactly at a clip, tiny, huge, overflowing and broken ones."""
    rows = rng.normal(size=(12, 7)) * 10.0 ** rng.integers(-30, 30, size=(12, 1))
    rows[0], rows[1], rows[2, 3], rows[3, 0], rows[4], rows[5] = 0, 1e200, np.nan, np.inf, 1e-300, [3, 4, 0, 0, 0, 0, 0]
    return rows


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("clip", CLIPS)
def test_a_clipped_row_is_never_longer_than_the_clip_and_is_numpy_s(device, dtype, clip, rng):
    updates = torch.tensor(hard_rows(rng)).to(dtype).to(device)
    ours = clip_to_grid(updates, update_clip=clip)
    assert ours.dtype == torch.int64
    assert ours.device.type == device
    exact = [sum(int(unit) ** 2 for unit in row) for row in ours.cpu().tolist()]
    assert all(total * grid_step(clip) ** 2 <= clip**2 for total in exact)
    host = updates.cpu().double().numpy()
    assert np.abs(ours.cpu().numpy() - clip_to_grid(host, update_clip=clip)).max() <= 1
    assert np.allclose(norms(updates), norms(host), equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_are_exact_and_keep_empty_clusters(device, rng):
    messages = torch.tensor(rng.integers(-(2**31), 2**31, size=(50, 6)), device=device)
    assignment = rng.integers(3, size=50)
    (sums,) = on_host(cluster_sums(messages, assignment, num_clusters=5))
    assert sums.shape == (5, 6)
    assert (sums == cluster_sums(messages.cpu().numpy(), assignment, num_clusters=5)).all()


def mechanism(**changes):
    settings = {"num_clusters": 3, "update_clip": 0.5, "count_weight": 0.125, "noise_multiplier": 0.0}
    settings |= {"sample_rate": 0.5, "num_clients": 100, "size_floor": 1.0, "coordinates": Coordinates(2, 5)}
    return JointMechanism(**(settings | changes))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("noise", [0.0, 1.3])
def test_a_release_of_tensors_is_the_release_of_arrays(device, noise, rng):
    rows, choices = hard_rows(rng), rng.integers(-1, 4, size=12)  # some choices out of range
    releases = [
        mechanism(noise_multiplier=noise).release(
            Reports(updates, choices, client_ids=np.arange(12) // 2), rng=np.random.default_rng(5)
        )
        for updates in (rows, torch.tensor(rows, device=device, requires_grad=True))
    ]
    for name in ("shared_sum", "cluster_sums", "sizes", "denominators"):
        one, two = (getattr(release, name) for release in releases)
        assert np.abs(one - two).max() <= 12 * grid_step(0.5)


@pytest.mark.parametrize("device", DEVICES)
def test_one_client_moves_a_release_of_tensors_by_at_most_the_sensitivity(device, rng):
    exact = mechanism()
    for _ in range(30):
        rows, choices = torch.tensor(hard_rows(rng)).float().to(device), rng.integers(3, size=12)
        whole, less = (exact.release(Reports(rows[n:], choices[n:]), rng=rng) for n in (0, 1))
        moved = [
            whole.shared_sum - less.shared_sum,
            (whole.cluster_sums - less.cluster_sums).ravel(),
            (whole.sizes - less.sizes) * exact.count_weight,
        ]
        assert np.linalg.norm(np.concatenate(moved)) <= exact.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_nobody_is_a_round_too(device, rng):
    release = mechanism(noise_multiplier=1.0).release(Reports(torch.zeros(0, 7, device=device), []), rng=rng)
    assert release.cluster_sums.shape == (3, 5)
    assert np.isfinite(release.cluster_sums).all()
