"""The last kernel of a step: what was drawn, into memory that the host reads."""

import triton
import triton.language as tl

from octavo.device.kernels.triton.pdl import await_inputs, release


@triton.jit(do_not_specialize=["rows", "width"])
def publish(
    tokens,
    counts,
    living,
    scores,
    clock,
    ring,
    rows,
    width,
    SLOTS: tl.constexpr,
    TAGS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """``publish.words`` by one program. Every word is one aligned store of 8 bytes, so that who sees its tag sees it
    whole."""
    release(PDL)
    i = tl.arange(0, BLOCK)
    await_inputs(PDL)
    tag = tl.load(clock)
    base = ring + (tag & (SLOTS - 1)) * width
    high = tag << 32
    for start in range(0, rows, BLOCK):
        at = start + i
        here = at < rows
        score = tl.load(scores + at, mask=here, other=0.0)
        sound = (score == score) & (tl.abs(score) != float("inf"))
        alive = tl.load(living + at, mask=here, other=0) != 0
        value = tl.full([BLOCK], 0xFFFFFFFF, tl.int64)
        value = tl.where(alive & (sound == 0), tl.where(score == -float("inf"), 0xFFFFFFFD, 0xFFFFFFFE), value)
        said = tl.load(counts + at, mask=here, other=0) > 0
        value = tl.where(said, tl.load(tokens + at, mask=here, other=0), value)
        tl.store(base + 1 + at, value | high, mask=here)
    tl.store(base, high | 0xFFFFFFFF)
    tl.store(clock, (tag + 1) & (TAGS - 1))
