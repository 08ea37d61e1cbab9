"""The directions of `scattering-pca`: principal directions of the scattering coefficients of drawings made at random.

    python research/benchmarks/scattering_drawings.py [--drawings 4000] [--out rrcluster/models/bundled/drawings.xz]

No photograph, scan or other recorded image goes in: half of the drawings are ellipses and boxes, some of them with a
rough texture, the other half strokes along Bezier curves, all on black. Every drawing counts in its four quarter turns,
so that no turn is preferred. A direction is divided by the fourth root of the variance along it: halfway between
principal components and whitened ones. Writes a step per direction (float32), the mean (float16) and
the directions in steps (int8).
"""

import argparse
import lzma
from math import comb
from pathlib import Path

import numpy as np
import torch

from rrcluster.models.scattering import LENGTH, PRINCIPAL, Scattering

SIDE = 28
DOWN, RIGHT = np.mgrid[:SIDE, :SIDE].astype(float)
OVERSAMPLING, PASSES = 30, 4  # of the randomised decomposition


def shape(rng):
    """A soft-edged ellipse or box: how much of each pixel it covers."""
    down, right = rng.uniform(6, 22, 2)
    long, wide = np.exp(rng.uniform(np.log(1.5), np.log(13), 2))
    angle, power = rng.uniform(0, np.pi), rng.choice([2, 2, 8])
    along = (RIGHT - right) * np.cos(angle) + (DOWN - down) * np.sin(angle)
    across = (DOWN - down) * np.cos(angle) - (RIGHT - right) * np.sin(angle)
    level = np.abs(along / long) ** power + np.abs(across / wide) ** power
    return 1 / (1 + np.exp(np.clip(8 * (level - 1), -50, 50)))


def texture(rng):
    """Noise whose spectrum falls with a power of the frequency, of variance 1."""
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.fftfreq(SIDE))
    frequency[0, 0] = 1
    rough = np.fft.ifft2(np.fft.fft2(rng.normal(size=(SIDE, SIDE))) * frequency ** -rng.uniform(0.3, 1.5)).real
    return rough / rough.std()


def shapes(rng):
    drawing = np.zeros((SIDE, SIDE))
    for _ in range(rng.integers(1, 6)):
        cover, roughness = shape(rng), rng.uniform(0, 0.5)
        drawing += cover * (rng.uniform() * np.clip(1 + roughness * texture(rng), 0, 2) - drawing)
    return drawing


def strokes(rng):
    drawing = np.zeros((SIDE, SIDE))
    for _ in range(rng.integers(1, 4)):
        degree, along = rng.integers(2, 5), np.linspace(0, 1, 60)[:, None]
        points = rng.uniform(4, 24, (degree + 1, 2))
        curve = sum(comb(degree, i) * along**i * (1 - along) ** (degree - i) * point for i, point in enumerate(points))
        distance = ((DOWN - curve[:, 0, None, None]) ** 2 + (RIGHT - curve[:, 1, None, None]) ** 2).min(0)
        drawing = np.maximum(drawing, rng.uniform(0.6, 1) * np.exp(-distance / (2 * rng.uniform(0.8, 2) ** 2)))
    return drawing


def drawings(count, *, seed):
    """(count, 1, 28, 28), from 0 to 1: shapes and strokes by turns."""
    rng = np.random.default_rng(seed)
    made = [(shapes, strokes)[place % 2](rng) for place in range(count)]
    return torch.as_tensor(np.clip(np.stack(made), 0, 1), dtype=torch.float32)[:, None]


def principal(coefficients):
    """(n, 3920) centred -> (3920, PRINCIPAL) directions, and the standard deviation along each: a randomised SVD."""
    start = torch.Generator().manual_seed(0)
    basis = torch.randn(coefficients.shape[1], PRINCIPAL + OVERSAMPLING, generator=start)
    for _ in range(PASSES):
        basis = torch.linalg.qr(coefficients.T @ (coefficients @ basis)).Q
    _, lengths, turn = torch.linalg.svd(coefficients @ basis, full_matrices=False)
    return (basis @ turn.T)[:, :PRINCIPAL], lengths[:PRINCIPAL] / len(coefficients) ** 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drawings", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("rrcluster/models/bundled/drawings.xz"))
    given = parser.parse_args()
    images, features = drawings(given.drawings, seed=given.seed), Scattering(SIDE, 1, 1)
    turned = (torch.rot90(images, turns, dims=(2, 3)) for turns in range(4))
    coefficients = torch.cat([features.normalised(part) for whole in turned for part in torch.split(whole, 32)])
    mean = coefficients.mean(0)
    directions, deviations = principal(coefficients - mean)
    weighted = directions * LENGTH / deviations.sum().sqrt() / deviations.sqrt()  # mean squared length: LENGTH^2
    steps = weighted.abs().amax(0) / 127
    given.out.parent.mkdir(parents=True, exist_ok=True)
    parts = (steps, "<f4"), (mean, "<f2"), ((weighted / steps).round(), np.int8)  # as `read_drawings` reads them
    content = b"".join(values.numpy().astype(kind).tobytes() for values, kind in parts)
    given.out.write_bytes(lzma.compress(content))


if __name__ == "__main__":
    main()
