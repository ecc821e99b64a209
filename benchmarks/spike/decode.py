"""A throw-away spike: the decode step of Qwen3-0.6B, random weights, one GPU, before the interfaces freeze.

Every layer is five kernels (norm+qkv, attention with all that touches q, k and v, o+residual, norm+gate_up+silu.mul,
down+residual); the head picks its token without logits in memory; the step is two CUDA graphs, body and tail; the token
goes to the host through a ring of tagged words. The script checks all of it against a float32 twin, then times it.

    python3 benchmarks/spike/decode.py --out OUT [--sections host,bandwidth,edges,tune,attention,check,step,ring]

The norm's gain is folded into the rows behind it (`W * g`), so a linear only scales its result by 1/rms.
"""
# ruff: noqa: B007, B008, B023, B905, C408, E741, RUF005, RUF021, RUF059, SIM115

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as tlc
from triton.tools.tensor_descriptor import TensorDescriptor

LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB = 28, 1024, 16, 8, 128, 3072, 151936
EPS, THETA = 1e-6, 1e6
QKV = (HEADS + 2 * KV_HEADS) * DIM
TOKENS_A_ROW = 512                      # room for each row in the page table
SQUARES = 64                            # columns of the partial sums of squares
DTYPE, DEVICE = torch.bfloat16, "cuda"
SEED = 1234
COMPILE = None                          # (rank, world): compile this share of the variants, launch nothing
COMPILED, NODES = set(), [0]


# ---------------------------------------------------------------- kernels
@triton.jit
def release_early(PDL: tl.constexpr):
    """PDL 2: let the next kernel start before this one has waited; it may only read what this step never writes."""
    if PDL == 2:
        tlc.gdc_launch_dependents()


@triton.jit
def await_inputs(PDL: tl.constexpr):
    """Everything behind this line sees what the kernels before wrote. PDL 1 lets the next kernel start here."""
    if PDL:
        tlc.gdc_wait()
    if PDL == 1:
        tlc.gdc_launch_dependents()


