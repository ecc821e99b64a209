"""Of what a step does, the plan that says so, and the columns as they are once it is under way."""

from collections.abc import Sequence

import numpy as np

from octavo.core.scheduler.book import Book
from octavo.core.scheduler.columns import GRAMMAR, PLANNED, VERIFYING
from octavo.core.scheduler.drafts import Window
from octavo.core.scheduler.prompts import Piece
from octavo.core.scheduler.steady import Steady
from octavo.wire.arrays import NO_INTS, Ints, ints
from octavo.wire.plan import Kind, PageDiff, StepPlan

#: A diff in which nobody gets pages.
NO_PAGES = PageDiff()


class Builder:
    """Of a book. ``step`` numbers sub-steps, over all plans."""

    def __init__(self, book: Book):
        self.book = book
        self.step = 0
        most = book.schedule.max_num_seqs
        self._ones, self._zeros, self._true = np.ones(most, np.int32), np.zeros(most, np.int32), np.ones(most, np.bool_)
        for column in (self._ones, self._zeros, self._true):
            column.flags.writeable = False

    def build(
        self, decodes: Ints, pieces: Sequence[Piece], windows: Sequence[Window] = (), repeat: int = 1
    ) -> StepPlan:
        """The plan for these rows, pieces and windows of drafts; what was to be told of the book is told by it."""
        book, c = self.book, self.book.columns
        count = len(decodes)
        if count and not pieces and not windows and (steady := self._steady(decodes)) is not None:
            return self._build_steady(steady, repeat)
        drafted = ints([window.row for window in windows]) if windows else NO_INTS
        if windows:
            decodes = np.concatenate([decodes[~np.isin(decodes, drafted)], drafted])
        if pieces:
            rows = np.concatenate([decodes, ints([piece.request.row for piece in pieces])])
            takes = np.ones(len(rows), np.int32)
            takes[count:] = [piece.take for piece in pieces]
            known = takes.copy()
            known[:count] = 0
            computed = c.computed[rows]
            samples = np.ones(len(rows), np.bool_)
            reaches = computed[count:] + takes[count:] == c.length[rows[count:]]
            samples[count:] = reaches & (c.length[rows[count:]] < c.limit[rows[count:]])
            chunk = np.concatenate(
                [
                    c.tokens[row, start : start + take]
                    for row, start, take in zip(
                        rows[count:].tolist(), computed[count:].tolist(), takes[count:].tolist(), strict=True
                    )
                ]
            )
            ended = rows[count:][reaches]
            if len(ended):
                c.prefill[ended] = 0
                book.prefilling = [request for request in book.prefilling if c.prefill[request.row]]
            book.counters.prompt_tokens += int(known.sum())
            kind = Kind.MIXED
        else:
            rows, computed = decodes, c.computed[decodes]
            takes, known, samples, chunk = self._ones[:count], self._zeros[:count], self._true[:count], NO_INTS
            kind = Kind.DECODE if count else Kind.NONE
        drafts, draft_tokens = self._zeros[: len(rows)], NO_INTS
        if windows:
            drafts = drafts.copy()
            drafts[count - len(windows) : count] = [len(window.tokens) for window in windows]
            takes = takes + drafts
            draft_tokens = ints([token for window in windows for token in window.tokens])
        flags = c.flags[rows]
        masked, awaits = NO_INTS, -1
        if flags.any():
            masked = ints(np.flatnonzero(samples & (flags & GRAMMAR > 0)))
            if len(masked):
                awaits = int(c.last[rows[masked]].max())
        plan = StepPlan(
            self.step,
            kind,
            rows,
            c.epoch[rows],
            computed,
            takes,
            known,
            samples,
            drafts,
            chunk,
            [book.new_row(request) for request in book.new if request.row >= 0],
            self._page_diff(),
            ints(book.freed) if book.freed else NO_INTS,
            ints(book.killed) if book.killed else NO_INTS,
            masked=masked,
            repeat=repeat,
            awaits=awaits if awaits >= 0 else None,
            draft_tokens=draft_tokens,
        )
        self.step += repeat
        if pieces:
            c.computed[rows] += np.maximum(known, 1)
            c.pending[rows] += samples
            c.uses[rows] += 1
        elif count:
            self._plan_decodes(rows, repeat)
        if windows:
            c.flags[drafted] |= VERIFYING
            book.steady = None
            book.verifying += len(windows)
        if len(masked):
            c.last[rows[masked]] = self.step - 1
        book.new, book.diffs, book.freed, book.killed = [], [], [], []
        return plan

    def _steady(self, decodes: Ints) -> Steady | None:
        """About ``decodes``, where they are all that run and have no flags."""
        book, c = self.book, self.book.columns
        if decodes is not book.order or book.prefilling:
            return None
        if book.steady is None and not c.flags[decodes].any():
            book.steady = Steady(c, decodes)
        return book.steady

    def _build_steady(self, steady: Steady, repeat: int) -> StepPlan:
        """``build`` for a step in which nothing happens but a token more for every row, or up to ``repeat``."""
        book, c = self.book, self.book.columns
        rows = steady.rows
        plan = StepPlan(
            self.step,
            Kind.DECODE,
            rows,
            steady.epochs,
            c.computed[rows],
            steady.ones,
            steady.zeros,
            steady.true,
            steady.zeros,
            NO_INTS,
            [book.new_row(request) for request in book.new if request.row >= 0] if book.new else [],
            self._page_diff(),
            ints(book.freed) if book.freed else NO_INTS,
            ints(book.killed) if book.killed else NO_INTS,
            repeat=repeat,
        )
        self._plan_decodes(rows, repeat, steady)
        steady.plans -= repeat
        self.step += repeat
        book.new, book.diffs, book.freed, book.killed = [], [], [], []
        return plan

    def _plan_decodes(self, rows: Ints, repeat: int, steady: Steady | None = None) -> None:
        c = self.book.columns
        if repeat > 1:
            more = np.minimum(repeat, c.limit[rows] - c.length[rows] - c.pending[rows])
            c.computed[rows] += more
            c.pending[rows] += more
            c.uses[rows] += repeat
        elif steady is not None:
            c.block[PLANNED] += steady.mask
        else:
            c.block[PLANNED, rows] += 1

    def _page_diff(self) -> PageDiff:
        if not self.book.diffs:
            return NO_PAGES
        # Who was preempted after it was given pages in this very step has no row any more.
        diffs = [diff for diff in self.book.diffs if diff[0].row >= 0]
        if not diffs:
            return NO_PAGES
        return PageDiff(
            ints([group for _, group, _, _ in diffs]),
            ints([request.row for request, _, _, _ in diffs]),
            ints([start for _, _, start, _ in diffs]),
            ints([len(pages) for _, _, _, pages in diffs]),
            ints([page for _, _, _, pages in diffs for page in pages]),
        )
