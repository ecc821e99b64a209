"""Commit: the one place where sampling changes a row."""

import torch
from torch import Tensor

from octavo.common.math import next_power_of_two
from octavo.device.kernels.launch import AFTER, launch

#: Most rows that one program commits.
ROWS = 4096


def commit(
    rows: Tensor,
    seq_lens: Tensor,
    sampled: Tensor,
    tokens: Tensor,
    good: Tensor,
    computed: Tensor,
    last: Tensor,
    alive: Tensor,
    limit: Tensor,
    min_len: Tensor,
    stops: Tensor,
) -> Tensor:
    """Take the step's tokens into the rows; counts int64[N]: 1 where a row said its token, else 0.

    rows, seq_lens int64[B]; sampled int64[N]: which of the B rows drew; tokens int64[N]; good bool[N]: the draw is
    sound. State [R + 1]: computed, last int64; alive bool; limit, min_len int32; stops int32[R + 1, S], unused ones -1.

    A dead row changes nothing and says nothing. A row dies of a stop token at or past ``min_len``, of reaching
    ``limit`` tokens, or of a draw that is not sound; its last token is still said, except in the last case.
    """
    given = rows, seq_lens, sampled, tokens, good, computed, last, alive, limit, min_len, stops
    if rows.is_cuda and len(rows) <= ROWS:
        return commit_triton(*given)
    return commit_torch(*given)


def commit_triton(
    rows: Tensor,
    seq_lens: Tensor,
    sampled: Tensor,
    tokens: Tensor,
    good: Tensor,
    computed: Tensor,
    last: Tensor,
    alive: Tensor,
    limit: Tensor,
    min_len: Tensor,
    stops: Tensor,
) -> Tensor:
    from octavo.device.kernels.triton import step as kernels

    counts = torch.empty_like(tokens)
    launch(
        kernels.commit,
        (1,),
        rows,
        seq_lens,
        sampled,
        tokens,
        good.view(torch.uint8),
        computed,
        last,
        alive.view(torch.uint8),
        limit,
        min_len,
        stops,
        counts,
        len(rows),
        len(sampled),
        stops.stride(0),
        STOPS=stops.shape[1],
        BLOCK=max(32, next_power_of_two(len(rows))),
        pdl=AFTER,
        num_warps=4,
    )
    return counts


def commit_torch(
    rows: Tensor,
    seq_lens: Tensor,
    sampled: Tensor,
    tokens: Tensor,
    good: Tensor,
    computed: Tensor,
    last: Tensor,
    alive: Tensor,
    limit: Tensor,
    min_len: Tensor,
    stops: Tensor,
) -> Tensor:
    living = alive[rows]
    computed[rows] = seq_lens.where(living, computed[rows])
    drawn = rows[sampled]
    length = seq_lens[sampled] + 1
    said = living[sampled] & good
    last[drawn] = tokens.where(said, last[drawn])
    stopped = (stops[drawn] == tokens.unsqueeze(1)).any(1) & (length >= min_len[drawn])
    alive[drawn] = said & ~stopped & (length < limit[drawn])
    return said.long()
