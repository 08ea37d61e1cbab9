import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rrcluster.errors import ConfigError
from rrcluster.privacy.clip import check_sums_fit, clip_to_grid, coarsen, grid_step, norms

finite = st.floats(allow_nan=False, allow_infinity=False, width=64, min_value=-1e150, max_value=1e150)


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20), elements=finite),
    st.floats(1e-4, 1e4),
)
@settings(max_examples=200, deadline=None)
def test_never_longer_than_the_clip(updates, clip):
    clipped = clip_to_grid(updates, update_clip=clip)
    for row in clipped:  # exactly, in integers: the squared length in grid units
        assert sum(int(unit) ** 2 for unit in row) <= (clip / grid_step(clip)) ** 2


def test_short_rows_are_kept_and_long_ones_keep_their_direction():
    updates = np.array([[0.3, 0.4], [30.0, 40.0]])
    clipped = clip_to_grid(updates, update_clip=1.0) * grid_step(1.0)
    assert np.allclose(clipped[0], [0.3, 0.4], atol=1e-11)
    assert np.allclose(clipped[1], [0.6, 0.8], atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_a_row_without_a_finite_norm_becomes_zero(bad):
    clipped = clip_to_grid(np.array([[bad, 1.0], [1.0, 0.0]]), update_clip=1.0)
    assert (clipped[0] == 0).all()
    assert clipped[1, 0] > 0


def test_norms_are_computed_in_float64():
    row = np.full((1, 100_000), 1e-30, dtype=np.float32)  # squares underflow in float32
    assert norms(row)[0] == pytest.approx(1e-30 * np.sqrt(100_000), rel=1e-6)


def test_sums_do_not_depend_on_the_order(rng):
    clipped = clip_to_grid(rng.normal(size=(500, 7)), update_clip=0.3)
    assert (clipped.sum(axis=0) == clipped[rng.permutation(500)].sum(axis=0)).all()


@pytest.mark.parametrize("clip", [1e-31, 1e31, 1e-165, 1e308])
def test_a_clip_where_squares_would_underflow_or_overflow_is_refused(clip):
    with pytest.raises(ConfigError, match="between 1e-30 and 1e\\+30"):
        clip_to_grid(np.full((1, 1), 100 * clip), update_clip=clip)


@pytest.mark.parametrize("clip", [1e-30, 1.9999999, 1e30])
def test_extreme_clips_hold(clip):
    clipped = clip_to_grid(np.array([[100 * clip, -100 * clip]]), update_clip=clip)
    assert np.hypot(*(clipped[0] * grid_step(clip))) == pytest.approx(clip, rel=1e-5)
    assert np.hypot(*(clipped[0] * grid_step(clip))) <= clip


def test_sums_of_the_most_clients_that_are_allowed_cannot_overflow():
    unit = int(clip_to_grid(np.array([[2.0]]), update_clip=1.9999999)[0, 0])
    check_sums_fit(2**31, largest=1.9999999, update_clip=1.9999999)
    assert unit * 2**31 <= 2**62
    with pytest.raises(ConfigError, match="64 bits"):
        check_sums_fit(2**32, largest=1.9999999, update_clip=1.9999999)


@pytest.mark.parametrize("clip", [0.0, -1.0, np.inf, np.nan])
def test_the_clip_must_be_positive_and_finite(clip):
    with pytest.raises(ConfigError, match="update_clip"):
        clip_to_grid(np.zeros((1, 1)), update_clip=clip)


@pytest.mark.parametrize("bits", [0, 1, 10, 16])
def test_a_coarser_grid_rounds_towards_zero_too(bits):
    units = np.array([0, 1, -1, 1023, -1023, 1024, -1024, 2**31, -(2**31), 12345678901, -12345678901])
    np.testing.assert_array_equal(coarsen(units, bits), np.trunc(units / 2.0**bits).astype(np.int64))
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(coarsen(torch.as_tensor(units), bits).numpy(), coarsen(units, bits))
