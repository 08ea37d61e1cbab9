import numpy as np
import pytest

from rrcluster.errors import ConfigError
from rrcluster.server_state import RunningMean, ServerSettings, ServerState, advance, shrink, smooth_sizes
from rrcluster.types import Models, Release


def release(sums, sizes, *, noise=0.0, denominators=None):
    sums, sizes = np.asarray(sums, dtype=float), np.asarray(sizes, dtype=float)
    return Release(
        shared_sum=np.zeros(0),
        cluster_sums=sums,
        sizes=sizes,
        denominators=sizes if denominators is None else np.asarray(denominators, dtype=float),
        shared_denominator=float(sizes.sum()),
        sum_noise_std=noise,
        size_noise_std=1.0,
    )


def test_the_running_mean_is_not_biased_towards_zero():
    mean = RunningMean(np.zeros(1))
    assert mean.empty
    mean = mean.updated(np.array([8.0]), memory=0.9)
    assert mean.mean[0] == pytest.approx(8.0)
    mean = mean.updated(np.array([4.0]), memory=0.9)
    assert mean.mean[0] == pytest.approx((0.9 * 8 + 4) / 1.9)


def test_smoothed_denominators_by_hand():
    sizes = RunningMean(np.array([40.0, -3.0, 20.0]), 1.0)
    smoothed = smooth_sizes(release(np.zeros((3, 2)), [1, 1, 1]), sizes, np.eye(3), least=15.0, size_floor=10.0)
    assert smoothed.denominators.tolist() == [40, 15, 20]
    assert smoothed.shared_denominator == 60


def test_models_move_by_means_and_the_last_half_is_averaged():
    state = ServerState.fresh(Models(np.zeros(0), np.zeros((2, 1))))
    settings = ServerSettings(server_lr=0.5, average_last=0.5)
    seen = []
    for _ in range(4):
        state = advance(state, release([[4.0], [6.0]], [2, 3]), server=settings, num_rounds=4)
        seen.append(state.models.clustered[:, 0].tolist())
    assert seen == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert state.num_averaged == 2
    assert state.average.clustered[:, 0].tolist() == [3.5, 3.5]


def test_momentum_by_hand():
    state = ServerState.fresh(Models(np.zeros(0), np.zeros((1, 1))))
    settings = ServerSettings(server_momentum=0.5, average_last=0.0)
    for _ in range(3):
        state = advance(state, release([[2.0]], [2]), server=settings, num_rounds=3)
    assert state.models.clustered[0, 0] == pytest.approx(1 + 1.5 + 1.75)
    assert (state.average.clustered == state.models.clustered).all()


def test_without_noise_nothing_shrinks():
    before = release([[10.0, 0.0], [0.0, 10.0]], [5, 5], noise=0.0)
    after = shrink(before, RunningMean(before.cluster_sums, 1.0), memory=0.9)
    assert np.allclose(after.cluster_means, before.cluster_means)


def test_equal_clusters_are_pooled_by_their_noise():
    # Two clusters with the same true mean: b = 0, so a = V_j / (V_j + V_-j), as in the best linear combination.
    sums = np.array([[2.0, 2.0], [10.0, 10.0]])
    before = release(sums, [2, 10], noise=5.0)
    after = shrink(before, RunningMean(sums, 1.0), memory=0.0)
    weight = (1 / 4) / (1 / 4 + 1 / 100)
    expected = (1 - weight) * sums[0] / 2 + weight * sums[1] / 10
    assert np.allclose(after.cluster_means[0], expected)


def test_shrinkage_lowers_the_error_of_a_small_cluster(rng):
    truth = np.array([np.full(400, 0.05), np.full(400, 0.06)])
    sizes, noise = np.array([3.0, 60.0]), 1.0
    raw, shrunk = [], []
    for _ in range(30):
        sums = truth * sizes[:, None] + noise * rng.normal(size=truth.shape)
        before = release(sums, sizes, noise=noise)
        after = shrink(before, RunningMean(sums, 1.0), memory=0.0)
        raw.append(((before.cluster_means[0] - truth[0]) ** 2).sum())
        shrunk.append(((after.cluster_means[0] - truth[0]) ** 2).sum())
    assert np.mean(shrunk) < 0.2 * np.mean(raw)


def test_one_cluster_has_nothing_to_shrink_to():
    before = release([[1.0, 2.0]], [4], noise=1.0)
    assert shrink(before, RunningMean(before.cluster_sums, 1.0), memory=0.9) is before


@pytest.mark.parametrize("bad", [{"server_lr": 0.0}, {"server_momentum": 1.0}, {"memory": -0.1}, {"average_last": 1.2}])
def test_settings_are_checked(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ServerSettings(**bad)
