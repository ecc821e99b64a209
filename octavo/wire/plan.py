"""StepPlan: what the core tells the device to do in one step. Columns over rows.

A *row* is an int that the scheduler lends to a request for as long as it runs, as a file descriptor is lent. Device
state lives in rows; every rank agrees on them by construction. Decodes come first, then rows with prompt pieces.
"""

import enum

import numpy as np
from msgspec import Struct, field

from octavo.wire.arrays import NO_INTS, Bools, Ints
from octavo.wire.request import AdapterRef, Sampling

#: Sub-steps of one plan at most: the device keeps results of so many, and windows hold so many tokens more.
REPEAT = 16


class Kind(enum.IntEnum):
    """What a step is made of. The scheduler says it; nobody guesses it from the shapes."""

    NONE = 0  # no rows: frees, notes, commands only
    DECODE = 1  # every row continues from its own last token
    MIXED = 2  # at least one row has a piece of prompt
    DUMMY = 3  # no request: an idle rank keeps its peers company


class NewRow(Struct, array_like=True, gc=False):
    """A request enters a row (also after preemption: finish and add again, with a higher ``epoch``).

    ``prompt`` is the user's prompt length, ``length`` the tokens known now (prompt, and the output so far after a
    preemption). ``tokens`` has those as int32 bytes where ``sampling.needs_history``; otherwise it is empty, since
    prompt pieces travel in the plan and the device keeps the last token itself.
    """

    row: int
    epoch: int
    prompt: int
    length: int
    limit: int
    min_length: int
    stops: tuple[int, ...]
    sampling: Sampling
    tokens: bytes = b""
    adapter: AdapterRef | None = None


class PageDiff(Struct, array_like=True, gc=False):
    """Pages that rows get in this step. Entry i: ``counts[i]`` pages for (``groups[i]``, ``rows[i]``), put at
    ``starts[i]`` of that row's table; the page ids follow one another in ``pages``."""

    groups: Ints = field(default_factory=lambda: NO_INTS)
    rows: Ints = field(default_factory=lambda: NO_INTS)
    starts: Ints = field(default_factory=lambda: NO_INTS)
    counts: Ints = field(default_factory=lambda: NO_INTS)
    pages: Ints = field(default_factory=lambda: NO_INTS)


class StepPlan(Struct, array_like=True, gc=False):
    """One step. B rows take part; T = sum(takes) tokens are computed.

    rows     int32[B]  which rows, decodes first
    epochs   int32[B]  each row's epoch: an answer of another epoch is dropped
    computed int32[B]  tokens of the row already computed
    takes    int32[B]  tokens to compute now
    known    int32[B]  how many of them are in ``chunk`` (pieces of prompt, one after another); the others are the row's
                       last token, which the device holds, and its drafts
    samples  bool[B]   the row reaches its end: its last position gives logits and a token
    drafts   int32[B]  draft tokens to verify: guesses of what comes behind the row's last token, at most
                       ``Limits.drafts`` of them. Such a row takes 1 + drafts tokens and has as many logit rows, each
                       drawn as it would be without drafts; what it says ends with the first draw that is not the draft
    draft_tokens int32[sum(drafts)]  the drafts that the core proposes, one row's behind the other's
    Rows of one token that they hold come first, then rows with drafts, then rows with pieces of prompt. While drafts of
    a row are in flight no other step names it.
    ``repeat``: run the step so many times back to back, at most ``REPEAT`` (only for DECODE); each has its own step
    number and ticket.
    ``awaits``: the youngest step whose tokens the grammar masks need; None if there is no mask to make.
    ``masked`` int32[M]: indexes into ``rows`` that need a mask. ``killed``: rows whose request ended early.
    Order: ``freed`` rows are given back first, so the same plan may lend them again by ``new``; then page diffs.
    ``zero``: pages to clear. ``transfer``: the connector's note.
    """

    step: int
    kind: Kind
    rows: Ints = field(default_factory=lambda: NO_INTS)
    epochs: Ints = field(default_factory=lambda: NO_INTS)
    computed: Ints = field(default_factory=lambda: NO_INTS)
    takes: Ints = field(default_factory=lambda: NO_INTS)
    known: Ints = field(default_factory=lambda: NO_INTS)
    samples: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    drafts: Ints = field(default_factory=lambda: NO_INTS)
    chunk: Ints = field(default_factory=lambda: NO_INTS)
    new: list[NewRow] = field(default_factory=list)
    pages: PageDiff = field(default_factory=PageDiff)
    freed: Ints = field(default_factory=lambda: NO_INTS)
    killed: Ints = field(default_factory=lambda: NO_INTS)
    zero: Ints = field(default_factory=lambda: NO_INTS)
    masked: Ints = field(default_factory=lambda: NO_INTS)
    repeat: int = 1
    awaits: int | None = None
    transfer: bytes | None = None
    draft_tokens: Ints = field(default_factory=lambda: NO_INTS)

    @property
    def tokens(self) -> int:
        """T: the tokens that this step computes."""
        return int(self.takes.sum())


class GrammarMasks(Struct, array_like=True, gc=False):
    """Bit v of a line of ``bits`` says whether a row (``rows``: indexes into ``StepPlan.rows``) may say token v.

    ``bits`` is int32 [logit rows of all of them, ceil(V / 32)], in order: a row with k drafts has 1 + k, each for what
    may come behind the drafts before it.
    """

    rows: Ints
    bits: Ints
