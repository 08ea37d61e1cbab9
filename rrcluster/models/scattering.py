"""Scattering: how much an image varies at two scales and in eight directions, around each cell of a grid.

Two-dimensional wavelet scattering (Bruna, Mallat 2013): a wavelet, the modulus, and an average over a cell; before the
average, a second wavelet and modulus. Linear models on it do well under privacy (Tramer, Boneh 2021). No constant was
learnt from recorded images, so the features cost no privacy, and they are the same on every machine: all of it is a
formula but the directions of `scattering-pca`, which come from drawings made at random.
"""

import hashlib
import lzma
from math import cos, pi, sin, sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from rrcluster.models.model import Model
from rrcluster.models.networks import linear, on_features
from rrcluster.types import Array

WIDTH = 442  # features after the projection: as many as `edges` has
PRINCIPAL = 256  # features of scattering-pca
DRAWINGS = Path(__file__).parent / "bundled" / "drawings.xz"  # made by research/benchmarks/scattering_drawings.py
SCALES, DIRECTIONS = 2, 8
CELL = 2**SCALES  # side of a cell, in pixels
LENGTH = 20.0  # norm of the coefficients of each order, as that of the parts of `edges`
FLOOR = 0.3  # below this share of the image's mean coefficient the logarithm is flat
_MARGIN = 2  # pixels by which an image is mirrored outwards
_BLUR = 0.8 * CELL / 2  # standard deviation of the average over a cell, in pixels
_IMAGES_AT_ONCE = 32  # what fits into a core's cache
_ROUNDING = 1e-5  # coefficients below are taken for 0
_TINY = 1e-6


def wavelets(side: int) -> Array:
    """Morlet wavelets on a side x side torus, in frequency: (scales, directions, side, side), real.

    A Gaussian around 3 pi / 4 / 2^scale along its direction, half as wide along it as across, minus a multiple of a
    Gaussian around 0 that makes the mean 0. Scaled so that wavelets and average together add no energy
    (Littlewood-Paley sum at most 1).
    """
    bank = np.stack([[_morlet(side, scale, turn) for turn in range(DIRECTIONS)] for scale in range(SCALES)])
    room = (1 - blur(side) ** 2) / np.maximum(littlewood_paley(bank), _TINY**2)
    room[0, 0] = np.inf  # wavelets are 0 there
    return np.asarray(bank * sqrt(room.min()))


def blur(side: int) -> Array:
    """The average over a cell in frequency: a Gaussian, (side, side)."""
    frequency = 2 * pi * np.fft.fftfreq(side)
    return np.asarray(np.exp(-0.5 * _BLUR**2 * (frequency[:, None] ** 2 + frequency[None, :] ** 2)))


def littlewood_paley(bank: Array) -> Array:
    """The energy that wavelets keep of a real image at each frequency: (..., side, side) -> (side, side)."""
    opposite = -np.arange(bank.shape[-1])
    energy = 0.5 * (bank**2 + bank[..., opposite, :][..., opposite] ** 2)
    return np.asarray(energy.reshape(-1, *bank.shape[-2:]).sum(0))


def _morlet(side: int, scale: int, turn: int) -> Array:
    angle, spread = pi * turn / DIRECTIONS, 0.8 * 2**scale
    wave, bump = (_gaussian(side, spread, angle, centre) for centre in (0.75 * pi / 2**scale, 0.0))
    return np.asarray(wave - wave[0, 0] / bump[0, 0] * bump)


def _gaussian(side: int, spread: float, angle: float, centre: float) -> Array:
    """Frequencies are those of a torus, so what lies beyond pi comes back from the other side."""
    frequency = 2 * pi * (np.fft.fftfreq(side)[:, None] + np.arange(-2, 3)).T.reshape(-1)
    down, right = frequency[:, None], frequency[None, :]
    along, across = cos(angle) * right + sin(angle) * down - centre, cos(angle) * down - sin(angle) * right
    values = np.exp(-0.5 * spread**2 * (along**2 + (2 * across) ** 2))
    return np.asarray(values.reshape(5, side, 5, side).sum((0, 2)))


