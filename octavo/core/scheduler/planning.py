"""From the book to a plan: decodes as columns first, then pieces of prompts, then whoever waits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.common.math import cdiv
from octavo.core.scheduler.book import ROOMY, Book
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
    PLANNED,
    PREFILL,
    VERIFYING,
)
from octavo.core.scheduler.drafts import Drafts, Window
from octavo.core.scheduler.request import Request
from octavo.core.scheduler.steady import Steady
from octavo.wire.arrays import NO_INTS, Ints, ints
from octavo.wire.plan import Kind, PageDiff, StepPlan
from octavo.wire.reply import RequestDelta

#: A decoding row that needs a page gets pages for so many tokens while the pool is less than ``ROOMY`` full.
AHEAD = 64
#: When one row gets pages, so do those that need some within so many tokens: telling the device of pages costs it the
#: same for one row as for all.
SOON = 16
#: Nobody is admitted onto pages that those who run will take within so many tokens: the newcomer would be preempted
#: soon. With 16 and with 64 a full cache makes fewer tokens a second (`octavo bench pressure`, most of all where the
#: tokens of a prompt are dear).
KEPT = 24
#: So many requests that wait for others' pages are passed over in a step; behind them nobody is looked at.
FOLLOWERS = 64
#: Pages of those who wait that one step hashes, 2 to 3 microseconds each: long prompts that arrive together must not
#: hold up those who run. Who is not through goes on in the next step, and nobody overtakes it.
HASHED = 1024
#: After so many pages out of the cache, half a microsecond each, a step admits nobody more, for the same reason.
CLAIMED = 4096
#: A diff in which nobody gets pages.
NO_PAGES = PageDiff()
#: Log-probabilities of prompts that one step tells at most, 64 MB: a vocabulary a token is 620 MB a step without this.
TOLD = 1 << 23


@dataclass(slots=True)
class Piece:
    """A piece of known tokens that one row computes in this step."""

    request: Request
    take: int


class Planner:
    """Makes plans out of a book. ``step`` numbers sub-steps, over all plans. ``vocab``: width of the logits.
    ``pace``: how many decode steps may be launched at once. ``drafts``: who guesses; None for nobody."""

    def __init__(self, book: Book, vocab: int, pace: Pace, drafts: Drafts | None = None):
        self.book = book
        self.vocab = vocab
        self.pace = pace
        self.drafts = drafts
        self.step = 0
        #: Pages hashed in this pass, and log-probabilities of prompts that its step will tell.
        self._hashed = self._told = 0
        #: The pass has hashed as much as it may, and the next one goes on with that.
        self.goes_on = False
        most = book.schedule.max_num_seqs
        self._ones, self._zeros, self._true = np.ones(most, np.int32), np.zeros(most, np.int32), np.ones(most, np.bool_)
        for column in (self._ones, self._zeros, self._true):
            column.flags.writeable = False

    def plan(self, now: float, idle: bool = False) -> StepPlan | None:
        """The next plan, or None when there is nothing to tell the device; None changes nothing. ``idle``: only tell
        what was freed, run nobody."""
        book = self.book
        if idle:
            return self._build(book.order[:0], []) if book.freed else None
        before = book.counters.preemptions
        self.goes_on = False
        decodes = self._decodes()
        left = book.schedule.max_num_batched_tokens - len(decodes)
        self._told = 0
        pieces, left = self._pieces(left) if book.prefilling else ([], left)
        if book.counters.preemptions == before:
            if len(book.queue):
                pieces += self._admit(left, now)
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
        return self._build(decodes, pieces, windows, repeat)

    # The three passes.

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

    def _share(self, request: Request, want: int, left: int, others: bool) -> int:
        """Tokens of one prompt in this step: its threshold, and never all there is while somebody else waits too. None
        where the step tells enough log-probabilities of prompts already."""
        most = self.book.schedule.long_prefill_token_threshold
        if most:
            want = min(want, most)
        elif others:
            want = min(want, max(1, left * 3 // 4))
        each = self._width(request)
        if each:
            want = min(want, max((TOLD - self._told) // each, 0 if self._told else 1))
        return min(want, left)

    def _width(self, request: Request) -> int:
        """Log-probabilities that each token of the prompt is told with."""
        wide = request.wire.sampling.prompt_logprobs
        return 0 if wide is None else 1 + (self.vocab if wide < 0 else wide)

    def _piece(self, request: Request, take: int) -> Piece:
        self._told += take * self._width(request)
        return Piece(request, take)

    def _pieces(self, left: int) -> tuple[list[Piece], int]:
        """The next pieces of prompts that have a row, in the order in which they got it."""
        book, c = self.book, self.book.columns
        pieces: list[Piece] = []
        others = len(book.prefilling) > 1 or (len(book.queue) > book.followers and self._has_row())
        for request in book.prefilling.copy():
            if left <= 0:
                break
            if request.row < 0:
                continue
            row = request.row
            take = self._share(request, int(c.length[row] - c.computed[row]), left, others)
            if not take:
                continue
            missing = book.kv.missing(request.tables, int(c.computed[row]) + take)
            if missing:
                if not book.make_room(request, missing):
                    continue
                book.grow(request, missing // book.kv.groups)
            pieces.append(self._piece(request, take))
            left -= take
        return pieces, left

    def _has_row(self) -> bool:
        return bool(self.book.rows.available) and len(self.book.running) < self.book.most_running

    def _admit(self, left: int, now: float) -> list[Piece]:
        """Rows for those who wait, best rank first, until rows, tokens or pages end. Nobody overtakes the head, except
        that whoever shares the next pages of its prompt with one that is being computed waits for them."""
        book, kv = self.book, self.book.kv
        pieces: list[Piece] = []
        followers: list[Request] = []
        promised: int | None = None
        self._hashed = claimed = 0
        while left > 0 and claimed < CLAIMED and self._has_row() and len(followers) < FOLLOWERS:
            request = book.queue.head()
            if request is None:
                break
            if request.awaits and book.comes(request.awaits):
                followers.append(book.queue.pop())
                continue
            length = len(request.tokens)
            hashes = self._hashes(request)
            if hashes is None:
                self.goes_on = True
                break
            most = (length - 1) // kv.page
            match = kv.match(hashes, most)
            request.awaits = book.last_coming(hashes, match.pages, most)
            if request.awaits:
                followers.append(book.queue.pop())
                continue
            cached = match.pages * kv.page
            idle, held = (kv.idle_pages(match), kv.held(match.tables)) if match.pages else (0, 0)
            whole = kv.need(length)
            need = whole - held
            if promised is None:
                promised = self._promised() + self._kept()
            take = self._share(request, length - cached, left, len(book.queue) > 1)
            if not take:
                break
            first = kv.missing(match.tables, cached + take)
            if kv.pool.free - idle < max(need + promised if book.running else need, first):
                break
            book.queue.pop()
            if match.pages:
                kv.claim(request.tables, match)
                claimed += match.pages
                book.diffs += [(request, group, 0, table.copy()) for group, table in enumerate(request.tables)]
            row = book.enter_row(request, cached)
            book.announce(request, hashes, match.pages)
            if first:
                book.grow(request, first // kv.groups)
            promised += max(0, whole - kv.held(request.tables)) + kv.groups
            pieces.append(self._piece(request, take))
            left -= take
            self._tell_admission(request, row, cached, now)
        book.followers = len(followers)
        for request in followers:
            book.queue.push(request)
        return pieces

    def _hashes(self, request: Request) -> list[bytes] | None:
        """The chain of all full pages of a waiting request, none if it must not read the cache; None where this step
        has hashed enough."""
        kv, wire = self.book.kv, request.wire
        if not kv.caching or not request.reads_cache:
            return []
        if len(request.tokens) == request.prompt:
            self._hashed += kv.prompt_hashes(
                request.hashes, request.root, wire.tokens, wire.media, HASHED - self._hashed
            )
        else:
            kv.extend_hashes(request.hashes, request.root, request.tokens, wire.media)
        return request.hashes if len(request.hashes) == len(request.tokens) // kv.page else None

    def _promised(self) -> int:
        """Pages that prompts under way still need."""
        kv = self.book.kv
        return sum(
            max(0, kv.need(int(self.book.columns.length[request.row])) - kv.held(request.tables))
            for request in self.book.prefilling
        )

    def _kept(self) -> int:
        """Pages that those who run will take within ``KEPT`` tokens, one each in every group at most."""
        block = self.book.columns.block[:, self.book.order]
        soon = (block[CAPACITY] - block[COMPUTED] < KEPT) & (block[CAPACITY] < block[LIMIT] - 1)
        return int(np.count_nonzero(soon)) * self.book.kv.groups

    def _tell_admission(self, request: Request, row: int, cached: int, now: float) -> None:
        if request.scheduled:
            return
        request.scheduled = True
        counters = self.book.counters
        if self.book.kv.caching:
            counters.prefix_queries += request.prompt
            counters.prefix_hits += cached
        delta = RequestDelta(request.wire.handle, cached=cached, scheduled=now)
        self.book.replies.delta(request.wire.client, delta)

    # The plan.

    def _build(self, decodes: Ints, pieces: list[Piece], windows: Sequence[Window] = (), repeat: int = 1) -> StepPlan:
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
        """``_build`` for a step in which nothing happens but a token more for every row, or up to ``repeat``."""
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
