"""Weights as they are in the checkpoint."""

import torch
from torch import Tensor

from octavo.device.kernels.linear import linear, linear_add
from octavo.device.quant.base import LinearSpec


class Plain:
    """No quantisation."""

    def linear(self, spec: LinearSpec, device: torch.device, dtype: torch.dtype) -> "PlainLinear":
        return PlainLinear(spec, device, dtype)


class PlainLinear:
    """One matrix of all parts, one above the other."""

    def __init__(self, spec: LinearSpec, device: torch.device, dtype: torch.dtype):
        self.spec, self.device, self.dtype = spec, device, dtype
        self.takes = frozenset({"add"} if spec.adds and not spec.bias else ())
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        spec = self.spec
        shapes: dict[str, list[tuple[int, ...]]] = {"weight": [(out, spec.inner) for out in spec.outs]}
        if spec.bias:
            shapes["bias"] = [(out,) for out in spec.outs]
        return shapes

    def target(self, suffix: str, part: int) -> Tensor:
        whole = getattr(self, suffix)
        if whole is None:
            shape = (self.spec.out, self.spec.inner) if suffix == "weight" else (self.spec.out,)
            whole = torch.empty(shape, dtype=self.dtype, device=self.device)
            setattr(self, suffix, whole)
        return whole.split(self.spec.outs)[part]

    def filled(self, suffix: str, part: int) -> None:
        pass

    def apply(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        assert self.weight is not None
        if add is not None:
            return linear_add(x, self.weight, add)
        return linear(x, self.weight, self.bias)
