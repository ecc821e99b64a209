"""From the book to a plan: decodes as columns first, then pieces of prompts, then whoever waits."""

import numpy as np

from octavo.common.math import cdiv
from octavo.core.scheduler.book import ROOMY, Book
from octavo.core.scheduler.building import Builder
from octavo.core.scheduler.burst import Pace, repeats
from octavo.core.scheduler.columns import (
    CAPACITY,
    COMPUTED,
    FLAGS,
    GRAMMAR,
    HELD,
    LENGTH,
    LIMIT,
    LOGPROBS,
    PENDING,
    PREFILL,
    VERIFYING,
)
from octavo.core.scheduler.drafts import Drafts, Window
from octavo.core.scheduler.prompts import Prompts
from octavo.core.scheduler.request import Request
from octavo.wire.arrays import NO_INTS, Ints
from octavo.wire.plan import StepPlan

#: A decoding row that needs a page gets pages for so many tokens while the pool is less than ``ROOMY`` full.
AHEAD = 64
#: When one row gets pages, so do those that need some within so many tokens: telling the device of pages costs it the
#: same for one row as for all.
SOON = 16


class Planner:
    """Makes plans out of a book. ``vocab``: width of the logits. ``pace``: how many decode steps may be launched at
    once. ``drafts``: who guesses; None for nobody."""

    def __init__(self, book: Book, vocab: int, pace: Pace, drafts: Drafts | None = None):
        self.book = book
        self.pace = pace
        self.drafts = drafts
        self.prompts = Prompts(book, vocab)
        self.builder = Builder(book)

    def plan(self, now: float, idle: bool = False) -> StepPlan | None:
        """The next plan, or None when there is nothing to tell the device; None changes nothing. ``idle``: only tell
        what was freed, run nobody."""
        book = self.book
        if idle:
            return self.builder.build(book.order[:0], []) if book.freed else None
        before = book.counters.preemptions
        self.prompts.begin()
        decodes = self._decodes()
        left = book.schedule.max_num_batched_tokens - len(decodes)
        pieces, left = self.prompts.pieces(left) if book.prefilling else ([], left)
        if book.counters.preemptions == before:
            if len(book.queue):
                pieces += self.prompts.admit(left, now)
            else:
                book.followers = 0
        else:
            decodes = decodes[book.columns.epoch[decodes] >= 0]
            pieces = [piece for piece in pieces if piece.request.row >= 0]
        if not (len(decodes) or pieces or book.freed):
            assert not (book.new)
            assert not (book.diffs)
            assert not (book.killed)
            return None
        windows: list[Window] = []
        if self.drafts is not None and len(decodes):
            # Drafts are the last: they take what the step has left.
            taken = len(decodes) + sum(piece.take for piece in pieces)
            windows = self.drafts.windows(decodes, book.schedule.max_num_batched_tokens - taken)
        repeat = self._repeat(decodes, now) if len(decodes) and not pieces and not windows else 1
        return self.builder.build(decodes, pieces, windows, repeat)

    def _decodes(self) -> Ints:
        """Rows that continue from their own last token, with pages for it. A row whose last token is surely in flight,
        or whose drafts are, or that is held, is left out."""
        book, c = self.book, self.book.columns
        rows, steady = book.order, book.steady
        if not len(rows):
            return rows
        if steady is not None and steady.plans > 0:
            return self._with_pages(rows, steady.chosen(c.computed >= c.capacity))
        block = c.block[:, rows]
        ready = (block[LENGTH] + block[PENDING] < block[LIMIT]) & (block[PREFILL] == 0)
        if book.verifying or book.held:
            ready &= block[FLAGS] & (VERIFYING | HELD) == 0
        if not ready.all():
            rows, block = rows[ready], block[:, ready]
        short = block[COMPUTED] >= block[CAPACITY]
        return self._with_pages(rows, rows[short] if short.any() else NO_INTS)

    def _with_pages(self, rows: Ints, short: Ints) -> Ints:
        """Those of ``rows`` that have pages for their next token once ``short`` got some."""
        if not len(short):
            return rows
        book, c = self.book, self.book.columns
        before = book.order
        for row in short.tolist():
            if (request := book.at[row]) is not None:
                self._one_more(request)
        if book.order is not before:
            return rows[c.epoch[rows] >= 0]
        if book.kv.pool.usage < ROOMY:
            block = c.block[:, rows]
            soon = (block[CAPACITY] - block[COMPUTED] < SOON) & (block[CAPACITY] < block[LIMIT] - 1)
            for row in rows[soon].tolist():
                request = book.at[row]
                assert request is not None
                if not self._some_more(request):
                    break
        return rows

    def _some_more(self, request: Request) -> bool:
        """Pages for the next ``AHEAD`` tokens of a decoding row; False where they would cost somebody something."""
        book, kv = self.book, self.book.kv
        count = max(1, min(AHEAD // kv.page, cdiv(request.wire.limit, kv.page) - len(request.tables[0])))
        if kv.pool.usage >= ROOMY or kv.pool.free < count * kv.groups:
            return False
        book.grow(request, count)
        return True

    def _one_more(self, request: Request) -> None:
        """Room for the next token of a decoding row, and for some after it where that costs nobody anything."""
        book, kv = self.book, self.book.kv
        computed = int(book.columns.computed[request.row])
        assert kv.missing(request.tables, computed + 1) == kv.groups
        if not self._some_more(request) and book.make_room(request, kv.groups):
            book.grow(request, 1)

    def _repeat(self, rows: Ints, now: float) -> int:
        """How many decode steps the plan for ``rows`` launches back to back."""
        fit = self.pace.fit(now)
        if fit == 1 or not self._alone(rows):
            return 1
        c = self.book.columns
        left = c.limit[rows] - c.length[rows] - c.pending[rows]
        room = c.capacity[rows] - c.computed[rows]
        want = np.minimum(left, fit)
        if (room < want).any():
            short = room < want
            self._reach(rows[short], want[short])
            room = c.capacity[rows] - c.computed[rows]
        return repeats(fit, left, room)

    def _alone(self, rows: Ints) -> bool:
        """Whether nobody waits, and no row needs the host between two of its tokens. Stop ids are the device's
        business: it holds as many as a request may have."""
        book, flags = self.book, self.book.columns.flags[rows]
        if len(book.queue) or book.prefilling or book.verifying or (flags & (GRAMMAR | LOGPROBS)).any():
            return False
        return self.drafts is None or not self.drafts.may(flags).any()

    def _reach(self, rows: Ints, want: Ints) -> None:
        """Pages for so many tokens of each of ``rows``, if they are there for all: they would be taken within as many
        steps anyway. Nobody goes for them, and where the pool is nearly full nobody gets any early."""
        book, kv = self.book, self.book.kv
        missing = []
        for row, end in zip(rows.tolist(), (book.columns.computed[rows] + want).tolist(), strict=True):
            request = book.at[row]
            assert request is not None
            missing.append((request, kv.missing(request.tables, end)))
        if kv.pool.usage < ROOMY and kv.pool.free >= sum(count for _, count in missing):
            for request, count in missing:
                book.grow(request, count // kv.groups)
