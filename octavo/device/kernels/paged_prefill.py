"""Attention of a piece of one row's prompt over its pages."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octavo.device.kernels.paged_decode import attend_plainly

#: Query rows of one call where a mask is needed.
BLOCK = 256


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Queries start <= i < stop of the piece, and the keys low <= j < high that they look at, with a mask
    [stop - start, high - low] (0 or -inf); None: plainly causal, from the first key on."""

    start: int
    stop: int
    low: int
    high: int
    mask: Tensor | None


class Masks:
    """Makes the masks of blocks. Those without a window are cuts of one triangle, which grows as contexts do."""

    def __init__(self, dtype: torch.dtype, device: torch.device):
        self._triangle = torch.empty(BLOCK, 0, dtype=dtype, device=device)
        self._reach = 0

    def blocks(self, take: int, before: int, window: int | None) -> list[Block]:
        """Of ``take`` queries behind ``before`` keys."""
        if not before and (window is None or take <= window):
            return [Block(0, take, 0, take, None)]
        return [self._block(start, min(start + BLOCK, take), before, window) for start in range(0, take, BLOCK)]

    def causal(self, start: int, stop: int) -> Block:
        """A block of a piece with nothing before it."""
        return self._block(start, stop, 0, None)

    def _block(self, start: int, stop: int, before: int, window: int | None) -> Block:
        first, high = before + start, before + stop
        if window is None or high <= window:
            return Block(start, stop, 0, high, self._causal(stop - start, first))
        low = max(0, first + 1 - window)
        at = torch.arange(first, high, device=self._triangle.device)[:, None]
        key = torch.arange(low, high, device=self._triangle.device)[None]
        hidden = (key > at) | (key <= at - window)
        mask = self._triangle.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        return Block(start, stop, low, high, mask)

    def _causal(self, rows: int, first: int) -> Tensor:
        """[rows, first + rows]: query i looks at the keys up to first + i."""
        if first > self._reach or not self._triangle.shape[1]:
            self._reach = max(1024, 1 << first.bit_length())
            shape = BLOCK, self._reach + BLOCK
            hidden = torch.ones(shape, dtype=torch.bool, device=self._triangle.device).triu_(self._reach + 1)
            self._triangle = self._triangle.new_zeros(shape).masked_fill_(hidden, float("-inf"))
        low = self._reach - first
        return self._triangle[:rows, low : low + first + rows]


def prefill(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: list[Block],
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [t, Hq, D] over keys [Hk, S, D] and values [Hk, S, Dv] that were gathered, the piece's own at the end:
    [t, Hq, Dv]."""
    if blocks[0].mask is None and (softcap is not None or sinks is not None):
        masks = Masks(q.dtype, q.device)
        blocks = [masks.causal(start, min(start + BLOCK, len(q))) for start in range(0, len(q), BLOCK)]
    out = [_block(q, keys, values, block, scale, softcap, sinks) for block in blocks]
    return out[0] if len(out) == 1 else torch.cat(out)


def _block(
    q: Tensor, keys: Tensor, values: Tensor, block: Block, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    heads = q[block.start : block.stop].transpose(0, 1)  # [Hq, t, D]
    k, v = keys[:, block.low : block.high], values[:, block.low : block.high]
    if softcap is None and sinks is None:
        out = scaled_dot_product_attention(
            heads[None],
            k[None],
            v[None],
            attn_mask=block.mask,
            is_causal=block.mask is None,
            scale=scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)
    grouped = heads.unflatten(0, (len(k), -1))  # [Hk, group, t, D]
    rest = None if sinks is None else sinks.view(len(k), -1, 1, 1)
    out = attend_plainly(grouped, k[:, None], v[:, None], block.mask, scale, softcap, rest)
    return out.flatten(0, 1).transpose(0, 1)
