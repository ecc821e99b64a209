"""Attention of a piece of one row's prompt over its pages."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octavo.device.kernels.paged_decode import sinks_of, softmax

#: Numbers of the score matrix that are held at once where torch's own attention does not serve.
PIECE = 1 << 22


def prefill_torch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    before: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [t, Hq, D] at positions ``before`` .. over keys [Hk, S, D], values [Hk, S, Dv] at positions S - t - before ..:
    [t, Hq, Dv]. S = t + before, less what a window has left behind. Causal."""
    length, seen = q.shape[0], keys.shape[1]
    first = before + length - seen  # the position of keys[:, 0]
    windowed = window is not None and before + length - first > window
    if softcap is None and sinks is None:
        whole = seen == length and not windowed
        mask = None if whole else _mask(before, length, first, seen, window, q.device)
        out = scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=mask,
            is_causal=whole,
            scale=scale,
            enable_gqa=keys.shape[0] != q.shape[1],
        )
        return out[0].transpose(0, 1)
    step = max(1, PIECE // (q.shape[1] * seen))
    pieces = [
        _plain(q[at : at + step], keys, values, before + at, first, scale, window, softcap, sinks)
        for at in range(0, length, step)
    ]
    return torch.cat(pieces)


def _plain(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    before: int,
    first: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    length, q_heads, _ = q.shape
    kv_heads, seen, _ = keys.shape
    heads = (q * scale).view(length, kv_heads, -1, q.shape[-1]).permute(1, 0, 2, 3)  # [Hk, t, group, D]
    scores = torch.bmm(heads.flatten(1, 2), keys.transpose(1, 2)).float().view(kv_heads, length, -1, seen)
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    mask = _mask(before, length, first, seen, window, q.device)
    scores.masked_fill_(~mask[None, :, None], float("-inf"))
    weights = softmax(scores, sinks_of(sinks, kv_heads)).to(values.dtype)
    out = torch.bmm(weights.flatten(1, 2), values)
    return out.view(kv_heads, length, -1, values.shape[-1]).transpose(0, 1).reshape(length, q_heads, -1)


def _mask(before: int, length: int, first: int, seen: int, window: int | None, device: torch.device) -> Tensor:
    """bool[t, S]: which keys each query may look at."""
    at = torch.arange(before, before + length, device=device)[:, None]
    key = torch.arange(first, first + seen, device=device)[None]
    mask = key <= at
    return mask if window is None else mask & (key > at - window)
