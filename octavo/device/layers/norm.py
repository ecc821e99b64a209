"""RMS norm as a layer."""

import torch
from torch import Tensor

from octavo.device.kernels.norm import FEW, pair, rms_norm, rms_norm_paired


class RMSNorm:
    """``offset``: the checkpoint stores the weight less this (Gemma: 1); such a weight is kept in float32, since the
    sum would lose the bits that the offset was meant to save. The weight's storage never moves."""

    weight: Tensor

    def __init__(self, size: int, eps: float, offset: float, device: torch.device, dtype: torch.dtype):
        self.eps, self.offset = eps, offset
        self.weight = torch.empty(size, dtype=torch.float32 if offset else dtype, device=device)
        self.few = FEW if device.type == "cpu" and dtype != torch.float32 else 0
        self.paired = self.weight
        self.signs = torch.tensor([[1.0], [-1.0]], dtype=dtype, device=device)

    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        return {"weight": [tuple(self.weight.shape)]}

    def target(self, suffix: str, part: int) -> Tensor:
        return self.weight

    def filled(self, suffix: str, part: int) -> None:
        if self.offset:
            self.weight += self.offset
        if self.few:
            self.paired = pair(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        if x.shape[0] <= self.few:
            return rms_norm_paired(x, self.paired, self.signs, self.eps)
        return rms_norm(x, self.weight, self.eps)
