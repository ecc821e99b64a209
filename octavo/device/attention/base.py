"""What an attention layer is (LayerAttention) and what a backend must do (AttentionBackend).

A backend takes the raw row of the fused linear: q and k norms, rotary embedding, the store into the cache and attention
are one joint, so that a device can make one kernel of it.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.device.batch.batch import InputBatch
from octavo.wire.kv import KVSpec


class GraphUse(enum.IntEnum):
    """In which steps a backend may be captured into a device graph."""

    NEVER = 0
    DECODE = 1
    UNIFORM = 2
    ALWAYS = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerAttention:
    """One attention layer, as data.

    scale      factor of the scores
    window     tokens that a query looks back, itself included; None for all
    softcap    scores become ``softcap * tanh(score / softcap)``; None for not
    sinks      float[Hq]: a logit that takes part in the softmax and has no value; None for none
    q_norm, k_norm   weights [D] of an RMS norm on each head before the rotary embedding; None for none
    rope       (cos, sin), float32 [positions, rotary_dim / 2] each, neox halves; None for none
    shares     name of the layer whose cache this one reads: the qkv row then holds q alone
    """

    name: str
    q_heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    causal: bool = True
    sinks: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    norm_eps: float = 1e-6
    rope: tuple[Tensor, Tensor] | None = None
    shares: str | None = None

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Widths of q, k and v in the packed row; k and v are 0 wide where another layer's cache is read."""
        if self.shares is not None:
            return self.q_heads * self.head_dim, 0, 0
        return self.q_heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.v_dim

    @property
    def out_width(self) -> int:
        return self.q_heads * self.v_dim

    def spec(self, item_bytes: int) -> KVSpec:
        """What this layer keeps for a token, ``item_bytes`` bytes a number."""
        return KVSpec(self.kv_heads, self.head_dim, self.v_dim, item_bytes, self.window)


@dataclass(frozen=True, kw_only=True)
class AttentionNeed:
    """All that decides whether a backend can serve a layer."""

    head_dim: int
    v_dim: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    window: bool = False
    softcap: bool = False
    sinks: bool = False
    causal: bool = True
    lse: bool = False

    @staticmethod
    def of(layer: LayerAttention, kind: torch.dtype, cache_kind: torch.dtype) -> "AttentionNeed":
        return AttentionNeed(
            head_dim=layer.head_dim,
            v_dim=layer.v_dim,
            dtype=kind,
            cache_dtype=cache_kind,
            window=layer.window is not None,
            softcap=layer.softcap is not None,
            sinks=layer.sinks is not None,
            causal=layer.causal,
        )


@dataclass(frozen=True, eq=False)
class KVCache:
    """One layer's keys and values, as a view of a slot's raw bytes: data [pages, ...], the rest of its shape being the
    backend's own affair."""

    data: Tensor
    page: int


class AttentionBackend(Protocol):
    """A way to attend. One instance serves all layers of a device."""

    name: str
    graphs: GraphUse

    def supports(self, need: AttentionNeed) -> str | None:
        """None, or why this backend cannot serve such a layer: a clause for people."""

    def pages(self, spec: KVSpec) -> Sequence[int]:
        """Tokens a page that it can walk, the preferred first."""

    def view(self, spec: KVSpec, raw: Tensor, pages: int, page: int, kind: torch.dtype) -> KVCache:
        """A slot's bytes (uint8, at least ``pages * page * spec.token_bytes`` of them) as one layer's cache.

        Layers of different groups share a slot, so page p must be the same bytes in every view of it: where ``raw`` is
        larger than needed, its ``pages`` equal parts are the pages.
        """

    def plan(self, batch: InputBatch, spec: KVSpec, group: int) -> Any:
        """The step's metadata for layers of ``group``: made once a step and group, of device operations alone."""

    def attend(self, layer: LayerAttention, qkv: Tensor, cache: KVCache, meta: Any) -> Tensor:
        """qkv [T, sum(layer.sizes)], used up by it -> [T, Hq * Dv]. Writes the step's keys and values to the cache."""
