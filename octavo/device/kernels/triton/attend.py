"""Attention over pages: what makes q, k and v ready, decode in splits with its merge, and pieces of prompt.

A page of the cache holds keys [Hk, page, D], then values [Hk, page, Dv]. The softmax runs over tiles of keys in base 2
with a running maximum (https://arxiv.org/abs/2205.14135); long rows are cut into splits that are merged in their order,
so that results do not depend on timing (https://arxiv.org/abs/2311.01282).

Over 600 lines: all of these kernels know one layout of a page, and it is said here alone.
"""

# ruff: noqa: SIM102 (a constexpr condition stands alone: what it leaves out is not compiled)
import triton
import triton.language as tl

from octavo.device.kernels.triton.pdl import await_inputs, release, yield_late

NEVER = tl.constexpr(-1e30)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _partner(d, ROTARY: tl.constexpr):
    """The dimension that ``d`` turns with."""
    half: tl.constexpr = ROTARY // 2
    return tl.where(d < half, d + half, tl.where(d < ROTARY, d - half, d))


@triton.jit
def _turn(cos, sin, position, stride, d, ROTARY: tl.constexpr):
    """cos and signed sin of each dimension at a position."""
    half: tl.constexpr = ROTARY // 2
    inside = d < ROTARY
    at = position * stride + tl.where(d < half, d, d - half)
    c = tl.load(cos + at, mask=inside, other=1.0)
    s = tl.load(sin + at, mask=inside, other=0.0)
    return c, tl.where(d < half, -s, s)


@triton.jit
def _capped(s, cap):
    """cap * tanh(s / cap)."""
    e = tl.exp2(tl.abs(s) * (-2.0 * 1.4426950408889634) / cap)
    t = (1.0 - e) / (1.0 + e)
    return tl.where(s < 0, -t, t) * cap


@triton.jit
def _at(cache, page, head, keys, d, WIDTH: tl.constexpr, PAGE: tl.constexpr, ONE: tl.constexpr):
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
    ds = _partner(d, ROTARY)
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
        c, s = _turn(cos, sin, tl.load(positions + token), rope_stride, d, ROTARY)
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
def _shares(tiles, SPLITS: tl.constexpr):
    """Tiles of one split, and how many splits have any."""
    per = tl.maximum(tl.cdiv(tiles, SPLITS), 1)
    return per, tl.maximum(tl.cdiv(tiles, per), 1)