def _averages(side: int, places: Array) -> Tensor:
    """Weights of samples at these places of the mirrored image for the average over each row of cells: (cells, n)."""
    centres = _MARGIN + (CELL - 1) / 2 + CELL * np.arange(side // CELL)
    weights = np.exp(-0.5 * ((centres[:, None] - places[None, :]) / _BLUR) ** 2)
    return torch.as_tensor(weights / weights.sum(1, keepdims=True), dtype=torch.float32)


def _signs(rows: int, columns: int) -> Tensor:
    """Random signs, +1 or -1: the bits of SHAKE-128 of a fixed text, the same with every version of everything."""
    data = hashlib.shake_128(b"rrcluster scattering").digest(-(-rows * columns // 8))
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))[: rows * columns].reshape(rows, columns)
    return torch.as_tensor(2.0 * bits - 1.0, dtype=torch.float32)


class Scattering(nn.Module):
    """Coefficients of orders 1 and 2, as logarithms, normalised per image, through a fixed random projection."""

    def __init__(self, side: int, colours: int, width: int) -> None:
        """`side` of the images in pixels, a multiple of the cell's side; `width` is the number of features."""
        super().__init__()
        whole = side + 2 * _MARGIN
        bank, step = wavelets(side=whole), pi * np.fft.fftfreq(whole)
        # The coarser wavelets' outputs are wanted at every second place, between pixels 0 and 1, 2 and 3, and so on:
        # a quarter turn of the image is then a turn of the coefficients.
        between = np.exp(1j * (step[:, None] + step[None, :]))
        self.side, self.width = side, width
        self._fine = torch.as_tensor(bank[0], dtype=torch.complex64)
        self._coarse = torch.as_tensor(bank[1] * between, dtype=torch.complex64)
        self._cells = _averages(side, np.arange(whole))
        self._half_cells = _averages(side, 0.5 + 2 * np.arange(whole // 2))
        paths = colours * (SCALES * DIRECTIONS + DIRECTIONS**2)
        self._projection = _signs(paths * (side // CELL) ** 2, width) / sqrt(width)

    def extra_repr(self) -> str:
        """The constants that identify the features."""
        return f"side={self.side}, width={self.width}"

    def forward(self, images: Tensor) -> Tensor:
        """(s, c, h, w) -> (s, width)."""
        parts = [self.normalised(part) for part in torch.split(images, _IMAGES_AT_ONCE)]
        return torch.cat(parts) @ self._projection.to(images.device)

    def normalised(self, images: Tensor) -> Tensor:
        """Logarithms of the coefficients, each order centred and of norm `LENGTH`: (s, c, h, w) -> (s, n)."""
        _, first, second = self.coefficients(images)
        return torch.cat([_standard(first), _standard(second)], dim=1)

    def coefficients(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients of order 0 (s, c, cells, cells), 1 (s, 16 c, ...) and 2 (s, 64 c, ...), finer wavelets first."""
        constants = (self._fine, self._coarse, self._cells, self._half_cells)
        fine, coarse, cells, half_cells = (constant.to(images.device) for constant in constants)
        mirrored = pad(images.float(), (_MARGIN,) * 4, mode="reflect")
        spectrum = torch.fft.fft2(mirrored)[:, :, None]  # (s, c, 1, n, n)
        waves = torch.fft.ifft2(spectrum * fine).abs()
        first = torch.cat([cells @ waves @ cells.T, half_cells @ _halved(spectrum * coarse) @ half_cells.T], dim=2)
        spectra = torch.fft.fft2(waves)
        second = [half_cells @ _halved(spectra[:, :, turn, None] * coarse) @ half_cells.T for turn in range(DIRECTIONS)]
        return cells @ mirrored @ cells.T, first.flatten(1, 2), torch.cat(second, dim=2).flatten(1, 2)


def read_drawings() -> tuple[Array, Array, Array]:
    """(n,) mean of the coefficients over drawings, (256,) step of each direction, (n, 256) directions in steps."""
    content = lzma.decompress(DRAWINGS.read_bytes())
    steps = np.frombuffer(content, "<f4", PRINCIPAL)
    rows = (len(content) - steps.nbytes) // (2 + PRINCIPAL)
    mean = np.frombuffer(content, "<f2", rows, offset=steps.nbytes)
    directions = np.frombuffer(content, np.int8, offset=steps.nbytes + mean.nbytes)
    return mean, steps, directions.reshape(rows, PRINCIPAL)


class PrincipalScattering(Scattering):
    """Coefficients of 28 x 28 images less their mean over drawings, along the drawings' principal directions.

    A feature is divided by the fourth root of its variance over drawings. Components common to all images, and
    directions of large variance that carry little information, lengthen updates and so raise the clip and its noise;
    reducing both strengthens the signal.
    """

    def __init__(self) -> None:
        """Reads the directions from the package."""
        super().__init__(28, 1, PRINCIPAL)
        mean, steps, directions = read_drawings()
        self._mean = torch.as_tensor(mean.astype(np.float32))
        self._projection = torch.as_tensor(directions.astype(np.float32) * steps)

    def normalised(self, images: Tensor) -> Tensor:
        """As those of `Scattering`, less the drawings' mean."""
        return super().normalised(images) - self._mean.to(images.device)


def _halved(spectrum: Tensor) -> Tensor:
    """The modulus of a signal at every second place, by its spectrum (..., n, n) -> (..., n / 2, n / 2)."""
    half = spectrum.shape[-1] // 2
    columns = spectrum[..., :half] + spectrum[..., half:]  # sums of slices: a mean over split axes takes 40 times this
    moduli: Tensor = torch.fft.ifft2((columns[..., :half, :] + columns[..., half:, :]) / 4).abs()
    return moduli


def _standard(coefficients: Tensor) -> Tensor:
    """A blank image has no features: what rounding leaves of its coefficients is cut off."""
    flat = (coefficients.flatten(1) - _ROUNDING).relu()
    logarithms = (flat / (FLOOR * flat.mean(1, keepdim=True) + _TINY)).log1p()
    centred = logarithms - logarithms.mean(1, keepdim=True)
    return LENGTH * centred / (centred.square().sum(1, keepdim=True).sqrt() + _TINY)


def scattering(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on scattering coefficients projected to 442 features: 4,430 parameters with 10 classes."""
    colours, side, _ = input_shape
    return on_features("scattering", Scattering(side, colours, WIDTH), linear, input_shape, outputs)


def scattering_pca(input_shape: tuple[int, ...], outputs: int) -> Model:
    """One linear layer on 256 principal scattering coefficients: 2,570 parameters with 10 classes."""
    return on_features("scattering-pca", PrincipalScattering(), linear, input_shape, outputs)
