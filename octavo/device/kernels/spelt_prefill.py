"""Causal attention of a piece of prompt as two batched matrix products and a softmax, in blocks whose scores stay in
the cache.

torch's own attention on a CPU multiplies bfloat16 at the speed of float32 unless the processor has AMX; matrix products
through oneDNN do not, so that this is two to three times as fast there (AMD Zen 5, 512 to 2,000 keys). Scores and
weights are rounded to the model's type as Transformers' eager attention does; the softmax itself is float32.

oneDNN compiles a kernel for each shape that it meets, so rows and keys are padded to few of them.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from octavo.common.math import cdiv

#: Scores of one block, over all heads: what lies in the second-level caches of two cores, at two bytes each.
SCORES = 1 << 19
#: Queries from which on it is worth its calls.
LEAST = 64
_ROWS, _MOST_ROWS, _KEYS = 16, 256, 64


def prefill(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """q [t, Hq, D] over keys [Hk, S, D] and values [Hk, S, Dv], the piece's own at the end: [t, Hq, Dv]."""
    take, heads, dim = q.shape
    kv_heads, length = keys.shape[:2]
    group, width = heads // kv_heads, values.shape[2]
    most = _padded(length)
    more = most - length
    turned, values = pad(keys.transpose(1, 2), (0, more)), pad(values, (0, 0, 0, more))
    out = q.new_empty(take, heads, width)
    start, first = 0, length - take
    while start < take:
        rows = _rows(take - start, first, heads)
        seen = min(_padded(first + rows), most)
        mine = (q[start : start + rows] * scale).unflatten(1, (kv_heads, group)).permute(1, 2, 0, 3)
        count = mine.shape[2]
        block = pad(mine, (0, 0, 0, rows - count)) if count < rows else mine
        scores = torch.bmm(block.reshape(kv_heads, group * rows, dim), turned[:, :, :seen])
        scores.view(kv_heads, group, rows, seen)[..., first:].add_(_triangle(rows, seen - first, q.dtype))
        found = torch.bmm(scores.softmax(-1), values[:, :seen]).view(kv_heads, group, rows, width)
        out[start : start + rows].unflatten(1, (kv_heads, group)).copy_(found[:, :, :count].permute(2, 0, 1, 3))
        start, first = start + rows, first + rows
    return out


def _padded(keys: int) -> int:
    return cdiv(keys, _KEYS) * _KEYS


def _rows(left: int, first: int, heads: int) -> int:
    """Rows of a block: a power of two, no more than are needed, whose scores have room."""
    rows = max(_ROWS, min(_MOST_ROWS, 1 << (left - 1).bit_length()))
    while rows > _ROWS and heads * rows * _padded(first + rows) > SCORES:
        rows //= 2
    return rows


@lru_cache(maxsize=256)
def _triangle(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """[rows, columns]: 0 for a key that is not behind its query, else -inf."""
    return torch.full((rows, columns), float("-inf"), dtype=dtype).triu_(1)
