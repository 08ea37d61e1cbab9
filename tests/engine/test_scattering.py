"""Scattering features: the wavelets, what the coefficients keep, and an independent computation of them."""

import itertools
from math import cos, pi, sin, sqrt

import numpy as np
import pytest
import torch

from rrcluster.data.arrays import from_arrays
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.models import make_model
from rrcluster.models.scattering import (
    LENGTH,
    PRINCIPAL,
    WIDTH,
    PrincipalScattering,
    Scattering,
    blur,
    littlewood_paley,
    read_drawings,
    wavelets,
)


@pytest.fixture(scope="module")
def features():
    return Scattering(28, 1, WIDTH)


def test_wavelets_have_mean_zero_and_point_one_way():
    bank = wavelets(32)
    assert bank.shape == (2, 8, 32, 32)
    assert np.abs(bank[:, :, 0, 0]).max() < 1e-12
    for scale, turn in np.ndindex(2, 8):  # the strongest frequency lies where it should
        peak = np.array(np.unravel_index(bank[scale, turn].argmax(), (32, 32)))
        down, right = 2 * pi * np.fft.fftfreq(32)[peak]
        angle, frequency = pi * turn / 8, 0.75 * pi / 2**scale
        assert np.hypot(down - frequency * sin(angle), right - frequency * cos(angle)) < 1.5 * 2 * pi / 32


def test_wavelets_and_average_together_add_no_energy():
    total = blur(32) ** 2 + littlewood_paley(wavelets(32))
    assert total.max() == pytest.approx(1.0, abs=1e-9)
    assert total[0, 0] == pytest.approx(1.0)


def test_coefficients_have_no_more_energy_than_the_image(features, rng):
    images = torch.as_tensor(rng.normal(size=(5, 1, 28, 28)), dtype=torch.float32)
    orders = features.coefficients(images)
    assert [tuple(order.shape) for order in orders] == [(5, 1, 7, 7), (5, 16, 7, 7), (5, 64, 7, 7)]
    energy = sum(16 * order.square().flatten(1).sum(1) for order in orders)  # a coefficient stands for 4 x 4 pixels
    assert (energy < images.square().flatten(1).sum(1)).all()
    assert all((order >= 0).all() for order in orders[1:])


def kernel_by_hand(scale, turn):
    """A wavelet in pixels, on a torus of 32 x 32, up to the factor that all of them share; coarse: half a pixel on."""
    spread, angle, frequency = 0.8 * 2**scale, pi * turn / 8, 0.75 * pi / 2**scale
    wave, bump = np.zeros((32, 32), dtype=complex), np.zeros((32, 32))
    for down, right in ((np.mgrid[:32, :32].T + scale / 2 - start).T for start in itertools.product((0, 32), repeat=2)):
        along, across = cos(angle) * right + sin(angle) * down, cos(angle) * down - sin(angle) * right
        height = np.exp(-(along**2 + (across / 2) ** 2) / (2 * spread**2))
        wave, bump = wave + height * np.exp(1j * frequency * along), bump + height
    return (wave - wave.sum() / bump.sum() * bump) / spread**2


def by_hand(image, *path):
    """The coefficient of a path of (scale, turn) in the middle cell: sums over pixels, and no transforms."""
    picture = np.pad(image, 2, mode="reflect")
    for step in path:
        kernel = kernel_by_hand(*step)
        picture = np.abs(sum(kernel[place] * np.roll(picture, place, (0, 1)) for place in np.ndindex(32, 32)))
    places = np.arange(32.0)
    if path[-1][0] == 1:  # at every second place
        picture, places = picture[::2, ::2], places[::2] + 0.5
    weights = np.exp(-0.5 * ((2 + 1.5 + 4 * 3 - places) / 1.6) ** 2)
    return weights @ picture @ weights / weights.sum() ** 2


def test_coefficients_are_those_of_sums_over_pixels(features):
    row, column = np.mgrid[:28, :28]
    image = np.exp(-((row - 12.0) ** 2 + (column - 15.0) ** 2) / 40) + 0.3 * (column > 14) + 0.01 * row
    _, first, second = (order[0, :, 3, 3] for order in features.coefficients(torch.as_tensor(image)[None, None]))
    paths = {0: [(0, 0)], 3: [(0, 3)], 8 + 2: [(1, 2)], 16 + 8 * 3 + 5: [(0, 3), (1, 5)], 16 + 8 * 6: [(0, 6), (1, 0)]}
    shared = first[0].item() / by_hand(image, (0, 0))  # the package scales all wavelets by one number
    for place, path in paths.items():
        expected = shared ** len(path) * by_hand(image, *path)
        assert torch.cat([first, second])[place].item() == pytest.approx(expected, rel=1e-4)


def test_coefficients_hardly_change_when_the_image_moves_by_a_pixel(features, rng):
    image = np.zeros((1, 1, 28, 28), dtype=np.float32)
    image[:, :, 6:22, 6:22] = rng.normal(size=(16, 16))
    moved = np.roll(image, 1, axis=3)
    changes = []
    for order, other in zip(*(features.coefficients(torch.as_tensor(each)) for each in (image, moved)), strict=True):
        changes.append(((order - other).norm() / order.norm()).item())
    pixels = np.linalg.norm(image - moved) / np.linalg.norm(image)
    assert pixels > 1.2
    assert max(changes[1:]) < 0.25 * pixels


