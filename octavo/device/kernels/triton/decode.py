"""Attention of rows with one query each over pages, as ``triton.attend`` lays them out.

The softmax runs over tiles of keys in base 2 with a running maximum (https://arxiv.org/abs/2205.14135); what several
programs did of a row is merged in its order, so that results do not depend on timing (https://arxiv.org/abs/2311.01282).
"""

# ruff: noqa: SIM102 (a constexpr condition stands alone: what it leaves out is not compiled)
import triton
import triton.language as tl

from octavo.device.kernels.triton.attend import LOG2E, NEVER, capped, partner, spots, turning
from octavo.device.kernels.triton.pdl import await_inputs, fetch, release


@triton.jit
def gains(gain, d, ds, D: tl.constexpr, DP: tl.constexpr, NORM: tl.constexpr):
    """A norm's gain of each dimension, and of what it turns with; 1 where there is no norm."""
    if NORM:
        here = tl.load(gain + d, mask=d < D, other=0.0).to(tl.float32)
        there = tl.load(gain + ds, mask=d < D, other=0.0).to(tl.float32)
    else:
        here = tl.full([DP], 1.0, tl.float32)
        there = here
    return here, there


@triton.jit
def turned(
    x,
    other,
    gain,
    other_gain,
    turn,
    back,
    eps,
    D: tl.constexpr,
    ROTARY: tl.constexpr,
    NORM: tl.constexpr,
    AXIS: tl.constexpr,
):
    """x normed and turned, in float32, along its dimensions (``AXIS``); ``other``: what each of them turns with."""
    y = x * gain
    if ROTARY > 0:
        y = y * turn + other * (other_gain * back)
    if NORM:
        y = y * (1.0 / tl.sqrt_rn(tl.sum(x * x, AXIS, keep_dims=True) / D + eps))
    return y


