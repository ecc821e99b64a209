"""Drawing a token by the Gumbel-max trick, with noise that is a function of (seed, position, token id) alone.

Two 32-bit keys come from splitmix64 over seed and position (Steele, Lea, Flood 2014); a token's noise bits from two
rounds of a 32-bit multiply-xorshift hash (constants of Wellons' triple32 and lowbias32) over its id and the keys.
So the same request draws the same numbers on any device, in any batch, and again after a preemption.
"""

import math

import torch
from torch import Tensor

from octavo.common.math import cdiv, next_power_of_two
from octavo.device.kernels.launch import AFTER, has_kernels, launch

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_ID = 0x9E3779B1 - (1 << 32)
_ROUND_1 = 0x21F0AAAD
_ROUND_2 = 0x735A2D97
#: Makes 31 bits a number below 1: 64 of their values round to 2^31 in float32, and 1 has no exponential.
_UNIT = 2.0**-31 * (1 - 2.0**-24)
#: Tokens of one first-level maximum.
BLOCK = 512
_spread: dict[torch.device, Tensor] = {}


def keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """int32[N, 2] of int64[N] seeds and positions (the position that the drawn token takes)."""
    return keys_triton(seeds, positions) if has_kernels(seeds) else keys_torch(seeds, positions)


def keys_triton(seeds: Tensor, positions: Tensor) -> Tensor:
    from octavo.device.kernels.triton import sample as kernels

    out = torch.empty_like(seeds)
    if len(seeds):
        grid = (cdiv(len(seeds), 128),)
        launch(kernels.keys, grid, seeds, positions, out, len(seeds), BLOCK=128, pdl=AFTER, num_warps=1)
    return out.view(torch.int32).view(-1, 2)


def keys_torch(seeds: Tensor, positions: Tensor) -> Tensor:
    x = seeds + positions * _GOLDEN + _GOLDEN
    x = (x ^ _down(x, 30)) * _MIX_1
    x = (x ^ _down(x, 27)) * _MIX_2
    x = x ^ _down(x, 31)
    return x.view(torch.int32).view(-1, 2)


