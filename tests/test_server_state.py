import numpy as np
import pytest

from rrcluster.errors import ConfigError
from rrcluster.privacy.joint import JointMechanism
from rrcluster.server.state import RunningMean, ServerState, advance, smooth_sizes
from rrcluster.settings import ServerSettings
from rrcluster.types import Coordinates, Models, Release


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


def mechanism(size_floor, min_cluster_size=0):
    return JointMechanism(Coordinates(0, 2), 3, 1.0, 0.25, 1.0, 0.1, 1000, size_floor, min_cluster_size)


def test_smoothed_denominators_by_hand():
    sizes = RunningMean(np.array([40.0, -3.0, 20.0]), 1.0)
    before = release(np.zeros((3, 2)), [1, 1, 1])
    smoothed = smooth_sizes(before, sizes, np.eye(3), mechanism(10.0, min_cluster_size=15), num_used=3)
    assert smoothed.denominators.tolist() == [40, 15, 20]
    assert smoothed.shared_denominator == 60
    assert smooth_sizes(before, sizes, np.eye(3), mechanism(10.0), num_used=3).denominators.tolist() == [40, 10, 20]
    assert smooth_sizes(before, sizes, np.eye(3), mechanism(0.0), num_used=3).denominators.tolist() == [40, 1, 20]
    assert smooth_sizes(before, sizes, np.eye(3), mechanism(30.0), num_used=3).shared_denominator == 90
    assert smooth_sizes(before, sizes, np.eye(3), mechanism(10.0), num_used=1).denominators.tolist() == [40, 30, 30]


def test_denominators_expect_the_coins_that_clients_were_told():
    sizes = RunningMean(np.array([40.0, 0.0, 20.0]), 1.0)
    told = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.25, 0.75]])
    smoothed = smooth_sizes(
        release(np.zeros((3, 2)), [1, 1, 1]), sizes, told, mechanism(10.0, min_cluster_size=12), num_used=3
    )
    assert smoothed.denominators.tolist() == [20, 25, 15]
    assert smoothed.sizes.tolist() == [1, 1, 1]  # what was released stays as it is


def test_models_move_by_means_and_the_last_half_is_averaged():
    state = ServerState.fresh(Models(np.zeros(0), np.zeros((2, 1))))
    settings = ServerSettings(server_lr=0.5, average_last=0.5)
    seen = []
    for _ in range(4):
        state = advance(state, release([[4.0], [6.0]], [2, 3]), settings=settings, num_rounds=4)
        seen.append(state.models.clustered[:, 0].tolist())
    assert seen == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert state.num_averaged == 2
    assert state.average.clustered[:, 0].tolist() == [3.5, 3.5]


def test_momentum_by_hand():
    state = ServerState.fresh(Models(np.zeros(0), np.zeros((1, 1))))
    settings = ServerSettings(server_momentum=0.5, average_last=0.0)
    for _ in range(3):
        state = advance(state, release([[2.0]], [2]), settings=settings, num_rounds=3)
    assert state.models.clustered[0, 0] == pytest.approx(1 + 1.5 + 1.75)
    assert (state.average.clustered == state.models.clustered).all()


@pytest.mark.parametrize("bad", [{"server_lr": 0.0}, {"server_momentum": 1.0}, {"memory": -0.1}, {"average_last": 1.2}])
def test_settings_are_checked(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ServerSettings(**bad)
