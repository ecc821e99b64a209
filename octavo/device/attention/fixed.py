"""Attention on a CPU whose bits depend on a query, and on the keys and values that it looks at, alone: not on who is
beside it, nor on whether it is a decode step or a piece of prompt, nor where that piece begins.

Queries stand at their place modulo ``QUERIES`` positions and keys in blocks of ``KEYS``, so that every product has one
shape; what a query does not see adds exact zeros. Scores, weights and sums are float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from octavo.common.math import cdiv
from octavo.device.attention.base import LayerAttention
from octavo.device.batch.batch import InputBatch
from octavo.device.kernels.fixed import pieces
from octavo.wire.kv import KVSpec

#: Query heads of a block, about; and keys of one, a multiple of every size of page.
QUERIES, KEYS = 16, 256


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """Tokens start <= i < start + take of the step, behind ``before`` of their row; its pages from position ``low``
    on, int64[n]."""

    start: int
    take: int
    before: int
    low: int
    pages: Tensor

    @property
    def length(self) -> int:
        return self.before + self.take


def plan(batch: InputBatch, spec: KVSpec, group: int) -> list[Row]:
    table, found = batch.tables[group].numpy(), []
    for i, length in enumerate(batch.host_lens.tolist()):
        start, take = int(batch.host_starts[i]), int(batch.host_takes[i])
        low = 0 if spec.window is None else max(length - take + 1 - spec.window, 0) // KEYS * KEYS
        pages = table[i, low // batch.page : cdiv(length, batch.page)].astype(np.int64)
        found.append(Row(start, take, length - take, low, torch.from_numpy(pages)))
    return found


def attend(layer: LayerAttention, q: Tensor, cache: Tensor, rows: list[Row]) -> Tensor:
    """q [T, Hq, D], turned and normed, over a cache [pages, page, w] that holds all keys: [T, Hq, Dv] in q's type."""
    out = q.new_empty(len(q), layer.q_heads, layer.v_dim)
    for row in rows:
        keys, values = _held(layer, cache, row)
        mine = q[row.start : row.start + row.take].float().unflatten(1, (layer.kv_heads, -1)).transpose(0, 1)
        for first, low, high in _blocks(layer, row):
            begin, end = max(first, row.before), min(first + _queries(layer), row.length)
            block = pad(
                mine[:, begin - row.before : end - row.before],
                (0, 0, 0, 0, begin - first, first + _queries(layer) - end),
            )
            found = _block(layer, block, first, keys[:, low - row.low : high - row.low], values, low, low - row.low)
            part = found[:, begin - first : end - first].transpose(0, 1)
            out[row.start + begin - row.before : row.start + end - row.before] = part.flatten(1, 2).to(q.dtype)
    return out


def _queries(layer: LayerAttention) -> int:
    """Positions of a block."""
    return cdiv(QUERIES, layer.q_heads // layer.kv_heads)


def _blocks(layer: LayerAttention, row: Row) -> Iterator[tuple[int, int, int]]:
    """(first position, first key, end of the keys), the keys being whole blocks that hold all which are seen."""
    size = _queries(layer)
    for first in range(row.before // size * size, row.length, size):
        low = row.low
        if layer.window is not None:
            low = max(low, max(first + 1 - layer.window, 0) // KEYS * KEYS)
        yield first, low, cdiv(min(first + size, row.length), KEYS) * KEYS


def _held(layer: LayerAttention, cache: Tensor, row: Row) -> tuple[Tensor, Tensor]:
    """Keys [Hk, n, D] and values [Hk, n, Dv] from position ``row.low`` on, float32, zeros to a whole block."""
    count = row.length - row.low
    held = pad(cache[row.pages].flatten(0, 1)[:count].float(), (0, 0, 0, -count % KEYS))
    width = layer.kv_heads * layer.head_dim
    keys, values = held[:, :width], held[:, width:]
    return (
        keys.unflatten(1, (layer.kv_heads, -1)).transpose(0, 1).contiguous(),
        values.unflatten(1, (layer.kv_heads, -1)).transpose(0, 1).contiguous(),
    )


def _block(layer: LayerAttention, q: Tensor, first: int, keys: Tensor, values: Tensor, low: int, skip: int) -> Tensor:
    """q [Hk, t, group, D] of positions from ``first`` on, keys [Hk, n, D] from ``low`` on; values stand ``skip`` rows
    further: [Hk, t, group, Dv]."""
    heads, count, group, _ = q.shape
    rows = (q * layer.scale).flatten(1, 2)
    parts = [torch.bmm(rows, part.transpose(1, 2)) for part in keys.split(KEYS, 1)]
    scores = torch.cat(parts, -1).view(heads, count, group, -1)
    if layer.softcap is not None:
        flat = scores.view(heads * count * group, -1)
        for piece in pieces(flat):
            flat[piece] = (flat[piece] / layer.softcap).tanh_().mul_(layer.softcap)
    at = torch.arange(first, first + count)[:, None]
    key = torch.arange(low, low + scores.shape[-1])
    hidden = key > at
    if layer.window is not None:
        hidden |= key <= at - layer.window
    scores.masked_fill_(hidden[:, None], float("-inf"))
    if layer.sinks is not None:
        sinks = layer.sinks.float().view(heads, 1, group, 1).expand(-1, count, -1, 1)
        # behind whole blocks, where a row's sum takes it last
        weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    weights = weights.reshape(heads, count * group, -1)
    out = torch.zeros(heads, count * group, layer.v_dim)
    for at_key in range(0, weights.shape[-1], KEYS):
        part = weights[..., at_key : at_key + KEYS].contiguous()
        out += torch.bmm(part, values[:, skip + at_key : skip + at_key + KEYS])
    return out.view(heads, count, group, -1)
