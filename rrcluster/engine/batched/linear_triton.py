"""One linear layer and cross-entropy in Triton: all local steps of a client, or one model on its samples, in one program.

A model is PyTorch's flat vector: weights (CLASSES, F), then biases. It stays in registers from the first step to the
last. Inputs have rows of PITCH numbers, zero from F on. A program's sums have a fixed order, so a client's numbers do
not depend on how many others are stacked.
"""

import triton
import triton.language as tl

from rrcluster.engine.fast_cnn.forward_triton import dot


@triton.jit
def _layer(vector, F: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr):
    """Weights (BLOCK, COLS) and biases (COLS,); zero beyond the last feature and the last class."""
    feature, label = tl.arange(0, BLOCK), tl.arange(0, COLS)
    real = (feature < F)[:, None] & (label < CLASSES)[None, :]
    weights = tl.load(vector + label[None, :] * F + feature[:, None], mask=real, other=0.0)
    return weights, tl.load(vector + CLASSES * F + label, mask=label < CLASSES, other=0.0)


@triton.jit
def _logits(
    samples, weights, bias, ROWS: tl.constexpr, CLASSES: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr
):
    """(ROWS, COLS); minus infinity beyond the last class."""
    known = (tl.arange(0, COLS) < CLASSES)[None, :]
    logits = dot(samples, weights, tl.zeros([ROWS, COLS], dtype=tl.float32) + bias[None, :], PRECISION)
    return tl.where(known, logits, float("-inf"))


@triton.jit
def _samples(inputs, row, present, PITCH: tl.constexpr, BLOCK: tl.constexpr):
    feature = tl.arange(0, BLOCK)
    place = inputs + row[:, None] * PITCH + feature[None, :]
    return tl.load(place, mask=present[:, None] & (feature < PITCH)[None, :], other=0.0)


@triton.jit(do_not_specialize=["groups", "S", "STEPS"])
def train(
    models, integers, rates, inputs, targets, where, changes, groups, S, STEPS,
    F: tl.constexpr, PITCH: tl.constexpr, CLASSES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """changes (G, D): what SGD on the rows `where` (STEPS, G, S) of `inputs` changes; a row of -1 is absent."""
    group = tl.program_id(0).to(tl.int64)
    start = models + tl.load(integers + group * 6) * ((F + 1) * CLASSES)
    rows, feature, label = tl.arange(0, ROWS), tl.arange(0, BLOCK), tl.arange(0, COLS)
    weights, bias = _layer(start, F, CLASSES, BLOCK, COLS)
    rate = tl.load(rates + group)
    for step in range(STEPS):
        row = tl.load(where + (step * groups + group) * S + rows, mask=rows < S, other=-1).to(tl.int64)
        present = row >= 0
        count = tl.sum(present.to(tl.int32))
        if count > 0:
            samples = _samples(inputs, row, present, PITCH, BLOCK)
            logits = _logits(samples, weights, bias, ROWS, CLASSES, COLS, PRECISION)
            odds = tl.exp(logits - tl.max(logits, axis=1)[:, None])
            chance = odds / tl.sum(odds, axis=1)[:, None]
            truth = tl.load(targets + row, mask=present, other=0)
            slope = (chance - (label[None, :] == truth[:, None]).to(tl.float32)) / count
            slope = tl.where(present[:, None] & (label < CLASSES)[None, :], slope, 0.0)
            gradient = dot(tl.trans(samples), slope, tl.zeros([BLOCK, COLS], dtype=tl.float32), PRECISION)
            weights -= rate * gradient
            bias -= rate * tl.sum(slope, axis=0)
    before, bias_before = _layer(start, F, CLASSES, BLOCK, COLS)
    target = changes + group * ((F + 1) * CLASSES)
    real = (feature < F)[:, None] & (label < CLASSES)[None, :]
    tl.store(target + label[None, :] * F + feature[:, None], weights - before, mask=real)
    tl.store(target + CLASSES * F + label, bias - bias_before, mask=label < CLASSES)


@triton.jit(do_not_specialize=["K"])
def judge(
    models, about, inputs, targets, figures, K,
    F: tl.constexpr, PITCH: tl.constexpr, CLASSES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """figures (G, K, 2) float64: mean loss and accuracy of K models, from `about` (G, 3): first row, size, first model.

    A client's samples are neighbours in `inputs`. Both are 0 for a client without samples.
    """
    client, place = (tl.program_id(0) // K).to(tl.int64), tl.program_id(0) % K
    first, size = tl.load(about + client * 3), tl.load(about + client * 3 + 1)
    model = tl.load(about + client * 3 + 2) + place
    weights, bias = _layer(models + model * ((F + 1) * CLASSES), F, CLASSES, BLOCK, COLS)
    rows, label = tl.arange(0, ROWS), tl.arange(0, COLS)
    loss, hits = tl.zeros([ROWS], dtype=tl.float64), tl.zeros([ROWS], dtype=tl.float64)
    for begin in range(0, size.to(tl.int32), ROWS):
        present = begin + rows < size
        row = first + begin + rows
        samples = _samples(inputs, row, present, PITCH, BLOCK)
        logits = _logits(samples, weights, bias, ROWS, CLASSES, COLS, PRECISION)
        best = tl.max(logits, axis=1)
        truth = tl.load(targets + row, mask=present, other=0)
        own = tl.sum(tl.where(label[None, :] == truth[:, None], logits, 0.0), axis=1)
        above = tl.log(tl.sum(tl.exp(logits - best[:, None]), axis=1)) + best - own
        loss += tl.where(present, above, 0.0).to(tl.float64)
        hits += tl.where(present & (tl.argmax(logits, axis=1) == truth), 1.0, 0.0).to(tl.float64)
    count = tl.maximum(size, 1).to(tl.float64)
    target = figures + tl.program_id(0).to(tl.int64) * 2
    tl.store(target, tl.sum(loss, axis=0) / count)
    tl.store(target + 1, tl.sum(hits, axis=0) / count)
