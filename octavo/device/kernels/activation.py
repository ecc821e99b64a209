"""Gated activations: act(gate) * up over the packed output of a fused linear."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def gated(x: Tensor, act: str) -> Tensor:
    """x [T, 2 F] -> [T, F]: ``act`` of the first half times the second."""
    gate, up = x.chunk(2, -1)
    return ACTIVATIONS[act](gate).mul_(up)
