"""Decode attention by programs that do as many tiles of keys each, whatever the rows' lengths: the tiles of every (row,
key-value head), one behind the other, are dealt out in one piece a program (``deal``), so that all end together. A row
that several programs have parts of is merged by the last of them to arrive, in its order. The idea is stream-K's
(https://arxiv.org/abs/2301.03598).

One loop goes over all of a program's tiles, so that the next row's keys are on their way while a row ends. Nothing in
it is a barrier, or a load of its own, which would keep the compiler from that: merging comes after it.
"""

# ruff: noqa: SIM102 (a constexpr condition stands alone: what it leaves out is not compiled)
import triton
import triton.language as tl

from octavo.device.kernels.triton.attend import LOG2E, partner, spots, turning
from octavo.device.kernels.triton.decode import (
    ahead,
    begun,
    gains,
    keep,
    leave,
    merged,
    nothing,
    repeated,
    scores,
    span,
    tell,
    turned,
    weights,
)
from octavo.device.kernels.triton.pdl import await_inputs, release, yield_late


@triton.jit(do_not_specialize=["rows", "programs", "window"])
def deal(
    lens,
    shares,
    rows,
    programs,
    window,
    NK: tl.constexpr,
    RP: tl.constexpr,
    TILE: tl.constexpr,
    MANY: tl.constexpr,
    WINDOW: tl.constexpr,
    OWN: tl.constexpr,
    PDL: tl.constexpr,
):
    """What each program of ``balanced`` does, int32[programs, 4]: its first pair of a row and a key-value head, how
    many of that pair's tiles others do, the tiles of a share, and of all together. MANY programs at a time."""
    release(PDL)
    r = tl.arange(0, RP)
    me = tl.program_id(0) * MANY + tl.arange(0, MANY)
    await_inputs(PDL)
    length = tl.load(lens + r, mask=r < rows, other=0).to(tl.int32)
    _low, _end, _first, tiles = span(length, window, OWN, TILE, WINDOW)
    tiles = tl.where(r < rows, tl.maximum(tiles, 1), 0)
    ends = tl.cumsum(tiles, 0) * NK
    units = tl.sum(tiles, 0) * NK
    share = tl.cdiv(units, programs)
    unit = me * share
    before = ends[None, :] <= unit[:, None]
    row = tl.sum(before.to(tl.int32), 1)
    begin = tl.max(tl.where(before, ends[None, :], 0), 1)
    its = tl.maximum(tl.sum(tl.where(r[None, :] == row[:, None], tiles[None, :], 0), 1), 1)
    at = shares + me * 4
    there = me < programs
    tl.store(at, row * NK + (unit - begin) // its, mask=there)
    tl.store(at + 1, (unit - begin) % its, mask=there)
    tl.store(at + 2, share + me * 0, mask=there)
    tl.store(at + 3, units + me * 0, mask=there)


@triton.jit
def _pieces(begin, its, share):
    """Of the tiles of a pair, the first being ``begin``: the first program that has some, and how many have."""
    maker = begin // share
    return maker, (begin + its - 1) // share - maker + 1


@triton.jit
def _gather(
    parts,
    stats,
    begin,
    share,
    splits,
    pair,
    out,
    g,
    dv,
    NH: tl.constexpr,
    NK: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    DV: tl.constexpr,
    DVP: tl.constexpr,
):
    """Merge a pair of which every part has been left."""
    m, total, acc = nothing(GP, DVP)
    maker = begin // share
    for i in range(splits):
        part = 2 * (maker + i) + ((i == 0) & (begin % share != 0)).to(tl.int32)
        m, total, acc = merged(m, total, acc, parts, stats, part * GP + g, g, dv, G, DV, DVP)
    tell(total, acc, out, pair // NK, pair % NK, g, dv, NH, G, DV)


@triton.jit(do_not_specialize=["rows", "window", "table_stride"])
def balanced(
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
    shares,
    rows,
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
    """One program. AHEAD: keys of its first pair that are on their way to the shared cache before the wait."""
    release(PDL)
    tl.static_assert(not MIXED)
    me = tl.program_id(0)
    pair0 = tl.load(shares + me * 4)
    done0 = tl.load(shares + me * 4 + 1)
    share = tl.load(shares + me * 4 + 2)
    unit = me * share
    stop = tl.minimum(unit + share, tl.load(shares + me * 4 + 3))
    if unit >= stop:  # the first program never is: some wait
        return
    g = tl.arange(0, GP)
    d = tl.arange(0, DP)
    dv = tl.arange(0, DVP)
    ds = partner(d, ROTARY)
    in_d = d < D
    in_dv = dv < DV
    # of the tile that is next: its pair, the tile's number there, and what the row is
    row = pair0 // NK
    head = pair0 % NK
    t = done0
    length = tl.load(lens + row).to(tl.int32)
    low, end, first, its = span(length, window, OWN, TILE, WINDOW)
    its = tl.maximum(its, 1)
    if PAGE >= TILE:
        page = tl.load(
            table + row * table_stride + ((first + t) * TILE) // PAGE, mask=(first + t) * TILE < end, other=0
        )
    else:
        start = (first + t) * TILE + tl.arange(0, TILE)
        page = tl.load(table + row * table_stride + start // PAGE, mask=start < end, other=0)
    if AHEAD > 0:
        pages = table + row * table_stride
        v_head = value_offset + head * PAGE * DV
        ahead((first + t) * TILE, low, end, pages, cache, head * PAGE * D, v_head, page_stride, D, DV, PAGE, AHEAD)
    maker0, splits0 = _pieces(unit - done0, its, share)
    begin = unit - done0
    pair = pair0
    every = its
    q = tl.zeros([GP, DP], qkv.dtype.element_ty)
    m, total, acc = nothing(GP, DVP)
    await_inputs(PDL)
    for i in tl.range(unit, stop, num_stages=STAGES):
        keys = (first + t) * TILE + tl.arange(0, TILE)
        ok = (keys >= low) & (keys < end)
        spot = page.to(tl.int64) * page_stride
        k = tl.load(
            spots(cache, spot, head * PAGE * D, keys, d, D, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_d[None, :],
            other=0.0,
        )
        if (t == 0) | (i == unit):
            begin = i - t
            pair = row * NK + head
            every = its
            base = qkv + row.to(tl.int64) * row_stride
            few = tl.arange(0, triton.next_power_of_2(G))
            live = (few < G)[:, None] & in_d[None, :]
            at = base + (head * G + few)[:, None] * D
            x = tl.load(at + d[None, :], mask=live, other=0.0).to(tl.float32)
            other = x
            qg, qgs = gains(q_gain, d, ds, D, DP, QN)
            turn = qg
            back = qg
            if ROTARY > 0:
                other = tl.load(at + ds[None, :], mask=live, other=0.0).to(tl.float32)
                turn, back = turning(cos, sin, length - 1, rope_stride, d, ROTARY)
            asked = turned(x, other, qg[None, :], qgs[None, :], turn[None, :], back[None, :], eps, D, ROTARY, QN, 1)
            asked = asked.to(qkv.dtype.element_ty)
            q = repeated(asked, GP)
            m, total, acc = nothing(GP, DVP)
            if SINKS:
                sink = tl.load(sinks + head * G + g, mask=(g < G) & (t == 0), other=0.0).to(tl.float32) * LOG2E
                m = tl.where(t == 0, sink, m)
                total = tl.where(t == 0, 1.0, total)
            if OWN:
                if t == 0:
                    own_at = base + (NH + head) * D
                    own_x = tl.load(own_at + d, mask=in_d, other=0.0).to(tl.float32)
                    own_other = own_x
                    if ROTARY > 0:
                        own_other = tl.load(own_at + ds, mask=in_d, other=0.0).to(tl.float32)
                    own_v = tl.load(base + (NH + NK) * D + head * DV + dv, mask=in_dv, other=0.0)
                    kg, kgs = gains(k_gain, d, ds, D, DP, KN)
                    own_k = turned(own_x, own_other, kg, kgs, turn, back, eps, D, ROTARY, KN, 0)
                    own_k = own_k.to(qkv.dtype.element_ty)
                    slot = tl.load(slots + row)
                    v_own = value_offset + head * PAGE * DV
                    keep(cache, slot, own_k, own_v, head * PAGE * D, v_own, d, dv, page_stride, D, DV, PAGE)
                    m, total, acc = begun(asked, own_k, own_v, m, total, acc, scale, softcap, GP, SOFTCAP)
        m, total, p, a = weights(scores(q, k, ok, scale, softcap, SOFTCAP, EXACT), ok, m, total)
        v = tl.load(
            spots(cache, spot, value_offset + head * PAGE * DV, keys, dv, DV, PAGE, PAGE >= TILE),
            mask=ok[:, None] & in_dv[None, :],
            other=0.0,
        )
        acc = tl.dot(p.to(v.dtype), v, acc * a[:, None], input_precision=EXACT)
        t += 1
        over = t == its
        if over | (i == stop - 1):
            _maker, splits = _pieces(begin, every, share)
            if splits > 1:
                # a program has two parts at most: of its first pair, and of its last one
                part = (2 * me + (pair != pair0).to(tl.int32)) * GP + g
                leave(m, total, acc, parts, stats, part, g, dv, G, DV, DVP)
            else:
                tell(total, acc, out, pair // NK, pair % NK, g, dv, NH, G, DV)
        if over:
            t = 0
            head += 1
            if head == NK:
                head = 0
                row += 1
                length = tl.load(lens + row, mask=row < rows, other=1).to(tl.int32)
                low, end, first, its = span(length, window, OWN, TILE, WINDOW)
                its = tl.maximum(its, 1)
        # a turn ahead: a load that waits for another load is not pipelined
        pages = table + tl.minimum(row, rows - 1) * table_stride
        if PAGE >= TILE:
            page = tl.load(pages + ((first + t) * TILE) // PAGE, mask=(first + t) * TILE < end, other=0)
        else:
            soon = (first + t) * TILE + tl.arange(0, TILE)
            page = tl.load(pages + soon // PAGE, mask=soon < end, other=0)
    yield_late(PDL)
    maker, splits = _pieces(begin, every, share)
    if (splits0 > 1) | (splits > 1):
        tl.debug_barrier()
        if splits0 > 1:
            if tl.atomic_add(count + maker0, 1, sem="acq_rel") == splits0 - 1:
                tl.store(count + maker0, 0)
                _gather(parts, stats, unit - done0, share, splits0, pair0, out, g, dv, NH, NK, G, GP, DV, DVP)
        if (splits > 1) & (pair != pair0):
            if tl.atomic_add(count + maker, 1, sem="acq_rel") == splits - 1:
                tl.store(count + maker, 0)
                _gather(parts, stats, begin, share, splits, pair, out, g, dv, NH, NK, G, GP, DV, DVP)
