"""Random effects: the mode, the same by rows and by columns, rows left out, and bits that are a client's own."""

import numpy as np
import pytest

from rrcluster.mixed.random_effects import (
    RidgeFit,
    fit_effects,
    left_out_logits,
    probabilities,
    residuals,
    row_losses,
)

KINDS = {"binary": 1, "classes": 4, "number": 1}


def clients(kind, *, n=5, s=12, p=4, seed=0):
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(n, s, p))
    columns[..., 0] = 1
    mask = (np.arange(s) < rng.integers(2, s + 1, size=n)[:, None]).astype(float)
    columns *= mask[..., None]
    outputs = KINDS[kind]
    offsets = 0.5 * rng.normal(size=(n, s, outputs))
    if kind == "number":
        targets = rng.normal(size=(n, s, 1))
    elif kind == "binary":
        targets = rng.integers(0, 2, size=(n, s, 1)).astype(float)
    else:
        targets = np.eye(outputs)[rng.integers(0, outputs, size=(n, s))]
    return columns, offsets, targets, mask


@pytest.mark.parametrize("kind", KINDS)
def test_the_slope_of_loss_and_prior_is_zero_at_the_fitted_effects(kind):
    columns, offsets, targets, mask = clients(kind)
    precision = np.array([0.5, 2.0, 2.0, 2.0])
    effects, logits = fit_effects(columns, offsets, targets, mask, precision, kind=kind, steps=80)
    pulls = residuals(logits, targets, kind)[0] * mask[..., None]
    slope = columns.transpose(0, 2, 1) @ pulls - precision[:, None] * effects
    assert np.abs(slope).max() < 1e-6
    assert np.allclose((offsets + columns @ effects) * mask[..., None], logits * mask[..., None])


@pytest.mark.parametrize("kind", KINDS)
def test_few_steps_are_close_to_the_mode(kind):
    columns, offsets, targets, mask = clients(kind, s=20)
    precision = np.array([0.5, 2.0, 2.0, 2.0])
    few, many = (fit_effects(columns, offsets, targets, mask, precision, kind=kind, steps=n)[0] for n in (6, 60))
    assert np.abs(few - many).max() < (0.1 if kind == "classes" else 0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_of_fewer_rows_than_columns_are_fitted_among_rows(kind):
    columns, offsets, targets, mask = clients(kind, s=3, p=3)
    wide = np.concatenate([columns, np.zeros((5, 3, 2))], axis=2)  # columns that are always zero change nothing
    assert RidgeFit(wide, np.ones(5)).by_rows
    assert not RidgeFit(columns, np.ones(3)).by_rows
    precision = np.array([0.3, 1.0, 4.0])
    narrow, logits = fit_effects(columns, offsets, targets, mask, precision, kind=kind, steps=6)
    own, same = fit_effects(wide, offsets, targets, mask, np.append(precision, [1.0, 1.0]), kind=kind, steps=6)
    assert np.allclose(own[:, :3], narrow)
    assert np.allclose(own[:, 3:], 0)
    assert np.allclose(logits, same)


def test_numbers_are_ridge_regression():
    columns, offsets, targets, mask = clients("number", n=1)
    effects, _ = fit_effects(columns, offsets, targets, mask, np.full(4, 3.0), kind="number", steps=1)
    rows = mask[0] > 0
    x, y = columns[0, rows], (targets - offsets)[0, rows, 0]
    assert np.allclose(effects[0, :, 0], np.linalg.solve(x.T @ x + 3 * np.eye(4), x.T @ y))


@pytest.mark.parametrize("p", [4, 20])
def test_a_number_that_is_left_out_is_predicted_as_without_it(p):
    columns, offsets, targets, mask = clients("number", n=1, s=8, p=p)
    precision = np.full(p, 2.0)
    _, logits = fit_effects(columns, offsets, targets, mask, precision, kind="number", steps=1)
    left_out = left_out_logits(columns, logits, targets, mask, precision, kind="number")
    for row in np.flatnonzero(mask[0]):
        others = mask.copy()
        others[0, row] = 0
        refitted = fit_effects(columns, offsets, targets, others, precision, kind="number", steps=1)[1]
        assert np.isclose(left_out[0, row, 0], refitted[0, row, 0])


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_a_class_that_is_left_out_is_predicted_about_as_without_it(kind):
    columns, offsets, targets, mask = clients(kind, n=1, s=16, seed=3)
    precision = np.full(4, 2.0)
    _, logits = fit_effects(columns, offsets, targets, mask, precision, kind=kind, steps=30)
    left_out = left_out_logits(columns, logits, targets, mask, precision, kind=kind)
    exact = np.full_like(left_out, np.nan)
    for row in range(16):
        others = mask.copy()
        others[0, row] = 0
        exact[0, row] = fit_effects(columns, offsets, targets, others, precision, kind=kind, steps=30)[1][0, row]
    rows = mask[0] > 0
    inside, without = (row_losses(values, targets, kind)[0, rows].mean() for values in (logits, exact))
    assert without > inside + 0.05  # so that the next line says something
    assert abs(row_losses(left_out, targets, kind)[0, rows].mean() - without) < 0.25 * (without - inside)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("s", "p"), [(1, 3), (8, 3), (16, 11), (4, 40), (32, 7)])
def test_no_bit_of_a_client_depends_on_the_others(kind, s, p):
    columns, offsets, targets, mask = clients(kind, n=13, s=max(s, 2), p=p, seed=s)
    precision = np.linspace(0.5, 3, p)
    together = fit_effects(columns, offsets, targets, mask, precision, kind=kind, steps=6)
    judged = left_out_logits(columns, together[1], targets, mask, precision, kind=kind)
    for place in range(13):
        own = slice(place, place + 1)
        alone = fit_effects(columns[own], offsets[own], targets[own], mask[own], precision, kind=kind, steps=6)
        assert (alone[0] == together[0][own]).all()
        assert (alone[1] == together[1][own]).all()
        left = left_out_logits(columns[own], alone[1], targets[own], mask[own], precision, kind=kind)
        assert (left == judged[own]).all()


def test_probabilities_of_huge_logits_are_numbers():
    for kind, outputs in (("binary", 1), ("classes", 3)):
        logits = np.zeros((1, 2, outputs))
        logits[0, 0, 0], logits[0, 1, 0] = 1e4, -1e4
        assert np.isfinite(probabilities(logits, kind)).all()
        assert np.isfinite(row_losses(logits, np.zeros_like(logits), kind)).all()
