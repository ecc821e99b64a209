"""Gated activations: act(gate) * up over the packed output of a fused linear."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.common.math import cdiv, next_power_of_two
from octavo.device.kernels.launch import AFTER, has_kernels, launch

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


#: The activations' numbers in kernels.
CODES = {None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3}


def gated(x: Tensor, act: str) -> Tensor:
    """x [T, 2 F] -> [T, F]: ``act`` of the first half times the second."""
    return gated_triton(x, act) if has_kernels(x) else gated_torch(x, act)


def gated_torch(x: Tensor, act: str) -> Tensor:
    gate, up = x.chunk(2, -1)
    return ACTIVATIONS[act](gate).mul_(up)


def gated_triton(x: Tensor, act: str) -> Tensor:
    from octavo.device.kernels.triton import norm as kernels

    rows, width = len(x), x.shape[1] // 2
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    block = min(1024, next_power_of_two(width))
    launch(
        kernels.gated,
        (rows, cdiv(width, block)),
        x,
        out,
        x.stride(0),
        F=width,
        BLOCK=block,
        ACT=CODES[act],
        pdl=AFTER,
        num_warps=4,
    )
    return out
