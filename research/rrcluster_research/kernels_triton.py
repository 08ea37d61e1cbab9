"""Triton kernels: clients' random words, and one linear layer with cross-entropy.

`rng.client_words` is Philox4x32-10, counter (id low, id high, block, 0), with a key per client.
For the layer, a program does all steps of a client, or one model on its samples. A model is PyTorch's flat vector:
weights (CLASSES, F), then biases. Inputs have rows of PITCH numbers, zero from F on. A program's sums have a fixed
order, so a client's numbers do not depend on how many others are stacked. Features are read BLOCK at a time, so that a
layer of any width fits.
"""

import triton
import triton.language as tl
from triton.language.random import philox_impl

POSITION_BITS, POSITIONS = tl.constexpr(20), tl.constexpr((1 << 20) - 1)  # a sample's place, in the bits below its word
ABSENT = tl.constexpr(1 << 60)  # sorts after every word


@triton.jit
def words(keys, clients, out, blocks, TILE: tl.constexpr):
    """out (n, 4 blocks) int64; keys (n, 2) and clients (n,) int64. A program draws TILE blocks of one client."""
    client = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * TILE + tl.arange(0, TILE)
    name = tl.load(clients + client)
    zero = tl.zeros([TILE], dtype=tl.uint32)
    low, high = zero + name.to(tl.uint32), zero + (name >> 32).to(tl.uint32)
    k0 = zero + tl.load(keys + 2 * client).to(tl.uint32)
    k1 = zero + tl.load(keys + 2 * client + 1).to(tl.uint32)
    a, b, c, d = philox_impl(low, high, block.to(tl.uint32), zero, k0, k1, n_rounds=10)
    target = out + (client * blocks + block) * 4
    ok = block < blocks
    tl.store(target, a.to(tl.int64), mask=ok)
    tl.store(target + 1, b.to(tl.int64), mask=ok)
    tl.store(target + 2, c.to(tl.int64), mask=ok)
    tl.store(target + 3, d.to(tl.int64), mask=ok)


