"""min-p, top-k and top-p: unlikely tokens get -inf."""

import torch
from torch import Tensor

from octavo.common.math import cdiv, next_power_of_two
from octavo.device.kernels.draw import best_triton
from octavo.device.kernels.launch import AFTER, has_kernels, launch
from octavo.device.kernels.logprobs import log_sum_exp

#: Tokens that are tried for top-p before the whole row is sorted.
SHORT = 1024
#: On a GPU: tokens of a block, and blocks whose tokens are looked at again.
EACH, FEW = 32, 256
#: Tokens of a block whose maximum says whether one of them can be among the largest.
BLOCK = 64


def min_p(logits: Tensor, least: Tensor) -> None:
    """In place: -inf where a token is less than ``least`` [N] times as likely as the best one. 0 is off."""
    if has_kernels(logits):
        min_p_triton(logits, least)
    else:
        min_p_torch(logits, least)


def min_p_triton(logits: Tensor, least: Tensor) -> None:
    _, best = best_triton(logits)
    _cut(logits, (best + least.log()).masked_fill_(least <= 0, float("-inf")))


def _cut(logits: Tensor, lows: Tensor) -> None:
    """-inf for what is under a row's ``lows`` float32[N]."""
    from octavo.device.kernels.triton import sample as kernels

    count, vocab = logits.shape
    if count:
        args = logits, lows, vocab, logits.stride(0)
        launch(kernels.cut, (cdiv(vocab, 4096), count), *args, BLOCK=4096, pdl=AFTER, num_warps=4)


def min_p_torch(logits: Tensor, least: Tensor) -> None:
    floor = logits.amax(-1, keepdim=True) + least.log().unsqueeze(1)
    logits.masked_fill_(logits < floor, float("-inf"))


def top_k_p(logits: Tensor, k: Tensor, p: Tensor) -> None:
    """In place: keep the k [N] most likely tokens (0 is off) and those that tie with the last of them; of what is left
    the fewest most likely ones whose probabilities reach p [N] together (1 is off), again with ties. One always stays.
    """
    if has_kernels(logits):
        top_k_p_triton(logits, k, p)
    else:
        top_k_p_torch(logits, k, p)


def top_k_p_triton(logits: Tensor, k: Tensor, p: Tensor) -> None:
    from octavo.device.kernels.triton import sample as kernels

    count, vocab = logits.shape
    if not count:
        return
    device, stride = logits.device, logits.stride(0)
    blocks, parts = cdiv(vocab, EACH), cdiv(vocab, 4096)
    tops = torch.empty(count, blocks, dtype=torch.float32, device=device)
    sums = torch.empty(count, parts, 2, dtype=torch.float32, device=device)
    found = torch.empty(count, FEW, dtype=torch.int32, device=device)
    counts = torch.zeros(count, dtype=torch.int32, device=device)
    lows = torch.empty(count, dtype=torch.float32, device=device)
    launch(
        kernels.maxima,
        (parts, count),
        logits,
        k,
        p,
        tops,
        sums,
        vocab,
        blocks,
        stride,
        BLOCK=4096,
        EACH=EACH,
        pdl=AFTER,
        num_warps=4,
    )
    launch(
        kernels.threshold,
        (count,),
        logits,
        k,
        p,
        tops,
        sums,
        found,
        counts,
        lows,
        vocab,
        blocks,
        parts,
        stride,
        BP=next_power_of_two(blocks),
        PP=next_power_of_two(parts),
        EACH=EACH,
        SHORT=FEW * 3 // 4,
        CAP=FEW,
        BLOCK=8192,
        pdl=AFTER,
        num_warps=16,
    )
    _cut(logits, lows)


