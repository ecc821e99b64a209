"""The token embedding and the head."""

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.device.kernels.embed import embed
from octavo.device.kernels.fixed import by_blocks, pieces
from octavo.device.layers.norm import RMSNorm
from octavo.device.quant.base import LinearMethod


class Embedding:
    """``scale`` multiplies what is looked up; rounded to the dtype first, as the models were trained.
    ``tied``: methods that multiply with this
    matrix, and may keep the only copy."""

    def __init__(self, vocab: int, hidden: int, scale: float, device: torch.device, dtype: torch.dtype):
        self.size = (vocab, hidden)
        self.scale = torch.tensor(scale, dtype=dtype).item()
        self.device, self.dtype = device, dtype
        self.weight: Tensor | None = None
        self.tied: list[LinearMethod] = []
        self.lookup: Callable[[Tensor], Tensor] | None = None

    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        return {"weight": [self.size]}

    def target(self, suffix: str, part: int) -> Tensor:
        if self.weight is None:
            self.weight = torch.empty(self.size, dtype=self.dtype, device=self.device)
        return self.weight

    def filled(self, suffix: str, part: int) -> None:
        assert self.weight is not None
        for method in self.tied:
            self.lookup = method.adopt(self.weight)
        if self.lookup is not None:
            self.weight = None

    def __call__(self, ids: Tensor) -> Tensor:
        """int [T] -> [T, H]."""
        if self.lookup is not None:
            x = self.lookup(ids)
            return x if self.scale == 1.0 else x.mul_(self.scale)
        assert self.weight is not None
        return embed(ids, self.weight, self.scale)


class Head:
    """Norm and product with the vocabulary's matrix. ``blocks``: as for ``Linear``."""

    def __init__(self, norm: RMSNorm, method: LinearMethod, softcap: float | None, blocks: bool = False):
        self.norm, self.method, self.softcap, self.blocks = norm, method, softcap, blocks

    def __call__(self, hidden: Tensor, narrow: bool = False) -> Tensor:
        """[N, H] -> float32 [N, V]; ``narrow``: in the type that the product gave, where nothing comes after it."""
        if self.blocks and len(hidden):
            logits = by_blocks(lambda part, _: self.method.apply(self.norm(part)), hidden)
        else:
            logits = self.method.apply(self.norm(hidden))
        if self.softcap is None:
            return logits if narrow else logits.float()
        logits = logits.float()
        for part in pieces(logits) if self.blocks else [slice(None)]:
            logits[part].div_(self.softcap).tanh_().mul_(self.softcap)
        return logits
