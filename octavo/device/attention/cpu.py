"""Attention on a CPU: pages gathered into a buffer that stays in the cache, and torch's own attention over it.

KV cache: [pages, page, Hk * D + Hk * Dv], a token's keys and values side by side as the fused linear gives them, so
that storing is one write a layer and gathering copies whole pages. Rows are gathered a few at a time: at 1,500 tokens
keys and values still lie in L2 when they are read.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo.common.math import next_power_of_two
from octavo.device.attention.base import AttentionNeed, GraphUse, KVCache, LayerAttention
from octavo.device.batch.batch import InputBatch
from octavo.device.kernels.kvstore import store
from octavo.device.kernels.paged_decode import decode
from octavo.device.kernels.paged_prefill import Block, Masks, prefill
from octavo.device.kernels.qk_norm import qk_norm
from octavo.device.kernels.rope import rope_, turns
from octavo.wire.kv import KVSpec

#: Tokens of decode rows that are gathered at once.
GATHER = 1536


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Decode rows start <= i < stop of the step, at most ``length`` keys each from a row's first page on.

    pages int64[rows * n], n for each row; ``first``: where those of a single row begin, if they follow one another.
    """

    start: int
    stop: int
    count: int
    length: int
    pages: Tensor
    first: int | None
    mask: Tensor | None


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """A row with a piece of prompt: tokens start <= i < stop of the step, ``length`` keys with its own at the end."""

    start: int
    stop: int
    length: int
    pages: Tensor
    blocks: list[Block]


