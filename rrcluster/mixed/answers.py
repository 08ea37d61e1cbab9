"""A client's answers: functions of its own rows and of earlier releases, computed for each client independently."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rrcluster.data.federated import Cohort
from rrcluster.mixed.facts import Facts
from rrcluster.mixed.questions import AXES, CELLS, SMALL, STAGES, Form, Setting, packed
from rrcluster.mixed.random_effects import (
    NEWTON_STEPS,
    fit_effects,
    left_out_logits,
    residuals,
    row_losses,
)
from rrcluster.mixed.raw_columns import COARSE, EDGES, FINE, Ranges, extreme_bins, indicators, one_hot
from rrcluster.types import Array

GRADIENT_CLIP = {"binary": 0.25, "classes": 0.3, "number": 0.5}  # relative to the length of a row
MOVE_CLIP = 2.5  # bound on a client's distance from its centre
GAIN_CLIP, FINE_GAIN_CLIP, LAST_GAIN_CLIP = 0.2, 0.05, 0.4  # bounds on differences of losses
MAP_SIDE = 3.0  # the map covers [-3, 3] in both directions
NUMBERS_AT_ONCE = 2**23  # rows times columns of the clients in one batch
HELD_OUT = 0.25  # share of a client's rows, the newest, on which choices are made where rows are ordered


@dataclass(frozen=True)
class Rows:
    """The rows of n clients, padded to the same number."""

    values: Array  # (n, s, d)
    codes: Array | None  # (n, s, d)
    targets: Array  # (n, s, l): 0 or 1, one-hot, or numbers
    mask: Array  # (n, s) 1 for a row, 0 for padding

    def older(self) -> Array:
        """(n, s) the mask without the newest rows; a client with two rows or more holds out at least one."""
        size = self.mask.sum(axis=1)
        held = np.where(size >= 2, np.ceil(HELD_OUT * size), 0)
        return np.asarray(self.mask * (np.arange(self.mask.shape[1]) < (size - held)[:, None]))


def rows_of(form: Form, cohort: Cohort, *, alone: bool) -> Iterator[tuple[Array, Rows]]:
    """Batches of clients whose row counts round up to the same power of two: places in the cohort, and rows.

    `alone`: one client per batch.
    """
    widths = 2 ** np.ceil(np.log2(np.maximum(cohort.sizes, 1))).astype(np.int64)
    for width in np.unique(widths).tolist():
        places = np.flatnonzero(widths == width)
        at_once = 1 if alone else max(NUMBERS_AT_ONCE // (width * (form.num_columns + 1)), 1)
        for first in range(0, len(places), at_once):
            chosen = places[first : first + at_once]
            yield chosen, _padded(form, cohort, chosen, width)


def _padded(form: Form, cohort: Cohort, places: Array, width: int) -> Rows:
    d, sizes = form.num_columns, cohort.sizes[places]
    inputs, targets = cohort.inputs[places, :width], cohort.targets[places, :width]
    missing = width - inputs.shape[1]
    inputs = np.pad(inputs.astype(np.float64), ((0, 0), (0, missing), (0, 0)))
    targets = np.pad(targets, ((0, 0), (0, missing)))
    mask = (np.arange(width) < sizes[:, None]).astype(np.float64)
    known = one_hot(targets, form.num_outputs) if form.kind == "classes" else targets[..., None].astype(np.float64)
    codes = inputs[..., d:] if form.buckets else None
    return Rows(inputs[..., :d], codes, known * mask[..., None], mask)


@dataclass(frozen=True)
class TableQuestion:
    """The question that clients answer in a round. Public."""

    form: Form
    stage: int  # place in STAGES
    facts: Facts

    def arrays(self) -> dict[str, Array]:
        """The arrays that are sent to remote clients."""
        return self.facts.tensors()

    @property
    def fits(self) -> bool:
        """Whether the facts have the shapes of this stage; a server that follows the protocol sends no others."""
        form, facts, a = self.form, self.facts, len(self.facts.active)
        families, outputs = form.families_of(a), form.num_outputs
        k = int(facts.chosen[0]) if facts.chosen.shape == (3,) else 0
        ranges = (form.num_ranges,)
        new_shapes: list[dict[str, tuple[int, ...]]] = [{}] * 9
        new_shapes[1] = {"low": ranges, "high": ranges, "knee": ranges, "density": (1,), "active": (a,)}
        new_shapes[1] |= {"middle": (a,), "reach": (a, 2)}
        new_shapes[3] = {"centre": (a,), "scale": (a,), "length": (1,), "axes": (a, AXES)}
        new_shapes[3] |= {"whiten": (a, a)} if facts.full else {}
        new_shapes[3] |= {"target": (2,)} if form.kind == "number" else {}
        new_shapes[4] = {"centres": (sum(families) - 1, AXES)} if len(families) > 1 else {}
        new_shapes[5] = {"first": (sum(families), outputs, 1 + a)}
        new_shapes[7] = {"chosen": (3,), "second": (k, outputs, 1 + a)}
        shapes = {name: shape for stage in new_shapes[: self.stage + 1] for name, shape in stage.items()}
        places = np.unique(facts.active)
        inside = len(places) == a and set(places.tolist()) <= set(range(form.num_encoded))
        sensible = inside and (facts.scale > 0).all() and (not k or k in families) and (facts.chosen[1:] > 0).all()
        return bool(sensible) and all(
            values.shape == shapes.get(name, (0,)) for name, values in facts.tensors().items()
        )

    def answers(self, cohort: Cohort, *, alone: bool) -> Array:
        """(n, width) the messages of these clients, each of length at most 1; `alone`: computed one by one."""
        messages = np.zeros((len(cohort.clients), self.form.width), dtype=np.float32)
        for places, rows in rows_of(self.form, cohort, alone=alone):
            messages[places] = self.messages(rows)
        return messages

    def messages(self, rows: Rows) -> Array:
        """(n, width) of length at most 1."""
        parts = self.form.parts(self.stage, len(self.facts.active) if self.stage else None)
        answers = getattr(self, "_" + STAGES[self.stage][0].replace(" ", "_"))(rows)
        return packed(parts, answers, count=len(rows.mask), width=self.form.width)

    def _votes(self, rows: Rows, edges: Array, size: int, values: Array) -> Array:
        """(n, 2, ranges, size) votes for the bins of a client's least and greatest numbers, of length at most 1."""
        form, d = self.form, self.form.num_columns
        edges = np.broadcast_to(edges, (form.num_ranges, edges.shape[-1]))
        if not form.pooled:
            bins = np.where(form.open, extreme_bins(values, rows.mask > 0, edges), -1)
            return one_hot(bins, size) / math.sqrt(2 * max(form.open.sum(), 1))
        other = np.where((rows.values != 0) & form.open[:d], values[..., :d], np.nan)
        bins = extreme_bins(other, rows.mask > 0, edges[:d])
        voted = np.maximum((bins >= 0).sum(axis=2, keepdims=True), 1)
        votes = (np.stack([(bins == place).sum(axis=2) for place in range(size)], axis=-1) / voted)[:, :, None]
        if form.kind == "number":
            target = np.where(form.open[d:], extreme_bins(values[..., d:], rows.mask > 0, edges[d:]), -1)
            votes = np.concatenate([votes, one_hot(target, size)], axis=2)
        return np.asarray(votes / math.sqrt(2 * form.num_voted))

    def _voted(self, rows: Rows) -> Array:
        if self.form.kind != "number":
            return rows.values
        return np.concatenate([rows.values, rows.targets], axis=2)

    def _coarse_ranges(self, rows: Rows) -> dict[str, tuple[Array, float]]:
        present = np.isfinite(rows.values) & (rows.mask > 0)[..., None]
        cells = np.maximum(present.sum(axis=(1, 2)), 1)
        filled = (present & (rows.values != 0)).sum(axis=(1, 2)) / cells
        answers = {
            "extremes": (self._votes(rows, EDGES, COARSE, self._voted(rows)), 1.0),
            "zeros": (filled[:, None], 1.0),
        }
        if rows.codes is not None and self.form.buckets:
            votes = (indicators(rows.values, rows.codes, self.form.buckets) * rows.mask[..., None, None]).max(axis=1)
            answers["texts"] = (votes, math.sqrt(2 * self.form.num_columns))
        return answers

    def _fine_ranges(self, rows: Rows) -> dict[str, tuple[Array, float]]:
        ranges = self.facts.ranges
        return {"extremes": (self._votes(rows, ranges.fine_edges, FINE, ranges.compressed(self._voted(rows))), 1.0)}

    def _moments(self, rows: Rows) -> dict[str, tuple[Array, float]]:
        form, mask = self.form, rows.mask
        columns, size = (self._raw(rows) - self.facts.middle) * mask[..., None], np.maximum(mask.sum(axis=1), 1)
        mean = columns.sum(axis=1) / size[:, None]
        answers: dict[str, tuple[Array, float]] = {}
        if self.facts.full:
            with_ones, (of_rows, of_means) = np.concatenate([mask[..., None], columns], axis=2), self.facts.moment_clips
            second = with_ones.transpose(0, 2, 1) @ with_ones / size[:, None, None]
            answers["rows"] = upper(second)[:, 1:], of_rows
            answers["means"] = upper(mean[:, :, None] * mean[:, None, :]), of_means
        else:
            clip = self.facts.sparse_clip
            squares = (columns * columns).sum(axis=1) / size[:, None]
            answers["rows"] = np.concatenate([mean, squares], axis=1), clip
            answers["means"] = mean * mean, clip
        if form.kind == "number":
            target = self.targets(rows)[..., 0] * mask
            sums = np.stack([target.sum(axis=1), (target * target).sum(axis=1)], axis=1)
            answers["target"] = sums / size[:, None], math.sqrt(2)
        return answers

    def _map(self, rows: Rows) -> dict[str, tuple[Array, float]]:
        if not self.form.clustered(len(self.facts.active)):
            return {}
        place = self.described(rows)[:, :2]
        cells = [
            np.clip((place[:, j] + MAP_SIDE) / (2 * MAP_SIDE) * n, 0, n - 1).astype(int) for j, n in enumerate(CELLS)
        ]
        return {"cells": (one_hot(cells[0] * CELLS[1] + cells[1], math.prod(CELLS)), 1.0)}

    def _centres(self, rows: Rows) -> dict[str, tuple[Array, float]]:
        answers: dict[str, tuple[Array, float]] = {}
        families = self.form.clustered(len(self.facts.active))
        for k in families:
            place = self.described(rows)
            member = one_hot(self._nearest(place, k), k)
            centres = self.facts.of_family(k, families, self.facts.centres)
            answers[f"moves of {k}"] = member[..., None] * (place[:, None] - centres), MOVE_CLIP
            answers[f"counts of {k}"] = member, 1.0
        return answers

    def _first_training(self, rows: Rows) -> dict[str, tuple[Array, float]]:
        columns, targets = self.columns(rows), self.targets(rows)
        mask, answers = self._fitted_rows(rows), {}
        for k in self.form.families_of(len(self.facts.active)):
            member, offsets = self._member(rows, columns, self._first(k))
            pulls = residuals(offsets, targets, self.form.kind)[0]
            answers[f"gradient of {k}"] = self._gradient(columns, pulls, mask, member)
            answers[f"counts of {k}"] = member, 1.0
        return answers

    def _second_training(self, rows: Rows) -> dict[str, tuple[Array, float]]:
        columns, targets = self.columns(rows), self.targets(rows)
        _, intercept, slope = self._chosen
        member, offsets = self._member(rows, columns, self.facts.correlated(self.facts.second))
        logits = offsets
        if (intercept, slope) != (SMALL, SMALL):
            precision = precisions(intercept, slope, columns.shape[2])
            logits = fit_effects(
                columns, offsets, targets, rows.mask, precision, kind=self.form.kind, steps=NEWTON_STEPS
            )[1]
        pulls = residuals(logits, targets, self.form.kind)[0]
        return {"gradient": self._gradient(columns, pulls, rows.mask, member), "counts": (member, 1.0)}

    def _gradient(self, columns: Array, pulls: Array, mask: Array, member: Array) -> tuple[Array, float]:
        """(n, k, l, p) the mean gradient over a client's rows, in its cluster's place, and its clip."""
        size = np.maximum(mask.sum(axis=1), 1)[:, None, None]
        pulls = pulls * mask[..., None]
        gradient = (
            np.stack([(columns * pull[..., None]).sum(axis=1) for pull in np.moveaxis(pulls, 2, 0)], axis=1) / size
        )
        gradient = self.facts.correlated(gradient)
        clip = GRADIENT_CLIP[self.form.kind] * math.sqrt(self.facts.length.item())
        return member[:, :, None, None] * gradient[:, None], clip

    def _first_choice(self, rows: Rows) -> dict[str, tuple[Array, float]]:
        settings = self.form.first_settings(len(self.facts.active))
        losses = self._losses(rows, {k: self._first(k) for k, _, _ in settings}, settings)
        gains = losses[:, 1:] - losses[:, :1]
        return {"gains": (gains, GAIN_CLIP * math.sqrt(gains.shape[1] + 1))} if gains.shape[1] else {}

    def _last_choice(self, rows: Rows) -> dict[str, tuple[Array, float]]:
        settings, k = self.form.last_settings(*self._chosen), int(self._chosen[0])
        if self.form.begun:
            plain = self._losses(rows, {k: self.facts.start[k:]}, (self._chosen,))
        else:
            plain = self._losses(rows, {1: self._first(1)}, ((1, SMALL, SMALL),))
        losses = self._losses(rows, {k: self.facts.correlated(self.facts.second)}, settings)
        # a dishonest server may send another choice
        place = settings.index(self._chosen) if self._chosen in settings else 0
        loss_of_choice = losses[:, [place]]
        return {
            "gains": (losses - loss_of_choice, FINE_GAIN_CLIP * math.sqrt(len(settings))),
            "over what is there": (loss_of_choice - plain, LAST_GAIN_CLIP),
        }

    def _losses(self, rows: Rows, models: dict[int, Array], settings: tuple[Setting, ...]) -> Array:
        """(n, settings) each client's mean loss on rows that its random effects were not fitted to."""
        columns, targets, kind = self.columns(rows), self.targets(rows), self.form.kind
        fitted = self._fitted_rows(rows)
        judged = rows.mask - fitted if self.form.ordered else rows.mask
        count, losses, offsets = np.maximum(judged.sum(axis=1), 1), [], {}
        for k, intercept, slope in settings:
            if k not in offsets:
                offsets[k] = self._member(rows, columns, models[k])[1]
            logits = offsets[k]
            if (intercept, slope) != (SMALL, SMALL):
                precision = precisions(intercept, slope, columns.shape[2])
                logits = fit_effects(columns, offsets[k], targets, fitted, precision, kind=kind, steps=NEWTON_STEPS)[1]
                if not self.form.ordered:
                    logits = left_out_logits(columns, logits, targets, fitted, precision, kind=kind)
            losses.append((row_losses(logits, targets, kind) * judged).sum(axis=1) / count)
        return np.stack(losses, axis=1)

    def _fitted_rows(self, rows: Rows) -> Array:
        """(n, s) rows for centres, the first training and random effects: all but those held out for choices."""
        return rows.older() if self.form.ordered else rows.mask

    def _raw(self, rows: Rows) -> Array:
        return self.facts.columns_of(rows.values, rows.codes, rows.mask, buckets=self.form.buckets)

    def columns(self, rows: Rows) -> Array:
        """(n, s, p) a one and the standardised columns; zero in padded rows."""
        return self.facts.standardised(self._raw(rows), rows.mask)

    def targets(self, rows: Rows) -> Array:
        """(n, s, l) training targets: within their range, with mean 0 and variance 1 once these are released."""
        if self.form.kind != "number":
            return rows.targets
        facts = self.facts
        scaled = Ranges(facts.low[-1:], facts.high[-1:], facts.knee[-1:]).scaled(rows.targets)
        return (scaled - facts.target[0]) / facts.target[1] if len(facts.target) else scaled

    def described(self, rows: Rows) -> Array:
        """(n, r) coordinates of each client's mean row along the axes of the clusters."""
        mask = self._fitted_rows(rows)
        return self.facts.described(self.columns(rows) * mask[..., None], mask)

    def _nearest(self, place: Array, k: int) -> Array:
        return self.facts.nearest(place, k, self.form.families_of(len(self.facts.active)))

    def _first(self, k: int) -> Array:
        """(k, l, p) weights for standardised columns of the first training with k clusters."""
        families = self.form.families_of(len(self.facts.active))
        return self.facts.correlated(self.facts.of_family(k, families, self.facts.first))

    def _member(self, rows: Rows, columns: Array, models: Array) -> tuple[Array, Array]:
        """(n, k) one-hot cluster of each client, and (n, s, l) logits of that cluster's model."""
        k = len(models)
        nearest = self._nearest(self.described(rows), k) if k > 1 else np.zeros(len(columns), dtype=np.int64)
        return one_hot(nearest, k), linear(columns, models[nearest])

    @property
    def _chosen(self) -> Setting:
        k, intercept, slope = self.facts.chosen.tolist()
        return int(k), intercept, slope


def linear(columns: Array, weights: Array) -> Array:
    """(n, s, l) logits of rows (n, s, p) under their client's weights (n, l, p), summed client by client."""
    return np.stack([(columns * weight[:, None]).sum(axis=2) for weight in np.moveaxis(weights, 1, 0)], axis=2)


def precisions(intercept: float, slope: float, p: int) -> Array:
    """(p,) prior precisions for random effects of these sizes; the first is the intercept's."""
    return np.concatenate([[intercept**-2.0], np.full(p - 1, slope**-2.0)])


def upper(products: Array) -> Array:
    """(n, p (p + 1) / 2) entries of a symmetric array, weighted so that the vector has the array's norm."""
    first, second = np.triu_indices(products.shape[-1])
    entries = np.ascontiguousarray(products[..., first, second])
    return np.asarray(entries * np.where(first == second, 1.0, math.sqrt(2)))


def from_upper(entries: Array, p: int) -> Array:
    """(p, p) the inverse of `upper`."""
    first, second = np.triu_indices(p)
    square = np.zeros((p, p))
    square[first, second] = square[second, first] = entries / np.where(first == second, 1.0, math.sqrt(2))
    return square
