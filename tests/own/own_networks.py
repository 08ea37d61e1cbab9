"""Networks and populations that people bring."""

from functools import partial

import numpy as np
import torch
from torch import nn

import rrcluster as rr

SIZES = (1, 7, 12, 5)


class NextToken(nn.Module):
    def __init__(self, recurrent=nn.LSTM, width=6):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(width, 9)
        self.recurrent = recurrent(4, 6, num_layers=2, batch_first=True)

    def forward(self, ids):
        return self.head(self.recurrent(self.embed(ids))[0])


class Encoder(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, sequence):
        return self.head(self.layer(sequence).mean(1))


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.item, self.context = nn.Embedding(30, 4), nn.Linear(3, 4)

    def forward(self, item, context):
        return (self.item(item) * self.context(context)).sum(-1, keepdim=True)


class Branching(nn.Module):
    """What it computes depends on the data."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, inputs):
        rows = [self.first(row) if row[0] > 0 else self.second(row) for row in inputs]
        return torch.stack(rows)


class Scaled(nn.Module):
    """A constant buffer, weights that are used twice, and a parameter that is not used."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.unused = nn.Linear(4, 4), nn.Linear(4, 3), nn.Parameter(torch.ones(2))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, inputs):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(inputs * self.scale)))))


class Words(nn.Module):
    """The mean of embedded words, and a last layer."""

    def __init__(self, **options):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 6, **options), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.head(self.embedding(inputs).mean(1))


def frozen_backbone():
    backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).requires_grad_(False).eval()
    return nn.Sequential(backbone, nn.Linear(8, 3))


def binary_losses(outputs, targets):
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)


def numbers(rng, *shape):
    return [rng.normal(size=(size, *shape)).astype(np.float32) for size in SIZES]


def classes(rng, count, *shape):
    return [rng.integers(count, size=(size, *shape)) for size in SIZES]


def _classified(rng, *shape):
    return rr.from_arrays(numbers(rng, *shape), classes(rng, 3), num_classes=3)


def _rated(rng):
    pairs = zip(classes(rng, 30), numbers(rng, 3), strict=True)
    return rr.from_arrays([{"item": item, "context": context} for item, context in pairs], numbers(rng))


def _text(rng):
    return rr.from_arrays(classes(rng, 9, 5), classes(rng, 9, 5), num_classes=9, ids=True)


def _sentences(rng):
    return rr.from_arrays(classes(rng, 9, 5), classes(rng, 3), num_classes=3, ids=True)


# name -> module, functions that judge it, population, whether clients can be stacked
CASES = {
    "dropout": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        {},
        lambda rng: _classified(rng, 4),
        False,
    ),
    "lstm": (NextToken, {}, _text, True),
    "gru": (lambda: NextToken(nn.GRU), {}, _text, True),
    "two directions": (lambda: NextToken(partial(nn.LSTM, bidirectional=True), width=12), {}, _text, False),
    "transformer": (Encoder, {}, lambda rng: _classified(rng, 5, 8), False),
    "padded words": (lambda: Words(padding_idx=5), {}, _sentences, True),
    "rare words": (lambda: Words(scale_grad_by_freq=True), {}, _sentences, False),
    "recommender": (Recommender, {}, _rated, True),
    "branching": (Branching, {}, lambda rng: _classified(rng, 4), False),
    "scaled": (Scaled, {}, lambda rng: _classified(rng, 4), True),
    "frozen": (frozen_backbone, {}, lambda rng: _classified(rng, 4), True),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)),
        {},
        lambda rng: _classified(rng, 1, 6, 6),
        True,
    ),
    "multi-label": (
        lambda: nn.Linear(4, 5),
        {"loss": binary_losses, "metric": lambda outputs, targets: ((outputs > 0) == (targets > 0.5)).float().mean(1)},
        lambda rng: rr.from_arrays(numbers(rng, 4), [labels.astype(np.float32) for labels in classes(rng, 2, 5)]),
        True,
    ),
    "two numbers": (lambda: nn.Linear(4, 2), {}, lambda rng: rr.from_arrays(numbers(rng, 4), numbers(rng, 2)), True),
}


def make(name, rng):
    """The model and the population of a case."""
    from rrcluster.models import fitted

    torch.manual_seed(3)
    module, judged, population, _ = CASES[name]
    data = population(rng)
    return fitted(rr.from_module(module(), **judged), data), data
