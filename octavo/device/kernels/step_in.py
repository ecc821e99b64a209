"""What a step computes before the model runs: ids, positions, lengths, where logits come from, and cache slots.

Row index -1 is padding: state tensors have one row more than there are requests, which it names.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.common.math import cdiv, next_power_of_two
from octavo.device.kernels.launch import has_kernels, launch

#: Most rows that one program sums over.
ROWS = 4096


@dataclass(frozen=True, eq=False, slots=True)
class StepIn:
    """ids, positions int64[T]; index int64[T]: the step's row (0 .. B - 1) of each token; query_start int64[B + 1];
    seq_lens int64[B]: tokens of each row after the step."""

    ids: Tensor
    positions: Tensor
    index: Tensor
    query_start: Tensor
    seq_lens: Tensor


def step_in(
    rows: Tensor,
    takes: Tensor,
    known: Tensor,
    planned: Tensor,
    chunk: Tensor,
    computed: Tensor,
    last: Tensor,
    tokens: int,
    drafts: Tensor | None = None,
) -> StepIn:
    """Inputs of T = ``tokens`` tokens.

    rows, takes, known, planned int64[B]: of the plan (``planned`` is its ``computed``). chunk int64[C]: pieces of
    prompt. computed, last int64[R + 1]: the device's truth. drafts int64[D] or None: one row's behind the other's.

    A row with a piece of prompt starts where the plan says (nothing of it is in flight); another where the device is.
    Behind its ``known`` tokens a row feeds its last token, then its drafts.
    """
    if has_kernels(rows) and drafts is None and len(rows) <= ROWS:
        return step_in_triton(rows, takes, known, planned, chunk, computed, last, tokens)
    return step_in_torch(rows, takes, known, planned, chunk, computed, last, tokens, drafts)


def step_in_triton(
    rows: Tensor,
    takes: Tensor,
    known: Tensor,
    planned: Tensor,
    chunk: Tensor,
    computed: Tensor,
    last: Tensor,
    tokens: int,
) -> StepIn:
    from octavo.device.kernels.triton import step as kernels

    batch = len(rows)
    single = batch == tokens and not len(chunk)
    space = torch.empty(3 * tokens + 2 * batch + 1, dtype=torch.int64, device=rows.device)
    ids, positions, index, query_start, seq_lens = space.split([tokens, tokens, tokens, batch + 1, batch])
    launch(
        kernels.inputs,
        (cdiv(batch + 1, 128),) if single else (batch,),
        rows,
        takes,
        known,
        planned,
        chunk if len(chunk) else rows,
        computed,
        last,
        ids,
        positions,
        index,
        query_start,
        seq_lens,
        batch,
        BP=next_power_of_two(batch),
        BLOCK=128 if single else 256,
        SINGLE=single,
        num_warps=4,
    )
    return StepIn(ids, positions, index, query_start, seq_lens)


def step_in_torch(
    rows: Tensor,
    takes: Tensor,
    known: Tensor,
    planned: Tensor,
    chunk: Tensor,
    computed: Tensor,
    last: Tensor,
    tokens: int,
    drafts: Tensor | None = None,
) -> StepIn:
    batch = len(rows)
    start = computed[rows]
    if len(chunk):
        start = torch.where(known > 0, planned, start)
    seq_lens = start + takes
    query_start = torch.nn.functional.pad(takes.cumsum(0), (1, 0))
    if batch == tokens and not len(chunk):  # every row continues by one token
        index = torch.arange(batch, device=rows.device)
        return StepIn(last[rows], start, index, query_start, seq_lens)
    index = torch.repeat_interleave(torch.arange(batch, device=rows.device), takes, output_size=tokens)
    offset = torch.arange(tokens, device=rows.device) - query_start[index]
    ids = last[rows[index]]
    if drafts is not None and len(drafts):
        nth = offset - known[index] - 1
        ends = (takes - known - 1).clamp(min=0).cumsum(0)
        at = ends[index] - takes[index] + offset
        ids = torch.where(nth >= 0, drafts[at.clamp(0, len(drafts) - 1)], ids)
    if len(chunk):
        given = offset < known[index]
        at = (known.cumsum(0) - known)[index] + offset
        ids = torch.where(given, chunk[at.clamp(max=len(chunk) - 1)], ids)
    return StepIn(ids, start[index] + offset, index, query_start, seq_lens)


def slots(positions: Tensor, token_rows: Tensor, table: Tensor, page: int, alive: Tensor) -> Tensor:
    """Where each token's key and value go: int64[T], page * page size + offset; 0, the null slot, for dead rows.

    positions int64[T], token_rows int64[T] (persistent rows), table int32[R + 1, P], alive bool[R + 1].
    """
    if has_kernels(positions):
        return slots_triton(positions, token_rows, table, page, alive)
    return slots_torch(positions, token_rows, table, page, alive)


def slots_triton(positions: Tensor, token_rows: Tensor, table: Tensor, page: int, alive: Tensor) -> Tensor:
    from octavo.device.kernels.triton import step as kernels

    out = torch.empty_like(positions)
    tokens = len(positions)
    launch(
        kernels.slots,
        (cdiv(tokens, 256),),
        positions,
        token_rows,
        table,
        alive.view(torch.uint8),
        out,
        tokens,
        table.shape[1],
        table.stride(0),
        PAGE=page,
        BLOCK=256,
        num_warps=4,
    )
    return out


def slots_torch(positions: Tensor, token_rows: Tensor, table: Tensor, page: int, alive: Tensor) -> Tensor:
    bits = page.bit_length() - 1
    held = table[token_rows, (positions >> bits).clamp(max=table.shape[1] - 1)].long()
    return ((held << bits) + (positions & (page - 1))).mul_(alive[token_rows])
