"""Attention on a GPU: Triton kernels over pages, for any mix of rows. Nothing here depends on a value of the step, so
that a step may be captured whatever it holds.

KV cache: page p of a layer is [Hk, page, D] keys and then [Hk, page, Dv] values, somewhere in the slot's page p.
"""

import importlib.util
import os
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.common.math import cdiv, next_power_of_two
from octavo.device.attention.base import AttentionNeed, GraphUse, KVCache, LayerAttention
from octavo.device.batch.batch import InputBatch
from octavo.device.kernels import tuned
from octavo.device.kernels.launch import AFTER, FIRST, exact, launch
from octavo.wire.kv import KVSpec

#: Of a multiprocessor.
REGISTERS = 1 << 16
#: (row, key-value head, split) triples of a step whose rows are split, at most.
SPLIT_LIMIT = 1024


class Decode(NamedTuple):
    """How decode runs.

    tile       keys of a tile
    splits     of a row, at most
    merge      who merges them: 1 the last to arrive, 2 a kernel
    early      1: a first tile is in registers before the inputs are there; more: so many keys are on their way to the
               shared cache
    warps, stages
    release    when the next kernel may start (``kernels.launch``), AFTER or FIRST
    programs   that a multiprocessor has registers for, at least; 0: whatever the compiler takes
    """

    tile: int
    splits: int
    merge: int
    early: int
    warps: int
    stages: int
    release: int
    programs: int = 0


def choose(pairs: int, group: int, head_dim: int) -> Decode:
    """For (row, key-value head) pairs, rounded up to a power of two, of ``group`` query heads each."""
    known = tuned.decode(pairs, group, head_dim)
    if known is None or ((how := Decode._make(known)).splits > 1 and pairs * how.splits > SPLIT_LIMIT):
        return rule(pairs)
    return how


def rule(pairs: int) -> Decode:
    """Where nothing was measured. What was, on an H200 with 8 heads of 128 and contexts of 256, 4,096 and 32,768. A
    split gets one tile at least, so that short rows are not split."""
    if pairs <= 8:
        return Decode(64, 16, 2, True, 4, 3, FIRST)
    if pairs <= 32:
        return Decode(64, 8, 1, True, 4, 3, AFTER)
    if pairs <= 128:
        return Decode(256, 4, 1, True, 8, 1, AFTER)
    if pairs <= 256:
        return Decode(64, 2, 1, True, 4, 2, AFTER)
    if pairs <= 512:
        return Decode(64, 1, 1, True, 4, 2, AFTER)
    return Decode(64, 1, 1, False, 4, 3, FIRST)


class Pieces(NamedTuple):
    """Query rows and keys of a tile, loads in flight, warps."""

    rows: int
    tile: int
    stages: int
    warps: int


def choose_pieces(wide: int, item: int) -> Pieces:
    """For heads that are ``wide`` and numbers of ``item`` bytes."""
    if item > 2:
        return Pieces(64 if wide <= 128 else 32, 32, 2, 4)
    return Pieces(128, 64, 3, 8) if wide <= 128 else Pieces(64, 64, 2, 8)  # with 4 warps registers spill


def choose_ready(heads: int) -> tuple[int, int]:
    """Heads of a program, and its warps."""
    return min(8, next_power_of_two(heads)), 1


@dataclass(frozen=True, eq=False, slots=True)
class TritonMeta:
    """``singles`` and ``longer``: whether rows of one token, and of more, may be among the step's; ``uniform``: all
    rows have one."""

    rows: int
    singles: bool
    longer: bool
    positions: Tensor
    starts: Tensor
    lens: Tensor
    slots: Tensor
    table: Tensor

    @property
    def uniform(self) -> bool:
        return not self.longer