def test_a_quarter_turn_of_the_image_turns_the_coefficients(features, rng):
    images = torch.as_tensor(rng.normal(size=(2, 1, 28, 28)), dtype=torch.float32)
    _, first, second = features.coefficients(images)
    _, turned_first, turned_second = features.coefficients(torch.rot90(images, dims=(2, 3)))
    shape = (2, -1, 8, 7, 7)
    expected = torch.rot90(first.reshape(shape), dims=(3, 4)).roll(4, dims=2)  # four of eight directions: 90 degrees
    assert torch.allclose(turned_first.reshape(shape), expected, atol=2e-3)
    both = torch.rot90(second.reshape(2, 8, 8, 7, 7), dims=(3, 4)).roll((4, 4), dims=(1, 2))
    assert torch.allclose(turned_second.reshape(2, 8, 8, 7, 7), both, atol=1e-3)


def test_contrast_changes_nothing_and_a_blank_image_has_no_features(features, rng):
    images = torch.as_tensor(rng.normal(size=(2, 1, 28, 28)), dtype=torch.float32)
    assert torch.allclose(features(3 * images + 1), features(images), atol=0.02)
    assert (features(torch.full((1, 1, 28, 28), 0.7)) == 0).all()


def test_the_projection_keeps_lengths_and_is_fixed(features, rng):
    images = torch.as_tensor(rng.normal(size=(3, 1, 28, 28)), dtype=torch.float32)
    assert torch.allclose(features.normalised(images).norm(dim=1), torch.tensor(sqrt(2) * LENGTH), rtol=1e-4)
    assert features(images).shape == (3, WIDTH)
    assert features(images).norm(dim=1).mean().item() == pytest.approx(sqrt(2) * LENGTH, rel=0.1)
    assert "".join("-+"[int(sign > 0)] for sign in features._projection[0, :16]) == "++--++-+-++--+-+"


def test_colours_are_scattered_one_by_one(rng):
    images = torch.as_tensor(rng.normal(size=(1, 3, 32, 32)), dtype=torch.float32)
    together = Scattering(32, 3, 8).coefficients(images)
    for colour in range(3):
        alone = Scattering(32, 1, 8).coefficients(images[:, colour, None])
        for order, own in zip(together, alone, strict=True):
            assert torch.allclose(order.unflatten(1, (3, -1))[:, colour], own, atol=1e-6)


def test_principal_features_are_products_with_the_stored_directions(features, rng):
    images = torch.as_tensor(rng.normal(size=(3, 1, 28, 28)), dtype=torch.float32)
    mean, steps, directions = read_drawings()
    expected = [
        [steps[place] * sum((own - mean.astype(float)) * directions[:, place]) for place in (0, 100, PRINCIPAL - 1)]
        for own in features.normalised(images).double().numpy()
    ]
    found = PrincipalScattering()(images)
    assert found.shape == (3, PRINCIPAL)
    assert np.allclose(found[:, [0, 100, PRINCIPAL - 1]], expected, atol=1e-3)


def test_principal_features_prefer_no_quarter_turn(features, rng):
    squares = np.kron(rng.uniform(size=(6, 1, 5, 5)), np.ones((4, 4)))
    images = torch.as_tensor(np.pad(squares, ((0, 0), (0, 0), (4, 4), (4, 4))), dtype=torch.float32)
    changes = []
    for module in (PrincipalScattering(), features):  # products between images, before and after a turn of both
        upright, turned = module(images), module(torch.rot90(images, dims=(2, 3)))
        changes.append((turned @ turned.T - upright @ upright.T).abs().max().item() / LENGTH**2)
    assert changes[0] < 0.08 < 0.15 < changes[1]  # random directions do


def test_principal_directions_are_at_right_angles_and_the_last_ones_matter_least():
    _, steps, whole_steps = read_drawings()
    directions = whole_steps * steps
    lengths = np.linalg.norm(directions, axis=0)  # a fourth root of the variance divides them
    assert (np.diff(lengths) > -1e-3 * lengths[1:]).all()  # whole steps
    assert np.abs(directions.T @ directions / np.outer(lengths, lengths) - np.eye(PRINCIPAL)).max() < 0.01
    assert np.sum(lengths[0] ** 4 / lengths**4) < 40  # few directions hold most of the variance


@pytest.mark.parametrize(("name", "size"), [("scattering", 4_430), ("scattering-pca", 2_570)])
def test_both_engines_train_the_same_linear_layer(name, size, rng):
    model = make_model(name, input_shape=(1, 28, 28), num_classes=10)
    assert model.num_parameters == size
    inputs = [rng.normal(size=(size, 1, 28, 28)) for size in (3, 1, 2)]
    data = from_arrays(inputs, [rng.integers(10, size=len(own)) for own in inputs], num_classes=10)
    cohort, start = data.cohort(np.arange(3)), np.stack([model.init(rng=rng) for _ in range(3)])
    local = LocalSettings(local_lr=0.01, local_epochs=2, batch_size=2)
    slow, fast = ReferenceEngine(model), BatchedEngine(model)
    expected, trained = (calls.train(engine, start, cohort, local=local, key=(1, 2)) for engine in (slow, fast))
    assert np.allclose(trained, expected, atol=1e-4)
    assert np.allclose(calls.losses(fast, start, cohort), calls.losses(slow, start, cohort), atol=1e-4)
