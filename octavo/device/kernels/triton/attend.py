"""Attention over pages: what makes q, k and v ready, and pieces of prompt. Rows with one query: ``triton.decode``.

A page of the cache holds keys [Hk, page, D], then values [Hk, page, Dv]. The softmax runs over tiles of keys in base 2
with a running maximum (https://arxiv.org/abs/2205.14135).
"""

import triton
import triton.language as tl

from octavo.device.kernels.triton.pdl import await_inputs, release

NEVER = tl.constexpr(-1e30)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _together(d, ROTARY: tl.constexpr):
    """Dimensions, with the word for the compiler that they lie side by side, as far as they do: it loads 16 bytes a
    thread then, and keeps a head in one warp."""
    if ROTARY % 16 == 0:
        return tl.max_contiguous(tl.multiple_of(d, 8), 8)
    else:
        return d


@triton.jit
def partner(d, ROTARY: tl.constexpr):
    """The dimension that ``d`` turns with."""
    half: tl.constexpr = ROTARY // 2
    return _together(tl.where(d < half, d + half, tl.where(d < ROTARY, d - half, d)), ROTARY)


@triton.jit
def turning(cos, sin, position, stride, d, ROTARY: tl.constexpr):
    """cos and signed sin of each dimension at a position."""
    half: tl.constexpr = ROTARY // 2
    inside = d < ROTARY
    at = _together(tl.where(d < half, d, d - half), ROTARY)
    c = tl.load(cos + position * stride + at, mask=inside, other=1.0)
    s = tl.load(sin + position * stride + at, mask=inside, other=0.0)
    return c, tl.where(d < half, -s, s)


@triton.jit
def capped(s, cap):
    """cap * tanh(s / cap)."""
    e = tl.exp2(tl.abs(s) * (-2.0 * 1.4426950408889634) / cap)
    t = (1.0 - e) / (1.0 + e)
    return tl.where(s < 0, -t, t) * cap


@triton.jit
def spots(cache, page, head, keys, d, WIDTH: tl.constexpr, PAGE: tl.constexpr, ONE: tl.constexpr):
    """Pointers to [keys, d] of a head. ONE: the tile lies in one page (a scalar), so that offsets are narrow."""
    if ONE:
        return (cache + (page + head)) + ((keys % PAGE) * WIDTH)[:, None] + d[None, :]
    else:
        return (cache + (page + head + (keys % PAGE) * WIDTH))[:, None] + d[None, :]


