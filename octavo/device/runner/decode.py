"""Decode steps of padded sizes, as two graphs each: a body (inputs, slots, attention plan, model) and a tail (head,
draw, commit, the ring's words).

A step's graphs are found by what the scheduler says it is: only a plan of kind DECODE is looked up here, so a piece of
prompt of one token never is. The key is (padded rows, and of tails the kind of draw): rows have one token each. Sizes
are captured on their second use; the first runs as it is, which makes whatever is made on first use.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from octavo.common.log import logger
from octavo.common.math import cdiv, next_power_of_two
from octavo.device.batch.batch import BatchShape, InputBatch
from octavo.device.batch.blocks import BlockTables
from octavo.device.batch.buffers import send
from octavo.device.batch.state import RequestState
from octavo.device.kernels.step_in import slots, step_in
from octavo.device.platforms.base import Platform
from octavo.device.sampling.sampler import Draw
from octavo.wire.arrays import Ints, ints
from octavo.wire.plan import Kind, StepPlan

_log = logger(__name__)

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)


def padded(rows: int) -> int:
    """The size that a step of so many rows runs at."""
    return SIZES[bisect_left(SIZES, rows)] if rows <= SIZES[-1] else cdiv(rows, 128) * 128


def stop_columns(state: RequestState) -> int:
    """Columns of stop ids that a captured tail reads: they may not grow under it."""
    return next_power_of_two(state.widest_stops)


#: Kind of draw, columns of stop ids, rows and their lengths after the step int64[B], which of them draw int64[N] (None:
#: all) and their hidden states [N, H] -> the ring's words, or None where they are in the ring already.
Tail = Callable[[Draw, int, Tensor, Tensor, Tensor | None, Tensor], Tensor | None]


class Lazy:
    """Something that runs: as it is at first, then as the graph that its second run is captured into."""

    def __init__(self, run: Callable[[], None], platform: Platform | None, name: str):
        self._run = run
        self._platform = platform
        self._name = name
        self._calls = 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls == 2 and self._platform is not None:
            _log.debug("capturing %s", self._name)
            self._run = self._platform.capture(self._run)
        self._run()


class Decode:
    """One size. ``batch``, ``hidden`` [size, H] and the ``words`` int64[1 + size] of each tail are what its graphs
    leave behind, good until another graph runs."""

    def __init__(self, size: int):
        self.size = size
        self.batch: InputBatch | None = None
        self.hidden: Tensor | None = None
        self.words: dict[tuple[Draw, int], Tensor | None] = {}
        self.body: Lazy
        self.tails: dict[tuple[Draw, int], Lazy] = {}


class DecodeSteps:
    """All sizes up to ``most`` rows. ``forward``: a batch -> hidden [T, H]. ``capture``: whether there are graphs."""

    def __init__(
        self,
        state: RequestState,
        tables: BlockTables,
        platform: Platform,
        forward: Callable[[InputBatch], Tensor],
        tail: Tail,
        most: int,
        capture: bool,
    ):
        self._state, self._tables = state, tables
        self._forward, self._tail = forward, tail
        self._graphs = platform if capture else None
        self._most = most
        self._sizes: dict[int, Decode] = {}
        self._sent: np.ndarray | None = None
        device, size = platform.device, padded(most)
        self._rows = torch.full((size,), state.rows, dtype=torch.int64, device=device)
        self._ones = torch.ones(size, dtype=torch.int64, device=device)
        self._zeros = torch.zeros(size, dtype=torch.int64, device=device)
        self._places = torch.arange(size, dtype=torch.int64, device=device)
        self._none = torch.empty(0, dtype=torch.int64, device=device)

    def takes(self, plan: StepPlan) -> bool:
        """Whether ``plan`` is a step for here. Its kind is the scheduler's word; nothing is guessed from shapes."""
        return plan.kind == Kind.DECODE and len(plan.rows) <= self._most and bool(plan.samples.all())

    def body(self, rows: Ints) -> Decode:
        """Run the body for ``rows``."""
        size = padded(len(rows))
        step = self._sizes.get(size)
        if step is None:
            step = self._sizes[size] = Decode(size)
            step.body = Lazy(lambda: self._run_body(step), self._graphs, f"the body of {size} rows")
        if rows is not self._sent and (self._sent is None or not np.array_equal(self._sent, rows)):
            filled = np.full(size, self._state.rows, np.int64)
            filled[: len(rows)] = rows
            send(filled, self._rows[:size])
            self._sent = rows  # nobody changes a plan's columns
        step.body()
        return step

    def tail(self, step: Decode, draw: Draw) -> Tensor | None:
        """Run the tail of the body that ran last: its words."""
        key = draw, stop_columns(self._state)
        tail = step.tails.get(key)
        if tail is None:
            name = f"the {draw.name.lower()} tail of {step.size} rows"
            tail = step.tails[key] = Lazy(lambda: self._run_tail(step, key), self._graphs, name)
        tail()
        return step.words[key]

    def _run_body(self, step: Decode) -> None:
        size, tables, state = step.size, self._tables, self._state
        rows = self._rows[:size]
        given = step_in(
            rows,
            self._ones[:size],
            self._zeros[:size],
            self._zeros[:size],
            self._none,
            state.computed.tensor,
            state.last.tensor,
            size,
        )
        alive = state.alive.tensor
        step.batch = InputBatch(
            shape=BatchShape(Kind.DECODE, size, size, 1),
            decodes=size,
            rows=rows,
            ids=given.ids,
            positions=given.positions[None],
            query_start=given.query_start,
            seq_lens=given.seq_lens,
            logits_at=self._places[:size],
            logit_rows=self._places[:size],
            slots=[slots(given.positions, rows, table, tables.page, alive) for table in tables],
            tables=[table[rows] for table in tables],
            page=tables.page,
            host_rows=ints(np.full(size, state.rows)),
            host_starts=ints(np.arange(size)),
            host_takes=ints(np.ones(size)),
            host_lens=ints(np.full(size, state.length)),  # what it may be: a captured step is for any
        )
        step.hidden = self._forward(step.batch)

    def _run_tail(self, step: Decode, key: tuple[Draw, int]) -> None:
        assert step.batch is not None
        assert step.hidden is not None
        batch = step.batch
        step.words[key] = self._tail(*key, batch.rows, batch.seq_lens, None, step.hidden)
