"""Grammars by llguidance: an Earley parser over derivatives of regexes, about 50 us a mask.

Its own limits bound the work of a mask; whatever passes them ends the request whose grammar it is.
"""

import re
import time
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from octavo.common.math import cdiv
from octavo.core.grammar import prepare
from octavo.core.grammar.base import PARAM, allow
from octavo.core.grammar.cost import DEAR
from octavo.errors import BadRequest, Unsupported
from octavo.wire.arrays import Ints
from octavo.wire.request import GrammarRef
from octavo.wire.vocabulary import Vocabulary

#: A schema's text may be most of a megabyte; a mask of schemas in use costs 0.2 ms at most, of the worst some 5 ms,
#: which ``cost`` keeps out of the step loop.
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=50_000,
    step_max_items=25_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
#: What the library says where a limit is passed.
_COMPLEX = ("TooComplex", "too many")
#: Bytes of forced text that one call cuts into tokens.
_FORCED = 512
_TOKEN = re.compile(rb"\xff\[(\d{1,10})\]")


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
        self._cuts = Cuts(pieces, frozenset(vocabulary.special))

    def prepare(self, ref: GrammarRef) -> str:
        return prepare.llguidance(ref)

    def build(self, text: str) -> "GuidanceTemplate":
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise BadRequest(prepare.sentence(matcher.get_error()), PARAM)
        template = GuidanceTemplate(matcher, self, "<" in text)
        bits = np.zeros(self.words, np.int32)
        try:
            template.open().fill(bits)
        except RuntimeError as error:
            why = " or is too complex" if any(word in str(error) for word in _COMPLEX) else ""
            raise BadRequest(f"the grammar allows no text that ends{why}", PARAM) from None
        if not bits.any():
            raise BadRequest("the grammar allows no text", PARAM)
        return template

    def cut(self, text: bytes, limit: int) -> list[int]:
        return self._cuts(text, limit)


class GuidanceTemplate:
    """``names``: whether the grammar may name tokens that are no text."""

    def __init__(self, matcher: LLMatcher, engine: Guidance, names: bool):
        self._matcher = matcher
        self.engine = engine
        self.names = names

    def open(self) -> "GuidanceGrammar":
        return GuidanceGrammar(self)

    def matcher(self) -> LLMatcher:
        return self._matcher.deep_copy()


class GuidanceGrammar:
    def __init__(self, template: GuidanceTemplate):
        self._template = template
        self._engine = template.engine
        self._matcher = template.matcher()
        self._said: list[int] = []
        #: Tokens said behind the end, which the library does not count.
        self._beyond = 0
        #: Whether the library was asked for forced text, all of which it goes over; whether it may be asked again.
        self._ahead, self._looks = False, True

    def accept(self, token: int) -> bool:
        if token in self._engine.ends and self._matcher.is_accepting():
            self._beyond += 1
            return True
        if self._beyond:
            return False
        # Asked first: a matcher that consumes a wrong token is broken for good.
        if not (self._takes(token) or (self._again() and self._takes(token))):
            return False
        self._said.append(token)
        return True

    def _takes(self, token: int) -> bool:
        return self._matcher.validate_tokens([token]) == 1 and self._matcher.consume_token(token)

    def fill(self, bits: Ints) -> None:
        if self._beyond or (self._matcher.is_stopped() and not self._matcher.is_error()):
            allow(bits, self._engine.ends)
            return
        # Asked for forced text, the library goes ahead over it, and then cannot tell the mask of a token that has none.
        if self._ahead and self._template.names and (named := _TOKEN.match(self._forced_text())):
            allow(bits, (int(named[1]),))
            return
        part = bits[: self._engine.words]
        self._matcher.unsafe_compute_mask_ptr(part.ctypes.data, part.nbytes)
        if self._matcher.is_error() and self._again():
            self._matcher.unsafe_compute_mask_ptr(part.ctypes.data, part.nbytes)
        if self._matcher.is_error():
            raise RuntimeError(self._matcher.get_error())

    def rollback(self, count: int) -> None:
        beyond = min(count, self._beyond)
        self._beyond -= beyond
        count -= beyond
        if not count:
            return
        del self._said[len(self._said) - count :]
        if not self._matcher.rollback(count) and not self._again():
            raise RuntimeError(self._matcher.get_error())

    def forced(self, limit: int) -> list[int]:
        if self._beyond or self._matcher.is_stopped():
            return []
        return self._engine.cut(self._forced_text()[:_FORCED], limit)

    def _forced_text(self) -> bytes:
        """The library holds the interpreter's lock while it looks for it, so where that takes long it is not asked
        again."""
        if not self._looks:
            return b""
        self._ahead = True
        begin = time.thread_time()
        text = self._matcher.compute_ff_bytes()
        if time.thread_time() - begin > DEAR:
            self._anew()
        return text

    def _again(self) -> bool:
        """Start anew, where the library may have passed its limits only on the way over forced text."""
        return self._ahead and self._matcher.is_error() and self._anew()

    def _anew(self) -> bool:
        """Start anew from the tokens that were said, and ask for no forced text any more."""
        self._ahead = self._looks = False
        self._matcher = self._template.matcher()
        return self._matcher.consume_tokens(self._said)


class Cuts:
    """Cuts text into tokens, the longest first. The token that reaches the end is left out: the model may take a
    longer one there."""

    def __init__(self, pieces: Sequence[bytes], special: frozenset[int]):
        # At once: it takes tens of milliseconds, which nobody has time for later.
        self._ids: dict[bytes, int] = {}
        for token, piece in enumerate(pieces):
            if piece and token not in special:
                self._ids.setdefault(piece, token)
        self._longest = min(max(map(len, self._ids), default=0), 64)

    def __call__(self, text: bytes, limit: int) -> list[int]:
        if not text:
            return []
        found: list[int] = []
        at = 0
        while at < len(text) and len(found) < limit:
            named = _TOKEN.match(text, at)  # a token that is no text, written by its id
            length = len(named[0]) if named else self._length(text, at)
            at += length
            if named:
                found.append(int(named[1]))
            elif length == 0 or at == len(text):
                break
            else:
                found.append(self._ids[text[at - length : at]])
        return found

    def _length(self, text: bytes, at: int) -> int:
        """Bytes of the longest token that the text at ``at`` begins with; 0 for none."""
        for length in range(min(self._longest, len(text) - at), 0, -1):
            if text[at : at + length] in self._ids:
                return length
        return 0


class _Source:
    """What llguidance wants of a tokenizer."""

    def __init__(self, pieces: Sequence[bytes], vocabulary: Vocabulary):
        self.eos_token_id = vocabulary.eos[0]
        self.bos_token_id = None
        self.tokens = pieces
        self.special_token_ids = [token for token in vocabulary.special if token < len(pieces)]

    def __call__(self, text: bytes) -> list[int]:
        return []