class TritonAttention:
    """AttentionBackend for GPUs, by Triton alone."""

    name = "triton"
    graphs = GraphUse.ALWAYS
    fixed = False

    def __init__(self) -> None:
        self._space: dict[tuple[torch.device, int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def supports(self, need: AttentionNeed) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "needs Triton, which is not installed"
        if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
            return "needs a GPU"
        if need.cache_dtype != need.dtype:
            return "keeps keys and values in the model's own type only"
        if need.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"does not compute in {str(need.dtype).removeprefix('torch.')}"
        if max(need.head_dim, need.v_dim) > 256:
            return "has heads of at most 256"
        if need.lse:
            return "gives no log-sum-exp"
        if not need.causal:
            return "attends to what came before only"
        return None

    def pages(self, spec: KVSpec) -> tuple[int, ...]:
        return (64, 32, 16, 128, 256, 8, 4, 2, 1)

    def view(self, spec: KVSpec, raw: Tensor, pages: int, page: int, kind: torch.dtype) -> KVCache:
        width = page * spec.token_bytes // spec.item_bytes
        return KVCache(raw.view(kind).unflatten(0, (pages, -1))[:, :width], page)

    def plan(self, batch: InputBatch, spec: KVSpec, group: int) -> TritonMeta:
        singles = batch.decodes > 0 or bool((batch.host_takes == 1).any())
        return TritonMeta(
            rows=len(batch.rows),
            singles=singles and not self.fixed,  # one kernel for a token, whatever it comes with
            longer=self.fixed or bool((batch.host_takes != 1).any()),
            positions=batch.positions[0],
            starts=batch.query_start,
            lens=batch.seq_lens,
            slots=batch.slots[group],
            table=batch.tables[group],
        )

    def attend(self, layer: LayerAttention, qkv: Tensor, cache: KVCache, meta: TritonMeta) -> Tensor:
        out = qkv.new_empty(len(qkv), layer.out_width)
        if meta.longer:
            self._ready(layer, qkv, cache, meta)
            self._pieces(layer, qkv, cache, meta, out)
        if meta.singles:
            self._decode(layer, qkv, cache, meta, out)
        return out

    def _ready(self, layer: LayerAttention, qkv: Tensor, cache: KVCache, meta: TritonMeta) -> None:
        from octavo.device.kernels.triton import attend as kernels

        own = layer.shares is None
        heads, warps = choose_ready(layer.q_heads + 2 * layer.kv_heads * own)
        groups = cdiv(layer.q_heads + 2 * layer.kv_heads * own, heads)
        rotary, cos, sin = _rope(layer, qkv)
        launch(
            kernels.ready,
            (len(qkv), groups),
            qkv,
            cache.data,
            meta.positions,
            meta.slots,
            cos,
            sin,
            qkv if layer.q_norm is None else layer.q_norm,
            qkv if layer.k_norm is None else layer.k_norm,
            layer.norm_eps,
            qkv.stride(0),
            cache.data.stride(0),
            layer.kv_heads * cache.page * layer.head_dim,
            cos.stride(0),
            **_sizes(layer),
            NK=layer.kv_heads,
            ROTARY=rotary,
            PAGE=cache.page,
            HEADS=heads,
            QN=layer.q_norm is not None,
            KN=layer.k_norm is not None and own,
            OWN=own,
            pdl=AFTER,
            num_warps=warps,
        )

    def _pieces(self, layer: LayerAttention, qkv: Tensor, cache: KVCache, meta: TritonMeta, out: Tensor) -> None:
        from octavo.device.kernels.triton import attend as kernels

        group = layer.q_heads // layer.kv_heads
        wide = max(_padded(layer.head_dim), _padded(layer.v_dim))
        how = choose_pieces(wide, qkv.itemsize)
        rows = max(how.rows, next_power_of_two(group))
        launch(
            kernels.pieces,
            (cdiv(len(qkv), rows // group) + meta.rows, layer.kv_heads),
            qkv,
            cache.data,
            meta.table,
            meta.starts,
            meta.lens,
            qkv if layer.sinks is None else layer.sinks,
            out,
            meta.rows,
            layer.scale,
            layer.softcap or 0.0,
            layer.window or 0,
            qkv.stride(0),
            cache.data.stride(0),
            layer.kv_heads * cache.page * layer.head_dim,
            meta.table.stride(0),
            **_sizes(layer),
            G=group,
            PAGE=cache.page,
            BM=rows,
            TILE=how.tile,
            STAGES=how.stages,
            WINDOW=layer.window is not None,
            SOFTCAP=layer.softcap is not None,
            SINKS=layer.sinks is not None,
            SINGLES=meta.singles,
            EXACT=exact(qkv.dtype),
            # a tile that is seen whole is another loop's, which must round as the one with a mask does
            **({"enable_fp_fusion": False} if self.fixed else {}),
            pdl=AFTER,
            num_warps=how.warps,
        )

    def _decode(self, layer: LayerAttention, qkv: Tensor, cache: KVCache, meta: TritonMeta, out: Tensor) -> None:
        from octavo.device.kernels.triton import decode as kernels

        mixed = meta.longer
        own = layer.shares is None and not mixed
        fresh = not mixed
        group = layer.q_heads // layer.kv_heads
        how = choose(next_power_of_two(meta.rows * layer.kv_heads), group, layer.head_dim)
        wide = max(_padded(layer.head_dim), _padded(layer.v_dim))
        rotary, cos, sin = _rope(layer, qkv) if fresh else (0, qkv, qkv)
        parts, stats, count = self._workspace(qkv.device, max(16, next_power_of_two(group)), wide)
        flags = {
            "TILE": max(min(how.tile, 32768 // wide // (qkv.itemsize // 2)), 16),
            "SPLITS": how.splits,
            "WINDOW": layer.window is not None,
            "OWN": own,
            "MIXED": mixed,
        }
        registers = {}
        if how.programs:
            registers["maxnreg"] = min(255, REGISTERS // (32 * how.warps * how.programs) // 8 * 8)
        launch(
            kernels.decode,
            (layer.kv_heads, meta.rows, how.splits),
            qkv,
            cache.data,
            meta.table,
            meta.starts,
            meta.lens,
            meta.slots,
            cos,
            sin,
            qkv if layer.q_norm is None else layer.q_norm,
            qkv if layer.k_norm is None else layer.k_norm,
            qkv if layer.sinks is None else layer.sinks,
            out,
            parts,
            stats,
            count,
            layer.scale,
            layer.softcap or 0.0,
            layer.window or 0,
            layer.norm_eps,
            qkv.stride(0),
            cache.data.stride(0),
            layer.kv_heads * cache.page * layer.head_dim,
            meta.table.stride(0),
            cos.stride(0),
            **_sizes(layer),
            **flags,
            NK=layer.kv_heads,
            G=group,
            GP=max(16, next_power_of_two(group)),
            ROTARY=rotary,
            PAGE=cache.page,
            MERGE=how.merge,
            # not where this step has pieces of prompt: the pages that it writes to are read, once they are written
            EARLY=how.early == 1 and own,
            AHEAD=how.early if how.early > 1 else 0,
            STAGES=how.stages,
            SOFTCAP=layer.softcap is not None,
            SINKS=layer.sinks is not None,
            QN=fresh and layer.q_norm is not None,
            KN=own and layer.k_norm is not None,
            EXACT=exact(qkv.dtype),
            **registers,
            pdl=how.release,
            num_warps=how.warps,
        )
        if how.merge == 2 and how.splits > 1:
            launch(
                kernels.merge,
                (meta.rows, layer.q_heads),
                parts,
                stats,
                meta.starts,
                meta.lens,
                out,
                layer.window or 0,
                NH=layer.q_heads,
                DV=layer.v_dim,
                DVP=_padded(layer.v_dim),
                **flags,
                pdl=how.release,
                num_warps=4,
            )

    def _workspace(self, device: torch.device, group: int, wide: int) -> tuple[Tensor, Tensor, Tensor]:
        """Partial sums, their maxima and totals, and counters, which every use leaves at 0. Layers follow one another,
        so that one set serves all."""
        key = device, group, wide
        if key not in self._space:
            # outside a capture whose pool would own them: the first step of a kind runs uncaptured
            self._space[key] = (
                torch.empty(SPLIT_LIMIT * group * wide, dtype=torch.float32, device=device),
                torch.empty(SPLIT_LIMIT * group * 2, dtype=torch.float32, device=device),
                torch.zeros(SPLIT_LIMIT, dtype=torch.int32, device=device),
            )
        return self._space[key]


def _padded(dim: int) -> int:
    return max(16, next_power_of_two(dim))


def _sizes(layer: LayerAttention) -> dict[str, int]:
    return {
        "NH": layer.q_heads,
        "D": layer.head_dim,
        "DV": layer.v_dim,
        "DP": _padded(layer.head_dim),
        "DVP": _padded(layer.v_dim),
    }


def _rope(layer: LayerAttention, other: Tensor) -> tuple[int, Tensor, Tensor]:
    """Rotary dimensions, and the tables (some other tensor where there are none)."""
    if layer.rope is None:
        return 0, other, other
    cos, sin = layer.rope
    return 2 * cos.shape[1], cos, sin
