"""Rotary position embedding on neox halves: dimension i turns with dimension i + rotary / 2."""

import torch
from torch import Tensor


def turns(cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """What ``rope`` needs at int64[T] positions: cos [T, 1, 1, r], and -sin, sin as [T, 1, 2, r], of tables
    [positions, r]. Made once a step and table."""
    c, s = cos[positions], sin[positions]
    return c[:, None, None], torch.stack((-s, s), 1)[:, None]


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, D] turned, in x's type; cos and sin from ``turns``, r = rotary / 2. What is behind the first 2 r
    dimensions stays."""
    return rope_torch(x, cos, sin)


def rope_torch(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotary = 2 * cos.shape[-1]
    if rotary == x.shape[-1]:
        halves = x.unflatten(-1, (2, -1)).float()
        return (halves * cos).addcmul_(halves.flip(-2), sin).flatten(-2).to(x.dtype)
    return torch.cat((rope_torch(x[..., :rotary], cos, sin), x[..., rotary:]), -1)
