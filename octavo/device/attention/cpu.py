"""Attention on a CPU: gathered pages and two batched products for decodes, torch's own attention for prompts.

Cache: keys and values apart, [Hk, pages, page, D], so that one ``index_select`` a cache puts the pages of a whole batch
in place. Decode rows are bucketed by length, so that one long row does not pad the others.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo.device.attention.base import AttentionNeed, GraphUse, KVCache, LayerAttention
from octavo.device.batch.batch import InputBatch
from octavo.device.kernels.kvstore import store
from octavo.device.kernels.paged_decode import paged_decode_torch
from octavo.device.kernels.paged_prefill import prefill_torch
from octavo.device.kernels.qk_norm import qk_norm
from octavo.device.kernels.rope import rope, turns
from octavo.wire.kv import KVSpec

#: Two rows share a bucket if the shorter has at least this part of the longer one's pages.
ALIKE = 0.6


@dataclass(eq=False, slots=True)
class Bucket:
    """Decode rows of like length. rows int64[b] or None for all of them in order; pages int64[b * n]; bias as
    ``paged_decode_torch`` wants it."""

    rows: Tensor | None
    pages: Tensor
    bias: Tensor


@dataclass(eq=False, slots=True)
class Piece:
    """A row with a piece of prompt: its tokens, what is computed before them, and its pages from ``first`` on (a
    multiple of the page size; before it lies what the window has left)."""

    start: int
    take: int
    before: int
    first: int
    pages: Tensor


@dataclass(eq=False, slots=True)
class CPUMeta:
    """``turned``: rotary tables at the step's positions, by table."""

    positions: Tensor
    slots: Tensor
    decodes: int
    buckets: list[Bucket]
    pieces: list[Piece]
    turned: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class CPUAttention:
    """AttentionBackend for CPU tensors; also the reference that other backends are held against."""

    name = "cpu"
    graphs = GraphUse.NEVER

    def supports(self, need: AttentionNeed) -> str | None:
        if need.cache_dtype != need.dtype:
            return "keeps keys and values in the model's own type only"
        if need.lse:
            return "gives no log-sum-exp"
        if not need.causal:
            return "attends to what came before only"
        return None

    def pages(self, spec: KVSpec) -> tuple[int, ...]:
        return (64, 32, 16, 8, 4, 2, 1, 128, 256)

    def view(self, spec: KVSpec, raw: Tensor, pages: int, page: int, kind: torch.dtype, alike: bool = True) -> KVCache:
        heads = spec.kv_heads
        flat = raw.view(kind)
        if alike:
            k, v = flat[: pages * page * spec.token_bytes // spec.item_bytes].split(
                [pages * page * heads * spec.k_dim, pages * page * heads * spec.v_dim]
            )
            return KVCache(k.view(heads, pages, page, spec.k_dim), v.view(heads, pages, page, spec.v_dim), page)
        wide = len(flat) // pages
        rows = flat[: pages * wide].view(pages, wide)
        k, v = rows[:, : page * heads * (spec.k_dim + spec.v_dim)].split(
            [page * heads * spec.k_dim, page * heads * spec.v_dim], 1
        )
        return KVCache(
            k.unflatten(1, (heads, page, spec.k_dim)).transpose(0, 1),
            v.unflatten(1, (heads, page, spec.v_dim)).transpose(0, 1),
            page,
        )

    def plan(self, batch: InputBatch, spec: KVSpec, group: int) -> CPUMeta:
        table = batch.tables[group]
        lens = batch.host_lens
        firsts = np.zeros_like(lens)
        if spec.window is not None:  # the first query's window, in whole pages
            firsts = np.maximum(lens - batch.host_takes + 1 - spec.window, 0) // batch.page
        counts = -(-lens // batch.page) - firsts
        pieces = [
            Piece(
                start=int(start),
                take=int(batch.host_takes[row]),
                before=int(lens[row] - batch.host_takes[row]),
                first=int(firsts[row]) * batch.page,
                pages=table[row, firsts[row] : firsts[row] + counts[row]],
            )
            for row, start in enumerate(batch.host_starts)
            if row >= batch.decodes
        ]
        return CPUMeta(
            positions=batch.positions[0],
            slots=batch.slots[group],
            decodes=batch.decodes,
            buckets=_buckets(table, lens[: batch.decodes], firsts, counts[: batch.decodes], batch.page, spec.window),
            pieces=pieces,
        )

    def attend(self, layer: LayerAttention, qkv: Tensor, cache: KVCache, meta: CPUMeta) -> Tensor:
        q, k, v = self._split(layer, qkv, meta)
        if k is not None and v is not None:
            store(cache.k, meta.slots, k)
            store(cache.v, meta.slots, v)
        out = qkv.new_empty(len(qkv), layer.q_heads, layer.v_dim)
        for bucket in meta.buckets:
            mine = q[: meta.decodes] if bucket.rows is None else q[bucket.rows]
            said = paged_decode_torch(
                mine, cache.k, cache.v, bucket.pages, bucket.bias, layer.scale, layer.softcap, layer.sinks
            )
            out[slice(meta.decodes) if bucket.rows is None else bucket.rows] = said
        for piece in meta.pieces:
            span = slice(piece.start, piece.start + piece.take)
            seen = piece.before + piece.take - piece.first
            out[span] = prefill_torch(
                q[span],
                cache.k.index_select(1, piece.pages).flatten(1, 2)[:, :seen],
                cache.v.index_select(1, piece.pages).flatten(1, 2)[:, :seen],
                piece.before,
                layer.scale,
                layer.window,
                layer.softcap,
                layer.sinks,
            )
        return out.flatten(1)

    def _split(self, layer: LayerAttention, qkv: Tensor, meta: CPUMeta) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """q [T, Hq, D], k [T, Hk, D], v [T, Hk, Dv], normed and turned; k and v None where they are another's."""
        q_width, k_width, _ = layer.sizes
        heads = qkv[:, : q_width + k_width].unflatten(1, (-1, layer.head_dim))
        if layer.q_norm is not None:
            q, k = heads[:, : layer.q_heads], heads[:, layer.q_heads :]
            heads = torch.cat(
                (
                    qk_norm(q, layer.q_norm, layer.norm_eps),
                    k if layer.k_norm is None else qk_norm(k, layer.k_norm, layer.norm_eps),
                ),
                1,
            )
        if layer.rope is not None:
            turned = meta.turned.get(id(layer.rope[0]))
            if turned is None:
                turned = meta.turned[id(layer.rope[0])] = turns(*layer.rope, meta.positions)
            heads = rope(heads, *turned)
        if not k_width:
            return heads, None, None
        v = qkv[:, q_width + k_width :].unflatten(1, (-1, layer.v_dim))
        return heads[:, : layer.q_heads], heads[:, layer.q_heads :], v


def _buckets(
    table: Tensor, lens: np.ndarray, firsts: np.ndarray, counts: np.ndarray, page: int, window: int | None
) -> list[Bucket]:
    if not len(lens):
        return []
    order = np.argsort(-counts, kind="stable")
    cuts, longest = [0], counts[order[0]]
    for at, row in enumerate(order):
        if counts[row] < ALIKE * longest:
            cuts.append(at)
            longest = counts[row]
    buckets = []
    for low, high in zip(cuts, [*cuts[1:], len(order)], strict=True):
        rows = np.sort(order[low:high])
        wide = int(counts[rows].max())
        first = firsts[rows][:, None]
        at = first + np.minimum(np.arange(wide), counts[rows][:, None] - 1)  # padding repeats a row's own page
        position = first * page + np.arange(wide * page)
        length = lens[rows][:, None]
        seen = position < length
        if window is not None:
            seen &= position >= length - window
        bias = np.where(seen, np.float32(0), np.float32("-inf"))
        picked = torch.from_numpy(rows)
        buckets.append(
            Bucket(
                rows=None if len(cuts) == 1 else picked,
                pages=table[picked[:, None], torch.from_numpy(at)].flatten().long(),
                bias=torch.from_numpy(bias)[:, None],
            )
        )
    return buckets