@triton.jit
def prefetch(base, offset):
    """Ask for the line at base + offset to be in L2, one request an element."""
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l",
                              [base.to(tl.int64) + offset.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def prefetch_share(base, total, cta, ctas, THREADS: tl.constexpr, LINE: tl.constexpr):
    """This CTA's share of a whole weight that a later kernel will read, LINE bytes an element."""
    for first in range(cta * (THREADS * LINE), total, ctas * (THREADS * LINE)):
        prefetch(base, tl.minimum(first + tl.arange(0, THREADS) * LINE, total - LINE))


@triton.jit
def gumbel(key, ids, PHILOX: tl.constexpr):
    """Noise that depends on (key, id) alone: a murmur finaliser, or ten rounds of Philox."""
    if PHILOX:
        v = tl.rand(SEED_OF_PHILOX, (key + ids.to(tl.uint32)).to(tl.int32, bitcast=True))
    else:
        h = ids.to(tl.uint32) * 0x9E3779B1
        h = h ^ key
        h = (h ^ (h >> 16)) * 0x85EBCA6B
        h = (h ^ (h >> 13)) * 0xC2B2AE35
        h = h ^ (h >> 16)
        v = h.to(tl.float32) * 2.3283064365386963e-10
    # -log(1 - v): the winner of many ids has a small v, so that end keeps its relative precision
    v = tl.minimum(tl.maximum(v, 1.1641532182693481e-10), 0.99999994)
    e = tl.where(v < 0.015625, v + v * v * (0.5 + v * 0.33333334), tl.log2(1.0 - v) * -0.6931471805599453)
    return tl.log2(e) * -0.6931471805599453


SEED_OF_PHILOX = tl.constexpr(SEED)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
NOISE = tl.constexpr("""{ .reg .b32 h, t; .reg .f32 v, e, p, q; .reg .pred small;
mul.lo.u32 h, $3, 0x9E3779B1; xor.b32 h, h, $2;
shr.u32 t, h, 16; xor.b32 h, h, t; mul.lo.u32 h, h, 0x85EBCA6B;
shr.u32 t, h, 13; xor.b32 h, h, t; mul.lo.u32 h, h, 0xC2B2AE35;
shr.u32 t, h, 16; xor.b32 h, h, t;
cvt.rn.f32.u32 v, h; mul.f32 v, v, 0f2F800000; max.f32 v, v, 0f2F000000; min.f32 v, v, 0f3F7FFFFF;
sub.f32 e, 0f3F800000, v; lg2.approx.ftz.f32 e, e; mul.f32 e, e, 0fBF317218;
fma.rn.f32 p, v, 0f3EAAAAAB, 0f3F000000; mul.f32 q, v, v; fma.rn.f32 p, q, p, v;
setp.lt.f32 small, v, 0f3C800000; selp.f32 e, p, e, small;
lg2.approx.ftz.f32 e, e; mul.f32 e, e, 0fBF317218; fma.rn.f32 $0, e, $4, $1; }""")


@triton.jit
def add_noise(y, key, ids, amount, PHILOX: tl.constexpr):
    """y + amount * gumbel(key, ids), as one piece of PTX an element: op by op over a tile it would spill."""
    if PHILOX or INTERPRETED:
        y += amount * gumbel(key, ids, PHILOX)
    else:
        y = tl.inline_asm_elementwise(NOISE, "=f,f,r,r,f", [y, key, ids, amount], dtype=tl.float32,
                                      is_pure=True, pack=1)
    return y


@triton.jit
def row_key(seed, position):
    h = (seed + position * 0x61C88647).to(tl.uint32, bitcast=True)
    h = (h ^ (h >> 16)) * 0x7FEB352D
    return h ^ (h >> 15)


@triton.jit
def inputs(ids, embed, x, squares, H: tl.constexpr, NSQ: tl.constexpr, PDL: tl.constexpr):
    """x = embedding of the last token, and its sum of squares for the first norm."""
    release_early(PDL)
    row = tl.program_id(0)
    o = tl.arange(0, H)
    await_inputs(PDL)
    v = tl.load(embed + tl.load(ids + row).to(tl.int64) * H + o)
    tl.store(x + row * H + o, v)
    f = v.to(tl.float32)
    c = tl.arange(0, NSQ)
    tl.store(squares + row * NSQ + c, tl.where(c == 0, tl.sum(f * f), 0.0))


@triton.jit
def gemv(x, w, out, ahead, ahead_bytes, K: tl.constexpr, N: tl.constexpr, BN: tl.constexpr,
         NORM: tl.constexpr, GLU: tl.constexpr, RES: tl.constexpr, THREADS: tl.constexpr, EPS: tl.constexpr,
         PDL: tl.constexpr, AHEAD: tl.constexpr):
    """One row. A warp owns whole weight rows, so the only reduction is inside the warp. K is 1, 2 or 3 times 1024."""
    release_early(PDL)
    pid = tl.program_id(0)
    n = pid * BN + tl.arange(0, BN)
    off = tl.arange(0, 4)[:, None, None] * 256 + tl.arange(0, 256)[None, None, :]
    nn = n[None, :, None]
    zero = nn * 0
    at = nn * (2 * K if GLU else K) + off
    a0 = tl.load(w + at)
    if GLU:
        b0 = tl.load(w + K + at)
    if K > 1024:
        a1 = tl.load(w + 1024 + at)
    if K > 2048:
        a2 = tl.load(w + 2048 + at)
    if AHEAD:
        prefetch_share(ahead, ahead_bytes, pid, tl.num_programs(0), THREADS, AHEAD)
    await_inputs(PDL)
    xv = tl.load(x + (off + zero)).to(tl.float32)
    if RES:
        before = tl.load(out + n).to(tl.float32)
    acc = a0.to(tl.float32) * xv
    if GLU:
        acc_up = tl.sum(tl.sum(b0.to(tl.float32) * xv, 2), 0)
    if K > 1024:
        acc += a1.to(tl.float32) * tl.load(x + 1024 + (off + zero)).to(tl.float32)
    if K > 2048:
        acc += a2.to(tl.float32) * tl.load(x + 2048 + (off + zero)).to(tl.float32)
    y = tl.sum(tl.sum(acc, 2), 0)
    if NORM:
        rstd = tl.rsqrt(tl.sum(tl.sum(xv * xv, 2), 0) / K + EPS)
        y = y * rstd
        if GLU:
            acc_up = acc_up * rstd
    if GLU:
        y = y * tl.sigmoid(y) * acc_up
    if RES:
        y += before
    tl.store(out + n, y.to(out.dtype.element_ty))


@triton.jit
def linear_tile(x, xd, w, wd, gain, squares_in, squares_out, out, part, count, ahead, ahead_bytes, M,
                N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                SK: tl.constexpr, STAGES: tl.constexpr, NORM: tl.constexpr, GLU: tl.constexpr, RES: tl.constexpr,
                TMA: tl.constexpr, NSQ: tl.constexpr, THREADS: tl.constexpr, EPS: tl.constexpr, PRE: tl.constexpr,
                PDL: tl.constexpr, AHEAD: tl.constexpr):
    """[BM, BN] of x @ w.T. NORM 1 takes the sums of squares its producer wrote, 2 makes them itself."""
    release_early(PDL)
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    ps = tl.program_id(2)
    KS: tl.constexpr = K // SK
    m = pm * BM + tl.arange(0, BM)
    n = pn * BN + tl.arange(0, BN)
    k = ps * KS + tl.arange(0, BK)
    rows = (m < M)[:, None]
    WHOLE: tl.constexpr = KS == BK and not TMA
    if WHOLE:                                             # all weights of this CTA are in flight before the wait
        w_all = tl.load(w + n[:, None] * K + k[None, :])
    elif PRE:
        LINES: tl.constexpr = KS * 2 // PRE               # requests a weight row
        t = tl.arange(0, BN * LINES)
        if pm == 0:
            prefetch(w, ((pn * BN + t // LINES) * K + ps * KS) * 2 + (t % LINES) * PRE)
    if AHEAD:
        cta = (ps * tl.num_programs(1) + pn) * tl.num_programs(0) + pm
        ctas = tl.num_programs(0) * tl.num_programs(1) * SK
        prefetch_share(ahead, ahead_bytes, cta, ctas, THREADS, AHEAD)
    await_inputs(PDL)
    if NORM == 1:
        sq = tl.sum(tl.load(squares_in + m[:, None] * NSQ + tl.arange(0, NSQ)[None, :], mask=rows, other=0.0), 1)
    if NORM == 2:
        sq = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BN], tl.float32)
    if WHOLE:
        xt = tl.load(x + m[:, None] * K + k[None, :], mask=rows, other=0.0)
        acc = tl.dot(xt, tl.trans(w_all), acc)
    for k0 in tl.range(0, 0 if WHOLE else KS, BK, num_stages=STAGES):
        if TMA:
            xt = xd.load([pm * BM, ps * KS + k0])
            wt = wd.load([pn * BN, ps * KS + k0])
        else:
            xt = tl.load(x + m[:, None] * K + (k + k0)[None, :], mask=rows, other=0.0)
            wt = tl.load(w + n[:, None] * K + (k + k0)[None, :])
        if NORM == 2:
            xf = xt.to(tl.float32)
            sq += tl.sum(xf * xf, 1)
            xt = (xf * tl.load(gain + k + k0).to(tl.float32)[None, :]).to(xt.dtype)
        acc = tl.dot(xt, tl.trans(wt), acc)
    if SK > 1:                                            # the last to arrive adds the parts, in split order
        spot = m[:, None] * N + n[None, :]
        tl.store(part + ps * M * N + spot, acc, mask=rows)
        tl.debug_barrier()
        tile = pm * tl.num_programs(1) + pn
        if tl.atomic_add(count + tile, 1, sem="acq_rel") != SK - 1:
            return
        acc = tl.zeros([BM, BN], tl.float32)
        for s in tl.static_range(SK):
            acc += tl.load(part + s * M * N + spot, mask=rows, other=0.0, cache_modifier=".cg")
        tl.store(count + tile, 0)
    if NORM:
        acc = acc * tl.rsqrt(sq / K + EPS)[:, None]
    if GLU:
        gate, up = tl.split(tl.reshape(acc, [BM, BN // 2, 2]))
        y = gate * tl.sigmoid(gate) * up
        o = pn * (BN // 2) + tl.arange(0, BN // 2)
        tl.store(out + m[:, None] * (N // 2) + o[None, :], y.to(out.dtype.element_ty), mask=rows)
    else:
        spot = out + m[:, None] * N + n[None, :]
        if RES:
            acc += tl.load(spot, mask=rows, other=0.0).to(tl.float32)
        y = acc.to(out.dtype.element_ty)
        tl.store(spot, y, mask=rows)
        if RES:
            f = y.to(tl.float32)
            tl.store(squares_out + m * NSQ + pn, tl.sum(f * f, 1), mask=m < M)


@triton.jit
def attend(qkv, kc, vc, kd, vd, table, pos, rope, q_gain, k_gain, out, po, pm, pl, count, ahead, ahead_bytes, scale,
           MAXP: tl.constexpr, NH: tl.constexpr, NK: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
           TILE: tl.constexpr, SPLITS: tl.constexpr, MERGE: tl.constexpr, EARLY: tl.constexpr, TMA: tl.constexpr,
           STAGES: tl.constexpr, THREADS: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr, AHEAD: tl.constexpr):
    """q/k norm, rope, store and paged attention of one (row, kv head, split).

    The new token's key and value start the softmax of split 0 from registers. MERGE: 1 last arriver, 2 another kernel.
    EARLY: what is asked for before the wait: 1 the first tile into registers, 2 the first tile into L2."""
    release_early(PDL)
    head = tl.program_id(0)
    row = tl.program_id(1)
    sp = tl.program_id(2)
    G: tl.constexpr = NH // NK
    g = tl.arange(0, 16)
    d = tl.arange(0, D)
    ds = d ^ (D // 2)                                      # the other half of a rotated pair
    live = (g < G)[:, None]
    n = tl.load(pos + row)                                 # keys in the cache; the new token's position
    tiles = tl.cdiv(n, TILE)
    per = tl.cdiv(tiles, SPLITS)
    lo = sp * per
    hi = tl.minimum(lo + per, tiles)
    if EARLY:
        keys = lo * TILE + tl.arange(0, TILE)
        if PAGE >= TILE:
            r = (tl.load(table + row * MAXP + (lo * TILE) // PAGE) * NK + head) * PAGE + keys % PAGE
        else:
            r = (tl.load(table + row * MAXP + keys // PAGE, mask=keys < n, other=0) * NK + head) * PAGE + keys % PAGE
        if EARLY == 1:
            k0 = tl.load(kc + r[:, None] * D + d[None, :], mask=(keys < n)[:, None], other=0.0)
            v0 = tl.load(vc + r[:, None] * D + d[None, :], mask=(keys < n)[:, None], other=0.0)
        else:
            prefetch(kc, r * (D * 2))
            prefetch(vc, r * (D * 2))
            prefetch(kc, r * (D * 2) + D)
            prefetch(vc, r * (D * 2) + D)
    cos = tl.load(rope + n * D + d % (D // 2))
    sin = tl.load(rope + n * D + D // 2 + d % (D // 2))
    sin = tl.where(d < D // 2, -sin, sin)
    qg = tl.load(q_gain + d).to(tl.float32)
    qgs = tl.load(q_gain + ds).to(tl.float32)
    kg = tl.load(k_gain + d).to(tl.float32)
    kgs = tl.load(k_gain + ds).to(tl.float32)
    slot = (tl.load(table + row * MAXP + n // PAGE) * NK + head) * PAGE + n % PAGE
    if AHEAD:
        cta = (sp * tl.num_programs(1) + row) * NK + head
        ctas = tl.num_programs(1) * (SPLITS * NK)
        prefetch_share(ahead, ahead_bytes, cta, ctas, THREADS, AHEAD)
    await_inputs(PDL)
    base = qkv + row * ((NH + 2 * NK) * D)
    qat = base + (head * G + g)[:, None] * D
    q = tl.load(qat + d[None, :], mask=live, other=0.0).to(tl.float32)
    qs = tl.load(qat + ds[None, :], mask=live, other=0.0).to(tl.float32)
    kat = base + (NH + head) * D
    kn = tl.load(kat + d).to(tl.float32)
    ks = tl.load(kat + ds).to(tl.float32)
    vn = tl.load(base + (NH + NK + head) * D + d)
    q = (q * (qg * cos)[None, :] + qs * (qgs * sin)[None, :]) * tl.rsqrt(tl.sum(q * q, 1) / D + EPS)[:, None]
    q = q.to(qkv.dtype.element_ty)
    kn = ((kn * kg * cos + ks * kgs * sin) * tl.rsqrt(tl.sum(kn * kn) / D + EPS)).to(qkv.dtype.element_ty)
    scale2 = scale * 1.4426950408889634
    if sp == 0:
        tl.store(kc + slot * D + d, kn)
        tl.store(vc + slot * D + d, vn)
    first = tl.where(sp == 0, 1.0, 0.0)
    m = tl.sum(q.to(tl.float32) * kn.to(tl.float32)[None, :], 1) * scale2
    m = tl.where(sp == 0, m, -1e30)
    l = tl.zeros([16], tl.float32) + first
    acc = tl.zeros([16, D], tl.float32) + (vn.to(tl.float32) * first)[None, :]
    start = lo
    if EARLY == 1:
        s = tl.dot(q, tl.trans(k0)) * scale2
        s = tl.where((keys < n)[None, :], s, -1e30)
        mn = tl.maximum(m, tl.max(s, 1))
        p = tl.where((keys < n)[None, :], tl.exp2(s - mn[:, None]), 0.0)
        a = tl.exp2(m - mn)
        l = l * a + tl.sum(p, 1)
        acc = tl.dot(p.to(v0.dtype), v0, acc * a[:, None])
        m = mn
        start = lo + 1
    # The page of the next tile is read one turn ahead: a load that waits for another load is not pipelined.
    if PAGE >= TILE:
        pages = tl.load(table + row * MAXP + (start * TILE) // PAGE, mask=start < hi, other=0)
    else:
        after = start * TILE + tl.arange(0, TILE)
        pages = tl.load(table + row * MAXP + after // PAGE, mask=after < n, other=0)
    for i in tl.range(start, hi, num_stages=STAGES):
        keys = i * TILE + tl.arange(0, TILE)
        r = (pages * NK + head) * PAGE + keys % PAGE
        if TMA:
            spot = (pages * NK + head) * PAGE + (i * TILE) % PAGE
        if PAGE >= TILE:
            pages = tl.load(table + row * MAXP + ((i + 1) * TILE) // PAGE, mask=i + 1 < hi, other=0)
        else:
            after = keys + TILE
            pages = tl.load(table + row * MAXP + after // PAGE, mask=after < n, other=0)
        ok = keys < n
        if TMA:                                            # whole boxes: what lies behind n must be finite
            kt = kd.load([spot, 0])
        else:
            kt = tl.load(kc + r[:, None] * D + d[None, :], mask=ok[:, None], other=0.0)
        s = tl.dot(q, tl.trans(kt)) * scale2
        s = tl.where(ok[None, :], s, -1e30)
        mn = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - mn[:, None])
        a = tl.exp2(m - mn)
        l = l * a + tl.sum(p, 1)
        if TMA:
            vt = vd.load([spot, 0])
        else:
            vt = tl.load(vc + r[:, None] * D + d[None, :], mask=ok[:, None], other=0.0)
        acc = tl.dot(p.to(vt.dtype), vt, acc * a[:, None])
        m = mn
    head_row = row * NH + head * G + g
    if SPLITS > 1:
        tl.store(po + (head_row * SPLITS + sp)[:, None] * D + d[None, :], acc, mask=live)
        tl.store(pm + head_row * SPLITS + sp, m, mask=g < G)
        tl.store(pl + head_row * SPLITS + sp, l, mask=g < G)
        if MERGE == 2:
            return
        tl.debug_barrier()
        if tl.atomic_add(count + row * NK + head, 1, sem="acq_rel") != SPLITS - 1:
            return
        tl.store(count + row * NK + head, 0)
        m = tl.full([16], -1e30, tl.float32)
        l = tl.zeros([16], tl.float32)
        acc = tl.zeros([16, D], tl.float32)
        for s in tl.static_range(SPLITS):
            mi = tl.load(pm + head_row * SPLITS + s, mask=g < G, other=0.0, cache_modifier=".cg")
            li = tl.load(pl + head_row * SPLITS + s, mask=g < G, other=0.0, cache_modifier=".cg")
            oi = tl.load(po + (head_row * SPLITS + s)[:, None] * D + d[None, :], mask=live, other=0.0,
                         cache_modifier=".cg")
            mn = tl.maximum(m, mi)
            a = tl.exp2(m - mn)
            b = tl.exp2(mi - mn)
            acc = acc * a[:, None] + oi * b[:, None]
            l = l * a + li * b
            m = mn
    l = tl.where(g < G, l, 1.0)
    tl.store(out + head_row[:, None] * D + d[None, :], (acc / l[:, None]).to(out.dtype.element_ty), mask=live)


@triton.jit
def share_work(pos, work, B, BP: tl.constexpr, NK: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr):
    """The work list, once a step: CTA c gets an equal run of key tiles: (row, head, first tile, how many)."""
    release_early(PDL)
    c = tl.program_id(0)
    r = tl.arange(0, BP)
    await_inputs(PDL)
    n = tl.load(pos + r, mask=r < B, other=0)
    tiles = tl.where(r < B, tl.maximum(tl.cdiv(n, TILE), 1), 0)
    total = tl.sum(tiles, 0) * NK
    per = tl.cdiv(total, tl.num_programs(0))
    start = tl.minimum(c * per, total)
    row = tl.sum(((tl.cumsum(tiles, 0) * NK <= start) & (r < B)).to(tl.int32), 0)
    rest = start - tl.sum(tl.where(r < row, tiles, 0), 0) * NK
    mine = tl.maximum(tl.sum(tl.where(r == row, tiles, 0), 0), 1)
    tl.store(work + c * 8, row)
    tl.store(work + c * 8 + 1, rest // mine)
    tl.store(work + c * 8 + 2, rest % mine)
    tl.store(work + c * 8 + 3, tl.minimum(per, total - start))
    tl.store(work + c * 8 + 4, per)


@triton.jit
def attend_flow(qkv, kc, vc, table, pos, rope, q_gain, k_gain, out, po, pm, pl, count, work, ahead, ahead_bytes, scale,
                MAXP: tl.constexpr, NH: tl.constexpr, NK: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
                TILE: tl.constexpr, STAGES: tl.constexpr, THREADS: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr,
                AHEAD: tl.constexpr):
    """`attend` over a work list: a persistent grid, equal shares of key tiles, items cut by a share's end merged by
    the last CTA to arrive. TILE is at most a page."""
    release_early(PDL)
    c = tl.program_id(0)
    G: tl.constexpr = NH // NK
    g = tl.arange(0, 16)
    d = tl.arange(0, D)
    ds = d ^ (D // 2)
    live = (g < G)[:, None]
    qg = tl.load(q_gain + d).to(tl.float32)
    qgs = tl.load(q_gain + ds).to(tl.float32)
    kg = tl.load(k_gain + d).to(tl.float32)
    kgs = tl.load(k_gain + ds).to(tl.float32)
    scale2 = scale * 1.4426950408889634
    if AHEAD:
        prefetch_share(ahead, ahead_bytes, c, tl.num_programs(0), THREADS, AHEAD)
    await_inputs(PDL)
    row = tl.load(work + c * 8)
    head = tl.load(work + c * 8 + 1)
    j = tl.load(work + c * 8 + 2)
    left = tl.load(work + c * 8 + 3)
    per = tl.load(work + c * 8 + 4)
    at = c * per
    while left > 0:
        n = tl.load(pos + row)
        tiles = tl.maximum(tl.cdiv(n, TILE), 1)
        take = tl.minimum(left, tiles - j)
        cos = tl.load(rope + n * D + d % (D // 2))
        sin = tl.load(rope + n * D + D // 2 + d % (D // 2))
        sin = tl.where(d < D // 2, -sin, sin)
        base = qkv + row * ((NH + 2 * NK) * D)
        qat = base + (head * G + g)[:, None] * D
        q = tl.load(qat + d[None, :], mask=live, other=0.0).to(tl.float32)
        qs = tl.load(qat + ds[None, :], mask=live, other=0.0).to(tl.float32)
        q = (q * (qg * cos)[None, :] + qs * (qgs * sin)[None, :]) * tl.rsqrt(tl.sum(q * q, 1) / D + EPS)[:, None]
        q = q.to(qkv.dtype.element_ty)
        kat = base + (NH + head) * D
        kn = tl.load(kat + d).to(tl.float32)
        ks = tl.load(kat + ds).to(tl.float32)
        vn = tl.load(base + (NH + NK + head) * D + d)
        kn = ((kn * kg * cos + ks * kgs * sin) * tl.rsqrt(tl.sum(kn * kn) / D + EPS)).to(qkv.dtype.element_ty)
        if j == 0:
            slot = (tl.load(table + row * MAXP + n // PAGE) * NK + head) * PAGE + n % PAGE
            tl.store(kc + slot * D + d, kn)
            tl.store(vc + slot * D + d, vn)
        first = tl.where(j == 0, 1.0, 0.0)
        m = tl.sum(q.to(tl.float32) * kn.to(tl.float32)[None, :], 1) * scale2
        m = tl.where(j == 0, m, -1e30)
        l = tl.zeros([16], tl.float32) + first
        acc = tl.zeros([16, D], tl.float32) + (vn.to(tl.float32) * first)[None, :]
        pages = tl.load(table + row * MAXP + (j * TILE) // PAGE)
        for i in tl.range(j, j + take, num_stages=STAGES):
            keys = i * TILE + tl.arange(0, TILE)
            r = (pages * NK + head) * PAGE + keys % PAGE
            pages = tl.load(table + row * MAXP + ((i + 1) * TILE) // PAGE, mask=i + 1 < j + take, other=0)
            ok = keys < n
            kt = tl.load(kc + r[:, None] * D + d[None, :], mask=ok[:, None], other=0.0)
            s = tl.dot(q, tl.trans(kt)) * scale2
            s = tl.where(ok[None, :], s, -1e30)
            mn = tl.maximum(m, tl.max(s, 1))
            p = tl.exp2(s - mn[:, None])
            a = tl.exp2(m - mn)
            l = l * a + tl.sum(p, 1)
            vt = tl.load(vc + r[:, None] * D + d[None, :], mask=ok[:, None], other=0.0)
            acc = tl.dot(p.to(vt.dtype), vt, acc * a[:, None])
            m = mn
        spot = out + (row * NH + head * G + g)[:, None] * D + d[None, :]
        if take == tiles:
            tl.store(spot, (acc / l[:, None]).to(out.dtype.element_ty), mask=live)
        else:
            c0 = (at - j) // per
            parts = (at - j + tiles - 1) // per - c0 + 1
            mine = (2 * c + tl.where(j == 0, 1, 0)) * G + g
            tl.store(po + mine[:, None] * D + d[None, :], acc, mask=live)
            tl.store(pm + mine, m, mask=g < G)
            tl.store(pl + mine, l, mask=g < G)
            tl.debug_barrier()
            if tl.atomic_add(count + row * NK + head, 1, sem="acq_rel") == parts - 1:
                tl.store(count + row * NK + head, 0)
                m = tl.full([16], -1e30, tl.float32)
                l = tl.zeros([16], tl.float32)
                acc = tl.zeros([16, D], tl.float32)
                for part in range(parts):
                    its = (2 * (c0 + part) + tl.where(part == 0, 1, 0)) * G + g
                    mi = tl.load(pm + its, mask=g < G, other=0.0, cache_modifier=".cg")
                    li = tl.load(pl + its, mask=g < G, other=1.0, cache_modifier=".cg")
                    oi = tl.load(po + its[:, None] * D + d[None, :], mask=live, other=0.0, cache_modifier=".cg")
                    mn = tl.maximum(m, mi)
                    a = tl.exp2(m - mn)
                    b = tl.exp2(mi - mn)
                    acc = acc * a[:, None] + oi * b[:, None]
                    l = l * a + li * b
                    m = mn
                tl.store(spot, (acc / l[:, None]).to(out.dtype.element_ty), mask=live)
        left -= take
        at += take
        j = 0
        head += 1
        if head == NK:
            head = 0
            row += 1


@triton.jit
def merge(po, pm, pl, out, D: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr):
    release_early(PDL)
    head_row = tl.program_id(0)
    d = tl.arange(0, D)
    s = tl.arange(0, SPLITS)
    await_inputs(PDL)
    m = tl.load(pm + head_row * SPLITS + s)
    a = tl.exp2(m - tl.max(m, 0))
    l = tl.sum(tl.load(pl + head_row * SPLITS + s) * a, 0)
    o = tl.load(po + (head_row * SPLITS + s)[:, None] * D + d[None, :])
    tl.store(out + head_row * D + d, (tl.sum(o * a[:, None], 0) / l).to(out.dtype.element_ty))


@triton.jit
def rms(x, gain, out, H: tl.constexpr, GAIN: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr):
    release_early(PDL)
    row = tl.program_id(0)
    o = tl.arange(0, H)
    await_inputs(PDL)
    v = tl.load(x + row * H + o).to(tl.float32)
    v = v * tl.rsqrt(tl.sum(v * v) / H + EPS)
    if GAIN:
        v = v * tl.load(gain + o).to(tl.float32)
    tl.store(out + row * H + o, v.to(out.dtype.element_ty))


@triton.jit
def silu_mul(x, out, F: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    release_early(PDL)
    row = tl.program_id(0)
    o = tl.program_id(1) * BLOCK
    await_inputs(PDL)
    v = tl.load(x + row * 2 * F + 2 * o + tl.arange(0, 2 * BLOCK)).to(tl.float32)
    gate, up = tl.split(tl.reshape(v, [BLOCK, 2]))
    tl.store(out + row * F + o + tl.arange(0, BLOCK), (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty))


@triton.jit
def head_gemv(x, gain, w, pos, seed, inverse_t, noise, tile_max, tile_id, NTILES, K: tl.constexpr, BN: tl.constexpr,
              SUB: tl.constexpr, PHILOX: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr):
    """Final norm, head and pick of one row: SUB times BN ids a CTA, one (max, id) out."""
    release_early(PDL)
    pid = tl.program_id(0)
    off = tl.arange(0, 4)[:, None, None] * 256 + tl.arange(0, 256)[None, None, :]
    n = pid * (BN * SUB) + tl.arange(0, BN)
    zero = (n * 0)[None, :, None]
    wv = tl.load(w + n[None, :, None].to(tl.int64) * K + off)
    gv = tl.load(gain + (off + zero)).to(tl.float32)
    key = row_key(tl.load(seed), tl.load(pos))
    it = tl.load(inverse_t)
    amount = tl.load(noise)
    await_inputs(PDL)
    xv = tl.load(x + (off + zero)).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(tl.sum(xv * xv, 2), 0) / K + EPS)
    xv = xv * gv
    best = tl.full([BN], -float("inf"), tl.float32)
    best_id = n
    for i in tl.static_range(SUB):
        if i > 0:
            wv = tl.load(w + (n + i * BN)[None, :, None].to(tl.int64) * K + off)
        y = tl.sum(tl.sum(wv.to(tl.float32) * xv, 2), 0) * rstd * it
        y = add_noise(y, key, n + i * BN, amount, PHILOX)
        better = y > best
        best = tl.where(better, y, best)
        best_id = tl.where(better, n + i * BN, best_id)
    top = tl.max(best, 0)
    tl.store(tile_max + pid, top)
    tl.store(tile_id + pid, tl.min(tl.where(best == top, best_id, 2147483647), 0))


@triton.jit
def head_tile(x, xd, w, wd, pos, seed, inverse_t, noise, tile_max, tile_id, M, NTILES, K: tl.constexpr,
              BM: tl.constexpr,
              BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr, PHILOX: tl.constexpr,
              NOISE: tl.constexpr, PDL: tl.constexpr):
    release_early(PDL)
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    m = pm * BM + tl.arange(0, BM)
    n = pn * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    rows = m < M
    await_inputs(PDL)
    acc = tl.zeros([BM, BN], tl.float32)
    for k0 in tl.range(0, K, BK, num_stages=STAGES):
        if TMA:
            xt = xd.load([pm * BM, k0])
            wt = wd.load([pn * BN, k0])
        else:
            xt = tl.load(x + m[:, None] * K + (k + k0)[None, :], mask=rows[:, None], other=0.0)
            wt = tl.load(w + n[:, None].to(tl.int64) * K + (k + k0)[None, :])
        acc = tl.dot(xt, tl.trans(wt), acc)
    y = acc * tl.load(inverse_t + m, mask=rows, other=1.0)[:, None]
    if NOISE:
        key = row_key(tl.load(seed + m, mask=rows, other=0), tl.load(pos + m, mask=rows, other=0))
        y = add_noise(y, key[:, None], n[None, :], tl.load(noise + m, mask=rows, other=0.0)[:, None], PHILOX)
    top = tl.max(y, 1)
    idx = tl.min(tl.where(y == top[:, None], n[None, :], 2147483647), 1)
    tl.store(tile_max + m * NTILES + pn, top, mask=rows)
    tl.store(tile_id + m * NTILES + pn, idx, mask=rows)


@triton.jit
def pick_logits(logits, pos, seed, inverse_t, noise, tile_max, tile_id, NTILES, V: tl.constexpr, BLOCK: tl.constexpr,
                PDL: tl.constexpr):
    """The same pick over logits in memory, for comparison."""
    release_early(PDL)
    row = tl.program_id(0)
    c = tl.program_id(1)
    n = c * BLOCK + tl.arange(0, BLOCK)
    key = row_key(tl.load(seed + row), tl.load(pos + row))
    await_inputs(PDL)
    y = tl.load(logits + row.to(tl.int64) * V + n, mask=n < V, other=-float("inf")).to(tl.float32)
    y = add_noise(y * tl.load(inverse_t + row), key, n, tl.load(noise + row), False)
    top = tl.max(y, 0)
    tl.store(tile_max + row * NTILES + c, top)
    tl.store(tile_id + row * NTILES + c, tl.min(tl.where(y == top, n, 2147483647), 0))


@triton.jit
def finish(tile_max, tile_id, ids, pos, step, advance, ring, B, NTILES, NTP: tl.constexpr, SLOTS: tl.constexpr,
           PDL: tl.constexpr):
    """Reduce a row's tiles, commit its token and publish `step << 32 | token` to the host."""
    release_early(PDL)
    row = tl.program_id(0)
    c = tl.arange(0, NTP)
    await_inputs(PDL)
    v = tl.load(tile_max + row * NTILES + c, mask=c < NTILES, other=-float("inf"))
    i = tl.load(tile_id + row * NTILES + c, mask=c < NTILES, other=2147483647)
    token = tl.min(tl.where(v == tl.max(v, 0), i, 2147483647), 0)
    token = tl.where(token == 2147483647, 0, token)              # a row of NaN: never an index out of the table
    now = tl.load(step + row)
    tl.store(ring + (now % SLOTS) * B + row, (now.to(tl.int64) << 32) | token.to(tl.int64))
    tl.store(ids + row, token)
    tl.store(pos + row, tl.load(pos + row) + tl.load(advance))
    tl.store(step + row, now + 1)


@triton.jit
def touch(x, PDL: tl.constexpr):
    release_early(PDL)
    p = tl.program_id(0)
    await_inputs(PDL)
    tl.store(x + p, tl.load(x + p) + 1)


@triton.jit
def touch16(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, PDL: tl.constexpr):
    tl.store(a, tl.load(a) + 1)


@triton.jit
def publish(step, ring, B, SLOTS: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0)
    now = tl.load(step + row)
    tl.store(ring + (now % SLOTS) * B + row, (now.to(tl.int64) << 32) | ((now * 31 + row) % 100003).to(tl.int64))
    tl.store(step + row, now + 1)


@triton.jit
def answer(flag, reply, turns, limit, PDL: tl.constexpr):
    """Wait for the host's word, answer with the same word, `turns` times (bounded: it never hangs)."""
    for i in range(1, turns + 1):
        tries = 0
        while (tl.load(flag, volatile=True) < i) & (tries < limit):
            tries += 1
        tl.store(reply, i.to(tl.int64))


@triton.jit
def read_all(x, out, per, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pid = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.int32)
    for i in range(per):
        acc += tl.load(x + (pid.to(tl.int64) * per + i) * BLOCK + o)
    tl.store(out + pid, tl.sum(acc, 0))


# ---------------------------------------------------------------- host helpers
def launch(kernel, grid, *args, pdl=False, **kw):
    NODES[0] += 1
    kw["PDL"] = int(pdl)
    if pdl:
        kw["launch_pdl"] = True
    if COMPILE is None:
        kernel[grid](*args, **kw)
        return
    boxes = [tuple(a.block_shape) for a in args if isinstance(a, TensorDescriptor)]
    plain = [a for a in args if isinstance(a, (int, float))]
    key = (kernel.fn.__name__, str(plain), str(sorted(kw.items())), str(boxes))
    if key not in COMPILED:
        COMPILED.add(key)
        if (len(COMPILED) - 1) % COMPILE[1] == COMPILE[0]:
            try:
                kernel.warmup(*args, grid=grid, **kw)
            except Exception as error:
                print("compile", key, repr(error)[:300], flush=True)


def alloc(*shape, dtype=None, fill=None):
    if COMPILE is not None:
        return torch.empty(64, dtype=dtype or DTYPE)
    t = torch.empty(*shape, dtype=dtype or DTYPE, device=DEVICE)
    return t if fill is None else t.fill_(fill)


def normal(*shape, scale=1.0, offset=0.0, dtype=None):
    t = alloc(*shape, dtype=dtype)
    return t if COMPILE is not None else t.normal_(offset, scale)


def box(tensor, shape, block):
    return TensorDescriptor(tensor, list(shape), [shape[1], 1], list(block))


def capture(fn):
    if COMPILE is not None:
        fn()
        return None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    NODES[0] = 0
    with torch.cuda.graph(graph):
        fn()
    return graph


def time_us(fn, reps=20, groups=5):
    """Median over groups of the mean microseconds of one call of fn (graph replays)."""
    fn()
    torch.cuda.synchronize()
    out = []
    for _ in range(groups):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(reps):
            fn()
        b.record()
        torch.cuda.synchronize()
        out.append(a.elapsed_time(b) * 1e3 / reps)
    return statistics.median(out)


def graph_us(fn, reps=20, groups=5):
    graph = capture(fn)
    return 0.0 if graph is None else time_us(graph.replay, reps, groups)


def error_of(got, want):
    return float((got.float() - want.float()).norm() / want.float().norm())


# ---------------------------------------------------------------- the model
class Weights:
    def __init__(self, layers=None):
        L = layers or LAYERS
        self.layers = []
        for _ in range(L):
            w = dict(qkv=normal(QKV, HIDDEN, scale=0.03), o=normal(HIDDEN, HEADS * DIM, scale=0.02),
                     gu=normal(2 * FFN, HIDDEN, scale=0.03), dn=normal(HIDDEN, FFN, scale=0.02))
            for name, size in (("g1", HIDDEN), ("g2", HIDDEN), ("qg", DIM), ("kg", DIM)):
                w[name] = normal(size, scale=0.1, offset=1.0)
            w["qkv_raw"], w["gu_raw"] = w["qkv"], w["gu"]
            if COMPILE is None:
                w["qkv"] = (w["qkv"].float() * w["g1"].float()).to(DTYPE)
                w["gu"] = (w["gu"].float() * w["g2"].float()).to(DTYPE)
            self.layers.append(w)
        self.embed = normal(VOCAB, HIDDEN, scale=0.05)
        self.gain = normal(HIDDEN, scale=0.1, offset=1.0)
        if COMPILE is None:
            inverse = 1.0 / THETA ** (torch.arange(0, DIM, 2, device=DEVICE).float() / DIM)
            angle = torch.arange(1024, device=DEVICE).float()[:, None] * inverse
            self.rope = torch.cat([angle.cos(), angle.sin()], 1).contiguous()
        else:
            self.rope = alloc(1, dtype=torch.float32)


class State:
    """Everything one batch size owns; page tables for both page sizes see the same bytes."""

    def __init__(self, batch, layers, context=256, spread=False):
        B = self.batch = batch
        f32, i32 = torch.float32, torch.int32
        self.x, self.hn = alloc(B, HIDDEN), alloc(B, HIDDEN)
        self.qkv, self.ao, self.act = alloc(B, QKV), alloc(B, HEADS * DIM), alloc(B, FFN)
        self.gu = alloc(B, 2 * FFN)
        self.sq_o, self.sq_d = (alloc(B, SQUARES, dtype=f32, fill=0.0) for _ in range(2))
        self.part, self.count = alloc(8, B, HIDDEN, dtype=f32), alloc(4096, dtype=i32, fill=0)
        parts = max(B * HEADS * 8, 4096)
        self.po = alloc(parts, DIM, dtype=f32)
        self.pm, self.pl = alloc(parts, dtype=f32), alloc(parts, dtype=f32)
        self.work = alloc(1024, 8, dtype=i32, fill=0)
        self.acount = alloc(B * KV_HEADS, dtype=i32, fill=0)
        self.tile_max, self.tile_id = alloc(B, 9500, dtype=f32), alloc(B, 9500, dtype=i32)
        self.ids, self.pos = alloc(B, dtype=i32, fill=1), alloc(B, dtype=i32, fill=context)
        self.step, self.advance = alloc(B, dtype=i32, fill=0), alloc(1, dtype=i32, fill=0)
        self.seed, self.noise = alloc(B, dtype=i32, fill=0), alloc(B, dtype=f32, fill=0.0)
        self.inverse_t = alloc(B, dtype=f32, fill=1.0)
        size = B * TOKENS_A_ROW * KV_HEADS * DIM
        self.k = [normal(size) for _ in range(layers)]
        self.v = [normal(size, scale=0.5) for _ in range(layers)]
        self.table = {}
        for page in (16, 64):
            pages = TOKENS_A_ROW // page
            self.table[page] = alloc(B, pages, dtype=i32)
            if COMPILE is None:
                order = torch.randperm(B * pages, device=DEVICE).to(i32)
                self.table[page].copy_(order.view(B, pages))
        if COMPILE is None:
            self.ids.copy_(torch.randint(0, VOCAB, (B,), device=DEVICE))
            self.seed.copy_(torch.randint(0, 1 << 30, (B,), device=DEVICE))
            if spread and B > 1:
                self.pos.copy_(torch.linspace(128, 384, B, device=DEVICE).round())
            self.ring = torch.zeros(64, B, dtype=torch.int64, pin_memory=DEVICE == "cuda")
        else:
            self.ring = torch.empty(64, dtype=torch.int64)


OPS = dict(qkv=(QKV, HIDDEN), o=(HIDDEN, HEADS * DIM), gu=(2 * FFN, HIDDEN), dn=(HIDDEN, FFN))


def buffers(op, st):
    """(input, sums of squares in, sums of squares out, output) of a linear."""
    return dict(qkv=(st.x, st.sq_d, st.sq_d, st.qkv), o=(st.ao, st.sq_o, st.sq_o, st.x),
                gu=(st.x, st.sq_o, st.sq_o, st.act), dn=(st.act, st.sq_d, st.sq_d, st.x))[op]


def linear(op, st, w, cfg, pdl, ahead=None):
    ahead = ahead or (st.x, 0, 0)                # (weight, bytes, bytes a request) of the kernel after next
    N, K = OPS[op]
    x, sq_in, sq_out, out = buffers(op, st)
    norm, glu, res = op in ("qkv", "gu"), op == "gu", op in ("o", "dn")
    B = st.batch
    if cfg["kind"] == "cublas":
        if norm:
            launch(rms, (B,), x, x, st.hn, HIDDEN, False, EPS, pdl=pdl, num_warps=4)
            if COMPILE is None:
                torch.mm(st.hn, w[op].t(), out=st.gu if glu else out)
            if glu:
                launch(silu_mul, (B, FFN // 1024), st.gu, st.act, FFN, 1024, pdl=pdl, num_warps=4)
        elif COMPILE is None:
            torch.addmm(out, x, w[op].t(), out=out)
        NODES[0] += 1
    elif cfg["kind"] == "gemv":
        BN, warps = cfg["BN"], cfg["warps"]
        ctas = (N // 2 if glu else N) // BN
        launch(gemv, (ctas,), x, w[op], out, ahead[0], ahead[1], K, N, BN, norm, glu, res, warps * 32, EPS,
               AHEAD=ahead[2], pdl=pdl, num_warps=warps, **({"maxnreg": cfg["maxnreg"]} if "maxnreg" in cfg else {}))
    else:
        BM, BN, BK, SK, warps = cfg["BM"], cfg["BN"], cfg["BK"], cfg.get("SK", 1), cfg.get("warps", 4)
        grid = (-(-B // BM), N // BN, SK)
        tma, mode = cfg.get("TMA", 0), cfg.get("NORM", 1) if norm else 0
        weight = w[op + "_raw" if mode == 2 else op]
        xd = box(x, (B, K), (BM, BK)) if tma else x
        wd = box(weight, (N, K), (BN, BK)) if tma else x
        gain = w["g1" if op == "qkv" else "g2"]
        launch(linear_tile, grid, x, xd, weight, wd, gain, sq_in, sq_out, out, st.part, st.count,
               ahead[0], ahead[1], B, N, K, BM, BN, BK, SK, cfg.get("stages", 4), mode, glu, res, tma,
               SQUARES, warps * 32, EPS, PRE=cfg.get("PRE", 0) if pdl else 0, AHEAD=ahead[2], pdl=pdl, num_warps=warps)


def attention(st, layer, w, rope, cfg, pdl, ahead=None):
    B, S, warps = st.batch, cfg.get("splits", 1), cfg.get("warps", 4)
    page = cfg.get("page", 64)
    ahead = ahead or (st.x, 0, 0)
    caches, tma = (st.k[layer], st.v[layer]), cfg.get("TMA", 0)
    shared = (st.table[page], st.pos, rope, w["qg"], w["kg"], st.ao, st.po, st.pm, st.pl, st.acount)
    shape = (DIM**-0.5, TOKENS_A_ROW // page, HEADS, KV_HEADS, DIM, page, cfg.get("tile", 64))
    if "flow" in cfg:
        launch(attend_flow, (cfg["flow"],), st.qkv, *caches, *shared, st.work, ahead[0], ahead[1], *shape,
               cfg.get("stages", 3), warps * 32, EPS, AHEAD=ahead[2], pdl=pdl, num_warps=warps)
        return
    how = cfg.get("merge", 1) if S > 1 else 0
    boxes = [box(c, (B * TOKENS_A_ROW * KV_HEADS, DIM), (shape[-1], DIM)) for c in caches] if tma else caches
    launch(attend, (KV_HEADS, B, S), st.qkv, *caches, *boxes, *shared, ahead[0], ahead[1], *shape, S, how,
           cfg.get("early", 0), tma, cfg.get("stages", 3), warps * 32, EPS, AHEAD=ahead[2], pdl=pdl, num_warps=warps,
           **({"maxnreg": cfg["maxnreg"]} if "maxnreg" in cfg else {}))
    if how == 2:
        launch(merge, (B * HEADS,), st.po, st.pm, st.pl, st.ao, DIM, S, pdl=pdl, num_warps=1)


def work_list(st, cfg, pdl):
    if "flow" in cfg:
        launch(share_work, (cfg["flow"],), st.pos, st.work, st.batch, triton.next_power_of_2(st.batch), KV_HEADS,
               cfg.get("tile", 64), pdl=pdl, num_warps=1 if st.batch < 64 else 4)


def head(st, w, cfg, pdl, logits=None):
    B = st.batch
    pick = (st.pos, st.seed, st.inverse_t, st.noise, st.tile_max, st.tile_id)
    if cfg["kind"] == "gemv":
        tiles = VOCAB // (cfg["BN"] * cfg["SUB"])
        launch(head_gemv, (tiles,), st.x, w.gain, w.embed, *pick, tiles, HIDDEN, cfg["BN"], cfg["SUB"],
               cfg.get("philox", False), EPS, pdl=pdl, num_warps=cfg["warps"])
    else:
        launch(rms, (B,), st.x, w.gain, st.hn, HIDDEN, True, EPS, pdl=pdl, num_warps=4)
        if cfg["kind"] == "cublas":
            tiles = -(-VOCAB // 4096)
            if COMPILE is None:
                torch.mm(st.hn, w.embed.t(), out=logits)
            NODES[0] += 1
            launch(pick_logits, (B, tiles), logits if logits is not None else st.hn, *pick, tiles, VOCAB, 4096,
                   pdl=pdl, num_warps=4)
        else:
            BM, BN, BK, tma = cfg["BM"], cfg["BN"], cfg["BK"], cfg.get("TMA", 0)
            tiles = VOCAB // BN
            xd = box(st.hn, (B, HIDDEN), (BM, BK)) if tma else st.hn
            wd = box(w.embed, (VOCAB, HIDDEN), (BN, BK)) if tma else st.hn
            launch(head_tile, (-(-B // BM), tiles), st.hn, xd, w.embed, wd, *pick, B, tiles, HIDDEN, BM, BN, BK,
                   cfg.get("stages", 4), tma, cfg.get("philox", False), cfg.get("noise", True), pdl=pdl,
                   num_warps=cfg.get("warps", 4), **({"maxnreg": cfg["maxnreg"]} if "maxnreg" in cfg else {}))
    launch(finish, (B,), st.tile_max, st.tile_id, st.ids, st.pos, st.step, st.advance, st.ring, B, tiles,
           triton.next_power_of_2(tiles), 64, pdl=pdl, num_warps=4)


class Step:
    """The step as it would be captured: body() and tail(). `skip` leaves kinds of kernels out to see what they cost."""

    def __init__(self, w, st, table, pdl, ahead=(), skip=(), logits=None, line=128):
        self.line = line
        self.w, self.st, self.table, self.logits = w, st, table, logits
        self.pdl, self.ahead, self.skip = pdl, ahead, skip

    def body(self):
        st, w, t, pdl = self.st, self.w, self.table, self.pdl
        launch(inputs, (st.batch,), st.ids, w.embed, st.x, st.sq_d, HIDDEN, SQUARES, pdl=pdl, num_warps=4)
        if "attend" not in self.skip:
            work_list(st, t["attend"], pdl)
        for i, layer in enumerate(w.layers):
            follow = w.layers[i + 1] if i + 1 < len(w.layers) else None

            def soon(op, name, owner=layer):
                if op not in self.ahead or owner is None:
                    return None
                return owner[name], OPS[name][0] * OPS[name][1] * 2, self.line
            if "qkv" not in self.skip:
                linear("qkv", st, layer, t["qkv"], pdl, soon("qkv", "o"))
            if "attend" not in self.skip:
                attention(st, i, layer, w.rope, t["attend"], pdl, soon("attend", "gu"))
            if "o" not in self.skip:
                linear("o", st, layer, t["o"], pdl, soon("o", "dn"))
            if "gu" not in self.skip:
                linear("gu", st, layer, t["gu"], pdl, soon("gu", "qkv", follow))
            if "dn" not in self.skip:
                linear("dn", st, layer, t["dn"], pdl)

    def tail(self):
        head(self.st, self.w, self.table["head"], self.pdl, self.logits)


# ---------------------------------------------------------------- the twin
def twin(w, st, page, dtype):
    """The plain composition in torch: hidden after the layers, and the new keys of the last layer."""
    def norm(x, g):
        f = x.float()
        return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + EPS) * g.float()).to(dtype)

    B, n = st.batch, st.pos.long()
    width = int(n.max())
    at = torch.arange(width, device=DEVICE)
    pages = st.table[page].long()[:, at // page]                                  # [B, width]
    x = w.embed[st.ids.long()].to(dtype)
    cos, sin = (w.rope[n][:, None, i * 64:(i + 1) * 64] for i in (0, 1))

    def rotate(t):
        a, b = t.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(dtype)
    for i, l in enumerate(w.layers):
        qkv = norm(x, l["g1"]) @ l["qkv_raw"].to(dtype).t()
        q, k, v = qkv.view(B, -1, DIM).split([HEADS, KV_HEADS, KV_HEADS], 1)
        q, k = rotate(norm(q, l["qg"])), rotate(norm(k, l["kg"]))
        caches = []
        for pool, new in ((st.k[i], k), (st.v[i], v)):
            paged = pool.view(-1, KV_HEADS, page, DIM)
            old = paged[pages, :, at % page].to(dtype)                            # [B, width, KV, D]
            caches.append(torch.cat([old, new[:, None]], 1).repeat_interleave(HEADS // KV_HEADS, 2))
        s = torch.einsum("bhd,bkhd->bhk", q.float(), caches[0].float()) * DIM**-0.5
        s[:, :, :width].masked_fill_((at[None] >= n[:, None])[:, None], float("-inf"))
        o = torch.einsum("bhk,bkhd->bhd", s.softmax(-1).to(dtype).float(), caches[1].float()).to(dtype)
        x = x + o.reshape(B, -1) @ l["o"].to(dtype).t()
        gu = norm(x, l["g2"]) @ l["gu_raw"].to(dtype).t()
        x = x + (torch.nn.functional.silu(gu[:, ::2].float()) * gu[:, 1::2].float()).to(dtype) @ l["dn"].to(dtype).t()
    return x, k, v


def twin_scores(w, st, x, noise):
    """Scores of every id in float32 from a given hidden state."""
    f = x.float()
    h = f * torch.rsqrt(f.square().mean(-1, keepdim=True) + EPS) * w.gain.float()
    y = h @ w.embed.float().t() * st.inverse_t[:, None]
    if not noise:
        return y
    mask = 0xFFFFFFFF
    key = (st.seed.long() + st.pos.long() * 0x61C88647) & mask
    key = ((key ^ (key >> 16)) * 0x7FEB352D) & mask
    key = (key ^ (key >> 15))[:, None]
    h = (torch.arange(w.embed.shape[0], device=x.device)[None] * 0x9E3779B1) & mask
    h = h ^ key
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & mask
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & mask
    h = h ^ (h >> 16)
    v = (h.float() * 2.0**-32).clamp(2.0**-33, 0.99999994)
    e = torch.where(v < 2.0**-6, v + v * v * (0.5 + v / 3), -torch.log(1 - v))
    return y - torch.log(e) * st.noise[:, None]


# ---------------------------------------------------------------- what is tried
def gemvs(*pairs):
    return [dict(kind="gemv", BN=bn, warps=warps) for bn, warps in pairs]


def tiles(*shapes, tma=(0,), pre=(0,)):
    keys = ("BM", "BN", "BK", "stages", "warps", "SK")
    return [dict(kind="tile", TMA=t, PRE=p, **dict(zip(keys, s))) for s in shapes for t in tma for p in pre]


# BK = K / SK means: all weights of a CTA are loaded before the wait.
BOTH = dict(pre=(0, 128))
CANDIDATES = {
    1: dict(qkv=gemvs((8, 8), (16, 8), (4, 4)), o=gemvs((4, 4), (8, 8), (2, 2)), gu=gemvs((8, 8), (8, 4), (4, 4)),
            dn=gemvs((8, 4), (8, 8), (4, 4), (2, 2))),
    8: dict(qkv=tiles((16, 32, 128, 5, 4, 1), (16, 32, 128, 8, 4, 1), (16, 16, 128, 8, 4, 1), (16, 32, 256, 4, 4, 1))
            + tiles((16, 32, 128, 5, 4, 1), pre=(128,)) + tiles((16, 32, 128, 8, 4, 1), tma=(1,)),
            o=tiles((16, 32, 512, 1, 4, 4), (16, 64, 512, 1, 8, 4), (16, 32, 256, 1, 4, 8), (16, 16, 512, 1, 4, 4))
            + tiles((16, 64, 128, 4, 4, 4), (16, 32, 128, 5, 4, 2), **BOTH),
            gu=tiles((16, 32, 128, 5, 4, 1), (16, 32, 128, 8, 4, 1), (16, 64, 128, 8, 4, 1), (16, 32, 256, 4, 4, 1))
            + tiles((16, 32, 128, 5, 4, 1), pre=(128,)) + tiles((16, 32, 128, 8, 4, 1), tma=(1,)),
            dn=tiles((16, 32, 512, 1, 4, 6), (16, 16, 1024, 1, 4, 3), (16, 32, 1024, 1, 8, 3), (16, 64, 128, 4, 4, 4),
                     (16, 64, 128, 6, 4, 4), (16, 32, 128, 8, 4, 3))),
    64: dict(qkv=tiles((64, 32, 128, 8, 4, 1), (64, 32, 128, 6, 4, 1), (64, 32, 128, 4, 4, 1), tma=(1, 0))
             + tiles((64, 32, 128, 4, 4, 1), pre=(128,)),
             o=tiles((64, 32, 128, 6, 4, 2), (64, 32, 128, 8, 4, 2), (64, 32, 128, 4, 4, 4), tma=(0, 1))
             + tiles((64, 32, 128, 4, 4, 4), pre=(128,)),
             gu=tiles((64, 64, 128, 4, 4, 1), (64, 64, 128, 6, 4, 1), (64, 32, 128, 4, 4, 1), tma=(0, 1)),
             dn=tiles((64, 32, 128, 6, 4, 4), (64, 32, 128, 4, 4, 4), (64, 32, 128, 8, 4, 3), tma=(0, 1))),
    256: dict(qkv=tiles((128, 64, 64, 7, 4, 1), (128, 64, 128, 4, 4, 1), (128, 64, 64, 4, 4, 1),
                        (128, 128, 64, 6, 8, 1), tma=(1,)),
              o=tiles((64, 32, 128, 6, 4, 1), (64, 32, 256, 3, 4, 1), (64, 32, 128, 4, 4, 1), tma=(1,)),
              gu=tiles((128, 128, 64, 6, 8, 1), (128, 128, 64, 4, 8, 1), (256, 64, 64, 4, 8, 1), tma=(1,)),
              dn=tiles((64, 32, 256, 4, 4, 1), (64, 32, 128, 8, 4, 1), (64, 32, 128, 4, 4, 1), tma=(1,))),
}
ATTENTION = {
    1: [dict(splits=8, tile=32, early=1), dict(splits=8, tile=32, early=1, merge=2),
        dict(splits=8, tile=32, early=1, warps=2),
        dict(splits=8, tile=32, early=2), dict(splits=16, tile=16, early=1), dict(splits=4, early=1),
        dict(splits=4, early=1, merge=2), dict(splits=4, early=0), dict(splits=1, early=1),
        dict(splits=1, tile=256, early=1, warps=8, stages=1), dict(flow=132, stages=2),
        dict(splits=8, tile=32, early=1, page=16)],
    8: [dict(splits=1, tile=256, early=1, warps=8, stages=1), dict(splits=2, tile=128, early=1, warps=8, stages=1),
        dict(splits=2, tile=128, early=1, warps=8, stages=1, merge=2), dict(splits=1, early=1), dict(splits=2, early=1),
        dict(splits=2, early=1, merge=2), dict(splits=4, early=1), dict(splits=1, early=0, TMA=1, stages=3),
        dict(splits=1, early=2), dict(flow=132, stages=2),
        dict(splits=1, tile=256, early=1, warps=8, stages=1, page=16)],
    64: [dict(stages=2), dict(stages=3, tile=32), dict(stages=3), dict(stages=2, TMA=1), dict(stages=3, TMA=1),
         dict(stages=2, TMA=1, warps=2), dict(stages=4, warps=2, tile=32, TMA=1), dict(stages=2, page=16),
         dict(stages=3, splits=2, merge=2),
         dict(stages=3, splits=2, merge=1), dict(stages=2, early=2), dict(flow=396, stages=3)],
    256: [dict(stages=3, TMA=1, warps=2), dict(stages=3, TMA=1), dict(stages=2, TMA=1), dict(stages=3),
          dict(stages=2, TMA=1, warps=2), dict(stages=4, TMA=1, warps=2), dict(stages=4, TMA=1, tile=32, warps=2),
          dict(stages=2, tile=128), dict(stages=3, page=16), dict(stages=3, splits=2, merge=1),
          dict(stages=3, splits=2, merge=2), dict(flow=396, stages=3)],
}
SKINNY_HEADS = tiles((16, 128, 128, 4, 4), (16, 64, 128, 5, 4), (16, 64, 128, 8, 4), (16, 128, 64, 8, 4))
HEADS_TRIED = {
    1: [dict(kind="gemv", BN=8, SUB=16, warps=8)] + SKINNY_HEADS, 8: SKINNY_HEADS,
    64: tiles((64, 128, 64, 4, 8), (64, 128, 64, 4, 4), (64, 64, 64, 5, 4)),
    256: tiles((128, 128, 64, 3, 8), (128, 128, 64, 4, 8), (256, 128, 64, 3, 8))
    + tiles((128, 128, 64, 3, 8), (256, 128, 64, 4, 8), (64, 128, 64, 4, 4), tma=(1,)),
}
CUBLAS = dict(kind="cublas")
TABLE = {b: {op: c[0] for op, c in CANDIDATES[b].items()} | {
    "attend": ATTENTION[b][0], "head": HEADS_TRIED[b][1 if b == 1 else 0], "pdl": 2, "ahead": []} for b in CANDIDATES}
AHEADS = [[], ["attend"], ["attend", "o"], ["qkv", "attend", "o", "gu"]]
BATCHES = (1, 8, 64, 256)


# ---------------------------------------------------------------- sections
def host(res):
    if COMPILE is not None:
        launch(touch, (1,), alloc(1, dtype=torch.int32), num_warps=1)
        launch(touch16, (1,), *[alloc(1, dtype=torch.int32)] * 16, num_warps=1)
        return
    import numpy as np
    x = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    y, a = torch.zeros(64, device=DEVICE), np.zeros(64, np.int32)

    def each(fn, n=300):
        best = 1e9
        for _ in range(5):
            fn()
            torch.cuda.synchronize()
            t = time.perf_counter()
            for _ in range(n):
                fn()
            best = min(best, (time.perf_counter() - t) / n * 1e6)
            torch.cuda.synchronize()
        return round(best, 2)
    res["triton_launch_1_arg_us"] = each(lambda: touch[(1,)](x, PDL=False, num_warps=1))
    res["triton_launch_16_args_us"] = each(lambda: touch16[(1,)](*[x] * 16, PDL=False, num_warps=1))
    res["torch_add_us"] = each(lambda: y.add_(1.0))
    res["torch_copy_pinned_us"] = each(lambda p=torch.zeros(64).pin_memory(): y.copy_(p, non_blocking=True))
    res["numpy_add_us"] = each(lambda: np.add(a, 1, out=a))
    for n in (1, 20, 140):
        g = capture(lambda: [touch[(1,)](x, PDL=False, num_warps=1) for _ in range(n)])
        res[f"graph_replay_{n}_nodes_us"] = each(g.replay, 50)
    res["cores"] = os.cpu_count()


def bandwidth(res):
    size = 1 << 32
    x = alloc(size // 4, dtype=torch.int32, fill=1)
    for ctas, warps in ((132 * 8, 8), (132 * 4, 8), (132 * 16, 4)):
        block = warps * 32 * 16
        per = size // 4 // block // ctas
        out = alloc(ctas, dtype=torch.int32)
        us = graph_us(lambda: launch(read_all, (ctas,), x, out, per, block, num_warps=warps), 3, 3)
        if us:
            res[f"read_{ctas}x{warps}_tb_s"] = round(ctas * per * block * 4 / us / 1e6, 3)
    if COMPILE is None:
        y = torch.empty_like(x)
        us = time_us(lambda: y.copy_(x), 3, 3)
        res["copy_tb_s"] = round(2 * size / us / 1e6, 3)


def edges(res):
    x = alloc(1024, dtype=torch.int32, fill=0)
    for pdl, name in enumerate(("plain", "pdl_release_after_wait", "pdl_release_first")):
        for ctas in (1, 132, 512):
            us = graph_us(lambda: [launch(touch, (ctas,), x, pdl=pdl, num_warps=4) for _ in range(140)])
            res[f"node_us_{ctas}_ctas_{name}"] = round(us / 140, 3)


def attempt(rows, cfg, us, bytes_, check):
    """Time one configuration and compare its result; a failing one only loses its own row."""
    try:
        t = us(cfg)
        row = dict(cfg=cfg, us=round(t, 3), tb_s=round(bytes_ / t / 1e6, 3) if t else 0)
        if COMPILE is None:
            row["error"] = round(check(cfg), 5)
        rows.append(row)
    except Exception as error:
        rows.append(dict(cfg=cfg, failed=repr(error)[:200]))


def tune(res):
    """Each linear alone: 28 of them (28 different weights) in one graph, PDL on."""
    w = Weights()
    for B in BATCHES:
        st = State(B, 1)
        for op, (N, K) in OPS.items():
            rows = []
            x, sq_in, sq_out, out = buffers(op, st)

            def reset(seed=0):
                torch.manual_seed(seed)
                for t, s in ((st.x, 0.5), (st.ao, 0.5), (st.act, 0.5)):
                    t.normal_(0, s)
                for t in (st.sq_o, st.sq_d):
                    t.zero_()
                    t[:, 0] = st.x.float().square().sum(1)

            def check(cfg):
                reset()
                w0 = w.layers[0]
                want = x.float()
                if op in ("qkv", "gu"):
                    want = want * torch.rsqrt(want.square().mean(-1, keepdim=True) + EPS)
                raw = cfg.get("NORM") == 2
                want = (want * w0["g1" if op == "qkv" else "g2"].float() if raw else want) @ w0[
                    op + "_raw" if raw else op].float().t()
                if op == "gu":
                    want = torch.nn.functional.silu(want[:, ::2]) * want[:, 1::2]
                if op in ("o", "dn"):
                    want = want + out.float()
                linear(op, st, w0, cfg, 2)
                error = error_of(out, want)
                if op in ("o", "dn") and cfg["kind"] == "tile":
                    error = max(error, error_of(sq_out.sum(1), out.float().square().sum(1)))
                return error

            def us(cfg):
                if COMPILE is None:
                    reset()
                return graph_us(lambda: [linear(op, st, layer, cfg, 2) for layer in w.layers]) / len(w.layers)
            tried = [CUBLAS] + CANDIDATES[B][op]
            if B > 1 and op == "qkv":
                tried = tried + [dict(CANDIDATES[B][op][0], NORM=2)]
            for cfg in tried:
                attempt(rows, cfg, us, N * K * 2, check)
            res[f"{op}_{B}"] = rows
        rows = []

        def check_head(cfg):
            torch.manual_seed(1)
            st.x.normal_(0, 1)
            st.noise.fill_(1.0 if cfg.get("noise", True) else 0.0)
            head(st, w, cfg, 2, logits)
            scores = twin_scores(w, st, st.x, cfg.get("noise", True))
            return 0.0 if cfg.get("philox") else float((scores.max(1).values - scores.gather(
                1, st.ids.long()[:, None])[:, 0]).abs().max())
        logits = alloc(B, VOCAB)
        tried = HEADS_TRIED[B] + [dict(HEADS_TRIED[B][0], philox=True)]
        if B > 1:
            tried = tried + [dict(HEADS_TRIED[B][0], noise=False)]
        for cfg in [CUBLAS] + tried:
            attempt(rows, cfg, lambda c: graph_us(lambda: [head(st, w, c, 2, logits) for _ in range(4)]) / 4,
                    VOCAB * HIDDEN * 2, check_head)
        res[f"head_{B}"] = rows
        st.noise.fill_(0.0)


def attention_section(res):
    """Attention alone: 28 layers' caches in one graph, PDL on; context 256."""
    w = Weights(1)
    for B in BATCHES:
        st = State(B, LAYERS)
        rows, first = [], w.layers[0]

        def check(cfg):
            page = cfg.get("page", 64)
            st.qkv.normal_(0, 1)
            st.ao.fill_(float("nan"))
            work_list(st, cfg, 1)
            attention(st, 0, first, w.rope, cfg, 2)
            want = plain_attention(st, 0, first, w.rope, page)
            return error_of(st.ao, want)

        def us(c):
            work_list(st, c, 1)
            return graph_us(lambda: [attention(st, i, first, w.rope, c, 2) for i in range(len(st.k))],
                            20 if B < 256 else 5) / len(st.k)
        for cfg in ATTENTION[B]:
            attempt(rows, cfg, us, B * KV_HEADS * DIM * 2 * 2 * 256, check)
            if COMPILE is None and B >= 64 and "us" in rows[-1]:
                even = st.pos.clone()
                st.pos.copy_(torch.linspace(16, 496, B).round()[torch.randperm(B)])
                rows[-1]["us_context_16_to_496"] = round(us(cfg), 3)
                st.pos.copy_(even)
        res[f"attend_{B}"] = rows
        st = None                                        # its memory goes before the next batch size


def plain_attention(st, layer, w, rope, page):
    def norm(t, g):
        return t * torch.rsqrt(t.square().mean(-1, keepdim=True) + EPS) * g.float()
    n = st.pos.long()
    at = torch.arange(int(n.max()), device=DEVICE)
    cos, sin = (rope[n][:, None, i * 64:(i + 1) * 64] for i in (0, 1))

    def rotate(t):
        a, b = t.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    q, k, v = st.qkv.float().view(st.batch, -1, DIM).split([HEADS, KV_HEADS, KV_HEADS], 1)
    q, k = rotate(norm(q, w["qg"])), rotate(norm(k, w["kg"]))
    pages = st.table[page].long()[:, at // page]
    both = []
    for pool, new in ((st.k[layer], k), (st.v[layer], v)):
        old = pool.view(-1, KV_HEADS, page, DIM)[pages, :, at % page].float()
        both.append(torch.cat([old, new[:, None]], 1).repeat_interleave(HEADS // KV_HEADS, 2))
    s = torch.einsum("bhd,bkhd->bhk", q, both[0]) * DIM**-0.5
    s[:, :, :len(at)].masked_fill_((at[None] >= n[:, None])[:, None], float("-inf"))
    return torch.einsum("bhk,bkhd->bhd", s.softmax(-1), both[1]).reshape(st.batch, -1)


def descend(res):
    """Choose kernels inside the whole step, one kind at a time: a kernel alone says little about it in the chain."""
    w = Weights()
    for B in BATCHES:
        st, table, logits = State(B, LAYERS), dict(TABLE[B]), alloc(B, VOCAB)
        if COMPILE is None:
            st.noise.fill_(1.0)
        reps = 12 if B < 256 else 6

        def whole(t, pdl, ahead=(), line=128):
            s = Step(w, st, t, pdl, ahead, (), logits, line)
            body, tail = capture(s.body), capture(s.tail)
            return 0.0 if body is None else time_us(lambda: (body.replay(), tail.replay()), reps, 3)
        modes = {mode: whole(table, mode) for mode in (0, 1, 2)}
        table["pdl"] = min((1, 2), key=modes.get)
        rows = res[f"batch_{B}"] = [dict(kind=f"pdl={m}", us=round(t, 1)) for m, t in modes.items()]
        for kind in ("attend", "head", "qkv", "gu", "dn", "o"):
            tried = {"attend": ATTENTION, "head": HEADS_TRIED}.get(kind, {}).get(B) or CANDIDATES[B][kind]
            best = 1e9
            # o and dn write the sums of squares that the next norm reads, so cuBLAS cannot take their place there
            for cfg in tried + ([] if kind in ("attend", "o", "dn") and B > 1 or kind == "attend" else [CUBLAS]):
                try:
                    if COMPILE is not None:
                        for mode in (1, 2):
                            whole(table | {kind: cfg}, mode)
                        if B < 64:
                            whole(table | {kind: cfg}, 2, AHEADS[-1])
                        continue
                    t = whole(table | {kind: cfg}, table["pdl"])
                    rows.append(dict(kind=kind, us=round(t, 1), cfg=cfg))
                    if t < best:
                        best, pick = t, cfg
                except Exception as error:
                    rows.append(dict(kind=kind, cfg=cfg, failed=repr(error)[:200]))
            if COMPILE is None:
                table[kind] = pick
            print("descend", B, kind, round(best, 1), flush=True) if COMPILE is None else None
        for mode in (1, 2):
            t = whole(table, mode)
            rows.append(dict(kind=f"pdl={mode} after", us=round(t, 1)))
            if mode == 1 or t < best:
                best, table["pdl"] = t, mode
        if B < 64:
            for ahead in AHEADS[1:]:
                for line in (128,):
                    t = whole(table, table["pdl"], ahead, line)
                    rows.append(dict(kind=f"ahead={','.join(ahead)} line={line}", us=round(t, 1)))
                    if t < best:
                        best, table["ahead"], table["line"] = t, ahead, line
        TABLE[B] = table


def same_bits(st, body, tail, hidden, ids, times=50):
    """A kernel that ran ahead of its inputs would show as a changing hidden state or token."""
    token, same = st.ids.clone(), 0
    for _ in range(times):
        st.ids.copy_(ids)
        body.replay()
        now = st.x.clone()
        tail.replay()
        same += bool((now == hidden).all() and (st.ids == token).all())
    return same == times


def check(res):
    """The whole step, as graphs with PDL, against the twins."""
    w = Weights()
    for B in BATCHES:
        st = State(B, LAYERS)
        if COMPILE is None and B > 1:
            st.pos.copy_(torch.linspace(100, 400, B).round())
        for name, pdl, ahead in (("own", TABLE[B]["pdl"], TABLE[B]["ahead"]), ("own_plain", 0, [])):
            step = Step(w, st, TABLE[B], pdl, ahead, line=TABLE[B].get("line", 128))
            body, tail = capture(step.body), capture(step.tail)
            if COMPILE is not None:
                continue
            page = TABLE[B]["attend"].get("page", 64)
            for noise in (0.0, 1.0):
                st.noise.fill_(noise)
                st.ids.copy_(torch.randint(0, VOCAB, (B,), device=DEVICE))
                ids = st.ids.clone()
                exact, k, v = twin(w, st, page, torch.float32)
                plain, _, _ = twin(w, st, page, DTYPE)
                for t in (st.x, st.qkv, st.ao, st.act):
                    t.fill_(float("nan"))
                body.replay()
                hidden = st.x.clone()
                tail.replay()
                torch.cuda.synchronize()
                slot = (st.table[page].long().gather(1, (st.pos.long() // page)[:, None])[:, 0], st.pos.long() % page)
                stored = st.k[-1].view(-1, KV_HEADS, page, DIM)[slot[0], :, slot[1]]
                scores = twin_scores(w, st, hidden, noise > 0)
                reference = twin_scores(w, st, exact, noise > 0)
                words = st.ring[int(st.step[0] - 1) % 64]
                published = bool(((words & 0xFFFFFFFF) == st.ids.cpu()).all()
                                 and ((words >> 32) == int(st.step[0]) - 1).all())
                res[f"{name}_{B}_{'noise' if noise else 'greedy'}"] = dict(
                    error=round(error_of(hidden, exact), 5), bf16_twin_error=round(error_of(plain, exact), 5),
                    key_error=round(error_of(stored, k), 5),
                    same_as_own_hidden=float((scores.argmax(1) == st.ids).float().mean()),
                    same_as_float_twin=float((reference.argmax(1) == st.ids).float().mean()),
                    bf16_twin_same_as_float=float((twin_scores(w, st, plain, noise > 0).argmax(1)
                                                   == reference.argmax(1)).float().mean()),
                    same_bits_in_50_runs=same_bits(st, body, tail, hidden, ids),
                    ring_equal=published)
        st = None                                        # its memory goes before the next batch size


def step_section(res):
    w = Weights()
    for B in BATCHES:
        logits = alloc(B, VOCAB)
        st = State(B, LAYERS)
        if COMPILE is None:
            st.noise.fill_(1.0)
        own, plain = TABLE[B], dict(TABLE[B], qkv=CUBLAS, o=CUBLAS, gu=CUBLAS, dn=CUBLAS)
        out = res[f"batch_{B}"] = {}
        reps, kinds = (40 if B < 256 else 15), ("qkv", "attend", "o", "gu", "dn")

        def timed(name, table, pdl, ahead=(), skip=(), parts="both"):
            s = Step(w, st, table, pdl, ahead, skip, logits, own.get("line", 128))
            try:
                body = capture(s.body)
                nodes = NODES[0]
                tail = capture(s.tail)
                nodes += NODES[0]
                if COMPILE is None:
                    both = time_us(lambda: (body.replay(), tail.replay()), reps)
                    out[name] = round(both / 1e3, 4)
                    if parts == "all":
                        out[name + "_body"] = round(time_us(body.replay, reps) / 1e3, 4)
                        out[name + "_tail"] = round(time_us(tail.replay, reps) / 1e3, 4)
                        one = capture(lambda: (s.body(), s.tail()))
                        out[name + "_one_graph"] = round(time_us(one.replay, reps) / 1e3, 4)
                        out[name + "_nodes"] = nodes
                        t = time.perf_counter()
                        for _ in range(10):
                            body.replay()
                            tail.replay()
                        out[name + "_two_launches_host_us"] = round((time.perf_counter() - t) * 1e5, 1)
                        torch.cuda.synchronize()
                return body, tail
            except Exception as error:
                out[name] = repr(error)[:200]
        mode, ahead = own["pdl"], own["ahead"]
        timed("cublas", plain, 0)
        timed("cublas_pdl", plain, mode)
        timed("cublas_logits_head", dict(plain, head=CUBLAS), 0)
        timed("own", own, 0)
        timed("own_pdl_release_after_wait", own, 1)
        timed("own_pdl_release_first", own, 2)
        graphs = timed("own_best", own, mode, ahead, parts="all")
        timed("own_best_logits_head", dict(own, head=CUBLAS), mode, ahead)
        for kind in kinds:
            timed(f"own_best_without_{kind}", own, mode, ahead, (kind,))
        timed("own_best_inputs_and_tail", own, mode, ahead, kinds)
        if COMPILE is None:
            if B > 1:
                before = st.pos.clone()
                st.pos.copy_(torch.linspace(128, 384, B).round())
                out["own_best_context_128_to_384"] = round(time_us(
                    lambda: (graphs[0].replay(), graphs[1].replay()), reps) / 1e3, 4)
                st.pos.copy_(before)
            served(out, st, *graphs)
        st = None                                        # its memory goes before the next batch size


def served(out, st, body, tail, steps=400):
    """The loop as the engine would run it: two launches a step, one step ahead, results from the ring."""
    ring = st.ring.numpy()
    torch.cuda.synchronize()
    base = int(st.step[0])
    late = []
    for lead in (0, 1):
        began, seen = None, 0
        for i in range(steps + lead):
            if i == 20:
                began = time.perf_counter()
            if i < steps:
                body.replay()
                tail.replay()
            if i >= lead:
                want = base + seen
                row, tries = ring[want % 64], 0
                while not ((row >> 32) == want).all():
                    tries += 1
                seen += 1
                late.append(tries)
        out[f"served_lead_{lead}"] = round((time.perf_counter() - began) / (steps + lead - 20) * 1e3, 4)
        base += steps
    torch.cuda.synchronize()


def ring_section(res):
    if COMPILE is not None:
        i32 = alloc(1, dtype=torch.int32)
        launch(publish, (1,), i32, alloc(1, dtype=torch.int64), 64, 64, num_warps=1)
        launch(answer, (1,), i32, alloc(1, dtype=torch.int64), 1000, 1000000, num_warps=1)
        return
    import numpy as np
    for B in (1, 64, 256):
        step = torch.zeros(B, dtype=torch.int32, device=DEVICE)
        ring = torch.zeros(64, B, dtype=torch.int64, pin_memory=True)
        view, rows = ring.numpy(), np.arange(B)
        graph = capture(lambda: launch(publish, (B,), step, ring, B, 64, num_warps=1))
        torch.cuda.synchronize()
        now = int(step[0])
        torn = late = 0
        seen_us, steps = [], 20000
        for i in range(steps):
            t = time.perf_counter()
            graph.replay()
            row, limit = view[now % 64], 1000000
            while limit and not ((row >> 32) == now).all():
                limit -= 1
            seen_us.append((time.perf_counter() - t) * 1e6)
            torn += int(((row & 0xFFFFFFFF) != (now * 31 + rows) % 100003).sum())
            late += limit == 0
            now += 1
        event_us, sync_us = [], []
        event = torch.cuda.Event()
        for kind, out in (("event", event_us), ("stream", sync_us)):
            for i in range(1000):
                t = time.perf_counter()
                graph.replay()
                if kind == "event":
                    event.record()
                    event.synchronize()
                else:
                    torch.cuda.current_stream().synchronize()
                out.append((time.perf_counter() - t) * 1e6)
        copy_us, dst = [], torch.zeros(B, dtype=torch.int32).pin_memory()
        for i in range(1000):
            t = time.perf_counter()
            graph.replay()
            dst.copy_(step, non_blocking=True)
            event.record()
            event.synchronize()
            copy_us.append((time.perf_counter() - t) * 1e6)
        q = statistics.quantiles(seen_us, n=100)
        res[f"rows_{B}"] = dict(steps=steps, torn_words=torn, lost_words=late, launch_to_ring_seen_us=round(q[49], 2),
                                p99=round(q[98], 2), launch_to_event_us=round(statistics.median(event_us), 2),
                                launch_to_stream_sync_us=round(statistics.median(sync_us), 2),
                                launch_copy_event_us=round(statistics.median(copy_us), 2))
    # many steps in flight: the words of a run-ahead of 32 must still be whole and in order
    B = 256
    step = torch.zeros(B, dtype=torch.int32, device=DEVICE)
    ring = torch.zeros(64, B, dtype=torch.int64, pin_memory=True)
    view, rows = ring.numpy(), np.arange(B)
    graph = capture(lambda: launch(publish, (B,), step, ring, B, 64, num_warps=1))
    torch.cuda.synchronize()
    read = sent = int(step[0])
    last, torn, mixed, t = read + 100000, 0, 0, time.perf_counter()
    while read < last and time.perf_counter() - t < 20:
        while sent < last and sent - read < 32:
            graph.replay()
            sent += 1
        row = view[read % 64].copy()
        fresh = (row >> 32) == read
        torn += int((fresh & ((row & 0xFFFFFFFF) != (read * 31 + rows) % 100003)).sum())
        if fresh.all():
            read += 1
        else:
            mixed += bool(fresh.any())
    res["run_ahead_32"] = dict(steps=read, torn_words=torn, looks_with_some_rows_in=mixed,
                               us_a_step=round((time.perf_counter() - t) / read * 1e6, 2))
    torch.cuda.synchronize()
    flag = torch.zeros(1, dtype=torch.int32).pin_memory()
    reply = torch.zeros(1, dtype=torch.int64).pin_memory()
    f, r, turns, laps = flag.numpy(), reply.numpy(), 1000, []
    launch(answer, (1,), flag, reply, turns, 1000000, num_warps=1)
    for i in range(1, turns + 1):
        t, limit = time.perf_counter(), 200000
        f[0] = i
        while r[0] != i and limit:
            limit -= 1
        laps.append((time.perf_counter() - t) * 1e6)
    torch.cuda.synchronize()
    res["host_device_host_round_trip_us"] = round(statistics.median(laps), 2)


SECTIONS = dict(host=host, bandwidth=bandwidth, edges=edges, ring=ring_section, tune=tune,
                attention=attention_section, descend=descend, check=check, step=step_section)


# ---------------------------------------------------------------- main
def compile_all(sections, table, workers):
    """Fill Triton's disk cache with every variant of these sections, in `workers` processes."""
    t = time.perf_counter()
    command = [sys.executable, os.path.abspath(__file__), "--sections", ",".join(sections), "--table", table]
    jobs = [subprocess.Popen(command + ["--compile", f"{i}/{workers}"]) for i in range(workers)]
    for job in jobs:
        job.wait()
    return round(time.perf_counter() - t, 1)


def run(sections, results):
    for name in sections:
        t = time.perf_counter()
        try:
            SECTIONS[name](results.setdefault(name, {}))
        except Exception:
            results[name]["failed"] = traceback.format_exc()[-1500:]
            print(f"section {name} failed\n{results[name]['failed']}", flush=True)
        if COMPILE is None:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            results[name]["seconds"] = round(time.perf_counter() - t, 1)
        yield name


def summary(results):
    for name in ("host", "bandwidth", "edges", "ring", "compile"):
        if name in results:
            print(name, json.dumps(results[name]))
    for name in ("tune", "attention"):
        for key, rows in results.get(name, {}).items():
            if isinstance(rows, list):
                print(f"{name} {key}")
                for r in sorted(rows, key=lambda r: r.get("us", 1e9)):
                    cfg = " ".join(f"{k}={v}" for k, v in r["cfg"].items() if k != "kind")
                    print(f"   {r.get('us', 0):8.2f} us {r.get('tb_s', 0):6.2f} TB/s  err {r.get('error')}  "
                          f"{r.get('us_context_16_to_496', '')} "
                          f"{r['cfg'].get('kind', '')} {cfg} {r.get('failed', '')}")
    for key, rows in results.get("descend", {}).items():
        for r in rows if isinstance(rows, list) else []:
            print(f"{key} {r['kind']:12} {r.get('us', 0):9.1f} us ", " ".join(
                f"{k}={v}" for k, v in r.get("cfg", {}).items()), r.get("failed", ""))
    for name in ("check", "step"):
        for key, value in results.get(name, {}).items():
            print(name, key, json.dumps(value))


def main():
    global COMPILE
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default=".")
    ap.add_argument("--sections", default=",".join(SECTIONS))
    ap.add_argument("--workers", type=int, default=16)
    ap.add_argument("--compile")
    ap.add_argument("--table", default="")
    args = ap.parse_args()
    sections = args.sections.split(",")
    if args.table and os.path.exists(args.table):
        table = json.load(open(args.table))
        TABLE.update({int(b): t for b, t in table.get("table", table).items()})
    if args.compile:
        COMPILE = tuple(int(v) for v in args.compile.split("/"))
        for _ in run(sections, {}):
            pass
        print(f"compiled {len(COMPILED)} variants, share {args.compile}", flush=True) if COMPILE[0] == 0 else None
        return
    torch.manual_seed(SEED)
    results = dict(gpu=torch.cuda.get_device_name(), torch=torch.__version__, triton=triton.__version__,
                   python=sys.version.split()[0],
                   command="python3 benchmarks/spike/decode.py --sections " + args.sections, compile={})
    table = os.path.join(args.out, "table.json")
    early = [s for s in sections if s not in ("check", "step")]
    late = [s for s in sections if s in ("check", "step")]
    for group in (early, late):
        if not group:
            continue
        json.dump(TABLE, open(table, "w"), indent=1)
        results["compile"][",".join(group)] = compile_all(group, table, args.workers)
        for name in run(group, results):
            print(f"{name}: {results[name].get('seconds')} s", flush=True)
            results["table"] = TABLE
            json.dump(results, open(os.path.join(args.out, "spike.json"), "w"), indent=1)
    summary(results)


if __name__ == "__main__":
    main()
