"""Commit: the one place where sampling changes a row; ``commit_windows`` where rows have drafts; ``finish``: commit,
and what the host is told, at once."""

import torch
from torch import Tensor

from octavo.common.math import next_power_of_two
from octavo.device.kernels.launch import AFTER, has_kernels, launch
from octavo.device.kernels.words import TAGS

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
    if has_kernels(rows) and len(rows) <= ROWS:
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
    counts = torch.empty_like(tokens)
    state = computed, last, alive, limit, min_len, stops
    _launch(rows, seq_lens, sampled, tokens, good.view(torch.uint8), *state, counts, counts, width=0, slots=0)
    return counts


def finish(
    rows: Tensor,
    seq_lens: Tensor,
    sampled: Tensor | None,
    tokens: Tensor,
    scores: Tensor,
    computed: Tensor,
    last: Tensor,
    alive: Tensor,
    limit: Tensor,
    min_len: Tensor,
    stops: Tensor,
    clock: Tensor,
    ring: Tensor,
) -> None:
    """``commit`` of draws that are sound where their scores float32[N] are finite, and ``words.words`` of them
    straight into their slot of ``ring`` int64[slots, width], pinned host memory that a GPU writes to. ``sampled`` None:
    every row drew, in order. Where Triton's kernels run, up to ``ROWS`` rows; elsewhere it is ``commit_torch``, then
    ``words``."""
    slots, width = ring.shape
    assert len(tokens) <= len(rows)
    assert len(tokens) < width
    assert slots & (slots - 1) == 0
    state = computed, last, alive, limit, min_len, stops
    _launch(rows, seq_lens, sampled, tokens, scores, *state, ring, clock, width=width, slots=slots)


def _launch(
    rows: Tensor,
    seq_lens: Tensor,
    sampled: Tensor | None,
    tokens: Tensor,
    verdicts: Tensor,
    computed: Tensor,
    last: Tensor,
    alive: Tensor,
    limit: Tensor,
    min_len: Tensor,
    stops: Tensor,
    out: Tensor,
    clock: Tensor,
    width: int,
    slots: int,
) -> None:
    from octavo.device.kernels.triton import step as kernels

    launch(
        kernels.commit,
        (1,),
        rows,
        seq_lens,
        rows if sampled is None else sampled,
        tokens,
        verdicts,
        computed,
        last,
        alive.view(torch.uint8),
        limit,
        min_len,
        stops,
        out,
        clock,
        len(rows),
        len(tokens),
        stops.shape[1],
        stops.stride(0),
        slots,
        width,
        BLOCK=max(32, next_power_of_two(len(rows))),
        ALL=sampled is None,
        TELLS=slots > 0,
        TAGS=TAGS,
        pdl=AFTER,
        num_warps=4,
    )


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


def commit_windows(
    rows: Tensor,
    seq_lens: Tensor,
    sampled: Tensor,
    tokens: Tensor,
    good: Tensor,
    drafts: Tensor,
    computed: Tensor,
    last: Tensor,
    alive: Tensor,
    limit: Tensor,
    min_len: Tensor,
    stops: Tensor,
) -> tuple[Tensor, Tensor]:
    """``commit`` for S rows that drew at up to W places: int64[S], how many tokens each said, and bool[S], whether it
    died of a draw that is not sound.

    tokens, drafts int64[S, W], good bool[S, W]. A place counts if all draws before it were sound, ended nothing and
    were their draft (-1: nothing follows). ``seq_lens`` counts all drafts as computed; those that were wrong are taken
    back.
    """
    living = alive[rows]
    computed[rows] = seq_lens.where(living, computed[rows])
    drawn, lens, living = rows[sampled], seq_lens[sampled], living[sampled]
    guessed = (drafts >= 0).sum(1)
    length = (lens - guessed + 1).unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
    stopped = (stops[drawn].unsqueeze(1) == tokens.unsqueeze(2)).any(2) & (length >= min_len[drawn].unsqueeze(1))
    ends = stopped | (length >= limit[drawn].unsqueeze(1))
    before = (good & ~ends & (tokens == drafts))[:, :-1]
    reached = torch.nn.functional.pad(before, (1, 0), value=True).cumprod(1).bool() & living.unsqueeze(1)
    counts = (reached & good).sum(1)
    failed = (reached & ~good).any(1)
    at = (counts - 1).clamp(min=0).unsqueeze(1)
    said = counts > 0
    computed[drawn] = (lens - guessed + counts - 1).where(said, computed[drawn])
    last[drawn] = tokens.gather(1, at).squeeze(1).where(said, last[drawn])
    alive[drawn] = said & ~failed & ~ends.gather(1, at).squeeze(1)
    return counts, failed