@dataclass(frozen=True, eq=False, slots=True)
class CPUMeta:
    """``turned``: rotary tables at the step's positions, by table."""

    positions: Tensor
    slots: Tensor
    decodes: int
    chunks: list[Chunk]
    pieces: list[Piece]
    buffer: Tensor
    turned: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class CPUAttention:
    """AttentionBackend for CPU tensors; also the reference that other backends are held against."""

    name = "cpu"
    graphs = GraphUse.NEVER

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._masks: Masks | None = None
        self._kind = torch.float32

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

    def view(self, spec: KVSpec, raw: Tensor, pages: int, page: int, kind: torch.dtype) -> KVCache:
        width = spec.token_bytes // spec.item_bytes
        if self._masks is None or kind != self._kind:
            self._masks, self._kind = Masks(kind, raw.device), kind
        held = raw.view(kind).unflatten(0, (pages, -1))[:, : page * width]
        return KVCache(held.unflatten(1, (page, width)), page)

    def plan(self, batch: InputBatch, spec: KVSpec, group: int) -> CPUMeta:
        kind, masks = self._kind, self._masks
        assert masks is not None, "a plan before any cache"
        table, lens = batch.tables[group], batch.host_lens
        firsts = np.zeros_like(lens)
        if spec.window is not None:  # pages that the window of a row's first query has left
            firsts = np.maximum(lens - batch.host_takes + 1 - spec.window, 0) // batch.page
        counts = -(-lens // batch.page) - firsts
        seen = lens - firsts * batch.page
        chunks = _chunks(table, lens, firsts, counts, seen, batch, spec.window, kind)
        pieces = [
            Piece(
                start=int(batch.host_starts[row]),
                stop=int(batch.host_starts[row] + batch.host_takes[row]),
                length=int(seen[row]),
                pages=table[row, firsts[row] : firsts[row] + counts[row]],
                blocks=masks.blocks(int(batch.host_takes[row]), int(seen[row] - batch.host_takes[row]), spec.window),
            )
            for row in range(batch.decodes, len(lens))
        ]
        most = max([(chunk.stop - chunk.start) * chunk.count for chunk in chunks] + [len(p.pages) for p in pieces])
        size = most * batch.page * spec.token_bytes
        if size > len(self._buffer):
            self._buffer = torch.empty(next_power_of_two(size), dtype=torch.uint8)
        buffer = self._buffer[:size].view(kind).view(most, -1)
        return CPUMeta(batch.positions[0], batch.slots[group], batch.decodes, chunks, pieces, buffer)

    def attend(self, layer: LayerAttention, qkv: Tensor, cache: KVCache, meta: CPUMeta) -> Tensor:
        q_width, k_width, _ = layer.sizes
        heads = qkv[:, : q_width + k_width].unflatten(1, (-1, layer.head_dim))
        if layer.q_norm is not None:
            mine = heads[:, : layer.q_heads]
            mine.copy_(qk_norm(mine, layer.q_norm, layer.norm_eps))
        if layer.k_norm is not None and k_width:
            mine = heads[:, layer.q_heads :]
            mine.copy_(qk_norm(mine, layer.k_norm, layer.norm_eps))
        if layer.rope is not None:
            turned = meta.turned.get(id(layer.rope[0]))
            if turned is None:
                turned = meta.turned[id(layer.rope[0])] = turns(*layer.rope, meta.positions, qkv.dtype)
            rope_(heads, *turned)
        if k_width:
            store(cache.data, meta.slots, qkv[:, q_width:])
        q = heads[:, : layer.q_heads]
        if not meta.pieces:
            return _decode(layer, q, cache.data, meta).reshape(len(qkv), -1)
        out = qkv.new_empty(len(qkv), layer.q_heads, layer.v_dim)
        if meta.chunks:
            out[: meta.decodes] = _decode(layer, q[: meta.decodes], cache.data, meta).flatten(1, 2)
        flat = cache.data.flatten(1)
        for piece in meta.pieces:
            span = slice(piece.start, piece.stop)
            if k_width and piece.length == piece.stop - piece.start:  # nothing before it: its own are all
                tokens = qkv[None, span, q_width:]
            else:
                gathered = torch.index_select(flat, 0, piece.pages, out=meta.buffer[: len(piece.pages)])
                tokens = gathered.view(1, -1, cache.data.shape[2])
            keys, values = _heads(layer, tokens, piece.length)
            out[span] = prefill(q[span], keys[0], values[0], piece.blocks, layer.scale, layer.softcap, layer.sinks)
        return out.flatten(1)


def _decode(layer: LayerAttention, q: Tensor, cache: Tensor, meta: CPUMeta) -> Tensor:
    """q [b, Hq, D] of the step's decode rows -> [b, Hk, group, Dv]."""
    q = q.unflatten(1, (layer.kv_heads, -1))
    flat = cache.flatten(1)
    out = []
    for chunk in meta.chunks:
        rows = chunk.stop - chunk.start
        if chunk.first is not None and flat.is_contiguous():
            gathered = flat[chunk.first : chunk.first + chunk.count]
        else:
            gathered = torch.index_select(flat, 0, chunk.pages, out=meta.buffer[: rows * chunk.count])
        keys, values = _heads(layer, gathered.view(rows, -1, cache.shape[2]), chunk.length)
        mine = q[chunk.start : chunk.stop]
        out.append(decode(mine, keys, values, chunk.mask, layer.scale, layer.softcap, layer.sinks))
    return out[0] if len(out) == 1 else torch.cat(out)


def _heads(layer: LayerAttention, tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """What tokens keep, [rows, n, w], as keys [rows, Hk, length, D] and values [rows, Hk, length, Dv]."""
    heads, dim, v_dim = layer.kv_heads, layer.head_dim, layer.v_dim
    tokens = tokens[:, :length]
    keys = tokens[..., : heads * dim].unflatten(-1, (heads, dim))
    values = tokens[..., heads * dim :].unflatten(-1, (heads, v_dim))
    return keys.transpose(1, 2), values.transpose(1, 2)


def _chunks(
    table: Tensor,
    lens: np.ndarray,
    firsts: np.ndarray,
    counts: np.ndarray,
    seen: np.ndarray,
    batch: InputBatch,
    window: int | None,
    kind: torch.dtype,
) -> list[Chunk]:
    """Decode rows in runs whose gathered keys are at most ``GATHER`` tokens."""
    page, chunks, start = batch.page, [], 0
    host = table.numpy()
    while start < batch.decodes:
        count = int(counts[start])
        stop = min(batch.decodes, start + max(1, GATHER // (count * page)))
        while counts[start:stop].max() > count:  # windows leave different numbers of pages
            count = int(counts[start:stop].max())
            stop = min(stop, start + max(1, GATHER // (count * page)))
        rows = np.arange(start, stop)
        # padding repeats a row's own last page: other pages may hold what is not a number
        at = firsts[rows][:, None] + np.minimum(np.arange(count), counts[rows][:, None] - 1)
        pages = host[rows[:, None], at].astype(np.int64).ravel()
        length = int(seen[rows].max())
        key = firsts[rows][:, None] * page + np.arange(length)
        hidden = key >= lens[rows][:, None]
        if window is not None:
            hidden |= key < lens[rows][:, None] - window
        mask = None
        if hidden.any():
            mask = torch.from_numpy(np.where(hidden, np.float32("-inf"), np.float32(0))).to(kind)[:, None, None]
        consecutive = len(rows) == 1 and bool((np.diff(pages) == 1).all())
        chunks.append(
            Chunk(
                start=start,
                stop=stop,
                count=count,
                length=length,
                pages=torch.from_numpy(pages),
                first=int(pages[0]) if consecutive else None,
                mask=mask,
            )
        )
        start = stop
    return chunks
