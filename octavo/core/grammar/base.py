"""The Protocols of a grammar engine, and the table of the engines there are."""

import time
from collections.abc import Sequence
from typing import Protocol

from octavo.common.registry import Registry
from octavo.core.grammar.cost import Cost
from octavo.wire.arrays import Ints
from octavo.wire.request import GrammarRef
from octavo.wire.vocabulary import Vocabulary

#: The field that errors name; the front tells them under the name that its request used.
PARAM = "structured_outputs"


class Grammar(Protocol):
    """The state of one request in its grammar."""

    def accept(self, token: int) -> bool:
        """Move on by a token. False: the grammar does not allow it."""

    def accept_aside(self, token: int) -> bool:
        """``accept`` for a token that the mask allows, in a thread that is not the loop's: what takes long is done
        without the interpreter's lock, and stands back."""
        return self.accept(token)

    def fill_aside(self, bits: Ints) -> None:
        """``fill`` in such a thread."""
        self.fill(bits)

    def clock_aside(self) -> float:
        """Seconds of a processor that such a thread has used up to now, with what others did for it."""
        return time.thread_time()

    def fill(self, bits: Ints) -> None:
        """Set the bits of the tokens that may come next; ``bits`` is int32 [ceil(V / 32)], zeroed. The ids that end an
        answer are among them where the grammar is complete; where nothing can follow, they are the only ones."""

    def rollback(self, count: int) -> None:
        """Take the last ``count`` accepted tokens back."""

    def forced(self, limit: int) -> list[int]:
        """Tokens, at most ``limit``, of the text that must come next, cut as a model would most likely cut it; none any
        more where its library took too long to tell that (``Telling``)."""


class PassedLimits(Exception):
    """What a grammar asks for passes the limits that its library works within; the message is the library's."""


class NotQuick(Exception):
    """A grammar that is no common one: it may be compiled where nobody waits behind it."""


class Compiler(Protocol):
    """Makes grammars. ``compile`` and ``compile_quickly`` are called from one thread each."""

    def compile(self, ref: GrammarRef) -> Grammar:
        """Raises ``BadRequest`` for a grammar that is wrong."""

    def compile_quickly(self, ref: GrammarRef) -> Grammar:
        """As ``compile``, or raises ``NotQuick`` soon."""
        return self.compile(ref)

    def kept(self, ref: GrammarRef) -> Grammar | None:
        """One that was compiled before, at once, from any thread; None for another."""
        return None

    def cost(self, ref: GrammarRef) -> Cost:
        """What masks of a grammar that was compiled take: one for all that follow it. From any thread."""
        return Cost()

    def close(self) -> None:
        """Nothing more will be asked for; who waits for ``compile`` is told so."""


class Template(Protocol):
    """A compiled grammar, which many requests may share. ``worn``: it is of no use any more, and has to be compiled
    again."""

    worn: bool

    def open(self) -> Grammar:
        """The state of a request that has said nothing yet. May be called from any thread."""


class Engine(Protocol):
    """A library that compiles grammars, bound to a vocabulary. ``width``: of the logits."""

    def __init__(self, vocabulary: Vocabulary, width: int): ...

    def prepare(self, ref: GrammarRef) -> str:
        """Check ``ref`` and write it as ``build`` takes it. Raises ``BadRequest`` that says what is wrong, or which
        keyword is not supported."""

    def build(self, text: str) -> Template:
        """Compile, without holding the interpreter's lock. Raises ``BadRequest``."""


def allows(bits: Ints, token: int) -> bool:
    """Whether the mask lets a token through."""
    return bool(int(bits[token >> 5]) >> (token & 31) & 1)


def allow(bits: Ints, tokens: Sequence[int]) -> None:
    """Set the bits of these tokens."""
    words = bits.view("<u4")
    for token in tokens:
        words[token >> 5] |= 1 << (token & 31)


#: Engines by name.
ENGINES: Registry[type[Engine]] = Registry(
    "backend of structured outputs",
    "octavo.core.grammar",
    {"guidance": "guidance:Guidance", "xgrammar": "xgrammar:XGrammar"},
)
#: What "auto" stands for.
DEFAULT = "guidance"
