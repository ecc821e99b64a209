"""Prompts in a step: the next pieces of those that have a row, and who of those that wait gets one."""

from dataclasses import dataclass

import numpy as np

from octavo.core.scheduler.book import Book
from octavo.core.scheduler.columns import CAPACITY, COMPUTED, LIMIT
from octavo.core.scheduler.request import Request
from octavo.wire.reply import RequestDelta

#: Nobody is admitted onto pages that those who run will take within so many tokens: the newcomer would be preempted
#: soon. More leaves pages idle, fewer has more tokens computed again: with 24 a full cache is 98.7 to 98.9% in use, for
#: 0.0 to 0.3% of the throughput (`octavo bench pressure`).
KEPT = 24
#: So many requests that wait for others' pages are passed over in a step; behind them nobody is looked at.
FOLLOWERS = 64
#: Pages of those who wait that one step hashes, 2 to 3 microseconds each: long prompts that arrive together must not
#: hold up those who run. Who is not through goes on in the next step, and nobody overtakes it.
HASHED = 1024
#: After so many pages out of the cache, half a microsecond each, a step admits nobody more, for the same reason.
CLAIMED = 4096
#: Log-probabilities of prompts that one step tells at most, 64 MB: a vocabulary a token is 620 MB a step without this.
TOLD = 1 << 23


@dataclass(slots=True)
class Piece:
    """A piece of known tokens that one row computes in this step."""

    request: Request
    take: int


class Prompts:
    """Of a book. ``vocab``: width of the logits. ``goes_on``: a step has hashed as much as it may, and the next one
    goes on with that."""

    def __init__(self, book: Book, vocab: int):
        self.book = book
        self.vocab = vocab
        self.goes_on = False
        #: Of one step: pages hashed, and log-probabilities of prompts that it will tell.
        self._hashed = self._told = 0

    def begin(self) -> None:
        """A step is planned."""
        self.goes_on = False
        self._told = 0

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

    def pieces(self, left: int) -> tuple[list[Piece], int]:
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

    def admit(self, left: int, now: float) -> list[Piece]:
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
        """Pages that those who run will take within ``KEPT`` tokens."""
        kv, block = self.book.kv, self.book.columns.block[:, self.book.order]
        end = np.minimum(block[COMPUTED] + KEPT, block[LIMIT] - 1)
        return int((-(-np.maximum(end - block[CAPACITY], 0) // kv.page)).sum()) * kv.groups

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
