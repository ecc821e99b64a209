"""Commit: the one place where sampling changes a row."""

from torch import Tensor


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
    return commit_torch(rows, seq_lens, sampled, tokens, good, computed, last, alive, limit, min_len, stops)


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
