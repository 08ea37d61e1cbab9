"""The `cnn` in Triton: forward pass, backward pass, SGD step.

`G` clients, each with its own model and a batch of `S` images.

One training step is `forward1` and `forward2`, then `classify`, `backward2`, `backward1` and `update`; `forward` is
both layers in one, for evaluation. Activations, the position of each maximum (a byte) and gradients go through device
memory, with barriers in between where one program needs both. No patches are unfolded, and ReLU follows the maximum,
which gives the same function with less work.

Every sum has a fixed order: the same inputs give the same bits, however many clients are stacked. An absent image
(`where` < 0) has no effect: batches are full from the left, so a group of `N` whose first image is absent is skipped. A
client whose batch is empty does not move.

Channels come last throughout. `vectors` (G, D) are parameters in the packed order of __init__.py, but for the order of
conv1's taps, which is that of the images: squares of 2 x 2 pixels, 17 x 17 of them (`CnnKernels.form`). Sizes are not
specialised: one compilation serves all of them.
"""

import triton
import triton.language as tl

from rrcluster_research import fast_cnn
from rrcluster_research.kernels_triton import dot

BIAS1, CONV2, BIAS2 = (tl.constexpr(start) for start in (fast_cnn.BIAS1, fast_cnn.CONV2, fast_cnn.BIAS2))
FC1, FC1_BIAS, FC2 = (tl.constexpr(start) for start in (fast_cnn.FC1, fast_cnn.FC1_BIAS, fast_cnn.FC2))
H1, Z2, H2 = (tl.constexpr(size) for size in fast_cnn.ACTIVATIONS[1:])
Z1 = tl.constexpr(14 * 16 * 16)  # rows of 14 places are padded to 16
SQUARE, SIDE, PIXELS = tl.constexpr(4), tl.constexpr(68), tl.constexpr(1156)  # numbers in a square, a row, an image
NO_PLACE = tl.constexpr(4)  # the maximum was not positive: ReLU passes no gradient back


