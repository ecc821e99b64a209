"""Drafts: guesses of what a request says next, which the device verifies within one step.

A guess costs time where it is wrong and changes nothing: each token is drawn as it would be without.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from octavo.config.engine import Speculation
from octavo.core.scheduler.book import ROOMY, Book
from octavo.core.scheduler.columns import GRAMMAR
from octavo.core.scheduler.lookup import Lookup
from octavo.core.scheduler.request import Request
from octavo.core.scheduler.trust import WINDOWS, Trust
from octavo.wire.arrays import Bools, Ints


class Drafter(Protocol):
    """A way to guess on the host."""

    def propose(self, request: Request, tokens: Ints, most: int) -> Sequence[int]:
        """At most ``most`` tokens, 1 at least, that may follow ``tokens``: all that the request has so far."""


class Forced:
    """What the request's grammar leaves no choice about."""

    def propose(self, request: Request, tokens: Ints, most: int) -> Sequence[int]:
        return request.grammar.drafts(most) if request.grammar is not None else ()


class NGram:
    """What followed the last tokens when they came before, in the prompt or in the answer."""

    def __init__(self, shortest: int, longest: int):
        self._shortest, self._longest = shortest, longest

    def propose(self, request: Request, tokens: Ints, most: int) -> Sequence[int]:
        if request.lookup is None:
            request.lookup = Lookup(self._shortest, self._longest, request.wire.limit)
        return request.lookup.find(tokens, most)


class Window(NamedTuple):
    """A row and the drafts behind its last token."""

    row: int
    tokens: Sequence[int]


class Drafts:
    """Asks ``drafters`` in turn for each row, for at most ``most`` tokens; ``limit`` is what the device verifies.
    Drafts that nobody asked for are made only where they pay (``trust``)."""

    def __init__(self, book: Book, speculation: Speculation, limit: int):
        self.book = book
        self.most = min(speculation.tokens, limit)
        self._thrifty = not speculation.asked
        #: Rows that one of the drafters may know something about: by these flags, 0 for any row.
        self._needs = GRAMMAR if speculation.method == "grammar" else 0
        self.drafters: list[Drafter] = [Forced()]
        if speculation.method == "ngram":
            self.drafters.append(NGram(speculation.shortest, speculation.longest))

    def may(self, flags: Ints) -> Bools:
        """Of rows with these flags, whether a drafter may know something about them."""
        return flags & self._needs != 0 if self._needs else np.ones(len(flags), np.bool_)

    def windows(self, decodes: Ints, left: int) -> list[Window]:
        """Drafts for rows that continue from their own last token, as far as ``left`` tokens of the step's budget and
        free pages go. A row with a step in flight gets none: its last token is not known here."""
        if not self.most:
            return []
        c = self.book.columns
        rows = decodes[(c.uses[decodes] == 0) & (c.limit[decodes] - c.length[decodes] > 1)]
        if self._needs:
            rows = rows[c.flags[rows] & self._needs != 0]
        found, worth = [], 0.0
        for row in rows.tolist():
            if left <= 0:
                break
            request, length = self.book.at[row], int(c.length[row])
            assert request is not None
            if request.grammar is not None and request.grammar.dear:
                continue  # of its masks one at a time is there
            # The last token of all is drawn behind a draft, so it is none.
            most = min(self.most, left, int(c.limit[row]) - length - 1)
            if self._thrifty and not (most := self._pays(request, len(decodes), most)):
                continue
            known = c.tokens[row, :length]
            drafts: Sequence[int] = ()
            for drafter in self.drafters:
                if drafts := drafter.propose(request, known, most):
                    break
            if drafts and self._thrifty and (trust := request.trust) is not None:
                worth += trust.worth(len(decodes), len(drafts))
                drafts = drafts[: trust.first(len(decodes))]
            drafts = drafts[: self._room(request, len(drafts))] if drafts else ()
            if drafts:
                found.append(Window(row, drafts))
                left -= len(drafts)
        return found if not self._thrifty or worth >= WINDOWS else []

    @staticmethod
    def _pays(request: Request, rows: int, most: int) -> int:
        """How many drafts pay where so many rows run."""
        if request.trust is None:
            request.trust = Trust()
        most = request.trust.most(rows, most)
        if not most:
            request.trust.passed()
        return most

    def _room(self, request: Request, count: int) -> int:
        """How many drafts the row's pages hold; it gets more where they are free, nobody has to go for them."""
        book, kv = self.book, self.book.kv
        first = int(book.columns.computed[request.row]) + 1
        missing = kv.missing(request.tables, first + count)
        if missing and kv.pool.usage < ROOMY and kv.pool.free >= missing:
            book.grow(request, missing // kv.groups)
        return min(count, int(book.columns.capacity[request.row]) - first)
