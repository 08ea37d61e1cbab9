"""`rng.client_words` as a Triton kernel: Philox4x32-10, counter (id low, id high, block, 0), a key per client."""

import triton
import triton.language as tl
from triton.language.random import philox_impl


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
