"""Sampling over logits in memory: keys of the noise, the maximum of noisy logits in two levels, and thresholds for
min-p, top-k and top-p, a program a row, without a sort of the vocabulary.

The noise is ``kernels.draw``'s, bit for bit up to its logarithm.
"""

import triton
import triton.language as tl

from octavo.device.kernels.triton.pdl import INTERPRETED, await_inputs, release


@triton.jit
def _mixed(seed, position):
    """splitmix64 of int64 (seed, position), as uint64."""
    golden = tl.full(seed.shape, 0x9E3779B97F4A7C15, tl.uint64)
    x = seed.to(tl.uint64, bitcast=True) + position.to(tl.uint64, bitcast=True) * golden + golden
    x = (x ^ (x >> 30)) * tl.full(seed.shape, 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full(seed.shape, 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit(do_not_specialize=["count"])
def keys(seeds, positions, out, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """splitmix64 of (seed, position), two 32-bit halves each."""
    release(PDL)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    await_inputs(PDL)
    x = _mixed(tl.load(seeds + i, mask=i < count, other=0), tl.load(positions + i, mask=i < count, other=0))
    tl.store(out + i, x.to(tl.int64, bitcast=True), mask=i < count)


#: y less the noise of an id under two keys, in one piece: operation by operation Triton takes three times as long.
LOG_NOISE = tl.constexpr("""{ .reg .b32 h, t; .reg .f32 u, e, p, q; .reg .pred small;
mul.lo.u32 h, $2, 0x9E3779B1; xor.b32 h, h, $3;
shr.u32 t, h, 16; xor.b32 h, h, t; mul.lo.u32 h, h, 0x21F0AAAD;
shr.u32 t, h, 15; xor.b32 h, h, t; xor.b32 h, h, $4; mul.lo.u32 h, h, 0x735A2D97;
shr.u32 t, h, 15; xor.b32 h, h, t; and.b32 h, h, 0x7FFFFFFF;
cvt.rn.f32.u32 u, h; add.f32 u, u, 0f3F000000; mul.f32 u, u, 0f2FFFFFFF;
sub.f32 e, 0f3F800000, u; lg2.approx.ftz.f32 e, e; mul.f32 e, e, 0fBF317218;
fma.rn.f32 p, u, 0f3E800000, 0f3EAAAAAB; fma.rn.f32 p, u, p, 0f3F000000; mul.f32 q, u, u; fma.rn.f32 p, q, p, u;
setp.lt.f32 small, u, 0f3C800000; selp.f32 e, p, e, small;
lg2.approx.ftz.f32 e, e; fma.rn.f32 $0, e, 0fBF317218, $1; }""")


@triton.jit
def _noise(ids, first, second):
    """The logarithm of a unit exponential for each id, as ``LOG_NOISE`` says it."""
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
    rows,
    lens,
    best,
    which,
    V,
    stride,
    BLOCK: tl.constexpr,
    NOISE: tl.constexpr,
    SCALED: tl.constexpr,
    PDL: tl.constexpr,
):
    """The largest number of each block and its place; NaN where the block holds one. NOISE: by a row's temperature;
    1: ``key`` has the logit row's keys and ``heat`` its temperature; 2: they have the seeds and temperatures of all
    persistent rows, of which ``rows`` are these and ``lens`` their lengths."""
    release(PDL)
    row = tl.program_id(1)
    block = tl.program_id(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    await_inputs(PDL)
    y = tl.load(logits + row.to(tl.int64) * stride + i, mask=i < V, other=-float("inf")).to(tl.float32)
    if NOISE:
        who = row
        if NOISE == 2:
            who = tl.load(rows + row)
        t = tl.load(heat + who)
        if t != 0.0:
            if not SCALED:
                y = y * (1.0 / t)
            if NOISE == 2:
                one = tl.arange(0, 1)
                x = _mixed(tl.load(key + who + one), tl.load(lens + row + one))
                first = tl.sum((x & 0xFFFFFFFF).to(tl.uint32), 0)
                second = tl.sum((x >> 32).to(tl.uint32), 0)
            else:
                first = tl.load(key + row * 2).to(tl.uint32, bitcast=True)
                second = tl.load(key + row * 2 + 1).to(tl.uint32, bitcast=True)
            if INTERPRETED:
                y = y - _noise(i, first, second)
            else:
                y = tl.inline_asm_elementwise(
                    LOG_NOISE, "=f,f,r,r,r", [y, i, first, second], dtype=tl.float32, is_pure=True, pack=1
                )
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
def _ordered(y):
    """Bits whose unsigned order is that of the numbers; -0 is 0."""
    bits = (y + 0.0).to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _number(bits):
    """``_ordered``'s inverse."""
    return tl.where((bits >> 31) != 0, bits & 0x7FFFFFFF, bits ^ 0xFFFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def maxima(logits, ks, ps, tops, parts, V, BLOCKS, stride, BLOCK: tl.constexpr, EACH: tl.constexpr, PDL: tl.constexpr):
    """Of rows with top-k or top-p: the largest number of every EACH (tops [N, BLOCKS]), and of every BLOCK its largest
    and the sum of exp(y - largest) (parts [N, programs, 2])."""
    release(PDL)
    row = tl.program_id(1)
    block = tl.program_id(0)
    i = tl.arange(0, BLOCK // EACH)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    await_inputs(PDL)
    if (tl.load(ks + row) <= 0) & (tl.load(ps + row) >= 1.0):
        return
    at = block * BLOCK + i
    y = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < V, other=-float("inf"))
    m = tl.max(y, 1)
    o = block * (BLOCK // EACH) + tl.arange(0, BLOCK // EACH)
    tl.store(tops + row * BLOCKS + o, m, mask=o < BLOCKS)
    top = tl.max(m, 0)
    total = tl.sum(tl.sum(tl.where(y > -float("inf"), tl.exp(y - top), 0.0), 1), 0)
    place = parts + (row * tl.num_programs(0) + block) * 2
    tl.store(place, top)
    tl.store(place + 1, total)


@triton.jit
def _count(base, low, V, i, BLOCK: tl.constexpr):
    """How many numbers are at least ``low``."""
    acc = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        y = tl.load(base + start + i, mask=start + i < V, other=-float("inf"))
        acc += ((_ordered(y) >= low) & (start + i < V)).to(tl.int32)
    return tl.sum(acc, 0)


@triton.jit
def _mass(base, low, top, V, i, BLOCK: tl.constexpr):
    """The sum of exp(y - top) over numbers of at least ``low``."""
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        y = tl.load(base + start + i, mask=start + i < V, other=-float("inf"))
        acc += tl.where((_ordered(y) >= low) & (y > -float("inf")), tl.exp(y - top), 0.0)
    return tl.sum(acc, 0)


@triton.jit
def threshold(
    logits,
    ks,
    ps,
    tops,
    parts,
    found,
    count,
    lows,
    V,
    BLOCKS,
    PARTS,
    stride,
    BP: tl.constexpr,
    PP: tl.constexpr,
    EACH: tl.constexpr,
    SHORT: tl.constexpr,
    CAP: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """lows [N]: the least number that top-k and top-p leave, by bisection over the bits of numbers.

    The k-th largest of the maxima of blocks is at most the k-th largest number, so that the numbers that count lie in
    the few blocks whose maximum reaches it: at most CAP of them are read again (``found`` [N, CAP]: which; ``count``
    [N], 0 before and after). For top-p alone these are the SHORT largest; where they are not enough, and where k is
    over CAP, the row itself is read at every turn. Sums of chances are of integers, so that their order is nothing.
    """
    release(PDL)
    row = tl.program_id(0)
    await_inputs(PDL)
    k = tl.load(ks + row).to(tl.int32)
    p = tl.load(ps + row)
    if (k <= 0) & (p >= 1.0):
        tl.store(lows + row, -float("inf"))
        return
    base = logits + row.to(tl.int64) * stride
    i = tl.arange(0, BLOCK)
    q = tl.arange(0, PP)
    peaks = tl.load(parts + (row * PARTS + q) * 2, mask=q < PARTS, other=-float("inf"))
    sums = tl.load(parts + (row * PARTS + q) * 2 + 1, mask=q < PARTS, other=0.0)
    best = tl.max(peaks, 0)
    total = tl.sum(tl.where(sums > 0, sums * tl.exp(peaks - best), 0.0), 0)
    # blocks that hold the numbers that count
    want = tl.minimum(tl.where(k > 0, k, SHORT), V)
    b = tl.arange(0, BP)
    m = _ordered(tl.load(tops + row * BLOCKS + b, mask=b < BLOCKS, other=-float("inf")))
    under = (want * 0).to(tl.uint32)
    above = under + 0xFFFFFFFF
    reach = tl.minimum(want, BLOCKS)
    for _ in range(32):
        middle = under + (above - under) // 2
        enough = tl.sum(((m >= middle) & (b < BLOCKS)).to(tl.int32), 0) >= reach
        under = tl.where(enough, middle, under)
        above = tl.where(enough, above, middle)
    chosen = (m >= under) & (b < BLOCKS)
    blocks = tl.sum(chosen.to(tl.int32), 0)
    few = (blocks <= CAP) & (want <= BLOCKS)
    spot = tl.atomic_add(count + row + b * 0, 1, mask=chosen & few)
    tl.store(found + row * CAP + spot, b, mask=chosen & few)
    tl.debug_barrier()
    tl.store(count + row, 0)
    c = tl.arange(0, CAP)
    mine = tl.load(found + row * CAP + c, mask=(c < blocks) & few, other=0)
    at = mine[:, None] * EACH + tl.arange(0, EACH)[None, :]
    held = ((c < blocks) & few)[:, None] & (at < V)
    y = tl.load(base + at, mask=held, other=-float("inf"))
    bits = _ordered(y)
    chance = tl.where(held & (y > -float("inf")), (tl.exp(y - best) * 1099511627776.0).to(tl.int64), 0)
    # the k-th largest
    low = (want * 0).to(tl.uint32)
    if k > 0:
        above = low + 0xFFFFFFFF
        for _ in range(32):
            middle = low + (above - low) // 2
            if few:
                n = tl.sum(tl.sum((held & (bits >= middle)).to(tl.int32), 1), 0)
            else:
                n = _count(base, middle, V, i, BLOCK)
            enough = n >= want
            low = tl.where(enough, middle, low)
            above = tl.where(enough, above, middle)
    if p < 1.0:
        inside = few
        if k > 0:
            if few:
                goal = tl.sum(tl.sum(tl.where(bits >= low, chance, 0), 1), 0).to(tl.float32) * 9.094947017729282e-13 * p
            else:
                goal = _mass(base, low, best, V, i, BLOCK) * p
        else:
            goal = total * p
            inside = few & (tl.sum(tl.sum(chance, 1), 0).to(tl.float32) * 9.094947017729282e-13 >= goal)
        above = _ordered(best) + 1
        for _ in range(32):
            middle = low + (above - low) // 2
            if inside:
                mass = tl.sum(tl.sum(tl.where(bits >= middle, chance, 0), 1), 0).to(tl.float32) * 9.094947017729282e-13
            else:
                mass = _mass(base, middle, best, V, i, BLOCK)
            enough = mass >= goal
            low = tl.where(enough, middle, low)
            above = tl.where(enough, above, middle)
    tl.store(lows + row, _number(low))


@triton.jit
def cut(logits, lows, V, stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """-inf for what is under a row's threshold."""
    release(PDL)
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    await_inputs(PDL)
    low = tl.load(lows + row)
    if low == -float("inf"):
        return
    at = logits + row.to(tl.int64) * stride + i
    y = tl.load(at, mask=i < V, other=0.0)
    tl.store(at, tl.full([BLOCK], -float("inf"), tl.float32), mask=(i < V) & (y < low))