@triton.jit(do_not_specialize=["groups", "step", "per_epoch"])
def step_rows(integers, out, groups, step, per_epoch, WIDTH: tl.constexpr):
    """out (steps, n, step) int32: `local_steps.step_rows`. A program sorts the samples of one client for one epoch.

    WIDTH is a power of two, at least per_epoch * step. `integers` (n, 6) is `ClientBatch.integers`.
    """
    client, epoch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    about = integers + client * 6
    name, start, size = tl.load(about + 1), tl.load(about + 2), tl.load(about + 3)
    position = tl.arange(0, WIDTH)
    draw = epoch * size + position  # position among the client's own draws
    zero = tl.zeros([WIDTH], dtype=tl.uint32)
    low, high = zero + name.to(tl.uint32), zero + (name >> 32).to(tl.uint32)
    k0, k1 = zero + tl.load(about + 4).to(tl.uint32), zero + tl.load(about + 5).to(tl.uint32)
    a, b, c, d = philox_impl(low, high, (draw // 4).to(tl.uint32), zero, k0, k1, n_rounds=10)
    lane = draw % 4
    word = tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d))).to(tl.int64)
    order = tl.sort(tl.where(position < size, word << POSITION_BITS, ABSENT) + position)
    row = tl.where(order < ABSENT, start + (order & POSITIONS), -1)
    target = ((epoch * per_epoch + position // step) * groups + client) * step + position % step
    tl.store(out + target, row.to(tl.int32), mask=position < per_epoch * step)


COPIED = tl.constexpr(1024)  # numbers of a model copied at once


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b, with operands rounded as PRECISION says; sums are float32."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:  # Triton drops an untaken branch, but not the code after a return
        return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def _samples(inputs, row, present, feature, PITCH: tl.constexpr):
    """(ROWS, BLOCK) these features of these rows; zero for absent rows."""
    place = inputs + row[:, None] * PITCH + feature[None, :]
    return tl.load(place, mask=present[:, None] & (feature < PITCH)[None, :], other=0.0)


@triton.jit
def _logits(
    vector, inputs, row, present, F: tl.constexpr, PITCH: tl.constexpr, CLASSES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(ROWS, COLS); minus infinity beyond the last class."""
    label = tl.arange(0, COLS)
    known = (label < CLASSES)[None, :]
    bias = tl.load(vector + CLASSES * F + label, mask=label < CLASSES, other=0.0)
    logits = tl.zeros([ROWS, COLS], dtype=tl.float32) + bias[None, :]
    for first in range(0, F, BLOCK):
        feature = first + tl.arange(0, BLOCK)
        samples = _samples(inputs, row, present, feature, PITCH)
        place = vector + label[None, :] * F + feature[:, None]
        logits = dot(samples, tl.load(place, mask=(feature < F)[:, None] & known, other=0.0), logits, PRECISION)
    return tl.where(known, logits, float("-inf"))


@triton.jit(do_not_specialize=["groups", "S", "STEPS"])
def train(
    models, integers, rates, inputs, targets, where, changes, groups, S, STEPS,
    F: tl.constexpr, PITCH: tl.constexpr, CLASSES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """changes (G, D) by SGD on the rows `where` (STEPS, G, S) of `inputs`; a row of -1 is absent."""
    D: tl.constexpr = (F + 1) * CLASSES
    group = tl.program_id(0).to(tl.int64)
    start, vector = models + tl.load(integers + group * 6) * D, changes + group * D
    rows, label, copied = tl.arange(0, ROWS), tl.arange(0, COLS), tl.arange(0, COPIED)
    known = (label < CLASSES)[None, :]
    rate = tl.load(rates + group)
    for first in range(0, D, COPIED):
        tl.store(
            vector + first + copied, tl.load(start + first + copied, mask=first + copied < D), mask=first + copied < D
        )
    for step in range(STEPS):
        row = tl.load(where + (step * groups + group) * S + rows, mask=rows < S, other=-1).to(tl.int64)
        present = row >= 0
        count = tl.sum(present.to(tl.int32))
        if count > 0:
            tl.debug_barrier()
            logits = _logits(vector, inputs, row, present, F, PITCH, CLASSES, ROWS, BLOCK, COLS, PRECISION)
            odds = tl.exp(logits - tl.max(logits, axis=1)[:, None])
            chance = odds / tl.sum(odds, axis=1)[:, None]
            truth = tl.load(targets + row, mask=present, other=0)
            slope = (chance - (label[None, :] == truth[:, None]).to(tl.float32)) / count
            slope = tl.where(present[:, None] & known, slope, 0.0)
            tl.debug_barrier()
            for first in range(0, F, BLOCK):
                feature = first + tl.arange(0, BLOCK)
                samples = _samples(inputs, row, present, feature, PITCH)
                gradient = dot(tl.trans(samples), slope, tl.zeros([BLOCK, COLS], dtype=tl.float32), PRECISION)
                place, real = vector + label[None, :] * F + feature[:, None], (feature < F)[:, None] & known
                tl.store(place, tl.load(place, mask=real, other=0.0) - rate * gradient, mask=real)
            place = vector + CLASSES * F + label
            bias = tl.load(place, mask=label < CLASSES, other=0.0) - rate * tl.sum(slope, axis=0)
            tl.store(place, bias, mask=label < CLASSES)
    tl.debug_barrier()
    for first in range(0, D, COPIED):
        real = first + copied < D
        before = tl.load(start + first + copied, mask=real)
        tl.store(vector + first + copied, tl.load(vector + first + copied, mask=real) - before, mask=real)


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
    begin, size = tl.load(about + client * 3), tl.load(about + client * 3 + 1)
    vector = models + (tl.load(about + client * 3 + 2) + place) * ((F + 1) * CLASSES)
    rows, label = tl.arange(0, ROWS), tl.arange(0, COLS)
    loss, hits = tl.zeros([ROWS], dtype=tl.float64), tl.zeros([ROWS], dtype=tl.float64)
    for tile in range(0, size.to(tl.int32), ROWS):
        present, row = tile + rows < size, begin + tile + rows
        logits = _logits(vector, inputs, row, present, F, PITCH, CLASSES, ROWS, BLOCK, COLS, PRECISION)
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
