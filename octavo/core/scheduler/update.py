"""From a step's result to the book: new tokens, stops, pages that are full, and what clients hear."""

import time
from itertools import zip_longest

import numpy as np

from octavo.core.scheduler.book import Book
from octavo.core.scheduler.columns import (
    CLIENT,
    DONE,
    EPOCH,
    EVERY,
    FIRST,
    FLAGS,
    FULL_AT,
    GRAMMAR,
    HANDLE,
    HELD,
    LENGTH,
    LIMIT,
    LOGPROBS,
    MANY_STOPS,
    RETIRED,
    RETIRED_BY,
    RETIRED_UNTOLD,
    STOP,
    TOLD,
)
from octavo.core.scheduler.request import Request
from octavo.core.scheduler.steady import Steady
from octavo.wire.arrays import Bools, Ints, Longs, ints
from octavo.wire.plan import Kind, StepPlan
from octavo.wire.reply import FinishReason, RequestDelta
from octavo.wire.result import LogprobArrays, PromptLogprobs, StepExtras, StepResult


class Updater:
    """Applies results to a book, in the order of the steps."""

    def __init__(self, book: Book):
        self.book = book
        self._ones = np.ones(book.schedule.max_num_seqs, np.int32)

    def update(self, plan: StepPlan, result: StepResult, extras: StepExtras | None) -> None:
        """One retired sub-step of ``plan``. Answers for a request that is gone, or was preempted, are dropped."""
        book, c = self.book, self.book.columns
        rows = plan.rows
        book.counters.steps += 1
        if plan.kind == Kind.DECODE and not (result.fault or result.row_faults or extras):
            steady = book.steady
            if steady is not None and steady.rows is rows and self._steady(steady, result):
                return
            if steady is not None:
                steady.steps = -1
            if self._quick(plan, result):
                return
        elif book.steady is not None:
            book.steady.steps = -1
        c.uses[rows] -= 1
        book.rows.wake()
        if result.fault is not None:
            self._fail(plan, range(len(rows)), f"the step failed: {result.fault}")
            return
        if result.row_faults:
            for index, text in result.row_faults.items():
                self._fail(plan, [index], text)
        alive = c.epoch[rows] == plan.epochs
        if extras is not None and extras.prompt:
            for piece in extras.prompt:
                self._prompt_logprobs(piece)
        self._computed(plan, alive)
        sampled = alive & plan.samples
        got = sampled & (result.counts > 0)
        silent = sampled & ~got & (c.pending[rows] > 0)
        if silent.any():
            self._fail(plan, np.flatnonzero(silent).tolist(), "the device gave no token for this request")
        if extras is not None and extras.logprobs is not None and extras.rows is not None:
            self._logprobs(plan, got, extras.rows, extras.logprobs)
        if got.any():
            if len(plan.draft_tokens):
                verified = got & (plan.drafts > 0)
                if verified.any():
                    self._verified(
                        rows[verified], plan.drafts[verified], result.tokens[verified], result.counts[verified]
                    )
                got &= plan.drafts == 0
            if got.all():
                self._tokens(rows, ints(result.tokens[:, 0]))
            elif got.any():
                self._tokens(rows[got], ints(result.tokens[got, 0]))
        if not plan.samples.all():
            self._scored(rows[alive & ~plan.samples])

    def _steady(self, steady: Steady, result: StepResult) -> bool:
        """The same for a step in which nothing happens but one token more for every row that runs. False: something
        else does, and nothing was changed."""
        book, c, rows = self.book, self.book.columns, steady.rows
        if steady.every < 0 or steady.left(c) < 1 or np.add.reduce(result.counts) != len(rows):
            return False
        tokens = ints(result.tokens[:, 0])
        if len(steady.stops) and (steady.stops == tokens).any():
            return False
        steady.steps -= 1
        c.tokens[rows, c.length[rows]] = tokens
        c.block[steady.span] += steady.retired
        book.counters.generation_tokens += len(rows)
        if steady.every:
            if steady.client >= 0:
                book.replies.tokens_of(steady.client, steady.handles, steady.ones, tokens)
            else:
                book.replies.tokens(c.client[rows], steady.handles, steady.ones, tokens)
        for row in steady.chosen(c.done >= c.full_at).tolist():
            request = book.at[row]
            assert request is not None
            book.publish(request)
        return True

    def _quick(self, plan: StepPlan, result: StepResult) -> bool:
        """The same for a step that is not steady, since rows come and go, but brings one token more for all of its own.
        False: something else happens, and nothing was changed."""
        book, c = self.book, self.book.columns
        rows = plan.rows
        block = c.block[:, rows]
        tokens = ints(result.tokens[:, 0])
        length = block[LENGTH]
        plain = (block[EPOCH] == plan.epochs) & (result.counts == 1) & (block[FLAGS] == 0) & (length + 1 < block[LIMIT])
        if not plain.all() or (block[STOP:] == tokens).any():
            return False
        c.tokens[rows, length] = tokens
        book.counters.generation_tokens += len(rows)
        if ((block[EVERY] == 1) & (block[TOLD] == length)).all():
            c.block[RETIRED, rows] += RETIRED_BY
            book.replies.tokens(block[CLIENT], block[HANDLE], result.counts, tokens)
        else:
            c.block[RETIRED_UNTOLD, rows] += RETIRED_BY[:-1]
            if block[EVERY].any():
                self._tell(rows, length + 1, np.zeros(len(rows), np.bool_))
        self._publish(rows, block[DONE] + 1 >= block[FULL_AT])
        return True

    def _publish(self, rows: Ints, full: Bools) -> None:
        if full.any():
            for row in rows[full].tolist():
                request = self.book.at[row]
                assert request is not None
                self.book.publish(request)

    def _fail(self, plan: StepPlan, indexes, text: str) -> None:
        c, book = self.book.columns, self.book
        for index in indexes:
            row = int(plan.rows[index])
            request = book.at[row]
            if request is not None and c.epoch[row] == plan.epochs[index]:
                book.fail(request, text)

    def _computed(self, plan: StepPlan, alive: Bools) -> None:
        """Positions that are certain now; a page that became full is published, a window moves on."""
        c = self.book.columns
        rows, takes = (plan.rows, plan.takes) if alive.all() else (plan.rows[alive], plan.takes[alive])
        # Within a burst a row that reached its limit computes nothing more.
        done = np.minimum(c.done[rows] + takes, c.computed[rows])
        c.done[rows] = done
        self._publish(rows, done >= c.full_at[rows])

    def _tokens(self, rows: Ints, tokens: Ints) -> None:
        """One more token for each of ``rows``."""
        c = self.book.columns
        length = c.length[rows]
        c.tokens[rows, length] = tokens
        length += 1
        c.length[rows] = length
        self._said(rows, tokens, length, self._ones[: len(rows)])

    def _verified(self, rows: Ints, drafts: Ints, tokens: Longs, counts: Ints) -> None:
        """Drafts of each of ``rows`` have come back: ``counts`` of ``tokens`` [B, K + 1] are said, and the drafts among
        them are computed."""
        book, c = self.book, self.book.columns
        right, length = counts - 1, c.length[rows] + counts
        asked = drafts.tolist()
        for row, stop, count, line, most in zip(
            rows.tolist(), length.tolist(), counts.tolist(), tokens, asked, strict=True
        ):
            c.tokens[row, stop - count : stop] = line[:count]
            book.verified(row)
            request = book.at[row]
            if request is not None and request.trust is not None:
                request.trust.heard(most, count - 1)
        c.length[rows] = length
        c.computed[rows] += right
        c.done[rows] += right
        self._publish(rows, c.done[rows] >= c.full_at[rows])
        counters = book.counters
        counters.drafts += len(rows)
        counters.draft_tokens += int(drafts.sum())
        book.drafted += int(drafts.sum())
        book.accepted += int(right.sum())
        places = np.bincount(right)[::-1].cumsum()[::-1][1:].tolist()
        counters.accepted = [sum(pair) for pair in zip_longest(counters.accepted, places, fillvalue=0)]
        self._said(rows, ints(tokens[np.arange(len(rows)), right]), length, counts)

    def _said(self, rows: Ints, tokens: Ints, length: Ints, counts: Ints) -> None:
        """Rows have ``counts`` more tokens, the last of which are ``tokens``, and that makes ``length``: stops,
        deliveries. Only the last token may end a request."""
        book, c = self.book, self.book.columns
        c.pending[rows] -= 1
        book.counters.generation_tokens += int(counts.sum())
        fresh = c.flags[rows] & FIRST > 0
        if fresh.any():
            self._first(rows[fresh])
        stopped = (c.stops[:, rows] == tokens).any(axis=0)
        many = c.flags[rows] & MANY_STOPS > 0
        if many.any():
            for index in np.flatnonzero(many).tolist():
                request = book.at[rows[index]]
                assert request is not None
                stopped[index] = int(tokens[index]) in request.many_stops
        stopped &= length >= c.min_length[rows]
        ended = stopped | (length >= c.limit[rows])
        self._tell(rows, length, ended)
        if ended.any():
            for index in np.flatnonzero(ended).tolist():
                request = book.at[rows[index]]
                assert request is not None
                self._end(request, int(tokens[index]), bool(stopped[index]))
        ruled = ~ended & (c.flags[rows] & GRAMMAR > 0)
        if ruled.any():
            for index in np.flatnonzero(ruled).tolist():
                request = book.at[rows[index]]
                assert request is not None
                assert request.grammar is not None
                said = c.tokens[rows[index], length[index] - counts[index] : length[index]].tolist()
                if request.grammar.dear or c.flags[rows[index]] & HELD:
                    book.unfollowed(request, said)
                    continue
                for token in said:
                    if not request.grammar.accept(token):
                        book.fail(request, request.grammar.complaint(token))
                        break

    def _first(self, rows: Ints) -> None:
        """Tell when the first tokens of ``rows`` were known; the tokens may be told much later."""
        c, now = self.book.columns, time.monotonic()
        c.flags[rows] &= ~FIRST
        for client, handle in zip(c.client[rows].tolist(), c.handle[rows].tolist(), strict=True):
            self.book.replies.delta(client, RequestDelta(handle, first=now))

    def _end(self, request: Request, token: int, stopped: bool) -> None:
        if not stopped:
            self.book.finish(request, FinishReason.LENGTH)
            return
        wire = request.wire
        self.book.finish(request, FinishReason.STOP, None if token in wire.stops[: wire.eos] else token)

    def _tell(self, rows: Ints, length: Ints, ended: Bools) -> None:
        """Tokens for clients: of rows that end, and of those whose ``every`` has come round."""
        book, c = self.book, self.book.columns
        every = c.every[rows]
        due = ended | ((every > 0) & (length - c.told[rows] >= every))
        if not due.any():
            return
        rows, length = (rows, length) if due.all() else (rows[due], length[due])
        told = c.told[rows]
        counts = length - told
        if counts.max() == 1:
            tokens = c.tokens[rows, told]
        else:
            spans = zip(rows.tolist(), told.tolist(), length.tolist(), strict=True)
            tokens = np.concatenate([c.tokens[row, start:stop] for row, start, stop in spans])
        c.told[rows] = length
        book.replies.tokens(c.client[rows], c.handle[rows], counts, tokens)
        for row in rows[c.flags[rows] & LOGPROBS > 0].tolist():
            request = book.at[row]
            assert request is not None
            if (logprobs := request.take_logprobs()) is not None:
                book.replies.delta(request.wire.client, RequestDelta(request.wire.handle, logprobs=logprobs))

    def _logprobs(self, plan: StepPlan, got: Bools, indexes: Ints, arrays: LogprobArrays) -> None:
        """Hand each row its own line of the step's block."""
        for line, index in enumerate(indexes.tolist()):
            request = self.book.at[plan.rows[index]]
            if got[index] and request is not None:
                part = slice(line, line + 1)
                request.logprobs.append(LogprobArrays(arrays.ids[part], arrays.values[part], arrays.ranks[part]))

    def _prompt_logprobs(self, piece: PromptLogprobs) -> None:
        """A piece of prompt log-probabilities, unless it was heard before a preemption."""
        book = self.book
        request = book.at[piece.row]
        if request is None or request.epoch != piece.epoch:
            return
        # The first entry of all speaks of token 1: nothing comes before token 0.
        skip = request.scored + 1 - piece.start
        if skip < 0:
            book.fail(request, f"the device left out prompt log-probabilities before token {piece.start}")
            return
        arrays = piece.arrays
        count = min(len(arrays.ids), request.prompt - piece.start)
        if skip >= count:
            return
        part = slice(skip, count)
        fresh = LogprobArrays(arrays.ids[part], arrays.values[part], arrays.ranks[part])
        request.scored += count - skip
        book.replies.delta(request.wire.client, RequestDelta(request.wire.handle, prompt_logprobs=[fresh]))

    def _scored(self, rows: Ints) -> None:
        """Requests that asked for no token end with their prompt."""
        c = self.book.columns
        for row in rows[(c.done[rows] == c.length[rows]) & (c.length[rows] >= c.limit[rows])].tolist():
            request = self.book.at[row]
            assert request is not None
            self.book.finish(request, FinishReason.LENGTH)
