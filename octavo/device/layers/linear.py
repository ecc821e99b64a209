"""A linear and its joints: a norm before it, a gated activation or a norm after it, an addition into the residual."""

import torch
from torch import Tensor

from octavo.device.kernels.activation import gated
from octavo.device.kernels.fixed import by_blocks, pieces
from octavo.device.layers.norm import RMSNorm
from octavo.device.quant.base import LinearMethod


class Linear:
    """What the method does not take is composed here, in this order: norm, product, activation, post norm, addition.
    ``blocks``: rows go through in blocks of one size, so that no row's bits depend on their number."""

    def __init__(
        self,
        method: LinearMethod,
        *,
        norm: RMSNorm | None = None,
        act: str | None = None,
        post: RMSNorm | None = None,
        blocks: bool = False,
    ):
        assert post is None or "add" not in method.takes, "the addition comes after the post norm"
        self.method = method
        if norm is not None and "norm" in method.takes:
            method.join(norm)
            norm = None
        self.norm = norm
        self.act = None if "act" in method.takes else act
        self.post = post
        self.adds = "add" in method.takes
        self.blocks = blocks

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """x [T, K] -> [T, N] (half of N with an activation), plus ``add`` where given."""
        return by_blocks(self._apply, x, add) if self.blocks else self._apply(x, add)

    def _apply(self, x: Tensor, add: Tensor | None) -> Tensor:
        if self.norm is not None:
            x = self.norm(x)
        if self.adds and add is not None:
            return self.method.apply(x, add)
        x = self.method.apply(x)
        if self.act is not None:
            x = torch.cat([gated(x[part], self.act) for part in pieces(x)]) if self.blocks else gated(x, self.act)
        if self.post is not None:
            x = self.post(x)
        return x if add is None else x.add_(add)
