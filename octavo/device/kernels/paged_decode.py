"""Attention of one query a row over pages: the decode step."""

import torch
from torch import Tensor


def paged_decode_torch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    bias: Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """One query a row: [b, Hq, D] -> [b, Hq, Dv].

    keys [Hk, pages, page, D], values [Hk, pages, page, Dv]; pages int[b * n]: n of each row, one row after another;
    bias [b, 1, n * page]: 0 where a row may look, -inf where not. Two batched products over gathered pages:
    torch's own attention is an order of magnitude slower for single bfloat16 queries on a CPU.
    """
    rows, q_heads, _ = q.shape
    kv_heads = keys.shape[0]
    k = keys.index_select(1, pages).view(kv_heads * rows, -1, keys.shape[-1])
    v = values.index_select(1, pages).view(kv_heads * rows, -1, values.shape[-1])
    # [b, Hk, group, D] -> [Hk, b, group, D]
    heads = (q * scale).view(rows, kv_heads, q_heads // kv_heads, -1).transpose(0, 1).flatten(0, 1)
    scores = torch.bmm(heads, k.transpose(1, 2)).float()
    scores = scores.view(kv_heads, rows, -1, k.shape[1])
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    weights = softmax(scores.add_(bias), sinks_of(sinks, kv_heads)).to(v.dtype)
    out = torch.bmm(weights.view(kv_heads * rows, -1, k.shape[1]), v)
    return out.view(kv_heads, rows, q_heads // kv_heads, -1).transpose(0, 1).reshape(rows, q_heads, -1)


def sinks_of(sinks: Tensor | None, kv_heads: int) -> Tensor | None:
    """[Hq] as [Hk, 1, group, 1], to stand beside scores [Hk, rows, group, keys]."""
    return None if sinks is None else sinks.float().view(kv_heads, 1, -1, 1)


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension, where ``sinks`` takes part and is then dropped."""
    if sinks is None:
        return scores.softmax(-1)
    joined = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1)
    return joined.softmax(-1)[..., :-1]
