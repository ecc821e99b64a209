"""RMS norm as a layer."""

import torch
from torch import Tensor, nn

from octavo.device.kernels.norm import rms_norm


class RMSNorm(nn.Module):
    """``offset``: the checkpoint stores the weight less this (Gemma: 1); such a weight is kept in float32, since the
    sum would lose the bits that the offset was meant to save. The weight's storage never moves."""

    weight: Tensor

    def __init__(self, size: int, eps: float, offset: float, device: torch.device, dtype: torch.dtype):
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = torch.empty(size, dtype=torch.float32 if offset else dtype, device=device)

    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        return {"weight": [tuple(self.weight.shape)]}

    def target(self, suffix: str, part: int) -> Tensor:
        return self.weight

    def filled(self, suffix: str, part: int) -> None:
        if self.offset:
            self.weight += self.offset

    def forward(self, x: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        return rms_norm(x, self.weight, self.eps)
