"""Root-mean-square norm over the last dimension: https://arxiv.org/abs/1910.07467."""

import torch
from torch import Tensor

from octavo.common.math import next_power_of_two
from octavo.device.kernels.launch import AFTER, has_kernels, launch

#: Most rows for which ``rms_norm_paired`` is the faster one.
FEW = 16


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [..., H], weight [H] (None for ones) -> x's dtype, computed in float32 and rounded once; ``weight`` may be
    float32 beside a narrower x."""
    if has_kernels(x) and x.dim() == 2:
        return rms_norm_triton(x, weight, eps)
    return rms_norm_torch(x, weight, eps)


def rms_norm_torch(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """In place on one wide copy, which on a CPU is faster than ``torch.rms_norm`` of many narrow rows."""
    if x.dtype == torch.float32:
        return torch.rms_norm(x, x.shape[-1:], weight, eps)
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    wide.mul_(scale)
    return (wide if weight is None else wide.mul_(weight)).to(x.dtype)


def rms_norm_triton(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    from octavo.device.kernels.triton import norm as kernels

    rows, width = x.shape
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    launch(
        kernels.rms,
        (rows,),
        x,
        x if weight is None else weight,
        out,
        x.stride(0),
        H=width,
        HP=next_power_of_two(width),
        GAIN=weight is not None,
        EPS=eps,
        pdl=AFTER,
        num_warps=4 if width <= 4096 else 8,
    )
    return out


def pair(weight: Tensor) -> Tensor:
    """[H] -> [2, H], for ``rms_norm_paired``."""
    return torch.stack((weight, torch.zeros_like(weight)))


def rms_norm_paired(x: Tensor, paired: Tensor, signs: Tensor, eps: float) -> Tensor:
    """``rms_norm`` of few narrow rows on a CPU, x [T, H], signs [[1], [-1]]: the layer norm of (x, -x).

    Their mean is 0 and their variance is x's mean square. torch has a fused layer norm for bfloat16 there, and none for
    the RMS norm.
    """
    return torch.layer_norm(torch.mul(x.unsqueeze(1), signs), paired.shape, paired, None, eps).select(1, 0)
