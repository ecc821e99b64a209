"""RMS norm, sums of squares of rows, rows of an embedding, and gated activations, a program a row."""

import triton
import triton.language as tl

from octavo.device.kernels.triton.linear import activate
from octavo.device.kernels.triton.pdl import await_inputs, release


@triton.jit
def rms(
    x,
    gain,
    out,
    x_stride,
    H: tl.constexpr,
    HP: tl.constexpr,
    GAIN: tl.constexpr,
    EPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """out [T, H] = x / rms(x) * gain."""
    release(PDL)
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, HP)
    if GAIN:
        g = tl.load(gain + o, mask=o < H, other=0.0).to(tl.float32)
    await_inputs(PDL)
    v = tl.load(x + row * x_stride + o, mask=o < H, other=0.0).to(tl.float32)
    v = v * (1.0 / tl.sqrt_rn(tl.sum(v * v) / H + EPS))
    if GAIN:
        v = v * g
    tl.store(out + row * H + o, v.to(out.dtype.element_ty), mask=o < H)


@triton.jit
def squares(x, out, x_stride, H: tl.constexpr, HP: tl.constexpr, PDL: tl.constexpr):
    """out [T] = the sum of squares of each row."""
    release(PDL)
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, HP)
    await_inputs(PDL)
    v = tl.load(x + row * x_stride + o, mask=o < H, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(v * v))


@triton.jit
def embed(ids, weight, out, sums, scale, H: tl.constexpr, HP: tl.constexpr, PDL: tl.constexpr):
    """out [T, H] = weight[ids] * scale, and their sums of squares."""
    release(PDL)
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, HP)
    await_inputs(PDL)
    at = tl.load(ids + row).to(tl.int64) * H
    v = tl.load(weight + at + o, mask=o < H, other=0.0).to(tl.float32) * scale
    v = v.to(out.dtype.element_ty)
    tl.store(out + row * H + o, v, mask=o < H)
    v = v.to(tl.float32)
    tl.store(sums + row, tl.sum(v * v))


@triton.jit
def gated(x, out, x_stride, F: tl.constexpr, BLOCK: tl.constexpr, ACT: tl.constexpr, PDL: tl.constexpr):
    """out [T, F] = act(x[:, :F]) * x[:, F:]."""
    release(PDL)
    row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    await_inputs(PDL)
    gate = tl.load(x + row * x_stride + o, mask=o < F, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + F + o, mask=o < F, other=0.0).to(tl.float32)
    tl.store(out + row * F + o, activate(gate, up, ACT).to(out.dtype.element_ty), mask=o < F)