@triton.jit
def repeated(x, GP: tl.constexpr):
    """x [few, w] -> [GP, w]: its rows over and over. A matrix instruction takes 16 rows; what makes them ready is done
    for those that there are."""
    FEW: tl.constexpr = x.shape[0]
    W: tl.constexpr = x.shape[1]
    return tl.reshape(tl.broadcast_to(x[None, :, :], [GP // FEW, FEW, W]), [GP, W])


@triton.jit
def scores(q, k, ok, scale, softcap, SOFTCAP: tl.constexpr, EXACT: tl.constexpr):
    """Of q [g, d] and k [keys, d], in base 2, of keys that are ``ok``."""
    s = tl.dot(q, tl.trans(k), input_precision=EXACT) * scale
    if SOFTCAP:
        s = capped(s, softcap)
    return tl.where(ok[None, :], s * LOG2E, NEVER)


@triton.jit
def weights(s, ok, m, total):
    """The running softmax with scores s [g, keys]: its new maximum and total, weights, and what went before shrinks
    by."""
    mn = tl.maximum(m, tl.max(s, 1))
    p = tl.where(ok[None, :], tl.exp2(s - mn[:, None]), 0.0)
    a = tl.exp2(m - mn)
    return mn, total * a + tl.sum(p, 1), p, a


@triton.jit
def _shares(tiles, SPLITS: tl.constexpr):
    """Tiles of one split, and how many splits have any."""
    per = tl.maximum(tl.cdiv(tiles, SPLITS), 1)
    return per, tl.maximum(tl.cdiv(tiles, per), 1)


@triton.jit
def span(length, window, OWN: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Keys of a decode row that lie in pages: the first one seen and the end, and the tiles between."""
    end = length - (1 if OWN else 0)
    low = length * 0
    if WINDOW:
        low = tl.minimum(tl.maximum(length - window, 0), end)
    first = low // TILE
    return low, end, first, tl.cdiv(end, TILE) - first


@triton.jit
def _look(
    q,
    m,
    total,
    acc,
    pages,
    cache,
    k_head,
    v_head,
    lo,
    hi,
    low,
    end,
    d,
    dv,
    scale,
    softcap,
    page_stride,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SOFTCAP: tl.constexpr,
    EXACT: tl.constexpr,
):
    """q [g, d] over tiles ``lo`` to ``hi`` of a row's ``pages``, of their keys those from ``low`` to ``end``."""
    in_d = d < D
    in_dv = dv < DV
    # The page of the next tile is read one turn ahead: a load that waits for another load is not pipelined.
    if PAGE >= TILE:
        page = tl.load(pages + (lo * TILE) // PAGE, mask=lo < hi, other=0)
    else:
        after = lo * TILE + tl.arange(0, TILE)
        page = tl.load(pages + after // PAGE, mask=after < end, other=0)
    for i in tl.range(lo, hi, num_stages=STAGES):
        keys = i * TILE + tl.arange(0, TILE)
        spot = page.to(tl.int64) * page_stride
        if PAGE >= TILE:
            page = tl.load(pages + ((i + 1) * TILE) // PAGE, mask=i + 1 < hi, other=0)
        else:
            page = tl.load(pages + (keys + TILE) // PAGE, mask=keys + TILE < end, other=0)
        ok = (keys >= low) & (keys < end)
        k = tl.load(
            spots(cache, spot, k_head, keys, d, D, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_d[None, :],
            other=0.0,
        )
        m, total, p, a = weights(scores(q, k, ok, scale, softcap, SOFTCAP, EXACT), ok, m, total)
        v = tl.load(
            spots(cache, spot, v_head, keys, dv, DV, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_dv[None, :],
            other=0.0,
        )
        acc = tl.dot(p.to(v.dtype), v, acc * a[:, None], input_precision=EXACT)
    return m, total, acc


@triton.jit
def ahead(
    start,
    low,
    end,
    pages,
    cache,
    k_head,
    v_head,
    page_stride,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    MANY: tl.constexpr,
):
    """Ask for MANY keys of a row from ``start`` on, and their values. Nothing is read, so that it may be done before
    they are written."""
    LINE: tl.constexpr = 128 // (cache.dtype.element_ty.primitive_bitwidth // 8)
    keys = start + tl.arange(0, MANY)
    page = tl.load(pages + keys // PAGE, mask=(keys >= low) & (keys < end), other=0)
    spot = cache + page.to(tl.int64) * page_stride  # what is not wanted is the null page's
    for line in tl.static_range((D + LINE - 1) // LINE):
        fetch((spot + k_head + (keys % PAGE) * D + line * LINE).to(tl.int64))
    for line in tl.static_range((DV + LINE - 1) // LINE):
        fetch((spot + v_head + (keys % PAGE) * DV + line * LINE).to(tl.int64))


@triton.jit
def keep(
    cache,
    slot,
    key,
    value,
    k_head,
    v_head,
    d,
    dv,
    page_stride,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
):
    """A token's key [d] and value [dv] into their slot."""
    page = cache + (slot // PAGE) * page_stride
    tl.store(page + k_head + (slot % PAGE) * D + d, key, mask=d < D)
    tl.store(page + v_head + (slot % PAGE) * DV + dv, value, mask=dv < DV)


@triton.jit
def begun(q, key, value, m, total, acc, scale, softcap, GP: tl.constexpr, SOFTCAP: tl.constexpr):
    """The running softmax of queries q [few, d] with one key [d] and its value [dv]."""
    score = repeated(tl.sum(q.to(tl.float32) * key.to(tl.float32)[None, :], 1)[:, None], GP)
    score = tl.reshape(score, [GP]) * scale
    if SOFTCAP:
        score = capped(score, softcap)
    score = score * LOG2E
    mn = tl.maximum(m, score)
    p = tl.exp2(score - mn)
    a = tl.exp2(m - mn)
    return mn, total * a + p, acc * a[:, None] + p[:, None] * value.to(tl.float32)[None, :]


@triton.jit
def nothing(GP: tl.constexpr, DVP: tl.constexpr):
    """A running softmax over no keys: maxima [g], totals [g], sums of weighted values [g, dv]."""
    return tl.full([GP], NEVER, tl.float32), tl.zeros([GP], tl.float32), tl.zeros([GP, DVP], tl.float32)


@triton.jit
def leave(m, total, acc, parts, stats, part, g, dv, G: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr):
    """Write what a program has of a row for whoever merges. ``part`` [g]: where."""
    tl.store(parts + part[:, None] * DVP + dv[None, :], acc, mask=(g < G)[:, None] & (dv < DV)[None, :])
    tl.store(stats + part * 2, m, mask=g < G)
    tl.store(stats + part * 2 + 1, total, mask=g < G)


@triton.jit
def merged(m, total, acc, parts, stats, part, g, dv, G: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr):
    """The running softmax with what lies at ``part`` [g], which another program may have just written."""
    here = (g < G)[:, None] & (dv < DV)[None, :]
    mi = tl.load(stats + part * 2, mask=g < G, other=0.0, cache_modifier=".cg")
    li = tl.load(stats + part * 2 + 1, mask=g < G, other=0.0, cache_modifier=".cg")
    oi = tl.load(parts + part[:, None] * DVP + dv[None, :], mask=here, other=0.0, cache_modifier=".cg")
    mn = tl.maximum(m, mi)
    a = tl.exp2(m - mn)
    b = tl.exp2(mi - mn)
    return mn, total * a + li * b, acc * a[:, None] + oi * b[:, None]


@triton.jit
def tell(total, acc, out, token, head, g, dv, NH: tl.constexpr, G: tl.constexpr, DV: tl.constexpr):
    """What a running softmax comes to, for the query heads of a key-value head."""
    each = 1.0 / tl.where(g < G, total, 1.0)
    place = out + token.to(tl.int64) * (NH * DV) + (head * G + g)[:, None] * DV + dv[None, :]
    tl.store(place, (acc * each[:, None]).to(out.dtype.element_ty), mask=(g < G)[:, None] & (dv < DV)[None, :])


@triton.jit
def _token(starts, row, length, MIXED: tl.constexpr):
    """Where a row's token is, and whether it has none, or several, which are not decode's affair."""
    token = row.to(tl.int64)
    idle = length <= 0
    if MIXED:
        token = tl.load(starts + row)
        idle = idle | (tl.load(starts + row + 1) - token != 1)
    return token, idle


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
    AHEAD: tl.constexpr,
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

    OWN: the row's own key and value start the softmax of split 0 from registers and go into their slot; else ``ready``
    has been here. MIXED: rows with more than one token are left to ``pieces``. MERGE 1: the last split to arrive
    merges; 2: ``merge`` does. Before the wait nothing is read but tables, lengths and pages of earlier steps. AHEAD:
    keys that are on their way to the shared cache then.
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
    low, end, first, tiles = span(length, window, OWN, TILE, WINDOW)
    per, splits = _shares(tiles, SPLITS)
    if sp >= splits:  # split 0 never is: some of every row wait
        return
    lo = first + sp * per
    hi = tl.minimum(lo + per, first + tiles)
    pages = table + row * table_stride
    k_head = head * PAGE * D
    v_head = value_offset + head * PAGE * DV
    if AHEAD > 0:
        ahead(lo * TILE, low, end, pages, cache, k_head, v_head, page_stride, D, DV, PAGE, AHEAD)
    if EARLY:
        keys = lo * TILE + tl.arange(0, TILE)
        ok = (keys >= low) & (keys < end)
        if PAGE >= TILE:
            page = tl.load(pages + (lo * TILE) // PAGE, mask=lo < hi, other=0).to(tl.int64)
        else:
            page = tl.load(pages + keys // PAGE, mask=ok, other=0).to(tl.int64)
        spot0 = page * page_stride
        k0 = tl.load(
            spots(cache, spot0, k_head, keys, d, D, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_d[None, :],
            other=0.0,
        )
        v0 = tl.load(
            spots(cache, spot0, v_head, keys, dv, DV, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_dv[None, :],
            other=0.0,
        )
    ds = partner(d, ROTARY)
    qg, qgs = gains(q_gain, d, ds, D, DP, QN)
    turn = qg
    back = qg
    if ROTARY > 0:
        turn, back = turning(cos, sin, length - 1, rope_stride, d, ROTARY)
    kg = qg
    kgs = qg
    if OWN:
        slot = tl.load(slots + row)
        kg, kgs = gains(k_gain, d, ds, D, DP, KN)
    token, idle = _token(starts, row, length, MIXED)
    await_inputs(PDL)
    if idle:
        return
    base = qkv + token * row_stride
    few = tl.arange(0, triton.next_power_of_2(G))
    live = (few < G)[:, None] & in_d[None, :]
    at = base + (head * G + few)[:, None] * D
    x = tl.load(at + d[None, :], mask=live, other=0.0).to(tl.float32)
    other = x
    if ROTARY > 0:
        other = tl.load(at + ds[None, :], mask=live, other=0.0).to(tl.float32)
    if OWN:  # read beside q, though only split 0 needs them: a second wait costs more
        own_at = base + (NH + head) * D
        own_x = tl.load(own_at + d, mask=in_d, other=0.0).to(tl.float32)
        own_other = own_x
        if ROTARY > 0:
            own_other = tl.load(own_at + ds, mask=in_d, other=0.0).to(tl.float32)
        own_v = tl.load(base + (NH + NK) * D + head * DV + dv, mask=in_dv, other=0.0)
    asked = turned(x, other, qg[None, :], qgs[None, :], turn[None, :], back[None, :], eps, D, ROTARY, QN, 1)
    asked = asked.to(qkv.dtype.element_ty)
    q = repeated(asked, GP)
    m, total, acc = nothing(GP, DVP)
    if SINKS:
        if sp == 0:
            m = tl.load(sinks + head * G + g, mask=g < G, other=0.0).to(tl.float32) * LOG2E
            total += 1.0
    if OWN:
        if sp == 0:
            own_k = turned(own_x, own_other, kg, kgs, turn, back, eps, D, ROTARY, KN, 0).to(qkv.dtype.element_ty)
            keep(cache, slot, own_k, own_v, k_head, v_head, d, dv, page_stride, D, DV, PAGE)
            m, total, acc = begun(asked, own_k, own_v, m, total, acc, scale, softcap, GP, SOFTCAP)
    start = lo
    if EARLY:
        m, total, p, a = weights(scores(q, k0, ok, scale, softcap, SOFTCAP, EXACT), ok, m, total)
        acc = tl.dot(p.to(v0.dtype), v0, acc * a[:, None], input_precision=EXACT)
        start = lo + 1
    m, total, acc = _look(
        q, m, total, acc, pages, cache, k_head, v_head, start, hi, low, end, d, dv, scale, softcap, page_stride,
        D, DV, PAGE, TILE, STAGES, SOFTCAP, EXACT,
    )  # fmt: skip
    mine = row * NH + head * G + g
    last = splits <= 1
    if SPLITS > 1:
        if MERGE == 2 or splits > 1:
            leave(m, total, acc, parts, stats, mine * SPLITS + sp, g, dv, G, DV, DVP)
        if MERGE == 2:
            return
        if splits > 1:
            tl.debug_barrier()
            last = tl.atomic_add(count + row * NK + head, 1, sem="acq_rel") == splits - 1
    if last:
        if SPLITS > 1:
            if splits > 1:
                tl.store(count + row * NK + head, 0)
                m, total, acc = nothing(GP, DVP)
                for i in range(splits):
                    m, total, acc = merged(m, total, acc, parts, stats, mine * SPLITS + i, g, dv, G, DV, DVP)
        tell(total, acc, out, token, head, g, dv, NH, G, DV)


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
    _low, _end, _first, tiles = span(length, window, OWN, TILE, WINDOW)
    _per, splits = _shares(tiles, SPLITS)
    token, idle = _token(starts, row, length, MIXED)
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