@triton.jit
def patches1(image, y, x, ok):
    """(positions, 64) inputs of conv1 at the places (y, x) of one image of 14 x 14."""
    tap = tl.arange(0, 64)
    corner = image + y * SIDE + x * SQUARE
    return tl.load(corner[:, None] + ((tap // 16) * SIDE + tap % 16)[None, :], mask=ok[:, None], other=0.0)


@triton.jit
def _largest(base, ACROSS: tl.constexpr, CHANNELS: tl.constexpr, ok):
    """The largest of a 2 x 2 square that starts at `base`, and its place (0 to 3, first wins)."""
    best = tl.load(base, mask=ok, other=0.0)
    place = tl.zeros(best.shape, dtype=tl.int32)
    for corner in tl.static_range(1, 4):
        value = tl.load(base + ((corner // 2) * ACROSS + corner % 2) * CHANNELS, mask=ok, other=0.0)
        place = tl.where(value > best, corner, place)
        best = tl.maximum(best, value)
    return tl.maximum(best, 0.0), tl.where(best > 0, place, NO_PLACE).to(tl.int8)


@triton.jit
def _conv1(weights, image, z1, TILE: tl.constexpr, PRECISION: tl.constexpr):
    """z1 (14, 16, 16): rows have room for 16 places, so that the places of a tile need no division."""
    channel, tap = tl.arange(0, 16), tl.arange(0, 64)
    kernel = tl.load(weights + tap[:, None] * 16 + channel[None, :])
    bias = tl.load(weights + BIAS1 + channel)
    for tile in range((14 * 16 + TILE - 1) // TILE):
        q = tile * TILE + tl.arange(0, TILE)
        y, x = q // 16, q % 16
        ok = (y < 14) & (x < 14)
        acc = dot(patches1(image, y, x, ok), kernel, tl.zeros([TILE, 16], dtype=tl.float32) + bias[None, :], PRECISION)
        tl.store(z1 + q[:, None] * 16 + channel[None, :], acc, mask=ok[:, None])


@triton.jit
def _pool1(z1, h1, place1, TILE: tl.constexpr, TRAIN: tl.constexpr):
    """h1 (13, 13, 16) of one image."""
    channel = tl.arange(0, 16)
    for tile in range((13 * 16 + TILE - 1) // TILE):
        q = tile * TILE + tl.arange(0, TILE)
        y, x = q // 16, q % 16
        ok = ((y < 13) & (x < 13))[:, None] & (channel >= 0)[None, :]
        value, place = _largest(z1 + q[:, None] * 16 + channel[None, :], 16, 16, ok)
        target = (y * 13 + x)[:, None] * 16 + channel[None, :]
        tl.store(h1 + target, value, mask=ok)
        if TRAIN:
            tl.store(place1 + target, place, mask=ok)


@triton.jit
def near(tap):
    """Where input `tap` (of 16 taps of 16 channels) of conv2 lies in h1, from the place of its first."""
    return ((tap // 64) * 13 + (tap // 16) % 4) * 16 + tap % 16


@triton.jit
def _conv2(weights, h1, z2, room, N: tl.constexpr, PRECISION: tl.constexpr):
    """z2 (N, 25, 32)."""
    r, out = tl.arange(0, N * 32), tl.arange(0, 32)
    image, spot = r // 32, r % 32
    there = ((spot < 25) & (image < room))[:, None]
    source = h1 + image * H1 + (2 * (spot // 5) * 13 + 2 * (spot % 5)) * 16
    acc = tl.zeros([N * 32, 32], dtype=tl.float32) + tl.load(weights + BIAS2 + out)[None, :]
    for chunk in range(4):
        tap = chunk * 64 + tl.arange(0, 64)
        patch = tl.load(source[:, None] + near(tap)[None, :], mask=there, other=0.0)
        kernel = tl.load(weights + CONV2 + tap[:, None] * 32 + out[None, :])
        acc = dot(patch, kernel, acc, PRECISION)
    tl.store(z2 + (image * Z2 + spot * 32)[:, None] + out[None, :], acc, mask=there)


@triton.jit
def _pool2(z2, h2, place2, room, N: tl.constexpr, TRAIN: tl.constexpr):
    """h2 (N, 16, 32)."""
    r, out = tl.arange(0, N * 16), tl.arange(0, 32)
    image, spot = r // 16, r % 16
    ok = (image < room)[:, None] & (out >= 0)[None, :]
    base = image * Z2 + ((spot // 4) * 5 + spot % 4) * 32
    value, place = _largest(z2 + base[:, None] + out[None, :], 5, 32, ok)
    target = r[:, None] * 32 + out[None, :]
    tl.store(h2 + target, value, mask=ok)
    if TRAIN:
        tl.store(place2 + target, place, mask=ok)


@triton.jit(do_not_specialize=["num_blocks", "S", "BLOCKS"])
def forward(
    vectors, images, where, model_of, data_of, scratch, h2, place2, num_blocks, S, BLOCKS,
    D: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Images -> pooled features h2 (G, S, 512) of both convolutions, for evaluation.

    Group g uses the model `model_of[g]` on the images `where[data_of[g]]` (S rows of `images`).
    """
    pid = tl.program_id(0)
    z1 = scratch + tl.cast(pid, tl.int64) * (Z1 + N * (H1 + Z2))
    h1, z2 = z1 + Z1, z1 + Z1 + N * H1
    for block in range(pid, num_blocks, tl.num_programs(0)):
        group = block // BLOCKS
        start = (block % BLOCKS) * N
        first = tl.load(data_of + group) * S + start
        if tl.load(where + first) >= 0:
            weights = vectors + tl.load(model_of + group).to(tl.int64) * D
            slot = tl.cast(group, tl.int64) * S + start  # of the first image
            for place in range(tl.minimum(N, S - start)):
                image = images + tl.maximum(tl.load(where + first + place), 0).to(tl.int64) * PIXELS
                tl.debug_barrier()
                _conv1(weights, image, z1, TILE, PRECISION)
                tl.debug_barrier()
                _pool1(z1, h1 + place * H1, place2, TILE, False)
            tl.debug_barrier()
            _conv2(weights, h1, z2, S - start, N, PRECISION)
            tl.debug_barrier()
            _pool2(z2, h2 + slot * H2, place2, S - start, N, False)


@triton.jit(do_not_specialize=["S"])
def forward1(vectors, images, where, z1, h1, place1, S, D: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr):
    """conv1 and its pool: h1 and the places of its maxima. A program computes one image."""
    slot = tl.program_id(0).to(tl.int64)
    row = tl.load(where + slot).to(tl.int64)
    if row >= 0:
        _conv1(vectors + slot // S * D, images + row * PIXELS, z1 + slot * Z1, TILE, PRECISION)
        tl.debug_barrier()
        _pool1(z1 + slot * Z1, h1 + slot * H1, place1 + slot * H1, TILE, True)


@triton.jit(do_not_specialize=["S", "BLOCKS"])
def forward2(vectors, where, h1, z2, h2, place2, S, BLOCKS, D: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr):
    """conv2 and its pool: h2 and the places of its maxima."""
    group = tl.cast(tl.program_id(0) // BLOCKS, tl.int64)
    start = (tl.program_id(0) % BLOCKS) * N
    first = group * S + start
    if tl.load(where + first) >= 0:
        _conv2(vectors + group * D, h1 + first * H1, z2 + first * Z2, S - start, N, PRECISION)
        tl.debug_barrier()
        _pool2(z2 + first * Z2, h2 + first * H2, place2 + first * H2, S - start, N, True)


@triton.jit
def hidden_layer(weights, features, present, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """(ROWS, 32) the first linear layer, before ReLU."""
    out = tl.arange(0, 32)
    hidden = tl.zeros([ROWS, 32], dtype=tl.float32) + tl.load(weights + FC1_BIAS + out)[None, :]
    for chunk in range(8):
        column = chunk * 64 + tl.arange(0, 64)
        values = tl.load(features + column[None, :], mask=present[:, None], other=0.0)
        layer = tl.load(weights + FC1 + column[:, None] * 32 + out[None, :])
        hidden = dot(values, layer, hidden, PRECISION)
    return hidden


@triton.jit
def output_layer(weights, CLASSES: tl.constexpr, COLS: tl.constexpr):
    """(32, COLS) the second linear layer."""
    out, label = tl.arange(0, 32), tl.arange(0, COLS)
    place = weights + FC2 + out[:, None] * CLASSES + label[None, :]
    return tl.load(place, mask=(label < CLASSES)[None, :], other=0.0)


@triton.jit
def logits_of(
    weights, hidden, layer2, ROWS: tl.constexpr, CLASSES: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr
):
    """(ROWS, COLS) the second layer's outputs after ReLU; minus infinity beyond the last class."""
    label = tl.arange(0, COLS)
    bias = tl.load(weights + FC2 + CLASSES * 32 + label, mask=label < CLASSES, other=0.0)
    logits = dot(hidden, layer2, tl.zeros([ROWS, COLS], dtype=tl.float32) + bias[None, :], PRECISION)
    return tl.where((label < CLASSES)[None, :], logits, float("-inf"))


@triton.jit(do_not_specialize=["S", "TILES"])
def evaluate(
    vectors, targets, where, model_of, data_of, h2, losses, hits, S, TILES,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, COLS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Cross-entropy and correctness (G, S) of every group's images, from `forward`'s features; 0 for absent images."""
    group, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    rows = tile * ROWS + tl.arange(0, ROWS)
    row = tl.load(where + tl.load(data_of + group) * S + rows, mask=rows < S, other=-1)
    present = row >= 0
    slot = tl.cast(group, tl.int64) * S + rows
    weights = vectors + tl.load(model_of + group).to(tl.int64) * D
    hidden = tl.maximum(hidden_layer(weights, h2 + slot[:, None] * H2, present, ROWS, PRECISION), 0.0)
    logits = logits_of(weights, hidden, output_layer(weights, CLASSES, COLS), ROWS, CLASSES, COLS, PRECISION)
    best = tl.max(logits, axis=1)
    truth = tl.load(targets + row, mask=present, other=0)
    own = tl.sum(tl.where(tl.arange(0, COLS)[None, :] == truth[:, None], logits, 0.0), axis=1)
    loss = tl.log(tl.sum(tl.exp(logits - best[:, None]), axis=1)) + best - own
    hit = (tl.argmax(logits, axis=1) == truth).to(tl.float32)
    tl.store(losses + slot, tl.where(present, loss, 0.0), mask=rows < S)
    tl.store(hits + slot, tl.where(present, hit, 0.0), mask=rows < S)


@triton.jit(do_not_specialize=["S"])
def classify(
    vectors, targets, where, rates, h2, dh2, S,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, COLS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Both linear layers and the cross-entropy of one client: its gradient dh2, and the layers' own SGD step."""
    group = tl.program_id(0).to(tl.int64)
    rows, out, label = tl.arange(0, ROWS), tl.arange(0, 32), tl.arange(0, COLS)
    row = tl.load(where + group * S + rows, mask=rows < S, other=-1)
    present = row >= 0
    count = tl.sum(present.to(tl.int32))
    if count > 0:
        weights, rate = vectors + group * D, tl.load(rates + group)
        features = h2 + (group * S + rows)[:, None] * H2
        hidden = hidden_layer(weights, features, present, ROWS, PRECISION)
        passes = hidden > 0
        hidden = tl.where(passes, hidden, 0.0)
        known = label < CLASSES
        layer2 = output_layer(weights, CLASSES, COLS)
        logits = logits_of(weights, hidden, layer2, ROWS, CLASSES, COLS, PRECISION)
        odds = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        chance = odds / tl.sum(odds, axis=1)[:, None]
        truth = tl.load(targets + row, mask=present, other=0)
        slope = (chance - (label[None, :] == truth[:, None]).to(tl.float32)) / count
        slope = tl.where(present[:, None] & known[None, :], slope, 0.0)
        step2 = dot(tl.trans(hidden), slope, tl.zeros([32, COLS], dtype=tl.float32), PRECISION)
        back = dot(slope, tl.trans(layer2), tl.zeros([ROWS, 32], dtype=tl.float32), PRECISION)
        back = tl.where(passes, back, 0.0)
        for chunk in range(8):
            column = chunk * 64 + tl.arange(0, 64)
            values = tl.load(features + column[None, :], mask=present[:, None], other=0.0)
            place = weights + FC1 + column[:, None] * 32 + out[None, :]
            layer = tl.load(place)
            below = dot(back, tl.trans(layer), tl.zeros([ROWS, 64], dtype=tl.float32), PRECISION)
            tl.store(dh2 + (group * S + rows)[:, None] * H2 + column[None, :], below, mask=(rows < S)[:, None])
            step = dot(tl.trans(values), back, tl.zeros([64, 32], dtype=tl.float32), PRECISION)
            tl.store(place, layer - rate * step)
        tl.store(weights + FC2 + out[:, None] * CLASSES + label[None, :], layer2 - rate * step2, mask=known[None, :])
        place1 = weights + FC1_BIAS + out
        tl.store(place1, tl.load(place1) - rate * tl.sum(back, axis=0))
        place2 = weights + FC2 + CLASSES * 32 + label
        tl.store(place2, tl.load(place2, mask=known, other=0.0) - rate * tl.sum(slope, axis=0), mask=known)


@triton.jit
def _unpool2(dh2, place2, room, N: tl.constexpr):
    """(N 32, 32) the slope at every output of conv2: rows are N images of 32 spots, 25 of them real."""
    r, out = tl.arange(0, N * 32), tl.arange(0, 32)
    image, spot = r // 32, r % 32
    slope = tl.zeros([N * 32, 32], dtype=tl.float32)
    for corner in tl.static_range(4):
        above, left = spot // 5 - corner // 2, spot % 5 - corner % 2
        ok = (spot < 25) & (image < room) & (above >= 0) & (above < 4) & (left >= 0) & (left < 4)
        source = (image * H2 + (above * 4 + left) * 32)[:, None] + out[None, :]
        taken = tl.load(place2 + source, mask=ok[:, None], other=NO_PLACE)
        value = tl.load(dh2 + source, mask=ok[:, None], other=0.0)
        slope += tl.where(taken == corner, value, 0.0)
    return slope


@triton.jit
def _slopes1(weights, dz2, place1, slopes, room, N: tl.constexpr, PRECISION: tl.constexpr):
    """slopes (N, 13, 13, 16): the gradient at conv2's inputs, with the place of each maximum in its lowest three bits.

    An input (y, x) is a tap of at most four outputs; which taps depends on the parities of y and x alone, so each of
    the four parities is one matrix product per pair of taps.
    """
    r, out, channel = tl.arange(0, N * 64), tl.arange(0, 32), tl.arange(0, 16)
    image, u, v = r // 64, (r % 64) // 7, (r % 64) % 7
    for parity in range(4):
        y, x = 2 * u + parity // 2, 2 * v + parity % 2
        total = tl.zeros([N * 64, 16], dtype=tl.float32)
        for corner in tl.static_range(4):
            above, left = u - corner // 2, v - corner % 2
            ok = (u < 7) & (image < room) & (above >= 0) & (above < 5) & (left >= 0) & (left < 5)
            source = dz2 + image * Z2 + (above * 5 + left) * 32
            value = tl.load(source[:, None] + out[None, :], mask=ok[:, None], other=0.0)
            tap = (parity // 2 + 2 * (corner // 2)) * 4 + parity % 2 + 2 * (corner % 2)
            kernel = tl.load(weights + CONV2 + tap * 512 + channel[None, :] * 32 + out[:, None])
            total = dot(value, kernel, total, PRECISION)
        real = ((y < 13) & (x < 13) & (image < room))[:, None] & (channel >= 0)[None, :]
        target = (image * H1 + (y * 13 + x) * 16)[:, None] + channel[None, :]
        place = tl.load(place1 + target, mask=real, other=NO_PLACE).to(tl.int32)
        tl.store(slopes + target, (total.to(tl.int32, bitcast=True) & -8) | place, mask=real)


@triton.jit(do_not_specialize=["S", "BLOCKS"])
def backward2(
    vectors, where, slopes, place1, place2, dh2, dz2, S, BLOCKS, D: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From dh2 back through conv2: dz2, and the slopes at its inputs. A program computes N images of one client."""
    group = tl.cast(tl.program_id(0) // BLOCKS, tl.int64)
    start = (tl.program_id(0) % BLOCKS) * N
    first = group * S + start
    if tl.load(where + first) >= 0:
        room = S - start
        slope = _unpool2(dh2 + first * H2, place2 + first * H2, room, N)
        r, out = tl.arange(0, N * 32), tl.arange(0, 32)
        target = dz2 + first * Z2 + ((r // 32) * Z2 + (r % 32) * 32)[:, None] + out[None, :]
        tl.store(target, slope, mask=((r % 32 < 25) & (r // 32 < room))[:, None])
        tl.debug_barrier()
        _slopes1(vectors + group * D, dz2 + first * Z2, place1 + first * H1, slopes + first * H1, room, N, PRECISION)


@triton.jit
def backward1(images, where, slopes, partial, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """From slopes back to conv1's gradient, kernel and bias, of one image; ROWS of its 14 rows at a time."""
    slot = tl.program_id(0).to(tl.int64)
    row = tl.load(where + slot).to(tl.int64)
    if row >= 0:
        image, source = images + row * PIXELS, slopes + slot * H1
        q, channel, tap = tl.arange(0, ROWS * 16), tl.arange(0, 16), tl.arange(0, 64)
        x = q % 16
        step, total = tl.zeros([16, 64], dtype=tl.float32), tl.zeros([ROWS * 16, 16], dtype=tl.float32)
        for tile in range((14 + ROWS - 1) // ROWS):
            y = tile * ROWS + q // 16
            slope = tl.zeros([ROWS * 16, 16], dtype=tl.float32)
            for corner in tl.static_range(4):
                above, left = y - corner // 2, x - corner % 2
                ok = (above >= 0) & (above < 13) & (left >= 0) & (left < 13)
                place = (above * 13 + left)[:, None] * 16 + channel[None, :]
                packed = tl.load(source + place, mask=ok[:, None], other=NO_PLACE)
                slope += tl.where((packed & 7) == corner, packed.to(tl.float32, bitcast=True), 0.0)
            total += slope
            patch = patches1(image, y, x, (y < 14) & (x < 14))
            step = dot(tl.trans(slope), patch, step, PRECISION)
        into = partial + slot * CONV2
        tl.store(into + tap[None, :] * 16 + channel[:, None], step)
        tl.store(into + BIAS1 + channel, tl.sum(total, axis=0))


@triton.jit(do_not_specialize=["S"])
def update(vectors, where, rates, h1, dz2, partial, S, D: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr):
    """The SGD step of both convolutions: conv2's gradient from h1 and dz2, conv1's from the partial sums.

    Five programs a client: one for each of conv2's four rows of taps, and one for conv1, from the partial sum of every
    image.
    """
    group, chunk = (tl.program_id(0) // 5).to(tl.int64), tl.program_id(0) % 5
    if tl.load(where + group * S) >= 0:
        weights, rate = vectors + group * D, tl.load(rates + group)
        if chunk < 4:
            _update2(weights, where, rate, h1, dz2, S, group, chunk, N, PRECISION)
        else:
            place = tl.arange(0, 2048)
            total = tl.zeros([2048], dtype=tl.float32)
            for image in range(S):
                if tl.load(where + group * S + image) >= 0:
                    source = partial + (group * S + image) * CONV2 + place
                    total += tl.load(source, mask=place < CONV2, other=0.0)
            current = tl.load(weights + place, mask=place < CONV2, other=0.0)
            tl.store(weights + place, current - rate * total, mask=place < CONV2)


@triton.jit
def _update2(weights, where, rate, h1, dz2, S, group, chunk, N: tl.constexpr, PRECISION: tl.constexpr):
    """The SGD step of one row of conv2's taps; with the first, of its bias."""
    r, out = tl.arange(0, N * 32), tl.arange(0, 32)
    spot = r % 32
    tap = chunk * 64 + tl.arange(0, 64)
    corner = (2 * (spot // 5) * 13 + 2 * (spot % 5)) * 16
    step = tl.zeros([64, 32], dtype=tl.float32)
    step_bias = tl.zeros([32], dtype=tl.float32)
    for block in range((S + N - 1) // N):
        place = block * N + r // 32
        row = tl.load(where + group * S + place, mask=place < S, other=-1)
        ok = ((row >= 0) & (spot < 25))[:, None]
        slot = group * S + place
        slope = tl.load((dz2 + slot * Z2 + spot * 32)[:, None] + out[None, :], mask=ok, other=0.0)
        patch = tl.load((h1 + slot * H1 + corner)[:, None] + near(tap)[None, :], mask=ok, other=0.0)
        step = dot(tl.trans(patch), slope, step, PRECISION)
        step_bias += tl.sum(slope, axis=0)
    target = weights + CONV2 + tap[:, None] * 32 + out[None, :]
    tl.store(target, tl.load(target) - rate * step)
    if chunk == 0:
        tl.store(weights + BIAS2 + out, tl.load(weights + BIAS2 + out) - rate * step_bias)