@triton.jit
def _span(length, window, OWN: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Keys of a decode row that lie in pages: the first one seen and the end, and the tiles between."""
    end = length - (1 if OWN else 0)
    low = length * 0
    if WINDOW:
        low = tl.minimum(tl.maximum(length - window, 0), end)
    first = low // TILE
    return low, end, first, tl.cdiv(end, TILE) - first


@triton.jit(do_not_specialize=["window", "table_stride"])
def decode(
    qkv,
    cache,
    table,
    starts,
    lens,
    slots,
    cos,
    sin,
    q_gain,
    k_gain,
    sinks,
    out,
    parts,
    stats,
    count,
    scale,
    softcap,
    window,
    eps,
    row_stride,
    page_stride,
    value_offset,
    table_stride,
    rope_stride,
    NH: tl.constexpr,
    NK: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    ROTARY: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    MERGE: tl.constexpr,
    EARLY: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    QN: tl.constexpr,
    KN: tl.constexpr,
    OWN: tl.constexpr,
    MIXED: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """One (key-value head, row, split) of rows with one query.

    OWN: the row's own key and value start the softmax of split 0 from registers and go into their slot. MIXED: rows
    with more than one token are left to ``pieces``, and ``ready`` has been here. MERGE 1: the last split to arrive
    merges; 2: ``merge`` does. Before the wait nothing is read but tables, lengths and pages of earlier steps.
    """
    release(PDL)
    head = tl.program_id(0)
    row = tl.program_id(1)
    sp = tl.program_id(2)
    g = tl.arange(0, GP)
    d = tl.arange(0, DP)
    dv = tl.arange(0, DVP)
    in_d = d < D
    in_dv = dv < DV
    length = tl.load(lens + row).to(tl.int32)
    low, end, first, tiles = _span(length, window, OWN, TILE, WINDOW)
    per, splits = _shares(tiles, SPLITS)
    if sp >= splits:  # split 0 never is: some of every row wait
        return
    lo = first + sp * per
    hi = tl.minimum(lo + per, first + tiles)
    pages = table + row * table_stride
    k_head = head * PAGE * D
    v_head = value_offset + head * PAGE * DV
    if EARLY:
        keys = lo * TILE + tl.arange(0, TILE)
        ok = (keys >= low) & (keys < end)
        if PAGE >= TILE:
            page = tl.load(pages + (lo * TILE) // PAGE, mask=lo < hi, other=0).to(tl.int64)
        else:
            page = tl.load(pages + keys // PAGE, mask=ok, other=0).to(tl.int64)
        spot0 = page * page_stride
        k0 = tl.load(
            _at(cache, spot0, k_head, keys, d, D, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_d[None, :],
            other=0.0,
        )
        v0 = tl.load(
            _at(cache, spot0, v_head, keys, dv, DV, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_dv[None, :],
            other=0.0,
        )
    ds = _partner(d, ROTARY)
    qg = tl.full([DP], 1.0, tl.float32)
    qgs = qg
    if QN:
        qg = tl.load(q_gain + d, mask=in_d, other=0.0).to(tl.float32)
        qgs = tl.load(q_gain + ds, mask=in_d, other=0.0).to(tl.float32)
    if ROTARY > 0:
        turn, back = _turn(cos, sin, length - 1, rope_stride, d, ROTARY)
    if OWN:
        slot = tl.load(slots + row)
        if KN:
            kg = tl.load(k_gain + d, mask=in_d, other=0.0).to(tl.float32)
            kgs = tl.load(k_gain + ds, mask=in_d, other=0.0).to(tl.float32)
    token = row.to(tl.int64)
    idle = length <= 0
    if MIXED:
        token = tl.load(starts + row)
        idle = idle | (tl.load(starts + row + 1) - token != 1)
    await_inputs(PDL)
    if idle:
        return
    base = qkv + token * row_stride
    live = (g < G)[:, None] & in_d[None, :]
    at = base + (head * G + g)[:, None] * D
    x = tl.load(at + d[None, :], mask=live, other=0.0).to(tl.float32)
    if ROTARY > 0:
        other = tl.load(at + ds[None, :], mask=live, other=0.0).to(tl.float32)
    if OWN:  # read beside q, though only split 0 needs them: a second wait costs more
        own_at = base + (NH + head) * D
        own_x = tl.load(own_at + d, mask=in_d, other=0.0).to(tl.float32)
        if ROTARY > 0:
            own_other = tl.load(own_at + ds, mask=in_d, other=0.0).to(tl.float32)
        own_v = tl.load(base + (NH + NK) * D + head * DV + dv, mask=in_dv, other=0.0)
    y = x * qg[None, :]
    if ROTARY > 0:
        y = y * turn[None, :] + other * (qgs * back)[None, :]
    if QN:
        y = y * (1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / D + eps))[:, None]
    q = y.to(qkv.dtype.element_ty)
    m = tl.full([GP], NEVER, tl.float32)
    total = tl.zeros([GP], tl.float32)
    acc = tl.zeros([GP, DVP], tl.float32)
    if SINKS:
        if sp == 0:
            m = tl.load(sinks + head * G + g, mask=g < G, other=0.0).to(tl.float32) * LOG2E
            total += 1.0
    if OWN:
        if sp == 0:
            own_y = own_x
            if KN:
                own_y = own_x * kg
            if ROTARY > 0:
                if KN:
                    own_y = own_y * turn + own_other * (kgs * back)
                else:
                    own_y = own_y * turn + own_other * back
            if KN:
                own_y = own_y * (1.0 / tl.sqrt_rn(tl.sum(own_x * own_x) / D + eps))
            own_k = own_y.to(qkv.dtype.element_ty)
            own_page = cache + (slot // PAGE) * page_stride
            tl.store(own_page + k_head + (slot % PAGE) * D + d, own_k, mask=in_d)
            tl.store(own_page + v_head + (slot % PAGE) * DV + dv, own_v, mask=in_dv)
            score = tl.sum(q.to(tl.float32) * own_k.to(tl.float32)[None, :], 1) * scale
            if SOFTCAP:
                score = _capped(score, softcap)
            score = score * LOG2E
            own_m = tl.maximum(m, score)
            own_p = tl.exp2(score - own_m)
            total = total * tl.exp2(m - own_m) + own_p
            acc += own_p[:, None] * own_v.to(tl.float32)[None, :]
            m = own_m
    start = lo
    if EARLY:
        s = tl.dot(q, tl.trans(k0), input_precision=EXACT) * scale
        if SOFTCAP:
            s = _capped(s, softcap)
        s = tl.where(ok[None, :], s * LOG2E, NEVER)
        mn = tl.maximum(m, tl.max(s, 1))
        p = tl.where(ok[None, :], tl.exp2(s - mn[:, None]), 0.0)
        a = tl.exp2(m - mn)
        total = total * a + tl.sum(p, 1)
        acc = tl.dot(p.to(v0.dtype), v0, acc * a[:, None], input_precision=EXACT)
        m = mn
        start = lo + 1
    # The page of the next tile is read one turn ahead: a load that waits for another load is not pipelined.
    if PAGE >= TILE:
        page = tl.load(pages + (start * TILE) // PAGE, mask=start < hi, other=0)
    else:
        after = start * TILE + tl.arange(0, TILE)
        page = tl.load(pages + after // PAGE, mask=after < end, other=0)
    for i in tl.range(start, hi, num_stages=STAGES):
        keys = i * TILE + tl.arange(0, TILE)
        spot = page.to(tl.int64) * page_stride
        if PAGE >= TILE:
            page = tl.load(pages + ((i + 1) * TILE) // PAGE, mask=i + 1 < hi, other=0)
        else:
            page = tl.load(pages + (keys + TILE) // PAGE, mask=keys + TILE < end, other=0)
        ok = (keys >= low) & (keys < end)
        k = tl.load(
            _at(cache, spot, k_head, keys, d, D, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_d[None, :],
            other=0.0,
        )
        s = tl.dot(q, tl.trans(k), input_precision=EXACT) * scale
        if SOFTCAP:
            s = _capped(s, softcap)
        s = tl.where(ok[None, :], s * LOG2E, NEVER)
        mn = tl.maximum(m, tl.max(s, 1))
        p = tl.where(ok[None, :], tl.exp2(s - mn[:, None]), 0.0)
        a = tl.exp2(m - mn)
        total = total * a + tl.sum(p, 1)
        v = tl.load(
            _at(cache, spot, v_head, keys, dv, DV, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_dv[None, :],
            other=0.0,
        )
        acc = tl.dot(p.to(v.dtype), v, acc * a[:, None], input_precision=EXACT)
        m = mn
    yield_late(PDL)
    here = (g < G)[:, None] & in_dv[None, :]
    mine = row * NH + head * G + g
    last = splits <= 1
    if SPLITS > 1:
        if MERGE == 2 or splits > 1:
            tl.store(parts + (mine * SPLITS + sp)[:, None] * DVP + dv[None, :], acc, mask=here)
            tl.store(stats + (mine * SPLITS + sp) * 2, m, mask=g < G)
            tl.store(stats + (mine * SPLITS + sp) * 2 + 1, total, mask=g < G)
        if MERGE == 2:
            return
        if splits > 1:
            tl.debug_barrier()
            last = tl.atomic_add(count + row * NK + head, 1, sem="acq_rel") == splits - 1
    if last:
        if SPLITS > 1:
            if splits > 1:
                tl.store(count + row * NK + head, 0)
                m = tl.full([GP], NEVER, tl.float32)
                total = tl.zeros([GP], tl.float32)
                acc = tl.zeros([GP, DVP], tl.float32)
                for i in range(splits):
                    part = mine * SPLITS + i
                    mi = tl.load(stats + part * 2, mask=g < G, other=0.0, cache_modifier=".cg")
                    li = tl.load(stats + part * 2 + 1, mask=g < G, other=0.0, cache_modifier=".cg")
                    oi = tl.load(parts + part[:, None] * DVP + dv[None, :], mask=here, other=0.0, cache_modifier=".cg")
                    mn = tl.maximum(m, mi)
                    a = tl.exp2(m - mn)
                    b = tl.exp2(mi - mn)
                    acc = acc * a[:, None] + oi * b[:, None]
                    total = total * a + li * b
                    m = mn
        total = tl.where(g < G, total, 1.0)
        place = out + token * (NH * DV) + (head * G + g)[:, None] * DV + dv[None, :]
        tl.store(place, (acc / total[:, None]).to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["window"])
def merge(
    parts,
    stats,
    starts,
    lens,
    out,
    window,
    NH: tl.constexpr,
    DV: tl.constexpr,
    DVP: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    OWN: tl.constexpr,
    MIXED: tl.constexpr,
    PDL: tl.constexpr,
):
    """The splits of one (row, query head), in their order."""
    release(PDL)
    row = tl.program_id(0)
    head = tl.program_id(1)
    dv = tl.arange(0, DVP)
    i = tl.arange(0, SPLITS)
    length = tl.load(lens + row).to(tl.int32)
    _low, _end, _first, tiles = _span(length, window, OWN, TILE, WINDOW)
    _per, splits = _shares(tiles, SPLITS)
    token = row.to(tl.int64)
    idle = length <= 0
    if MIXED:
        token = tl.load(starts + row)
        idle = idle | (tl.load(starts + row + 1) - token != 1)
    await_inputs(PDL)
    if idle:
        return
    at = (row * NH + head) * SPLITS + i
    m = tl.load(stats + at * 2, mask=i < splits, other=NEVER)
    a = tl.where(i < splits, tl.exp2(m - tl.max(m, 0)), 0.0)
    total = tl.sum(tl.load(stats + at * 2 + 1, mask=i < splits, other=0.0) * a, 0)
    o = tl.load(parts + at[:, None] * DVP + dv[None, :], mask=(i < splits)[:, None] & (dv < DV)[None, :], other=0.0)
    y = tl.sum(o * a[:, None], 0) / total
    tl.store(out + token * (NH * DV) + head * DV + dv, y.to(out.dtype.element_ty), mask=dv < DV)


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
    k_at = _at(cache, spot, k_head, keys, d, D, PAGE, PAGE >= TILE)
    v_at = _at(cache, spot, v_head, keys, dv, DV, PAGE, PAGE >= TILE)
    if WHOLE and not MASKED:
        k = tl.load(k_at)
        v = tl.load(v_at)
    else:
        k = tl.load(k_at, mask=inside[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(v_at, mask=inside[:, None] & (dv < DV)[None, :], other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision=EXACT)
    if SOFTCAP:
        s = _capped(s * scale, softcap) * LOG2E
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
