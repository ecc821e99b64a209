"""Steps with pieces of prompt, of padded sizes, as two graphs each: a body for (tokens, rows, whether rows of one token
may be among them), and a tail for (rows, kind of draw), which all bodies of so many rows share.

What a plan says goes to the device in one block at a fixed address. Rows that the padding adds are the spare row, which
is dead: its tokens write to the null slot, and nothing is drawn for it.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from octavo.common.math import cdiv
from octavo.device.batch.batch import BatchShape, InputBatch
from octavo.device.batch.blocks import BlockTables
from octavo.device.batch.buffers import send
from octavo.device.batch.state import RequestState
from octavo.device.kernels.step_in import slots, step_in
from octavo.device.platforms.base import Platform
from octavo.device.runner.decode import Lazy, Tail, stop_columns
from octavo.device.sampling.sampler import Draw
from octavo.wire.arrays import NO_INTS, ints
from octavo.wire.plan import Kind, StepPlan

#: Tokens of a body. Between two sizes lies an eighth to a quarter of the smaller one.
TOKENS = (16, 32, 48, 64, 80, 96, 128, 160, 192, 224, *range(256, 1024, 128), *range(1024, 4096, 256),
          *range(4096, 16385, 512))  # fmt: skip
ROWS = (4, 8, 16, 32, 64, 128, 192, 256)
#: Columns of a row in the block; the chunk follows them.
COLUMNS = 6


def padded_rows(rows: int) -> int:
    """Rows that a step of so many is padded to, one spare row at least."""
    return next((size for size in ROWS if size > rows), cdiv(rows + 1, 64) * 64)


def padded_tokens(tokens: int) -> int | None:
    """Tokens that a step of so many is padded to; None where it is larger than any."""
    at = bisect_left(TOKENS, tokens)
    return TOKENS[at] if at < len(TOKENS) else None


class Mixed:
    """A number of rows: what its bodies leave for its tails. hidden [R', H] of the rows that draw, seq_lens int64[R']
    of all."""

    def __init__(self, rows: int, device: torch.device):
        self.rows = rows
        self.hidden: Tensor | None = None
        self.seq_lens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.places = torch.arange(rows, dtype=torch.int64, device=device)
        self.bodies: dict[tuple[int, bool], Lazy] = {}
        self.tails: dict[tuple[Draw, int], Lazy] = {}
        self.words: dict[tuple[Draw, int], Tensor | None] = {}


class MixedSteps:
    """All sizes up to ``rows`` rows. ``forward``, ``tail`` and ``capture`` as for ``DecodeSteps``."""

    def __init__(
        self,
        state: RequestState,
        tables: BlockTables,
        platform: Platform,
        forward: Callable[[InputBatch], Tensor],
        tail: Tail,
        rows: int,
        capture: bool,
    ):
        self._state, self._tables = state, tables
        self._forward, self._tail = forward, tail
        self._graphs = platform if capture else None
        self._device = platform.device
        self._sizes: dict[int, Mixed] = {}
        self._block = torch.zeros(COLUMNS * padded_rows(rows) + TOKENS[-1], dtype=torch.int64, device=self._device)

    def takes(self, plan: StepPlan) -> bool:
        """Whether there is a size for ``plan``. Padding must not be longer than a request may be."""
        size = padded_tokens(plan.tokens) if plan.kind == Kind.MIXED else None
        return size is not None and size - plan.tokens < self._state.length

    def body(self, plan: StepPlan) -> Mixed:
        """Run the body of ``plan``."""
        count, tokens = len(plan.rows), plan.tokens
        rows, size = padded_rows(count), padded_tokens(tokens)
        assert size is not None
        step = self._sizes.get(rows)
        if step is None:
            step = self._sizes[rows] = Mixed(rows, self._device)
        block = np.zeros(COLUMNS * rows + size, np.int64)
        columns = block[: COLUMNS * rows].reshape(COLUMNS, rows)
        columns[0] = self._state.rows
        columns[0, :count], columns[1, :count] = plan.rows, plan.takes
        columns[1, count] = size - tokens
        columns[2, :count], columns[3, :count] = plan.known, plan.computed
        sampled = np.flatnonzero(plan.samples)
        columns[4], columns[5] = size - 1, count  # the spare row's last token: nobody draws from it
        columns[4, : len(sampled)] = (np.cumsum(plan.takes) - 1)[sampled]
        columns[5, : len(sampled)] = sampled
        block[COLUMNS * rows : COLUMNS * rows + len(plan.chunk)] = plan.chunk
        send(block, self._block[: len(block)])
        singles = bool((plan.takes == 1).any()) or size - tokens == 1
        return self._run(step, size, singles)

    def spare(self, tokens: int, count: int) -> Mixed:
        """Run the body for up to ``tokens`` tokens of up to ``count`` rows, all of them the spare row's."""
        rows, size = padded_rows(count), padded_tokens(tokens)
        assert size is not None
        step = self._sizes.setdefault(rows, Mixed(rows, self._device))
        block = np.zeros(COLUMNS * rows + size, np.int64)
        columns = block[: COLUMNS * rows].reshape(COLUMNS, rows)
        columns[0], columns[1, 0] = self._state.rows, size
        send(block, self._block[: len(block)])
        return self._run(step, size, True)

    def _run(self, step: Mixed, size: int, singles: bool) -> Mixed:
        body = step.bodies.get((size, singles))
        if body is None:
            name = f"the body of {size} tokens, {step.rows} rows"
            body = step.bodies[size, singles] = Lazy(lambda: self._run_body(step, size, singles), self._graphs, name)
        body()
        return step

    def tail(self, step: Mixed, draw: Draw) -> Tensor | None:
        """Run the tail of the body that ran last: its words."""
        key = draw, stop_columns(self._state)
        tail = step.tails.get(key)
        if tail is None:
            name = f"the {draw.name.lower()} tail of {step.rows} mixed rows"
            tail = step.tails[key] = Lazy(lambda: self._run_tail(step, key), self._graphs, name)
        tail()
        return step.words[key]

    def _columns(self, rows: int) -> tuple[Tensor, ...]:
        return self._block[: COLUMNS * rows].view(COLUMNS, rows).unbind()

    def _run_body(self, step: Mixed, size: int, singles: bool) -> None:
        tables, state, count = self._tables, self._state, step.rows
        rows, takes, known, planned, logits_at, _ = self._columns(count)
        chunk = self._block[COLUMNS * count : COLUMNS * count + size]
        given = step_in(rows, takes, known, planned, chunk, state.computed.tensor, state.last.tensor, size)
        token_rows = rows[given.index]
        # The host's columns say what kinds of rows there may be, nothing of this very step.
        may = np.zeros(count, np.int32)
        may[: 1 if singles else 0] = 1
        batch = InputBatch(
            shape=BatchShape(Kind.MIXED, size, count, 0),
            decodes=int(singles),
            rows=rows,
            ids=given.ids,
            positions=given.positions[None],
            query_start=given.query_start,
            seq_lens=given.seq_lens,
            logits_at=logits_at,
            logit_rows=step.places,
            slots=[slots(given.positions, token_rows, table, tables.page, state.alive.tensor) for table in tables],
            tables=[table[rows] for table in tables],
            page=tables.page,
            host_rows=ints(np.full(count, state.rows)),
            host_starts=NO_INTS,
            host_takes=may,
            host_lens=ints(np.full(count, state.length)),
        )
        hidden = self._forward(batch)[logits_at]
        if step.hidden is None:  # the first body of so many rows, which is never captured
            step.hidden = torch.empty_like(hidden)
        step.hidden.copy_(hidden)
        step.seq_lens.copy_(given.seq_lens)

    def _run_tail(self, step: Mixed, key: tuple[Draw, int]) -> None:
        rows, _, _, _, _, logit_rows = self._columns(step.rows)
        assert step.hidden is not None
        step.words[key] = self._tail(*key, rows, step.seq_lens, logit_rows, step.hidden)
