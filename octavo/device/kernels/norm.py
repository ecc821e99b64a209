"""Root-mean-square norm over the last dimension."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H], weight [H] -> x's dtype. A float32 ``weight`` beside a narrower x is applied before rounding.

    Source: https://arxiv.org/abs/1910.07467.
    """
    if weight.dtype == x.dtype:
        return torch.rms_norm(x, weight.shape, weight, eps)
    return torch.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
