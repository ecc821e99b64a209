"""Rotary position embedding on neox halves: dimension i turns with dimension i + rotary / 2."""

import torch
from torch import Tensor


def turns(cos: Tensor, sin: Tensor, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What ``rope`` needs at int64[T] positions, of float32 tables [positions, r]: (cos, cos) and (-sin, sin), each
    [T, 1, 2 r] in ``dtype``. Made once a step and table."""
    c, s = cos[positions], sin[positions]
    return torch.cat((c, c), -1).to(dtype).unsqueeze(1), torch.cat((-s, s), -1).to(dtype).unsqueeze(1)


def rope_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn x [T, heads, D] in place; cos and sin from ``turns``, 2 r wide. Dimensions behind the first 2 r stay."""
    rope_torch_(x, cos, sin)


def rope_torch_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    rotary = cos.shape[-1]
    if rotary != x.shape[-1]:
        x = x[..., :rotary]
    torch.addcmul(x * cos, x.roll(rotary // 2, -1), sin, out=x)
