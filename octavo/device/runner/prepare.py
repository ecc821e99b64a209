"""StepPlan and rows to InputBatch."""

import numpy as np

from octavo.device.batch.batch import BatchShape, InputBatch
from octavo.device.batch.blocks import BlockTables
from octavo.device.batch.buffers import Columns
from octavo.device.batch.state import RequestState
from octavo.device.kernels.step_in import slots, step_in
from octavo.wire.plan import Kind, StepPlan


def prepare(plan: StepPlan, state: RequestState, tables: BlockTables, columns: Columns, ahead: int = 0) -> InputBatch:
    """The inputs of sub-step ``ahead`` of a plan with rows. The plan's writes are already applied."""
    takes = plan.takes
    tokens = int(takes.sum())
    starts = np.cumsum(takes, dtype=np.int64)
    sampled = np.flatnonzero(plan.samples)
    rows, d_takes, known, planned, chunk, logit_rows, logits_at = columns.ship(
        plan.rows, takes, plan.known, plan.computed, plan.chunk, sampled, starts[sampled] - 1
    )
    host_lens = (plan.computed + takes + ahead).astype(np.int32)
    given = step_in(rows, d_takes, known, planned, chunk, state.computed.tensor, state.last.tensor, tokens)
    token_rows = rows[given.index]
    alive = state.alive.tensor
    wide = tables.width if rows.is_cuda else min(-(-int(host_lens.max()) // tables.page), tables.width)
    longer = np.flatnonzero(takes != 1)
    decodes = int(longer[0]) if len(longer) else len(takes)
    query = int(takes[0]) if (takes == takes[0]).all() else 0
    return InputBatch(
        shape=BatchShape(Kind(plan.kind), tokens, len(plan.rows), query),
        decodes=decodes,
        rows=rows,
        ids=given.ids,
        positions=given.positions[None],
        query_start=given.query_start,
        seq_lens=given.seq_lens,
        logits_at=logits_at,
        logit_rows=logit_rows,
        slots=[slots(given.positions, token_rows, table, tables.page, alive) for table in tables],
        tables=[table[rows, :wide] for table in tables],
        page=tables.page,
        host_rows=plan.rows,
        host_starts=(starts - takes).astype(np.int32),
        host_takes=takes,
        host_lens=host_lens,
    )
