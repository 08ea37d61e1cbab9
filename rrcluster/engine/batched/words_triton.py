"""`rng.client_words` as Triton kernels: Philox4x32-10, counter (id low, id high, block, 0), a key per client."""

import triton
import triton.language as tl
from triton.language.random import philox_impl

POSITION_BITS, POSITIONS = tl.constexpr(20), tl.constexpr((1 << 20) - 1)  # a sample's place, behind its word
ABSENT = tl.constexpr(1 << 60)  # sorts behind every word


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
    """out (steps, n, step) int32: `sample_order.step_rows`. A program sorts the samples of one client for one epoch.

    WIDTH is a power of two, at least per_epoch * step. `integers` (n, 6) is `ClientBatch.integers`.
    """
    client, epoch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    about = integers + client * 6
    name, start, size = tl.load(about + 1), tl.load(about + 2), tl.load(about + 3)
    position = tl.arange(0, WIDTH)
    draw = epoch * size + position  # among the client's own
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
