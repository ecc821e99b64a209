"""Kit: what a model is built from. It alone knows dtype, device, scheme and the checkpoint's names.

``kit.at("layers", 3)`` is a place in the checkpoint; the names given to the joints are the checkpoint's own, so loading
needs no table: every layer that has weights leaves a slot under its name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from octavo.config.facts import RopeFacts
from octavo.device.attention.base import LayerAttention
from octavo.device.layers.attention import Attention
from octavo.device.layers.embedding import Embedding, Head
from octavo.device.layers.linear import Linear
from octavo.device.layers.norm import RMSNorm
from octavo.device.layers.rope import table
from octavo.device.quant.base import LinearSpec, Scheme

M = TypeVar("M")


class Owner(Protocol):
    """A layer (or a linear's method) that has weights."""

    def shapes(self) -> Mapping[str, Sequence[tuple[int, ...]]]:
        """Suffix -> shape of each part."""

    def target(self, suffix: str, part: int) -> Tensor:
        """Where to write a part."""

    def filled(self, suffix: str, part: int) -> None:
        """A part is written."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor of the checkpoint goes."""

    owner: Owner
    suffix: str
    part: int
    shape: tuple[int, ...]

    def target(self) -> Tensor:
        return self.owner.target(self.suffix, self.part)

    def filled(self) -> None:
        self.owner.filled(self.suffix, self.part)


@dataclass
class _Shared:
    """What all places of one model have in common."""

    device: torch.device
    dtype: torch.dtype
    scheme: Scheme
    eps: float
    positions: int
    fixed: bool
    slots: dict[str, Slot] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    attentions: list[LayerAttention] = field(default_factory=list)
    ropes: list[tuple[RopeFacts, int, tuple[Tensor, Tensor]]] = field(default_factory=list)


class Kit:
    """One place of a model. ``eps``: of its norms. ``positions``: the longest sequence, rows of the rope tables.
    ``fixed``: no row's bits depend on the number of rows."""

    def __init__(
        self,
        *,
        device: torch.device,
        dtype: torch.dtype,
        scheme: Scheme,
        eps: float,
        positions: int,
        fixed: bool = False,
    ):
        self._shared = _Shared(device, dtype, scheme, eps, positions, fixed)
        self._path = ""

    def at(self, *path: str | int) -> "Kit":
        """A place further in."""
        kit = object.__new__(Kit)
        kit._shared, kit._path = self._shared, ".".join([*filter(None, [self._path]), *map(str, path)])
        return kit

    @property
    def attentions(self) -> list[LayerAttention]:
        """Every attention layer, in the model's order."""
        return self._shared.attentions

    @property
    def slots(self) -> dict[str, Slot]:
        """Checkpoint name -> where it goes."""
        return self._shared.slots

    @property
    def unread(self) -> set[str]:
        """Checkpoint names that may be there and are not needed, as the head of a tied model."""
        return self._shared.unread

    def norm(self, name: str, size: int, *, offset: float = 0.0) -> RMSNorm:
        """An RMS norm; the weight is ``offset`` plus what the checkpoint has."""
        shared = self._shared
        layer = RMSNorm(size, shared.eps, offset, shared.device, shared.dtype)
        self._own([name], layer)
        return layer

    def fused(
        self,
        names: Sequence[str],
        inner: int,
        outs: Sequence[int],
        *,
        bias: bool = False,
        norm: RMSNorm | None = None,
        act: str | None = None,
    ) -> Linear:
        """Linears over the same input as one. ``norm`` goes before it; ``act`` joins its two parts: act(a) * b."""
        assert act is None or (len(outs) == 2 and outs[0] == outs[1])
        method = self._method(names, inner, outs, bias=bias, act=act)
        return Linear(method, norm=norm, act=act, blocks=self._blocks)

    def row(self, name: str, inner: int, out: int, *, bias: bool = False, post: RMSNorm | None = None) -> Linear:
        """A linear that is called with ``add=``: the residual that it adds into, after the norm ``post`` if any."""
        method = self._method([name], inner, [out], bias=bias, adds=post is None)
        return Linear(method, post=post, blocks=self._blocks)

    def rope(self, facts: RopeFacts, dim: int) -> tuple[Tensor, Tensor]:
        """The (cos, sin) table; layers with the same facts share it."""
        shared = self._shared
        for known, size, tables in shared.ropes:
            if known == facts and size == dim:
                return tables
        tables = table(facts, dim, shared.positions, shared.device)
        shared.ropes.append((facts, dim, tables))
        return tables

    def attention(
        self,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        scale: float,
        rope: tuple[Tensor, Tensor] | None = None,
        window: int | None = None,
        softcap: float | None = None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> Attention:
        """An attention layer named by its place."""
        layer = LayerAttention(
            name=self._path,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_dim=head_dim,
            scale=scale,
            window=window,
            softcap=softcap,
            q_norm=None if q_norm is None else q_norm.weight,
            k_norm=None if k_norm is None else k_norm.weight,
            norm_eps=self._shared.eps,
            rope=rope,
        )
        self._shared.attentions.append(layer)
        return Attention(layer)

    def embed(self, name: str, vocab: int, hidden: int, *, scale: float = 1.0) -> Embedding:
        """The token embedding."""
        layer = Embedding(vocab, hidden, scale, self._shared.device, self._shared.dtype)
        self._own([name], layer)
        return layer

    def head(
        self,
        name: str,
        hidden: int,
        vocab: int,
        *,
        norm: RMSNorm,
        tied: Embedding | None = None,
        softcap: float | None = None,
    ) -> Head:
        """The norm and product that make logits; with ``tied`` it uses the embedding's matrix."""
        if tied is None:
            return Head(norm, self._method([name], hidden, [vocab]), softcap, self._blocks)
        shared = self._shared
        shared.unread.add(f"{self.at(name)._path}.weight")
        spec = LinearSpec(name=self.at(name)._path, inner=hidden, outs=(vocab,), fixed=shared.fixed)
        tied.tied.append(shared.scheme.linear(spec, shared.device, shared.dtype))
        return Head(norm, tied.tied[-1], softcap, self._blocks)

    def stack(self, name: str, count: int, make: Callable[["Kit", int], M]) -> list[M]:
        """``count`` layers, each made at its own place."""
        return [make(self.at(name, i), i) for i in range(count)]

    def _method(self, names: Sequence[str], inner: int, outs: Sequence[int], **joints):
        shared = self._shared
        spec = LinearSpec(name=self.at(names[0])._path, inner=inner, outs=tuple(outs), fixed=shared.fixed, **joints)
        method = shared.scheme.linear(spec, shared.device, shared.dtype)
        self._own(names, method)
        return method

    @property
    def _blocks(self) -> bool:
        """Whether rows go in blocks: where a library multiplies them, and not a kernel of our own."""
        return self._shared.fixed and self._shared.device.type == "cpu"

    def _own(self, names: Sequence[str], owner: Owner) -> None:
        for suffix, shapes in owner.shapes().items():
            for part, (name, shape) in enumerate(zip(names, shapes, strict=True)):
                full = f"{self.at(name)._path}.{suffix}"
                assert full not in self._shared.slots, f"two layers are called {full}"
                self._shared.slots[full] = Slot(owner, suffix, part, shape)
