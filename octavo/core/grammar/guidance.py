"""Grammars by llguidance: an Earley parser over derivatives of regexes, about 50 us a mask.

Its own limits bound the work of a mask; whatever passes them ends the request whose grammar it is.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from octavo.common.math import cdiv
from octavo.common.proc import clocked, stand_back
from octavo.core.grammar import prepare
from octavo.core.grammar.base import PARAM, Grammar, PassedLimits, allow
from octavo.core.grammar.cost import DEAR, Telling
from octavo.core.grammar.cuts import Cuts, Habits, named
from octavo.core.grammar.trial import NICE
from octavo.errors import BadRequest, Unsupported
from octavo.wire.arrays import Ints
from octavo.wire.request import GrammarRef
from octavo.wire.vocabulary import Vocabulary

#: A schema's text may be most of a megabyte. Of schemas in use, a mask takes 0.2 ms at most, less than 2,000 of lexer
#: fuel and 300 items; an enum of 700 texts 1 ms and more than 20,000 of fuel. Of the worst that these limits let
#: through it is some 50 ms, which ``cost`` keeps out of the step loop. Only what comes all at once can surprise that,
#: which is what the fuel of a step bounds.
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=30_000,
    step_max_items=25_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
T = TypeVar("T")
#: What the library says where a limit is passed.
_COMPLEX = ("TooComplex", "too many")
#: Bytes of forced text that one call cuts into tokens.
_FORCED = 512
#: New lexers that may be of no use to a grammar, one after the other, before no more are made for it; and those that
#: one answer may have.
_VAIN, _OFTEN = 2, 4
#: A grammar that is at its end at once.
_NOTHING = 'start: ""'


class Guidance:
    """The engine, bound to a vocabulary. Forced text is never forced upon the model in one way of cutting it: the
    tokenizer given to the library makes no tokens, so that a mask allows every token that fits."""

    def __init__(self, vocabulary: Vocabulary, width: int):
        if not vocabulary.eos:
            raise Unsupported("structured output needs a model with an end-of-sequence token", PARAM)
        pieces = vocabulary.pieces[:width]
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Source(pieces, vocabulary)), n_vocab=len(pieces), eos_token=list(vocabulary.eos)
        )
        self.ends = vocabulary.eos
        self.words = cdiv(len(pieces), 32)
        self.aside = Aside(LLMatcher(self._tokenizer, _NOTHING, log_level=0), self.ends[0])
        self.cuts = Cuts(pieces, frozenset(vocabulary.special))

    def prepare(self, ref: GrammarRef) -> str:
        return prepare.llguidance(ref)

    def build(self, text: str) -> "GuidanceTemplate":
        template = GuidanceTemplate(text, self)
        if template.latest.is_error():
            raise BadRequest(prepare.sentence(template.latest.get_error()), PARAM)
        bits = np.zeros(self.words, np.int32)
        try:
            template.open().fill(bits)
        except PassedLimits as error:
            why = " or is too complex" if any(word in str(error) for word in _COMPLEX) else ""
            raise BadRequest(f"the grammar allows no text that ends{why}", PARAM) from None
        if not bits.any():
            raise BadRequest("the grammar allows no text", PARAM)
        return template

    def matcher(self, text: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)


class GuidanceTemplate:
    """``names``: whether the grammar may name tokens that are no text.

    Copies of a matcher have one lexer, with one lock and one limit of states; so where one of them passes that, all
    have. Answers bring it there together, each with texts of its own; so does forced text (``looked``), all of which
    the library goes over where it is asked for some. Who then finds its matcher broken takes a new one, which those
    that come later begin with, and where it was forced text nobody looks (``looks``) again.
    """

    def __init__(self, text: str, engine: Guidance):
        self._text = text
        self.engine = engine
        self.names = "<" in text
        self.looks, self.looked, self.worn = True, False, False
        self.telling = Telling()
        self.habits = Habits(engine.cuts)
        #: How often in a row an answer passed the limits with a lexer of its own too.
        self.vain = 0
        begin = time.thread_time()
        self.latest = engine.matcher(text)
        #: Whether a new matcher takes too long to be made in the step loop.
        self.slow = time.thread_time() - begin > DEAR

    def open(self) -> "GuidanceGrammar":
        return GuidanceGrammar(self)

    def renew(self) -> None:
        self.looks = self.looks and not self.looked
        self.looked = False
        self.latest = self.engine.matcher(self._text)


class GuidanceGrammar(Grammar):
    def __init__(self, template: GuidanceTemplate):
        self._template = template
        self._engine = template.engine
        self._from = template.latest
        self._matcher = self._from.deep_copy()
        self._said: list[int] = []
        #: Tokens said behind the end, which the library does not count.
        self._beyond = 0
        #: Whether the library was asked for forced text of this answer.
        self._ahead = False
        #: What it last said, and how many tokens had been said then.
        self._coming, self._when = b"", 0
        #: Lexers that were made for this answer.
        self._renewals = 0

    def accept(self, token: int) -> bool:
        if token in self._engine.ends and self._matcher.is_accepting():
            self._beyond += 1
            return True
        if self._beyond:
            return False
        # Asked first: a matcher that consumes a wrong token is broken for good.
        return self._accept(token)

    def _accept(self, token: int, aside: bool = False) -> bool:
        if not self._tried(lambda: self._takes(token), aside):
            if self._matcher.is_error():
                raise PassedLimits(self._why())
            return False
        self._said.append(token)
        return True

    def accept_aside(self, token: int) -> bool:
        if self._beyond or token in self._engine.ends:
            return self.accept(token)
        if self._engine.aside.consume(self._matcher, token):
            self._said.append(token)
            return True
        return self._matcher.is_error() and self._accept(token, aside=True)

    def clock_aside(self) -> float:
        return self._engine.aside.clock()

    def _takes(self, token: int) -> bool:
        return self._matcher.validate_tokens([token]) == 1 and self._matcher.consume_token(token)

    def fill(self, bits: Ints) -> None:
        self._fill(bits, _mask, aside=False)

    def fill_aside(self, bits: Ints) -> None:
        self._fill(bits, self._engine.aside.mask, aside=True)

    def _fill(self, bits: Ints, make: Callable[[LLMatcher, Ints], None], aside: bool) -> None:
        if self._beyond or (self._matcher.is_stopped() and not self._matcher.is_error()):
            allow(bits, self._engine.ends)
            return
        # Asked for forced text, the library goes ahead over it, and then cannot tell the mask of a token that has none.
        if self._ahead and self._template.names and (mark := named(self._forced_text())):
            allow(bits, (int(mark[1]),))
            return
        words = self._engine.words
        part = bits if len(bits) == words else bits[:words]
        self._tried(lambda: make(self._matcher, part), aside)
        if self._matcher.is_error():
            raise PassedLimits(self._why())

    def _why(self) -> str:
        return self._matcher.get_error().strip().partition("\n")[0]

    def rollback(self, count: int) -> None:
        beyond = min(count, self._beyond)
        self._beyond -= beyond
        count -= beyond
        if not count:
            return
        del self._said[len(self._said) - count :]
        if not self._matcher.rollback(count) and not (self._may_renew(False) and self._anew()):
            raise PassedLimits(self._why())

    def forced(self, limit: int) -> list[int]:
        habits = self._template.habits
        # Only now is it sure what was said: whoever looks ahead takes back what it let the grammar accept.
        habits.learn(self._coming, self._said[self._when :])
        self._coming, self._when = b"", len(self._said)
        if self._beyond or self._matcher.is_stopped():
            return []
        self._coming = self._forced_text()[:_FORCED]
        return habits.cut(self._coming, limit)

    def _forced_text(self) -> bytes:
        """The library holds the interpreter's lock while it looks for it, so where that takes long, and not by chance,
        it is not asked again."""
        template = self._template
        if not template.looks:
            return b""
        self._ahead = template.looked = True
        begin = time.thread_time()
        text = self._matcher.compute_ff_bytes()
        if not template.telling.quick(time.thread_time() - begin):
            template.looks = False
            if self._may_renew(False):
                self._anew()
        return text

    def _tried(self, do: Callable[[], T], aside: bool) -> T:
        """``do``, and once more where the library has passed its limits, of which others may be the cause: forced text,
        and all that the lexer has learnt from the answers before. First with the lexer that somebody else began anew
        with, then with one that has seen this answer alone: what passes the limits even there is its own. ``aside``:
        this is not the loop's thread, and may take its time."""
        template = self._template
        found = do()
        if self._matcher.is_error() and template.latest is not self._from and self._anew():
            found = do()
        if self._matcher.is_error() and self._may_renew(aside):
            if self._anew():
                found = do()
            template.vain = template.vain + 1 if self._matcher.is_error() else 0
        elif self._matcher.is_error() and template.vain < _VAIN:
            template.worn = True  # the next request has it compiled again, where nobody waits
        return found

    def _may_renew(self, aside: bool) -> bool:
        """Whether to begin with a new lexer; one that somebody else has made may always be had."""
        template = self._template
        if template.latest is not self._from:
            return True
        return template.vain < _VAIN and self._renewals < _OFTEN and (aside or not template.slow)

    def _anew(self) -> bool:
        """Start anew from the tokens that were said."""
        template = self._template
        if template.latest is self._from:
            template.renew()
            self._renewals += 1
        self._ahead = False
        self._from = template.latest
        self._matcher = self._from.deep_copy()
        return self._matcher.consume_tokens(self._said)


