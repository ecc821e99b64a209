"""Attention of one query a row over pages: the decode step."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [b, Hk, group, D] over keys [b, Hk, S, D] and values [b, Hk, S, Dv] that were gathered: [b, Hk, group, Dv].

    mask [b, 1, 1, S] in q's type: 0 where a row may look, -inf where not; None: everywhere. The query heads of a
    key-value head stand as its query rows, so that each key is read once for all of them.
    """
    if softcap is None and sinks is None:
        return scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)
    return attend_plainly(
        q, keys, values, mask, scale, softcap, None if sinks is None else sinks.view(q.shape[1], -1, 1)
    )


def attend_plainly(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention spelt out, for what torch's own does not know: q [..., t, D], keys [..., S, D], values [..., S, Dv],
    mask as torch's, ``sinks`` [..., t or 1, 1]: a score that takes part in the softmax and has no value."""
    scores = torch.matmul(q * scale, keys.transpose(-1, -2)).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(*scores.shape[:-1], 1)), -1)
    weights = scores.softmax(-1)
    if sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights.to(values.dtype), values)
