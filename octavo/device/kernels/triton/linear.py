"""Products of few rows with a weight [N, K], and all that is joined to them: the scale of an RMS norm before, a bias, a
gated activation, an addition into the residual stream.

The norm's gain is in the weight already. Its scale needs a row's sum of squares: a GEMV has the row in registers; tiles
take the sums of the kernel that wrote the row (``squares`` [M, S] float32, S parts of a row).
"""

import triton
import triton.language as tl

from octavo.device.kernels.triton.pdl import await_inputs, fetch, release, yield_late

#: Bytes of a line of the cache that all programs share.
LINE = tl.constexpr(128)


@triton.jit
def activate(gate, up, ACT: tl.constexpr):
    """act(gate) * up. ACT 1: silu; 2: gelu; 3: gelu by tanh."""
    if ACT == 1:
        y = gate / (1.0 + tl.exp(-gate))
    elif ACT == 2:
        y = gate * 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:  # x * (1 + tanh(z)) / 2 is x * sigmoid(2 z)
        y = gate / (1.0 + tl.exp(-1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)))
    return y * up


@triton.jit
def gemv(
    x,
    w,
    bias,
    add,
    out,
    K: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    AHEAD: tl.constexpr,
    BN: tl.constexpr,
    NORM: tl.constexpr,
    ACT: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    EPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row; N is the width of ``out``. A warp owns whole weight rows, so that sums stay inside it; the first
    AHEAD (1 or 3) times 256 R columns are in registers before the wait."""
    release(PDL)
    BLOCK: tl.constexpr = R * 256
    WHOLE: tl.constexpr = K % BLOCK == 0
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    there = n < N
    off = tl.arange(0, R)[:, None, None] * 256 + tl.arange(0, 256)[None, None, :]
    at = w + n[None, :, None].to(tl.int64) * K + off
    mask = there[None, :, None]
    if not WHOLE:
        mask = mask & (off < K)
    a = tl.load(at, mask=mask, other=0.0)
    if ACT:
        b = tl.load(at + N * K, mask=mask, other=0.0)
    if AHEAD == 3:
        a1 = tl.load(at + BLOCK, mask=mask, other=0.0)
        a2 = tl.load(at + 2 * BLOCK, mask=mask, other=0.0)
        if ACT:
            b1 = tl.load(at + N * K + BLOCK, mask=mask, other=0.0)
            b2 = tl.load(at + N * K + 2 * BLOCK, mask=mask, other=0.0)
    y = tl.zeros([BN], tl.float32)
    if BIAS:
        y += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)
    await_inputs(PDL)
    xs = x + (off + (n * 0)[None, :, None])
    if WHOLE:
        v = tl.load(xs).to(tl.float32)
    else:
        v = tl.load(xs, mask=off + (n * 0)[None, :, None] < K, other=0.0).to(tl.float32)
    if ADD:
        y += tl.load(add + n, mask=there, other=0.0).to(tl.float32)
    acc = a.to(tl.float32) * v
    if ACT:
        acc_up = b.to(tl.float32) * v
    if NORM:
        sq = v * v
    if AHEAD == 3:
        v1 = tl.load(xs + BLOCK).to(tl.float32)
        v2 = tl.load(xs + 2 * BLOCK).to(tl.float32)
        acc += a1.to(tl.float32) * v1 + a2.to(tl.float32) * v2
        if ACT:
            acc_up += b1.to(tl.float32) * v1 + b2.to(tl.float32) * v2
        if NORM:
            sq += v1 * v1 + v2 * v2
    for k in tl.range(AHEAD * BLOCK, K, BLOCK):
        if WHOLE:
            v = tl.load(xs + k).to(tl.float32)
            inside = mask
        else:
            v = tl.load(xs + k, mask=off + (n * 0)[None, :, None] + k < K, other=0.0).to(tl.float32)
            inside = there[None, :, None] & (off + k < K)
        acc += tl.load(at + k, mask=inside, other=0.0).to(tl.float32) * v
        if ACT:
            acc_up += tl.load(at + N * K + k, mask=inside, other=0.0).to(tl.float32) * v
        if NORM:
            sq += v * v
    z = tl.sum(tl.sum(acc, 2), 0)
    if ACT:
        up = tl.sum(tl.sum(acc_up, 2), 0)
    if NORM:
        scale = 1.0 / tl.sqrt_rn(tl.sum(tl.sum(sq, 2), 0) / K + EPS)
        z = z * scale
        if ACT:
            up = up * scale
    z += y
    if ACT:
        if BIAS:
            up += tl.load(bias + N + n, mask=there, other=0.0).to(tl.float32)
        z = activate(z, up, ACT)
    tl.store(out + n, z.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["M"])
def tile(
    x,
    w,
    bias,
    add,
    squares_in,
    squares_out,
    out,
    parts,
    count,
    M,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SK: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    NORM: tl.constexpr,
    NSQ: tl.constexpr,
    ACT: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    EPS: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """[BM, BN] of x @ w.T over 1 / SK of K. N counts rows of w. With ACT a tile's columns take rows of the gate and of
    the up half in turn. NSQ: parts of the sums of squares that the producer wrote. The last split to arrive adds the
    parts in their order. AHEAD: lines of each weight row that are on their way to the shared cache before the wait.

    Tiles of the same weight rows follow one another, so that memory gives these once."""
    release(PDL)
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    ps = tl.program_id(2)
    KS: tl.constexpr = K // SK
    EVEN: tl.constexpr = KS % BK == 0 and N % BN == 0
    m = pm * BM + tl.arange(0, BM)
    n = pn * BN + tl.arange(0, BN)
    k = ps * KS + tl.arange(0, BK)
    rows = (m < M)[:, None]
    if ACT:
        wn = n // 2 + (n % 2) * (N // 2)
    else:
        wn = n
    at = w + wn[:, None].to(tl.int64) * K
    xs = x + m[:, None] * x_stride
    WHOLE: tl.constexpr = KS == BK and N % BN == 0
    if WHOLE:  # all weights of this program are on their way before the wait
        w_all = tl.load(at + k[None, :])
    elif AHEAD > 0:
        EACH: tl.constexpr = LINE // (w.dtype.element_ty.primitive_bitwidth // 8)
        ahead = tl.arange(0, AHEAD) * EACH
        first = tl.minimum(ps * KS + ahead, (ps + 1) * KS - 1)
        lines = tl.where(n < N, wn, 0).to(tl.int64)[:, None] * K + first[None, :]
        fetch((w + lines).to(tl.int64))
    await_inputs(PDL)
    if NORM:
        c = tl.arange(0, triton.next_power_of_2(NSQ))
        sums = tl.load(squares_in + m[:, None] * NSQ + c[None, :], mask=rows & (c < NSQ)[None, :], other=0.0)
        scale = 1.0 / tl.sqrt_rn(tl.sum(sums, 1) / K + EPS)
    acc = tl.zeros([BM, BN], tl.float32)
    if WHOLE:
        xt = tl.load(xs + k[None, :], mask=rows, other=0.0)
        acc = tl.dot(xt, tl.trans(w_all), acc, input_precision=EXACT)
    else:
        for k0 in tl.range(0, KS, BK, num_stages=STAGES):
            if EVEN:
                xt = tl.load(xs + (k + k0)[None, :], mask=rows, other=0.0)
                wt = tl.load(at + (k + k0)[None, :])
            else:
                inside = (k + k0 < (ps + 1) * KS)[None, :]
                xt = tl.load(xs + (k + k0)[None, :], mask=rows & inside, other=0.0)
                wt = tl.load(at + (k + k0)[None, :], mask=(n < N)[:, None] & inside, other=0.0)
            acc = tl.dot(xt, tl.trans(wt), acc, input_precision=EXACT)
    yield_late(PDL)
    last = True
    if SK > 1:
        spot = m[:, None] * N + n[None, :]
        live = rows & (n < N)[None, :]
        tl.store(parts + ps * M * N + spot, acc, mask=live)
        tl.debug_barrier()
        place = count + pm * tl.num_programs(1) + pn
        last = tl.atomic_add(place, 1, sem="acq_rel") == SK - 1
    if last:
        if SK > 1:
            tl.store(place, 0)
            acc = tl.zeros([BM, BN], tl.float32)
            for s in tl.static_range(SK):
                acc += tl.load(parts + s * M * N + spot, mask=live, other=0.0, cache_modifier=".cg")
        if NORM:
            acc = acc * scale[:, None]
        if BIAS:
            acc += tl.load(bias + wn, mask=n < N, other=0.0).to(tl.float32)[None, :]
        if ACT:
            gate, up = tl.split(tl.reshape(acc, [BM, BN // 2, 2]))
            o = pn * (BN // 2) + tl.arange(0, BN // 2)
            y = activate(gate, up, ACT)
            there = rows & (o < N // 2)[None, :]
            tl.store(out + m[:, None] * (N // 2) + o[None, :], y.to(out.dtype.element_ty), mask=there)
        else:
            where = m[:, None] * N + n[None, :]
            there = rows & (n < N)[None, :]
            if ADD:
                acc += tl.load(add + where, mask=there, other=0.0).to(tl.float32)
            y = acc.to(out.dtype.element_ty)
            tl.store(out + where, y, mask=there)
            if ADD:
                f = tl.where(there, y.to(tl.float32), 0.0)
                tl.store(squares_out + m * tl.num_programs(1) + pn, tl.sum(f * f, 1), mask=m < M)
