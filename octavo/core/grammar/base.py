"""The two Protocols of a grammar engine, and the table of the engines there are."""

from collections.abc import Sequence
from typing import Protocol

from octavo.common.registry import Registry
from octavo.wire.arrays import Ints
from octavo.wire.request import GrammarRef


class Grammar(Protocol):
    """The state of one request in its grammar."""

    def accept(self, token: int) -> bool:
        """Move on by a token. False: the grammar does not allow it."""

    def fill(self, bits: Ints) -> None:
        """Set the bits of the tokens that may come next; ``bits`` is int32 [ceil(V / 32)], zeroed."""


class Compiler(Protocol):
    """Makes grammars. May be called from a thread of its own."""

    def compile(self, ref: GrammarRef) -> Grammar:
        """Raises ``BadRequest`` for a grammar that is wrong."""


def allows(bits: Ints, token: int) -> bool:
    """Whether the mask lets a token through."""
    return bool(int(bits[token >> 5]) >> (token & 31) & 1)


def allow(bits: Ints, tokens: Sequence[int]) -> None:
    """Set the bits of these tokens."""
    words = bits.view("<u4")
    for token in tokens:
        words[token >> 5] |= 1 << (token & 31)


#: Engines by name; other packages add theirs by entry point.
GRAMMARS: Registry[type[Compiler]] = Registry("grammar engine", "octavo.core.grammar", {}, "octavo.grammar")
