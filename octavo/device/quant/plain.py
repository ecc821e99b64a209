"""Weights as they are in the checkpoint."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from octavo.device.kernels.joined import FIXED, joined
from octavo.device.kernels.linear import linear, linear_add, pack, packed_linear, packed_rows, packs
from octavo.device.quant.base import LinearSpec, Norm


class Plain:
    """No quantisation."""

    def linear(self, spec: LinearSpec, device: torch.device, dtype: torch.dtype) -> "PlainLinear":
        own = dtype != torch.float32 or spec.fixed
        if device.type == "cuda" and own and find_spec("triton") is not None:
            return JoinedLinear(spec, device, dtype)
        return PlainLinear(spec, device, dtype)


class PlainLinear:
    """One matrix of all parts, one above the other; packed once all are there, where the device gains by it."""

    def __init__(self, spec: LinearSpec, device: torch.device, dtype: torch.dtype):
        self.spec, self.device, self.dtype = spec, device, dtype
        self.packs = packs(device, dtype)
        self.takes = frozenset({"add"} if spec.adds and not spec.bias and not self.packs else ())
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self._missing = len(spec.outs)

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
        self._missing -= suffix == "weight"
        if not self._missing and suffix == "weight" and self.packs:
            assert self.weight is not None
            self.weight = pack(self.weight)

    def join(self, norm: Norm) -> None:
        raise AssertionError("a method that takes no norm")

    def adopt(self, weight: Tensor) -> Callable[[Tensor], Tensor] | None:
        if not self.packs:
            self.weight = weight
            return None
        self.weight = pack(weight)
        return packed_rows(self.weight, weight)

    def apply(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        assert self.weight is not None
        if self.packs:
            return packed_linear(x, self.weight, self.bias)
        if add is not None:
            return linear_add(x, self.weight, add)
        return linear(x, self.weight, self.bias)


class JoinedLinear(PlainLinear):
    """One matrix of all parts, multiplied by kernels that do all joints. The gain of a norm before it is multiplied
    into the matrix by the first product, when all weights are loaded."""

    def __init__(self, spec: LinearSpec, device: torch.device, dtype: torch.dtype):
        super().__init__(spec, device, dtype)
        self.packs = False
        self.takes = frozenset({"norm", *(["act"] if spec.act else []), *(["add"] if spec.adds else [])})
        self._norm: Norm | None = None
        self._eps: float | None = None

    def join(self, norm: Norm) -> None:
        self._norm, self._eps = norm, norm.eps

    def apply(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        assert self.weight is not None
        if self._norm is not None:
            gain, self._norm = self._norm.weight.float(), None
            for part in self.weight.split(4096):
                part.copy_(part.float().mul_(gain))
        how = FIXED if self.spec.fixed else None
        return joined(x, self.weight, self.bias, eps=self._eps, act=self.spec.act, add=add, how=how)
