"""What a step computes around the model: its inputs, and commit with what the host is told."""

import triton
import triton.language as tl

from octavo.device.kernels.triton.pdl import await_inputs, release


@triton.jit(do_not_specialize=["batch"])
def inputs(
    rows,
    takes,
    known,
    planned,
    chunk,
    computed,
    last,
    ids,
    positions,
    index,
    query_start,
    seq_lens,
    batch,
    BP: tl.constexpr,
    BLOCK: tl.constexpr,
    SINGLE: tl.constexpr,
    PDL: tl.constexpr,
):
    """``step_in`` without drafts. SINGLE: every row continues by one token, BLOCK rows a program; else a row a
    program."""
    release(PDL)
    me = tl.program_id(0)
    await_inputs(PDL)
    if SINGLE:
        r = me * BLOCK + tl.arange(0, BLOCK)
        there = r < batch
        row = tl.load(rows + r, mask=there, other=0)
        start = tl.load(computed + row, mask=there, other=0)
        tl.store(ids + r, tl.load(last + row, mask=there, other=0), mask=there)
        tl.store(positions + r, start, mask=there)
        tl.store(index + r, r.to(tl.int64), mask=there)
        tl.store(seq_lens + r, start + 1, mask=there)
        tl.store(query_start + r, r.to(tl.int64), mask=r <= batch)
    else:
        j = tl.arange(0, BP)
        every = tl.load(takes + j, mask=j < batch, other=0)
        given = tl.load(known + j, mask=j < batch, other=0)
        first = tl.sum(tl.where(j < me, every, 0), 0)
        at = tl.sum(tl.where(j < me, given, 0), 0)
        take = tl.sum(tl.where(j == me, every, 0), 0)
        mine = tl.sum(tl.where(j == me, given, 0), 0)
        row = tl.load(rows + me)
        start = tl.load(computed + row)
        if mine > 0:
            start = tl.load(planned + me)
        tl.store(seq_lens + me, start + take)
        tl.store(query_start + me, first)
        if me == batch - 1:
            tl.store(query_start + batch, first + take)
        for t in range(0, take.to(tl.int32), BLOCK):
            o = t + tl.arange(0, BLOCK)
            there = o < take
            token = tl.load(last + row + o * 0, mask=there & (o >= mine), other=0)
            token = tl.where(o < mine, tl.load(chunk + at + o, mask=o < mine, other=0), token)
            tl.store(ids + first + o, token, mask=there)
            tl.store(positions + first + o, start + o, mask=there)
            tl.store(index + first + o, (o * 0 + me).to(tl.int64), mask=there)


@triton.jit(do_not_specialize=["tokens", "width", "stride"])
def slots(
    positions,
    token_rows,
    table,
    alive,
    out,
    tokens,
    width,
    stride,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Where each token's key and value go; slot 0 for dead rows."""
    release(PDL)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < tokens
    await_inputs(PDL)
    at = tl.load(positions + i, mask=there, other=0)
    row = tl.load(token_rows + i, mask=there, other=0)
    page = tl.load(table + row * stride + tl.minimum(at // PAGE, width - 1), mask=there, other=0).to(tl.int64)
    living = tl.load(alive + row, mask=there, other=0)
    tl.store(out + i, tl.where(living != 0, page * PAGE + at % PAGE, 0), mask=there)


@triton.jit(do_not_specialize=["batch", "draws", "stops_each", "stop_stride", "slots", "width"])
def commit(
    rows,
    seq_lens,
    sampled,
    tokens,
    verdicts,
    computed,
    last,
    alive,
    limit,
    min_len,
    stops,
    out,
    clock,
    batch,
    draws,
    stops_each,
    stop_stride,
    slots,
    width,
    BLOCK: tl.constexpr,
    ALL: tl.constexpr,
    TELLS: tl.constexpr,
    TAGS: tl.constexpr,
    PDL: tl.constexpr,
):
    """``step_out.commit`` by one program: what a row was is read before any of it changes. ALL: every row drew.

    ``verdicts`` say whether draws are sound, ``out`` are counts. TELLS (``step_out.finish``): they are scores, and the
    ring, in memory that the host reads: every word is one aligned store of 8 bytes, so that who sees its tag sees it
    whole.
    """
    release(PDL)
    i = tl.arange(0, BLOCK)
    here = i < batch
    drew = i < draws
    await_inputs(PDL)
    row = tl.load(rows + i, mask=here, other=0)
    living = (tl.load(alive + row, mask=here, other=0) != 0) & here
    length = tl.load(seq_lens + i, mask=here, other=0)
    if ALL:
        which = i.to(tl.int64)
        mine = row
    else:
        which = tl.load(sampled + i, mask=drew, other=0)
        mine = tl.load(rows + which, mask=drew, other=0)
    was = (tl.load(alive + mine, mask=drew, other=0) != 0) & drew
    if TELLS:
        score = tl.load(verdicts + i, mask=drew, other=0.0)
        sound = (score == score) & (tl.abs(score) != float("inf"))
        tag = tl.load(clock)
    else:
        sound = tl.load(verdicts + i, mask=drew, other=0) != 0
    said = was & sound
    token = tl.load(tokens + i, mask=drew, other=0)
    long = tl.load(seq_lens + which, mask=drew, other=0) + 1
    ends = tl.zeros([BLOCK], tl.int32)
    for s in range(stops_each):
        ends += (tl.load(stops + mine * stop_stride + s, mask=drew, other=-1) == token).to(tl.int32)
    stopped = (ends > 0) & (long >= tl.load(min_len + mine, mask=drew, other=0))
    goes_on = said & (stopped == 0) & (long < tl.load(limit + mine, mask=drew, other=0))
    tl.debug_barrier()
    tl.store(computed + row, length, mask=living)
    tl.store(last + mine, token, mask=said)
    tl.store(alive + mine, goes_on.to(tl.uint8), mask=drew)
    if TELLS:
        value = tl.where(said, token, 0xFFFFFFFF)
        value = tl.where(was & (sound == 0), tl.where(score == -float("inf"), 0xFFFFFFFD, 0xFFFFFFFE), value)
        slot = out + (tag & (slots - 1)) * width
        tl.store(slot + 1 + i, value | (tag << 32), mask=drew)
        tl.store(slot, (tag << 32) | 0xFFFFFFFF)
        tl.store(clock, (tag + 1) & (TAGS - 1))
    else:
        tl.store(out + i, said.to(tl.int64), mask=drew)
