"""Attention on a CPU: pages gathered into a buffer that stays in the cache, and torch's own attention over it; for
prompts in bfloat16 without AMX two matrix products (``kernels/spelt_prefill``).

KV cache: [pages, page, Hk * D + Hk * Dv], a token's keys and values side by side as the fused linear gives them, so
that storing is one write a layer and gathering copies whole pages. Rows are gathered a few at a time: at 1,500 tokens
keys and values still lie in L2 when they are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo.common import probe
from octavo.common.math import next_power_of_two
from octavo.device.attention import fixed
from octavo.device.attention.base import AttentionNeed, GraphUse, KVCache, LayerAttention
from octavo.device.batch.batch import InputBatch
from octavo.device.kernels import spelt_prefill
from octavo.device.kernels.fixed import pieces as apart
from octavo.device.kernels.kvstore import store
from octavo.device.kernels.paged_decode import decode
from octavo.device.kernels.paged_prefill import Block, Masks, prefill
from octavo.device.kernels.qk_norm import qk_norm
from octavo.device.kernels.rope import rope_, turns
from octavo.wire.kv import KVSpec

#: Tokens of decode rows that are gathered at once.
GATHER = 1536


@dataclass(frozen=True, eq=False, slots=True)
class Held:
    """What the cache holds of some rows: a copy of their pages, or one row's own where they follow one another.

    pages int64[rows * n]; target [rows * n, page * w], the copy; keys [rows, Hk, length, D] and values
    [rows, Hk, length, Dv] are views of it. ``first``: the first of consecutive pages, else None. The copy is the same
    memory for all layers, so its views are made once a step.
    """

    pages: Tensor
    target: Tensor
    keys: Tensor
    values: Tensor
    first: int | None

    def read(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer."""
        if self.first is None or not cache.is_contiguous():
            torch.index_select(cache.flatten(1), 0, self.pages, out=self.target)
            return self.keys, self.values
        at = cache.storage_offset() + self.first * cache.stride(0)  # laid out as the copy would be
        keys = cache.as_strided(self.keys.shape, self.keys.stride(), at)
        at += self.values.storage_offset() - self.keys.storage_offset()
        return keys, cache.as_strided(self.values.shape, self.values.stride(), at)


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Decode rows start <= i < stop of the step, with a mask where their lengths differ."""

    start: int
    stop: int
    held: Held
    mask: Tensor | None


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """A row with a piece of prompt: tokens start <= i < stop of the step, behind ``before`` tokens that it looks at.

    ``whole``: no window hides any of them.
    """

    start: int
    stop: int
    before: int
    held: Held
    blocks: list[Block]
    whole: bool


@dataclass(frozen=True, eq=False, slots=True)
class CPUMeta:
    """``turned``: rotary tables at the step's positions, by table. ``rows``: instead of chunks and pieces where bits
    must not depend on them."""

    positions: Tensor
    slots: Tensor
    decodes: int
    chunks: list[Chunk]
    pieces: list[Piece]
    turned: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    rows: list[fixed.Row] | None = None


class CPUAttention:
    """AttentionBackend for CPU tensors; also the reference that other backends are held against."""

    name = "cpu"
    graphs = GraphUse.NEVER
    fixed = False

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._masks: Masks | None = None
        self._kind = torch.float32
        #: Whether prompts are attended by matrix products of our own.
        self._spells = False

    def supports(self, need: AttentionNeed) -> str | None:
        if need.cache_dtype != need.dtype:
            return "keeps keys and values in the model's own type only"
        if need.lse:
            return "gives no log-sum-exp"
        if not need.causal:
            return "attends to what came before only"
        return None

    def pages(self, spec: KVSpec) -> tuple[int, ...]:
        return (16, 32, 64, 8, 4, 2, 1, 128, 256)  # small ones first: whole pages are copied

    def view(self, spec: KVSpec, raw: Tensor, pages: int, page: int, kind: torch.dtype) -> KVCache:
        width = spec.token_bytes // spec.item_bytes
        if self._masks is None or kind != self._kind:
            self._masks, self._kind = Masks(kind, raw.device), kind
            self._spells = kind == torch.bfloat16 and "amx_bf16" not in probe.cpu().flags
        held = raw.view(kind).unflatten(0, (pages, -1))[:, : page * width]
        return KVCache(held.unflatten(1, (page, width)), page)

    def plan(self, batch: InputBatch, spec: KVSpec, group: int) -> CPUMeta:
        masks = self._masks
        assert masks is not None, "a plan before any cache"
        if self.fixed:
            plain = fixed.plan(batch, spec, group)
            return CPUMeta(batch.positions[0], batch.slots[group], batch.decodes, [], [], rows=plain)
        table, lens, page = batch.tables[group].numpy(), batch.host_lens, batch.page
        firsts = np.zeros_like(lens)
        if spec.window is not None:  # pages that the window of a row's first query has left
            firsts = np.maximum(lens - batch.host_takes + 1 - spec.window, 0) // page
        counts = -(-lens // page) - firsts
        seen = lens - firsts * page
        room = self._room(max(GATHER // page, int(counts.max())), page, spec)
        chunks = []
        for start, stop in _runs(counts[: batch.decodes], GATHER // page):
            rows = slice(start, stop)
            count, length = int(counts[rows].max()), int(seen[rows].max())
            # padding repeats a row's own last page: other pages may hold what is not a number
            at = firsts[rows, None] + np.minimum(np.arange(count), counts[rows, None] - 1)
            held = _held(np.take_along_axis(table[rows], at, 1), length, room, spec)
            mask = _mask(firsts[rows, None] * page + np.arange(length), lens[rows, None], spec.window)
            chunks.append(Chunk(start, stop, held, None if mask is None else torch.from_numpy(mask).to(self._kind)))
        pieces = []
        for row in range(batch.decodes, len(lens)):
            start, take, length = int(batch.host_starts[row]), int(batch.host_takes[row]), int(seen[row])
            pages = table[row : row + 1, firsts[row] : firsts[row] + counts[row]]
            blocks = masks.blocks(take, length - take, spec.window)
            whole = spec.window is None or length <= spec.window
            pieces.append(Piece(start, start + take, length - take, _held(pages, length, room, spec), blocks, whole))
        return CPUMeta(batch.positions[0], batch.slots[group], batch.decodes, chunks, pieces)

    def _room(self, pages: int, page: int, spec: KVSpec) -> Tensor:
        """Where pages are copied to: [pages, page, w]."""
        size = pages * page * spec.token_bytes
        if size > len(self._buffer):
            self._buffer = torch.empty(next_power_of_two(size), dtype=torch.uint8)
        return self._buffer[:size].view(self._kind).view(pages, page, -1)

    def attend(self, layer: LayerAttention, qkv: Tensor, cache: KVCache, meta: CPUMeta) -> Tensor:
        tokens, stride = len(qkv), qkv.stride(0)
        q_width, k_width, _ = layer.sizes
        dim = layer.head_dim
        heads = qkv.as_strided((tokens, (q_width + k_width) // dim, dim), (stride, dim, 1))
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
            for part in apart(heads) if self.fixed else [slice(None)]:
                rope_(heads[part], *(table[part] for table in turned))
        if k_width:
            store(cache.data, meta.slots, qkv[:, q_width:])
        if meta.rows is not None:
            return fixed.attend(layer, heads[:, : layer.q_heads], cache.data, meta.rows).flatten(1)
        if not meta.pieces:
            return _decode(layer, qkv, cache.data, meta).reshape(tokens, -1)
        out = qkv.new_empty(tokens, layer.q_heads, layer.v_dim)
        if meta.chunks:
            out[: meta.decodes] = _decode(layer, qkv, cache.data, meta).flatten(1, 2)
        for piece in meta.pieces:
            span = slice(piece.start, piece.stop)
            if k_width and not piece.before:  # its own are all
                keys, values = _split(qkv[None, span, q_width:], layer.kv_heads, dim, layer.v_dim)
            else:
                keys, values = piece.held.read(cache.data)
            q = heads[span, : layer.q_heads]
            plain = piece.whole and layer.softcap is None and layer.sinks is None
            if self._spells and plain and piece.stop - piece.start >= spelt_prefill.LEAST:
                out[span] = spelt_prefill.prefill(q, keys[0], values[0], layer.scale)
                continue
            out[span] = prefill(q, keys[0], values[0], piece.blocks, layer.scale, layer.softcap, layer.sinks)
        return out.flatten(1)


def _decode(layer: LayerAttention, qkv: Tensor, cache: Tensor, meta: CPUMeta) -> Tensor:
    """The step's decode rows -> [b, Hk, group, Dv]."""
    heads, dim = layer.kv_heads, layer.head_dim
    group = layer.q_heads // heads
    q = qkv.as_strided((meta.decodes, heads, group, dim), (qkv.stride(0), group * dim, dim, 1))
    out = []
    for chunk in meta.chunks:
        keys, values = chunk.held.read(cache)
        mine = q if len(meta.chunks) == 1 else q[chunk.start : chunk.stop]
        out.append(decode(mine, keys, values, chunk.mask, layer.scale, layer.softcap, layer.sinks))
    return out[0] if len(out) == 1 else torch.cat(out)


