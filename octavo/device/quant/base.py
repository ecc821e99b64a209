"""What a scheme is: it makes a method for each linear; the method owns the weights and says which joints it takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo.common.registry import Registry


@dataclass(frozen=True, kw_only=True)
class LinearSpec:
    """One linear. ``outs``: widths of its parts, one a tensor of the checkpoint. ``act``: a gated activation over two
    parts. ``adds``: it is called with a residual to add into. ``fixed``: no row's bits may depend on the number of
    rows; on a CPU the layer sees to that."""

    name: str
    inner: int
    outs: tuple[int, ...]
    bias: bool = False
    act: str | None = None
    adds: bool = False
    fixed: bool = False

    @property
    def out(self) -> int:
        return sum(self.outs)


class Norm(Protocol):
    """An RMS norm: its weight, which is final when the model is loaded, and what is added to the mean square."""

    weight: Tensor
    eps: float


class LinearMethod(Protocol):
    """The weights of one linear and its product.

    ``takes``: the joints that ``apply`` does itself (``norm``, ``act``, ``add``); the layer composes the others.
    """

    takes: frozenset[str]

    def join(self, norm: Norm) -> None:
        """Put ``norm`` before the product. Only where it takes ``norm``."""

    def shapes(self) -> Mapping[str, Sequence[tuple[int, ...]]]:
        """Suffix of a checkpoint name (``weight``, ``bias``) -> the shape of each part."""

    def target(self, suffix: str, part: int) -> Tensor:
        """Where that tensor is to be written; allocated on the first call for its owner."""

    def filled(self, suffix: str, part: int) -> None:
        """That tensor is complete. After the last one the method packs its weights; there is one copy at any time."""

    def adopt(self, weight: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Take as the one part a matrix that an embedding owns, as a tied head does. Where it had to be packed, return
        what looks up rows of it (int [T] -> [T, inner]), if that can be, so that the embedding may let it go."""

    def apply(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """x [T, inner] -> [T, out], or half as wide where it takes ``act``. ``add`` only where it takes ``add``."""


class Scheme(Protocol):
    """A kind of quantisation, or none."""

    def linear(self, spec: LinearSpec, device: torch.device, dtype: torch.dtype) -> LinearMethod:
        """The method of one linear."""


#: ``ModelSection.quantization`` -> scheme; the name of no quantisation is "none".
SCHEMES: Registry[type[Scheme]] = Registry("quantization", "octavo.device.quant", {"none": "plain:Plain"})
