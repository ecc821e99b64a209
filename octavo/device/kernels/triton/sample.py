"""Sampling over logits in memory: keys of the noise, the maximum of noisy logits in two levels, and thresholds for
min-p, top-k and top-p, a program a row, without a sort of the vocabulary.

The noise is ``kernels.draw``'s, bit for bit up to its logarithm.
"""

import triton
import triton.language as tl

from octavo.device.kernels.triton.pdl import await_inputs, release


@triton.jit
def keys(seeds, positions, out, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """splitmix64 of (seed, position), two 32-bit halves each."""
    release(PDL)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    await_inputs(PDL)
    seed = tl.load(seeds + i, mask=i < count, other=0).to(tl.uint64, bitcast=True)
    at = tl.load(positions + i, mask=i < count, other=0).to(tl.uint64, bitcast=True)
    golden = tl.full([BLOCK], 0x9E3779B97F4A7C15, tl.uint64)
    x = seed + at * golden + golden
    x = (x ^ (x >> 30)) * tl.full([BLOCK], 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full([BLOCK], 0x94D049BB133111EB, tl.uint64)
    x = x ^ (x >> 31)
    tl.store(out + i, x.to(tl.int64, bitcast=True), mask=i < count)


@triton.jit
def _noise(ids, first, second):
    """The logarithm of a unit exponential for each id."""
    x = (ids.to(tl.uint32) * 0x9E3779B1) ^ first
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15) ^ second) * 0x735A2D97
    x = (x ^ (x >> 15)) & 0x7FFFFFFF
    u = (x.to(tl.float32) + 0.5) * 4.656612595521636e-10  # draw._UNIT
    # -log(1 - u), with its relative precision kept where the winners are
    e = tl.where(u < 0.015625, u + u * u * (0.5 + u * (0.33333334 + u * 0.25)), -tl.log(1.0 - u))
    return tl.log(e)


