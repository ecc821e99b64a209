"""Matrix products with a weight [N, K]."""

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K] -> x @ weight.T + bias, [T, N]."""
    return F.linear(x, weight, bias)


def linear_add(x: Tensor, weight: Tensor, add: Tensor) -> Tensor:
    """x [T, K], add [T, N] -> add + x @ weight.T."""
    return torch.addmm(add, x, weight.t())
