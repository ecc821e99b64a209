"""Root-mean-square norm over the last dimension: https://arxiv.org/abs/1910.07467."""

import torch
from torch import Tensor

#: Most rows for which ``rms_norm_paired`` is the faster one.
FEW = 16


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H], weight [H] -> x's dtype, computed in float32 and rounded once; ``weight`` may be float32 beside a
    narrower x. In place on one wide copy, which on a CPU is faster than ``torch.rms_norm`` of many narrow rows."""
    if x.dtype == torch.float32 or (x.is_cuda and x.dtype == weight.dtype):
        return torch.rms_norm(x, weight.shape, weight, eps)
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return wide.mul_(scale).mul_(weight).to(x.dtype)


def pair(weight: Tensor) -> Tensor:
    """[H] -> [2, H], for ``rms_norm_paired``."""
    return torch.stack((weight, torch.zeros_like(weight)))


def rms_norm_paired(x: Tensor, paired: Tensor, signs: Tensor, eps: float) -> Tensor:
    """``rms_norm`` of few narrow rows on a CPU, x [T, H], signs [[1], [-1]]: the layer norm of (x, -x).

    Their mean is 0 and their variance is x's mean square. torch has a fused layer norm for bfloat16 there, and none for
    the RMS norm.
    """
    return torch.layer_norm(torch.mul(x.unsqueeze(1), signs), paired.shape, paired, None, eps).select(1, 0)
