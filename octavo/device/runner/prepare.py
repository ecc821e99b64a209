"""StepPlan and rows to InputBatch."""

import numpy as np

from octavo.device.batch.batch import BatchShape, InputBatch
from octavo.device.batch.blocks import BlockTables
from octavo.device.batch.buffers import Columns
from octavo.device.batch.state import RequestState
from octavo.device.batch.windows import Windows
from octavo.device.kernels.step_in import slots, step_in
from octavo.wire.plan import Kind, StepPlan


def prepare(plan: StepPlan, state: RequestState, tables: BlockTables, columns: Columns, ahead: int = 0) -> InputBatch:
    """The inputs of sub-step ``ahead`` of a plan with rows. The plan's writes are already applied.

    Rows of one token are put in order of their length, the longest first, so that backends can batch like with like;
    ``logits_at`` and ``logit_rows`` are in the plan's order.
    """
    lens = plan.computed + plan.takes + np.int32(ahead)
    longer = np.flatnonzero(plan.takes != 1)
    decodes = int(longer[0]) if len(longer) else len(plan.takes)
    rows, takes, known, computed = plan.rows, plan.takes, plan.known, plan.computed
    sampled = np.flatnonzero(plan.samples)
    if (np.diff(lens[:decodes]) > 0).any() and not known[:decodes].any():
        order = np.arange(len(lens))
        order[:decodes] = np.argsort(-lens[:decodes], kind="stable")
        rows, takes, known, computed, lens = (column[order] for column in (rows, takes, known, computed, lens))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        sampled = place[sampled]
    windows = Windows.of(plan)
    if windows is not None:
        sampled = sampled[windows.owner]
    tokens = int(takes.sum())
    ends = np.cumsum(takes, dtype=np.int32)
    lasts = ends[sampled] - 1 if windows is None else ends[sampled] - 1 - windows.behind
    d_rows, d_takes, d_known, planned, chunk, drafts, logit_rows, logits_at = columns.ship(
        rows, takes, known, computed, plan.chunk, plan.draft_tokens, sampled, lasts
    )
    given = step_in(
        d_rows,
        d_takes,
        d_known,
        planned,
        chunk,
        state.computed.tensor,
        state.last.tensor,
        tokens,
        None if windows is None else drafts,
    )
    token_rows = d_rows[given.index]
    alive = state.alive.tensor
    wide = tables.width if d_rows.is_cuda else min(-(-int(lens.max()) // tables.page), tables.width)
    query = int(takes[0]) if (takes == takes[0]).all() else 0
    return InputBatch(
        shape=BatchShape(Kind(plan.kind), tokens, len(rows), query),
        decodes=decodes,
        rows=d_rows,
        ids=given.ids,
        positions=given.positions[None],
        query_start=given.query_start,
        seq_lens=given.seq_lens,
        logits_at=logits_at,
        logit_rows=logit_rows,
        slots=[slots(given.positions, token_rows, table, tables.page, alive) for table in tables],
        tables=[table[d_rows, :wide] for table in tables],
        page=tables.page,
        host_rows=rows,
        host_starts=ends - takes,
        host_takes=takes,
        host_lens=lens,
        host_logit_rows=sampled,
        windows=windows,
    )
