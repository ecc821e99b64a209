"""InputBatch: the tensors of one step, and the shape letters that the device floor uses.

    R  rows (most live requests)          P  pages that a row may hold
    B  rows that take part in this step   L  longest request, in tokens
    T  tokens of this step                H  hidden size
    N  logit rows of this step            Hq, Hk  query and key-value heads
    K  draft tokens a row                 D  head size
    G  KV groups                          V  width of the logits

Rows of one token come first: rows 0 .. decodes - 1 have tokens 0 .. decodes - 1.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from octavo.device.batch.windows import Windows
from octavo.wire.arrays import NO_INTS, Ints
from octavo.wire.plan import Kind


class BatchShape(NamedTuple):
    """What a captured body is keyed by. ``query``: the tokens of each row where all have the same, else 0."""

    kind: Kind
    tokens: int
    rows: int
    query: int = 1
    adapters: int = 0


@dataclass(slots=True)
class InputBatch:
    """One step. Device tensors hold the truth; the ``host_`` columns are what the plan says, and serve shapes and loops
    on the host.

    rows          int64[B]       persistent rows, those of one token first (the longest of them first of all)
    ids           int64[T]       input tokens
    positions     int64[C, T]    C = 1 for plain positions
    query_start   int64[B + 1]   first token of each row
    seq_lens      int64[B]       tokens of each row after this step
    logits_at     int64[N]       tokens whose hidden state gives logits
    logit_rows    int64[N]       index into the step's B rows of each logit row
    slots         int64[G][T]    where each token's key and value go: page * page size + offset; 0 is the null slot
    tables        int32[G][B, P'] pages of each row; P' covers the longest row of the step
    windows       which logit rows verify drafts; None: none do, and each row that samples has one logit row
    embeds        [T, H] or None, ``is_embed`` bool[T]: which of them replace the embedding of the id
    """

    shape: BatchShape
    decodes: int
    rows: Tensor
    ids: Tensor
    positions: Tensor
    query_start: Tensor
    seq_lens: Tensor
    logits_at: Tensor
    logit_rows: Tensor
    slots: list[Tensor]
    tables: list[Tensor]
    page: int
    host_rows: Ints
    host_starts: Ints
    host_takes: Ints
    host_lens: Ints
    host_logit_rows: np.ndarray = field(default_factory=lambda: NO_INTS)
    windows: Windows | None = None
    embeds: Tensor | None = None
    is_embed: Tensor | None = None

    @property
    def tokens(self) -> int:
        """T."""
        return self.shape.tokens
