"""A linear model of a table's columns that reads raw cells: ranges, means and scales are parameters of it.

All of them are released numbers (rrcluster/mixed/), so that one file holds the whole way from a cell to a prediction.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rrcluster.errors import ConfigError
from rrcluster.mixed.facts import WIDEST
from rrcluster.mixed.questions import AXES, Form
from rrcluster.models.model import Model


class TableLinear(nn.Module):
    """Logits of the classes, or the predicted number, of rows of values (and codes).

    `weight` has the weights for predictions, the intercept first; `base` those that a client's random effects are added
    to, which predict nothing by themselves. `centre`, `effects` and `place` are for clients: where they are described,
    how large their effects are, and which cluster is near.
    """

    def __init__(self, form: Form) -> None:
        """All zero: it predicts the same for every row."""
        super().__init__()
        self.form = form
        ranges, encoded, outputs = form.num_ranges, form.num_encoded, form.num_outputs

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(shape))

        self.low, self.high, self.knee = zeros(ranges), zeros(ranges), zeros(ranges)
        self.centre, self.gain, self.axes = zeros(encoded), zeros(encoded), zeros(encoded, AXES)
        self.target, self.effects = zeros(2), zeros(2)
        self.place = zeros(AXES)
        self.weight, self.base = zeros(outputs, 1 + encoded), zeros(outputs, 1 + encoded)

    def forward(self, rows: Tensor) -> Tensor:
        """(s, 2 d), or (s, d) without codes -> (s, classes), or (s, 1)."""
        form, d = self.form, self.form.num_columns
        values = rows[..., :d]
        columns = self._scaled(values, slice(0, d))
        if form.buckets:
            codes = rows[..., d:]
            missing = (torch.isnan(values) & (codes == 0)).to(rows.dtype)
            buckets = torch.arange(1, form.buckets + 1, device=rows.device)
            texts = (codes[..., None] == buckets).to(rows.dtype)
            rest = torch.cat([missing[..., None], texts], dim=-1).flatten(-2)
            columns = torch.cat([columns, rest], dim=-1)
        return self.answer(((columns - self.centre) * self.gain).clamp(-WIDEST, WIDEST))

    def answer(self, standard: Tensor) -> Tensor:
        """(s, p) standardised columns -> (s, classes), or (s, 1)."""
        logits = standard @ self.weight[:, 1:].T + self.weight[:, 0]
        if self.form.kind == "binary":
            return torch.cat([torch.zeros_like(logits), logits], dim=-1)
        if self.form.kind == "classes":
            return logits
        return self._number(self.target[0] + self.target[1] * logits)

    def _scaled(self, values: Tensor, part: slice) -> Tensor:
        low, high, knee = self.low[part], self.high[part], self.knee[part]
        bend = torch.where(knee > 0, knee, torch.ones_like(knee))
        values = torch.where(knee > 0, bend * torch.asinh(values / bend), values)
        half = ((high - low) / 2).clamp(min=torch.finfo(low.dtype).tiny)
        return torch.nan_to_num(((values - (low + high) / 2) / half).clamp(-1, 1), nan=0.0)

    def _number(self, scaled: Tensor) -> Tensor:
        low, high, knee = self.low[-1:], self.high[-1:], self.knee[-1:]
        values = (low + high) / 2 + scaled.clamp(-1, 1) * (high - low) / 2
        bend = torch.where(knee > 0, knee, torch.ones_like(knee))
        return torch.where(knee > 0, bend * torch.sinh(values / bend), values)


def table_linear(input_shape: tuple[int, ...], outputs: int, *, buckets: int = 0) -> Model:
    """The model of rows of `input_shape` (d,), or (2 d,) where cells have codes up to `buckets`; 1 output: a number."""
    if len(input_shape) != 1:
        raise ConfigError(f"model = table-linear takes rows of a table, not samples of shape {input_shape}.")
    kind = "number" if outputs == 1 else "binary" if outputs == 2 else "classes"
    width = input_shape[0] // 2 if buckets else input_shape[0]
    form = Form(width, buckets, 1 if outputs <= 2 else outputs, kind)

    def for_cells(described: Mapping[str, Any]) -> Model:
        return table_linear(input_shape, outputs, buckets=int(described["buckets"]))

    return Model("table-linear", TableLinear(form), own=False, form=form, for_cells=for_cells)