@triton.jit
def ready(
    qkv,
    cache,
    positions,
    slots,
    cos,
    sin,
    q_gain,
    k_gain,
    eps,
    row_stride,
    page_stride,
    value_offset,
    rope_stride,
    NH: tl.constexpr,
    NK: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    ROTARY: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    QN: tl.constexpr,
    KN: tl.constexpr,
    OWN: tl.constexpr,
    PDL: tl.constexpr,
):
    """One token, HEADS of its heads: norm and turn q in place, k into its page, and v with it."""
    release(PDL)
    token = tl.program_id(0)
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, DP)
    ds = partner(d, ROTARY)
    await_inputs(PDL)
    base = qkv + token.to(tl.int64) * row_stride
    keyed: tl.constexpr = NH + (NK if OWN else 0)
    live = (h < keyed)[:, None] & (d < D)[None, :]
    x = tl.load(base + h[:, None] * D + d[None, :], mask=live, other=0.0).to(tl.float32)
    is_q = (h < NH)[:, None]
    g = tl.full([HEADS, DP], 1.0, tl.float32)
    gs = g
    r = tl.full([HEADS], 1.0, tl.float32)
    if QN or KN:
        inv = 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / D + eps)
    if QN:
        g = tl.where(is_q, tl.load(q_gain + d, mask=d < D, other=0.0).to(tl.float32)[None, :], g)
        gs = tl.where(is_q, tl.load(q_gain + ds, mask=d < D, other=0.0).to(tl.float32)[None, :], gs)
        r = tl.where(h < NH, inv, r)
    if KN:
        g = tl.where(is_q, g, tl.load(k_gain + d, mask=d < D, other=0.0).to(tl.float32)[None, :])
        gs = tl.where(is_q, gs, tl.load(k_gain + ds, mask=d < D, other=0.0).to(tl.float32)[None, :])
        r = tl.where(h < NH, r, inv)
    y = x * g
    if ROTARY > 0:
        other = tl.load(base + h[:, None] * D + ds[None, :], mask=live, other=0.0).to(tl.float32)
        c, s = turning(cos, sin, tl.load(positions + token), rope_stride, d, ROTARY)
        y = y * c[None, :] + other * gs * s[None, :]
    y = (y * r[:, None]).to(qkv.dtype.element_ty)
    tl.debug_barrier()  # partners are read before they are overwritten
    tl.store(base + h[:, None] * D + d[None, :], y, mask=live & is_q)
    if OWN:
        slot = tl.load(slots + token)
        page = cache + (slot // PAGE) * page_stride
        within = slot % PAGE
        kh = h - NH
        tl.store(page + (kh[:, None] * PAGE + within) * D + d[None, :], y, mask=live & (kh >= 0)[:, None])
        dv = tl.arange(0, DVP)
        vh = kh - NK
        mine = ((vh >= 0) & (vh < NK))[:, None] & (dv < DV)[None, :]
        v = tl.load(base + (NH + NK) * D + vh[:, None] * DV + dv[None, :], mask=mine, other=0.0)
        tl.store(page + value_offset + (vh[:, None] * PAGE + within) * DV + dv[None, :], v, mask=mine)


@triton.jit
def _tile(
    q,
    m,
    total,
    acc,
    page,
    keys,
    at,
    end,
    cache,
    k_head,
    v_head,
    d,
    dv,
    scale,
    softcap,
    window,
    page_stride,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    WHOLE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """One tile of keys. MASKED: not every query sees every key of it. WHOLE: D and Dv are powers of two."""
    spot = page.to(tl.int64) * page_stride
    inside = keys < end
    k_at = spots(cache, spot, k_head, keys, d, D, PAGE, PAGE >= TILE)
    v_at = spots(cache, spot, v_head, keys, dv, DV, PAGE, PAGE >= TILE)
    if WHOLE and not MASKED:
        k = tl.load(k_at)
        v = tl.load(v_at)
    else:
        k = tl.load(k_at, mask=inside[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(v_at, mask=inside[:, None] & (dv < DV)[None, :], other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision=EXACT)
    if SOFTCAP:
        s = capped(s * scale, softcap) * LOG2E
    else:
        s = s * (scale * LOG2E)
    if MASKED or WINDOW:
        ok = (keys[None, :] <= at[:, None]) & inside[None, :]
        if WINDOW:
            ok = ok & (keys[None, :] > at[:, None] - window)
        s = tl.where(ok, s, NEVER)
    mn = tl.maximum(m, tl.max(s, 1))
    p = tl.exp2(s - mn[:, None])
    if MASKED or WINDOW:
        p = tl.where(ok, p, 0.0)
    a = tl.exp2(m - mn)
    total = total * a + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * a[:, None], input_precision=EXACT)
    return mn, total, acc


@triton.jit(do_not_specialize=["rows", "window", "table_stride"])
def pieces(
    qkv,
    cache,
    table,
    starts,
    lens,
    sinks,
    out,
    rows,
    scale,
    softcap,
    window,
    row_stride,
    page_stride,
    value_offset,
    table_stride,
    NH: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    G: tl.constexpr,
    PAGE: tl.constexpr,
    BM: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    SINGLES: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """BM // G queries of one row with all G query heads of a key-value head, over the row's pages.

    Block b of row r has number ``starts[r] // (BM // G) + r + b``: its row is found by bisection, so that the grid
    depends on nothing but tokens and rows. SINGLES: rows of one token are ``decode``'s.
    """
    release(PDL)
    BQ: tl.constexpr = BM // G
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    head = tl.program_id(1)
    await_inputs(PDL)
    left = 0
    right = rows
    while left < right:
        mid = (left + right) // 2
        if (tl.load(starts + mid) // BQ + mid).to(tl.int32) <= block:
            left = mid + 1
        else:
            right = mid
    row = left - 1
    start = tl.load(starts + row)
    take = (tl.load(starts + row + 1) - start).to(tl.int32)
    q0 = (block - (start // BQ).to(tl.int32) - row) * BQ
    if q0 >= take:
        return
    if SINGLES and take == 1:
        return
    length = tl.load(lens + row).to(tl.int32)
    before = length - take
    i = tl.arange(0, BM)
    d = tl.arange(0, DP)
    dv = tl.arange(0, DVP)
    query = q0 + i // G
    there = (i < BQ * G) & (query < take)
    heads = head * G + i % G
    at = before + query
    q = tl.load(
        qkv + (start + query)[:, None] * row_stride + heads[:, None] * D + d[None, :],
        mask=there[:, None] & (d < D)[None, :],
        other=0.0,
    )
    m = tl.full([BM], NEVER, tl.float32)
    total = tl.zeros([BM], tl.float32)
    if SINKS:
        m = tl.load(sinks + heads, mask=there, other=0.0).to(tl.float32) * LOG2E
        total += 1.0
    acc = tl.zeros([BM, DVP], tl.float32)
    end = before + tl.minimum(q0 + BQ, take)
    low = 0
    if WINDOW:
        low = tl.maximum(before + q0 + 1 - window, 0) // TILE
    full = tl.maximum((before + q0 + 1) // TILE, low)  # tiles that every query sees whole
    high = tl.cdiv(end, TILE)
    pages = table + row * table_stride
    k_head = head * PAGE * D
    v_head = value_offset + head * PAGE * DV
    WHOLE: tl.constexpr = D == DP and DV == DVP
    k = tl.arange(0, TILE)
    if PAGE >= TILE:
        page = tl.load(pages + (low * TILE) // PAGE)
    else:
        page = tl.load(pages + (low * TILE + k) // PAGE, mask=low * TILE + k < end, other=0)
    for t in tl.range(low, full, num_stages=STAGES):
        now = page
        keys = t * TILE + k
        if PAGE >= TILE:
            page = tl.load(pages + ((t + 1) * TILE) // PAGE, mask=t + 1 < high, other=0)
        else:
            page = tl.load(pages + (keys + TILE) // PAGE, mask=keys + TILE < end, other=0)
        m, total, acc = _tile(
            q,
            m,
            total,
            acc,
            now,
            keys,
            at,
            end,
            cache,
            k_head,
            v_head,
            d,
            dv,
            scale,
            softcap,
            window,
            page_stride,
            D,
            DV,
            PAGE,
            TILE,
            WINDOW,
            SOFTCAP,
            False,
            WHOLE,
            EXACT,
        )
    for t in tl.range(full, high, num_stages=1):
        now = page
        keys = t * TILE + k
        if PAGE >= TILE:
            page = tl.load(pages + ((t + 1) * TILE) // PAGE, mask=t + 1 < high, other=0)
        else:
            page = tl.load(pages + (keys + TILE) // PAGE, mask=keys + TILE < end, other=0)
        m, total, acc = _tile(
            q,
            m,
            total,
            acc,
            now,
            keys,
            at,
            end,
            cache,
            k_head,
            v_head,
            d,
            dv,
            scale,
            softcap,
            window,
            page_stride,
            D,
            DV,
            PAGE,
            TILE,
            WINDOW,
            SOFTCAP,
            True,
            WHOLE,
            EXACT,
        )
    total = tl.where(there, total, 1.0)
    spot = out + (start + query)[:, None] * (NH * DV) + heads[:, None] * DV + dv[None, :]
    tl.store(spot, (acc / total[:, None]).to(out.dtype.element_ty), mask=there[:, None] & (dv < DV)[None, :])