def _down(x: Tensor, by: int) -> Tensor:
    """A logical shift right of int64."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def exponentials(key: Tensor, ids: Tensor) -> Tensor:
    """float32[n] draws of the unit exponential for int32[n] token ids under ``key`` int32[2], over 0 and finite.

    They stand on 31 bits, finest near 0, where the winners of ``draw`` are.
    """
    return _exponentials(key, ids * _ID)


def _exponentials(key: Tensor, spread: Tensor) -> Tensor:
    first, second = key[..., :1], key[..., 1:]
    x = spread ^ first
    t = torch.empty_like(x)
    _fold(x, t, 16, 0xFFFF).mul_(_ROUND_1)
    _fold(x, t, 15, 0x1FFFF).bitwise_xor_(second).mul_(_ROUND_2)
    _fold(x, t, 15, 0x1FFFF).bitwise_and_(0x7FFFFFFF)
    uniform = x.to(torch.float32).add_(0.5).mul_(-_UNIT)
    return torch.log1p_(uniform).neg_()


def _fold(x: Tensor, scratch: Tensor, by: int, mask: int) -> Tensor:
    """x ^= x >> by, the shift being logical."""
    torch.bitwise_right_shift(x, by, out=scratch)
    return x.bitwise_xor_(scratch.bitwise_and_(mask))


def draw(logits: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """A token of float32 logits [N, V] a row, by keys int32[N, 2]: ids int64[N] and scores float32[N].

    The score is NaN or -inf where no token could be drawn. ``logits`` are kept.
    """
    return draw_torch(logits, key)


def draw_torch(logits: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """A row at a time, so that its temporaries stay in the cache and its arithmetic is the same in every batch."""
    count, vocab = logits.shape
    ids = torch.empty(count, dtype=torch.int64, device=logits.device)
    scores = torch.empty(count, dtype=torch.float32, device=logits.device)
    spread = _spread_of(vocab, logits.device)
    for row in range(count):
        score = logits[row] - _exponentials(key[row], spread).log_()
        ids[row : row + 1], scores[row : row + 1] = pick_torch(score.unsqueeze(0))
    return ids, scores


def _spread_of(vocab: int, device: torch.device) -> Tensor:
    spread = _spread.get(device)
    if spread is None or len(spread) < vocab:
        spread = _spread[device] = torch.arange(vocab, dtype=torch.int32, device=device) * _ID
    return spread[:vocab]


def draw_rows(logits: Tensor, key: Tensor, heat: Tensor, scaled: bool = False) -> tuple[Tensor, Tensor]:
    """A token a row, by what the device knows alone: of float32 logits [N, V] at temperatures ``heat`` float32[N] the
    drawn one, or the most likely one where the temperature is 0. ids int64[N], scores float32[N], as ``draw``.

    ``scaled``: the logits are already divided by the temperature.
    """
    if has_kernels(logits):
        return best_triton(logits, key, heat, scaled)
    return draw_rows_torch(logits, key, heat, scaled)


def draw_seeded(logits: Tensor, rows: Tensor, lens: Tensor, seeds: Tensor, heats: Tensor) -> tuple[Tensor, Tensor]:
    """``draw_rows`` of persistent ``rows`` int64[N] of lengths ``lens`` int64[N], by the seeds int64[R + 1] and
    temperatures float32[R + 1] of all rows."""
    if has_kernels(logits):
        return best_triton(logits, seeds, heats, rows=rows, lens=lens)
    return draw_rows_torch(logits, keys(seeds[rows], lens), heats[rows])


def draw_rows_torch(logits: Tensor, key: Tensor, heat: Tensor, scaled: bool = False) -> tuple[Tensor, Tensor]:
    cold = (heat == 0).unsqueeze(1)
    noise = _exponentials(key, _spread_of(logits.shape[1], logits.device)).log_().masked_fill_(cold, 0.0)
    if not scaled:
        logits = logits / heat.unsqueeze(1).masked_fill(cold, 1.0)
    return pick_torch(torch.sub(logits, noise, out=noise))


def draw_among(logits: Tensor, ids: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """As ``draw`` for one row of which only tokens ``ids`` int64[n] are possible, logits float32[n]: (id, score)."""
    score = logits - exponentials(key, ids.to(torch.int32)).log_()
    best, at = score.max(0)
    return ids[at], best


def pick(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely token of each row: ids int64[N], logits float32[N] (NaN if the row holds one)."""
    return best_triton(logits) if has_kernels(logits) else pick_torch(logits)


def best_triton(
    logits: Tensor,
    key: Tensor | None = None,
    heat: Tensor | None = None,
    scaled: bool = False,
    rows: Tensor | None = None,
    lens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``draw_rows``, ``pick`` without a key, or ``draw_seeded`` with rows: maxima of blocks of each row, then the best
    of them."""
    from octavo.device.kernels.triton import sample as kernels

    count, vocab = logits.shape
    block = 2048
    blocks = cdiv(vocab, block)
    device = logits.device
    best = torch.empty(count, blocks, dtype=torch.float32, device=device)
    which = torch.empty(count, blocks, dtype=torch.int32, device=device)
    ids = torch.empty(count, dtype=torch.int64, device=device)
    scores = torch.empty(count, dtype=torch.float32, device=device)
    if not count:
        return ids, scores
    launch(
        kernels.best_of_blocks,
        (blocks, count),
        logits,
        logits if key is None else key,
        logits if heat is None else heat,
        logits if rows is None else rows,
        logits if lens is None else lens,
        best,
        which,
        vocab,
        logits.stride(0),
        BLOCK=block,
        NOISE=0 if heat is None else 1 if rows is None else 2,
        SCALED=scaled,
        pdl=AFTER,
        num_warps=4,
    )
    launch(
        kernels.best_of_rows,
        (count,),
        best,
        which,
        ids,
        scores,
        blocks,
        BP=next_power_of_two(blocks),
        pdl=AFTER,
        num_warps=1,
    )
    return ids, scores


def pick_torch(logits: Tensor) -> tuple[Tensor, Tensor]:
    """In two levels: torch's maximum is several times as fast as its maximum with an index."""
    count, vocab = logits.shape
    block = math.gcd(vocab, BLOCK)
    if block < 16 or not logits.is_contiguous():
        best, ids = logits.max(-1)
        return ids, best
    blocks = logits.view(count, -1, block)
    best, which = blocks.amax(-1).max(-1)
    inner = blocks[torch.arange(count, device=logits.device), which].max(-1).indices
    return which * block + inner, best