def _held(pages: np.ndarray, length: int, room: Tensor, spec: KVSpec) -> Held:
    """Of int[rows, n] pages and the first ``length`` tokens on them."""
    rows, count = pages.shape
    target = room[: rows * count]
    keys, values = _split(target.view(rows, -1, room.shape[2])[:, :length], spec.kv_heads, spec.k_dim, spec.v_dim)
    consecutive = rows == 1 and bool((np.diff(pages[0]) == 1).all())
    return Held(
        torch.from_numpy(pages.astype(np.int64).ravel()),
        target.flatten(1),
        keys,
        values,
        int(pages[0, 0]) if consecutive else None,
    )


def _split(tokens: Tensor, heads: int, dim: int, v_dim: int) -> tuple[Tensor, Tensor]:
    """What tokens keep, [rows, n, w], as keys [rows, Hk, n, D] and values [rows, Hk, n, Dv]."""
    keys = tokens[..., : heads * dim].unflatten(-1, (heads, dim))
    values = tokens[..., heads * dim :].unflatten(-1, (heads, v_dim))
    return keys.transpose(1, 2), values.transpose(1, 2)


def _runs(counts: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Cut rows into runs (start, stop) of ``most`` pages, each padded to the widest of its run; one row at least."""
    start = 0
    while start < len(counts):
        count, stop = 0, len(counts)
        while (widest := int(counts[start:stop].max())) > count:  # windows leave rows with different numbers of pages
            count = widest
            stop = min(stop, start + max(1, most // count))
        yield start, stop
        start = stop


def _mask(keys: np.ndarray, lens: np.ndarray, window: int | None) -> np.ndarray | None:
    """Of positions [rows, length] of keys: float32 [rows, 1, 1, length] that hides those a row of length ``lens``
    [rows, 1] does not look at; None where there are none."""
    hidden = keys >= lens
    if window is not None:
        hidden |= keys < lens - window
    if not hidden.any():
        return None
    return np.where(hidden, np.float32("-inf"), np.float32(0))[:, None, None]