def top_k_p_rows_torch(logits: Tensor, k: Tensor, p: Tensor) -> None:
    """All rows at once, sorted, so that the host needs to know neither k nor p."""
    values = logits.sort(-1, descending=True).values
    last = k.masked_fill(k == 0, logits.shape[1]).clamp(max=logits.shape[1]).long().unsqueeze(1) - 1
    least = values.gather(1, last)
    chances = values.masked_fill_(values < least, float("-inf")).softmax(-1)
    kept = (chances.cumsum(-1).sub_(chances) < p.unsqueeze(1)).sum(-1, keepdim=True).clamp_(min=1)
    nucleus = values.gather(1, kept - 1)
    logits.masked_fill_(logits < torch.where(p.unsqueeze(1) < 1, nucleus, least), float("-inf"))


def top_k_p_torch(logits: Tensor, k: Tensor, p: Tensor) -> None:
    """A row at a time: few tokens of it are looked at twice."""
    for row, count, part in zip(logits, k.tolist(), p.tolist(), strict=True):
        if count == 0 and part >= 1:
            continue
        values, ids = largest(row, count or SHORT)
        if len(values) == 0:  # nothing is left, or the row holds what is not a number; drawing will say so
            continue
        if part < 1:
            total = values.logsumexp(0) if count else log_sum_exp(row.unsqueeze(0))
            kept = _nucleus(values, total, part)
            if kept == len(values) < len(row) and not count and len(values) >= SHORT:
                values, ids = row.sort(descending=True)
                kept = _nucleus(values, total, part)
            keep = values >= values[kept - 1]
            values, ids = values[keep], ids[keep]
        row.fill_(float("-inf"))
        row[ids] = values


def largest(row: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest numbers of float32[V] and all that tie with the last of them, largest first, and their places;
    fewer where fewer are over -inf; nothing where one of them is NaN.

    The k-th largest of the maxima of k blocks or more is at most the k-th largest number, so that only numbers that
    reach it need be sorted. What is left over behind the last whole block is looked at as it is.
    """
    block = BLOCK
    while block > 1 and len(row) // block < 2 * k:
        block //= 2
    blocks, rest = _blocks(row, block)
    tops = blocks.amax(-1)
    best = tops.topk(min(k, len(tops))).values
    if best[0].isnan() or rest.isnan().any():
        return best[:0], tops[:0].long()
    ids = _reaching(blocks, tops, rest, best[-1])
    values, order = row[ids].sort(descending=True)
    if len(values) == 0:
        return values, ids
    keep = values >= values[min(k, len(values)) - 1]
    return values[keep], ids[order][keep]


def left(row: Tensor) -> Tensor:
    """Places of float32[V] that are over -inf, as stages leave them: int64[n]; none where one is NaN."""
    blocks, rest = _blocks(row, min(BLOCK, len(row)))
    tops = blocks.amax(-1)
    if tops.amax().isnan() or rest.isnan().any():
        return tops[:0].long()
    return _reaching(blocks, tops, rest, tops.new_tensor(float("-inf")))


def _blocks(row: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """A row's whole blocks [n, block], and the rest behind them."""
    whole = len(row) - len(row) % block
    return row[:whole].view(-1, block), row[whole:]


def _reaching(blocks: Tensor, tops: Tensor, rest: Tensor, least: Tensor) -> Tensor:
    """Places of a row's numbers that are at least ``least`` and over -inf; tops [n] are the blocks' maxima."""
    least = least.clamp(min=torch.finfo(tops.dtype).min)
    which = (tops >= least).nonzero().squeeze(1)
    block, place = (blocks[which] >= least).nonzero(as_tuple=True)
    places = which[block] * blocks.shape[1] + place
    if not len(rest):
        return places
    return torch.cat([places, (rest >= least).nonzero().squeeze(1) + blocks.numel()])


def _nucleus(values: Tensor, total: Tensor, p: float) -> int:
    """How many of ``values``, largest first, top-p keeps: those before which there is less than p. At least one."""
    chances = (values - total).exp_()
    return max(1, int((chances.cumsum(0).sub_(chances) < p).sum()))
