"""Coefficients of correlated noise: where they come from, and what they gain.

Everything here reads public settings alone: rounds, slots, momentum, and which models are averaged.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.privacy.correlation import FINER, INDEPENDENT, Correlation, ModelNoise
from rrcluster.types import Array

# What is minimised: squared noise of the models handed out, of the models that clients train from and choose by (mean
# over rounds), and of single rounds, whose sizes prices and coins read; each relative to the square root's.
_WEIGHTS = (1.0, 0.3, 0.3)
_NAMED = ("optimised", "square-root", "independent")


def make_correlation(
    name: str, *, slots: int, num_rounds: int, momentum: float = 0.0, average_last: float = 0.5
) -> Correlation:
    """The correlation called `name`: optimised, square-root, independent, or coefficients separated by commas."""
    if slots == 1:
        return INDEPENDENT
    roots = _rounded(square_root(slots), num_rounds)
    if name == "independent":
        chosen = INDEPENDENT
    elif name == "square-root":
        chosen = roots
    elif name == "optimised":
        chosen = _rounded(_optimised(slots, num_rounds, momentum, average_last), num_rounds)
    else:
        chosen = _by_hand(name, slots, num_rounds)
    stds = [_model_noise(each, num_rounds, momentum, average_last) for each in (INDEPENDENT, roots, chosen)]
    return replace(chosen, model_noise=ModelNoise(*stds))


def square_root(slots: int) -> Array:
    """(slots,) coefficients, relative to the first, of the square root of the matrix of prefix sums, cut off."""
    j = np.arange(1, slots)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def _model_noise(correlation: Correlation, num_rounds: int, momentum: float, average_last: float) -> float:
    """Where models move by released sums; in means noise is divided by sizes that change from round to round."""
    handed_out, _ = _readers(num_rounds, momentum, average_last)
    value, _ = _squared_noise(correlation.relative[1:], handed_out)
    return float(np.sqrt(value))


def _rounded(relative: Array, num_rounds: int) -> Correlation:
    return Correlation(tuple(np.rint(relative * FINER).astype(int).tolist()), num_rounds)


def _by_hand(text: str, slots: int, num_rounds: int) -> Correlation:
    try:
        values = np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise ConfigError(
            f"correlation = {text[:60]!r} is not known; use {', '.join(_NAMED)}, or up to {slots} numbers separated by "
            "commas."
        ) from None
    if len(values) > slots:
        raise ConfigError(
            f"correlation has {len(values)} coefficients for slots = {slots}: a client that takes part again after "
            f"{slots} rounds would be in both; give at most {slots}."
        )
    if not (np.isfinite(values).all() and values[0] > 0 and np.abs(values).max() <= 64 * values[0]):
        raise ConfigError("correlation: the first coefficient must be positive, and none above 64 times as large.")
    return _rounded(values / values[0], num_rounds)


@lru_cache(maxsize=64)
def _optimised(slots: int, num_rounds: int, momentum: float, average_last: float) -> Array:
    """(slots,) relative coefficients; some tenths of a second, from the square root on."""
    from scipy.optimize import minimize

    handed_out, models = _readers(num_rounds, momentum, average_last)
    last_round = np.zeros((1, num_rounds))
    last_round[0, -1] = 1.0
    start = square_root(slots)[1:]
    parts = [
        (weight / _squared_noise(start, rows)[0], rows)
        for weight, rows in zip(_WEIGHTS, (handed_out, models, last_round), strict=True)
    ]

    def objective(relative: Array) -> tuple[float, Array]:
        values = [(weight, *_squared_noise(relative, rows)) for weight, rows in parts]
        return sum(w * value for w, value, _ in values), np.sum([w * slope for w, _, slope in values], axis=0)

    answer = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return np.concatenate([[1.0], answer.x])


def _readers(num_rounds: int, momentum: float, average_last: float) -> tuple[Array, Array]:
    """(1, T) and (at most 64, T): how much of each round's sum is in the models handed out, and in single models."""
    t = np.arange(num_rounds)
    moved = (1 - momentum ** (t + 1.0)) / (1 - momentum)  # by a sum, in the models so many rounds later
    num_averaged = max(1, int((t + 1 > num_rounds * (1 - average_last)).sum()))
    added_up = np.cumsum(moved)[::-1]  # over all models from round t on
    before = np.concatenate([added_up[num_averaged:], np.zeros(num_averaged)])
    shown = np.unique(np.linspace(0, num_rounds - 1, 64).astype(int))
    age = shown[:, None] - t[None, :]
    return ((added_up - before) / num_averaged)[None], np.where(age >= 0, moved[np.maximum(age, 0)], 0.0)


def _squared_noise(relative: Array, rows: Array) -> tuple[float, Array]:
    """Sum over rows a of |a C^-1|^2, C normalised, and its slope; `relative` are c_1 / c_0, c_2 / c_0, ..."""
    from scipy.signal import lfilter

    filtered = np.concatenate([[1.0], relative])
    back = lfilter([1.0], filtered, rows[:, ::-1], axis=1)[:, ::-1]
    forth = lfilter([1.0], filtered, back, axis=1)
    square, length = float((back * back).sum()), 1 + float(relative @ relative)
    overlap = [(forth[:, :-shift] * back[:, shift:]).sum() for shift in range(1, len(relative) + 1)]
    return length * square, 2 * relative * square - 2 * length * np.array(overlap)
