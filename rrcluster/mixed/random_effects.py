"""A client's own deviation from a linear model: a random effect on every column, shrunk as its rows require.

The logit of a row is f.(theta + b), theta shared, b the client's own: the maximum a posteriori under a Gaussian prior
with a precision per column, found by Newton's method from zero, so no state is kept between rounds. All functions take
clients with equally many (padded) rows, `(n, s, ...)`, and compute each from its own rows alone: numpy multiplies and
solves client by client, so that no bit depends on the other clients of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rrcluster.types import Array

NEWTON_STEPS = 6
LONGEST_STEP = 4.0  # bound on the change of any row's logit in a step: far from the optimum a full step may overshoot
LARGEST_LOGIT = 8.0  # bound on predictions for left-out rows
LARGEST_LEVERAGE = 0.95  # bound on a row's leverage on its own fit


def residuals(logits: Array, targets: Array, kind: str) -> tuple[Array, Array]:
    """((n, s, l) target less prediction, (n, s, l) curvature of the loss) at these logits."""
    if kind == "number":
        return targets - logits, np.ones_like(logits)
    chance = probabilities(logits, kind)
    return targets - chance, chance * (1 - chance)


def probabilities(logits: Array, kind: str) -> Array:
    """Probability of the second of two classes (one logit), or of each class."""
    if kind == "binary":
        return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)))
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def row_losses(logits: Array, targets: Array, kind: str) -> Array:
    """(n, s) cross-entropy of each row, or half its squared error."""
    if kind == "number":
        return np.asarray(0.5 * ((targets - logits) ** 2).sum(axis=-1))
    if kind == "binary":
        return np.asarray((np.logaddexp(0, logits) - targets * logits)[..., 0])
    highest = logits.max(axis=-1, keepdims=True)
    total = highest + np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True))
    return np.asarray((targets * (total - logits)).sum(axis=-1))


@dataclass(frozen=True)
class RidgeFit:
    """Ridge regressions of n clients on the same columns, solved over rows where these are fewer than columns."""

    columns: Array  # (n, s, p)
    precision: Array  # (p,) prior precision of each column

    @property
    def by_rows(self) -> bool:
        """Whether rows are fewer than columns."""
        return bool(self.columns.shape[1] < self.columns.shape[2])

    def solver(self, weights: Array) -> Callable[[Array], Array]:
        """(n, s) curvatures of rows -> function from (n, s, m) pulls of rows to (n, s or p, m) coefficients."""
        turned = self.columns.transpose(0, 2, 1)
        if self.by_rows:
            system = np.eye(self.columns.shape[1]) + weights[:, :, None] * self._kernel
            return lambda pulls: np.linalg.solve(system, pulls)
        system = turned @ (weights[:, :, None] * self.columns) + np.diag(self.precision)
        return lambda pulls: np.linalg.solve(system, turned @ pulls)

    def fitted(self, coefficients: Array) -> Array:
        """(n, s, m) fitted values of each row."""
        return np.asarray((self._kernel if self.by_rows else self.columns) @ coefficients)

    def effects(self, coefficients: Array) -> Array:
        """(n, p, m) the random effects of these coefficients."""
        if not self.by_rows:
            return coefficients
        return np.asarray((self.columns / self.precision).transpose(0, 2, 1) @ coefficients)

    def leverage(self, weights: Array) -> Array:
        """(n, s) leverage of each row: the change of its fit per unit of pull on it."""
        rows = self.columns.shape[1]
        if self.by_rows:
            identity = np.broadcast_to(np.eye(rows), (*weights.shape, rows))
            return np.diagonal(self.fitted(self.solver(weights)(identity)), axis1=1, axis2=2).copy()
        turned = self.columns.transpose(0, 2, 1)
        system = turned @ (weights[:, :, None] * self.columns) + np.diag(self.precision)
        return np.asarray((turned * np.linalg.solve(system, turned)).sum(axis=1))

    @property
    def _kernel(self) -> Array:
        return (self.columns / self.precision) @ self.columns.transpose(0, 2, 1)


def fit_effects(
    columns: Array, offsets: Array, targets: Array, mask: Array, precision: Array, *, kind: str, steps: int
) -> tuple[Array, Array]:
    """((n, p, l) random effects, (n, s, l) logits of all rows with them), fitted to the rows of `mask` (n, s).

    `offsets` (n, s, l) are the shared model's logits. Columns of padded rows must be zero.
    """
    fit = RidgeFit(columns, precision)
    coefficients = np.zeros((len(columns), columns.shape[1 if fit.by_rows else 2], offsets.shape[2]))
    shifts = np.zeros_like(offsets)
    for _ in range(1 if kind == "number" else steps):
        pulls, weights = residuals(offsets + shifts, targets, kind)
        better = np.empty_like(coefficients)
        for output in range(offsets.shape[2]):
            weight = weights[..., output] * mask
            pull = weight * shifts[..., output] + pulls[..., output] * mask
            better[..., output] = fit.solver(weight)(pull[..., None])[..., 0]
        change = fit.fitted(better) - shifts
        longest = np.abs(change).max(axis=(1, 2), initial=0.0)[:, None, None]
        part = 1.0 if kind == "number" else LONGEST_STEP / np.maximum(longest, LONGEST_STEP)
        coefficients, shifts = coefficients + part * (better - coefficients), shifts + part * change
    return fit.effects(coefficients), offsets + shifts


def left_out_logits(
    columns: Array, logits: Array, targets: Array, mask: Array, precision: Array, *, kind: str
) -> Array:
    """(n, s, l) logits of each row under the effects fitted to the client's other rows, to first order.

    `logits` are under the effects fitted to all rows of `mask`. A row's pull is subtracted, corrected for its leverage
    on its own fit.
    """
    fit, left_out = RidgeFit(columns, precision), np.empty_like(logits)
    pulls, weights = residuals(logits, targets, kind)
    for output in range(logits.shape[2]):
        weight = weights[..., output] * mask
        leverage = fit.leverage(weight)
        shrunk = 1 - np.minimum(weight * leverage, LARGEST_LEVERAGE)
        left_out[..., output] = logits[..., output] - leverage * pulls[..., output] * mask / shrunk
    return left_out if kind == "number" else np.clip(left_out, -LARGEST_LOGIT, LARGEST_LOGIT)