def _mask(matcher: LLMatcher, bits: Ints) -> None:
    matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)


class Aside:
    """Masks, and steps of matchers, made by a thread of the library that stands back and never takes the interpreter's
    lock. Whoever asks holds that at times, so it must not stand back itself: with the lock in hand it would make the
    loop wait until the machine has time for it.

    The library lets go of the lock, and takes its own thread, only for several matchers at once; so beside the one that
    is asked for goes one that has nothing to do: ``ended``, at the end of its grammar, where ``end`` may follow.
    """

    def __init__(self, ended: LLMatcher, end: int):
        self._ended, self._end = ended, end
        #: Of each thread that asks, so that none waits for another's work.
        self._mine = threading.local()

    def consume(self, matcher: LLMatcher, token: int) -> bool:
        executor, ended = self._ready()
        return executor.consume_token_par([(matcher, token), (ended, self._end)])[0]

    def mask(self, matcher: LLMatcher, bits: Ints) -> None:
        executor, ended = self._ready()
        lines = np.zeros((2, len(bits)), np.int32)
        executor.unsafe_compute_mask_ptr([(matcher, 0), (ended, 1)], lines.ctypes.data, bits.nbytes, 2)
        bits[:] = lines[0]

    def clock(self) -> float:
        """Seconds of a processor that the thread which asks has used, and the library's thread for it: not those that
        they waited for one, which a thread that stands back does for longer than any mask takes."""
        self._ready()
        return time.thread_time() + self._mine.clock()

    def _ready(self) -> tuple[LLExecutor, LLMatcher]:
        mine = self._mine
        if not hasattr(mine, "executor"):
            mine.ended = self._ended.deep_copy()
            # Its thread takes over the priority of whoever makes it.
            with ThreadPoolExecutor(1, "octavo-grammar-aside", stand_back, (NICE,)) as behind:
                mine.executor, mine.clock = behind.submit(clocked, lambda: LLExecutor(1)).result()
        return mine.executor, mine.ended


class _Source:
    """What llguidance wants of a tokenizer."""

    def __init__(self, pieces: Sequence[bytes], vocabulary: Vocabulary):
        self.eos_token_id = vocabulary.eos[0]
        self.bos_token_id = None
        self.tokens = pieces
        self.special_token_ids = [token for token in vocabulary.special if token < len(pieces)]

    def __call__(self, text: bytes) -> list[int]:
        return []