@triton.jit
def best_of_blocks(
    logits,
    key,
    heat,
    best,
    which,
    V,
    stride,
    BLOCK: tl.constexpr,
    NOISE: tl.constexpr,
    SCALED: tl.constexpr,
    PDL: tl.constexpr,
):
    """The largest number of each block and its place; NaN where the block holds one. NOISE: by a row's temperature."""
    release(PDL)
    row = tl.program_id(1)
    block = tl.program_id(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    await_inputs(PDL)
    y = tl.load(logits + row.to(tl.int64) * stride + i, mask=i < V, other=-float("inf")).to(tl.float32)
    if NOISE:
        t = tl.load(heat + row)
        if t != 0.0:
            if not SCALED:
                y = tl.div_rn(y, tl.full([BLOCK], 1.0, tl.float32) * t)
            first = tl.load(key + row * 2).to(tl.uint32, bitcast=True)
            second = tl.load(key + row * 2 + 1).to(tl.uint32, bitcast=True)
            y = y - _noise(i, first, second)
    bad = tl.max((y != y).to(tl.int32), 0)
    y = tl.where(y != y, -float("inf"), y)
    top = tl.max(y, 0)
    at = tl.min(tl.where((y == top) & (i < V), i, 2147483647), 0)
    place = row * tl.num_programs(0) + block
    tl.store(best + place, tl.where(bad > 0, float("nan"), top))
    tl.store(which + place, at)


@triton.jit
def best_of_rows(best, which, ids, scores, BLOCKS, BP: tl.constexpr, PDL: tl.constexpr):
    """The best block's best: ids int64 [N] (a valid one whatever the row holds), scores float32 [N]."""
    release(PDL)
    row = tl.program_id(0)
    i = tl.arange(0, BP)
    await_inputs(PDL)
    y = tl.load(best + row * BLOCKS + i, mask=i < BLOCKS, other=-float("inf"))
    at = tl.load(which + row * BLOCKS + i, mask=i < BLOCKS, other=2147483647)
    bad = tl.max((y != y).to(tl.int32), 0)
    y = tl.where(y != y, -float("inf"), y)
    top = tl.max(y, 0)
    at = tl.min(tl.where(y == top, at, 2147483647), 0)
    tl.store(ids + row, tl.where(at == 2147483647, 0, at).to(tl.int64))
    tl.store(scores + row, tl.where(bad > 0, float("nan"), top))


@triton.jit
def min_p(logits, least, V, stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """-inf for what is less than ``least`` times as likely as the best."""
    release(PDL)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    await_inputs(PDL)
    part = tl.load(least + row)
    if part <= 0.0:
        return
    base = logits + row * stride
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, V, BLOCK):
        top = tl.maximum(top, tl.load(base + start + i, mask=start + i < V, other=-float("inf")))
    floor = tl.max(top, 0) + tl.log(part)
    for start in range(0, V, BLOCK):
        y = tl.load(base + start + i, mask=start + i < V, other=0.0)
        tl.store(base + start + i, tl.where(y < floor, -float("inf"), y), mask=start + i < V)


@triton.jit
def _ordered(y):
    """Bits whose unsigned order is that of the numbers; -0 is 0."""
    bits = (y + 0.0).to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _number(bits):
    """``_ordered``'s inverse."""
    return tl.where((bits >> 31) != 0, bits & 0x7FFFFFFF, bits ^ 0xFFFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _mass(base, low, top, V, i, BLOCK: tl.constexpr):
    """The sum of exp(y - top) over numbers of at least ``low``."""
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        y = tl.load(base + start + i, mask=start + i < V, other=-float("inf"))
        acc += tl.where(y >= low, tl.exp(y - top), 0.0)
    return tl.sum(acc, 0)


@triton.jit
def _finer(base, found, rest, V, i, SHIFT: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr):
    """WIDTH more bits, above SHIFT, of the ``rest``-th largest of the numbers that begin with ``found``, and its rank
    among those that share them."""
    BLOCK: tl.constexpr = i.shape[0]
    bins = tl.arange(0, 1 << WIDTH)
    counts = tl.zeros([1 << WIDTH], tl.int32)
    for start in range(0, V, BLOCK):
        live = start + i < V
        y = _ordered(tl.load(base + start + i, mask=live, other=0.0))
        if not FIRST:
            live = live & ((y >> (SHIFT + WIDTH)) == (found >> (SHIFT + WIDTH)))
        counts += tl.histogram(((y >> SHIFT) & ((1 << WIDTH) - 1)).to(tl.int32), 1 << WIDTH, mask=live)
    over = tl.sum(counts, 0) - tl.cumsum(counts, 0)  # how many are in higher bins
    mine = tl.max(tl.where(over + counts >= rest, bins, 0), 0)
    return found | (mine.to(tl.uint32) << SHIFT), rest - tl.sum(tl.where(bins == mine, over, 0), 0)


@triton.jit
def top_k_p(
    logits,
    ks,
    ps,
    room,
    V,
    stride,
    SHORT: tl.constexpr,
    CAP: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The least number that stays is found, then what is under it goes.

    The k-th largest comes from three histograms of the numbers' bits, each finer (a radix selection). Top-p is a
    bisection over the bits: among those that reach the k-th, or the SHORT largest, which are collected in ``room``
    [N, CAP]; over the row where they are too many or not enough.
    """
    release(PDL)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    await_inputs(PDL)
    k = tl.load(ks + row).to(tl.int32)
    p = tl.load(ps + row)
    if k <= 0 and p >= 1.0:
        return
    base = logits + row * stride
    want = tl.minimum(tl.where(k > 0, k, SHORT), V)
    # the bits of the want-th largest, from the highest on
    found = (want * 0).to(tl.uint32)
    found, rest = _finer(base, found, want, V, i, 21, 11, True)
    found, rest = _finer(base, found, rest, V, i, 10, 11, False)
    found, rest = _finer(base, found, rest, V, i, 0, 10, False)
    low = _number(found)
    if p < 1.0:
        top = tl.full([BLOCK], -float("inf"), tl.float32)
        count = 0
        for start in range(0, V, BLOCK):
            y = tl.load(base + start + i, mask=start + i < V, other=-float("inf"))
            top = tl.maximum(top, y)
            keep = (y >= low) & (start + i < V)
            spot = count + tl.cumsum(keep.to(tl.int32), 0) - 1
            tl.store(room + row * CAP + spot, y, mask=keep & (spot < CAP))
            count += tl.sum(keep.to(tl.int32), 0)
        tl.debug_barrier()
        best = tl.max(top, 0)
        limit = low if k > 0 else -float("inf")
        goal = p * _mass(base, limit, best, V, i, BLOCK)
        c = tl.arange(0, CAP)
        short = tl.load(room + row * CAP + c, mask=c < count, other=-float("inf"))
        chance = tl.where(c < count, tl.exp(short - best), 0.0)
        enough = (count <= CAP) & ((k > 0) | (count >= V) | (tl.sum(chance, 0) >= goal))
        under = _ordered(tl.where(enough, low, limit))  # the mass from here on reaches the goal
        above = _ordered(best) + 1  # and from here on it does not
        while above - under > 1:
            middle = under + (above - under) // 2
            if enough:
                mass = tl.sum(tl.where(short >= _number(middle), chance, 0.0), 0)
            else:
                mass = _mass(base, _number(middle), best, V, i, BLOCK)
            if mass >= goal:
                under = middle
            else:
                above = middle
        low = _number(under)
    for start in range(0, V, BLOCK):
        y = tl.load(base + start + i, mask=start + i < V, other=0.0)
        tl.store(base + start + i, tl.where(y < low, -float("inf"), y), mask=start + i < V)
