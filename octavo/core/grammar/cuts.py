"""Cuts: how text that a grammar forces is cut into tokens.

A mask allows every way of cutting it and the model chooses one, so what is drafted is a guess. The best one is how the
answers before cut the same text: models keep to their ways, which are not always those of a tokenizer (of ``":"`` many
say ``":`` and then ``"``, since they have read more JSON with spaces than without).
"""

import re
from collections.abc import Sequence

#: Bytes, from a token's first on, by which a place in forced text is known again; what lies further ahead does not
#: change how the model begins.
AHEAD = 32
#: Places that are kept of a grammar.
KEPT = 1024
_TOKEN = re.compile(rb"\xff\[(\d{1,10})\]")


def named(text: bytes, at: int = 0) -> re.Match[bytes] | None:
    """A token that is no text, by its id (group 1), where ``text`` has one at ``at``."""
    return _TOKEN.match(text, at)


class Cuts:
    """Cuts text into tokens, the longest first."""

    def __init__(self, pieces: Sequence[bytes], special: frozenset[int]):
        self.pieces = pieces
        # At once: it takes tens of milliseconds, which nobody has time for later.
        self._ids: dict[bytes, int] = {}
        for token, piece in enumerate(pieces):
            if piece and token not in special:
                self._ids.setdefault(piece, token)
        self._longest = min(max(map(len, self._ids), default=0), 64)

    def longest(self, text: bytes, at: int) -> int | None:
        """The longest token that the text at ``at`` begins with; None for none."""
        for length in range(min(self._longest, len(text) - at), 0, -1):
            if (token := self._ids.get(text[at : at + length])) is not None:
                return token
        return None


class Habits:
    """How the answers of one grammar have cut what it forces, over ``cuts`` for what is new."""

    def __init__(self, cuts: Cuts):
        self._cuts = cuts
        #: The token that was said where such text was forced.
        self._said: dict[bytes, int] = {}

    def cut(self, text: bytes, limit: int) -> list[int]:
        """At most ``limit`` tokens that ``text`` may be cut into. The one that reaches its end is left out, unless it
        was said there before: the model may take a longer one."""
        cuts, said = self._cuts, self._said
        found: list[int] = []
        at = 0
        while at < len(text) and len(found) < limit:
            if mark := named(text, at):
                found.append(int(mark[1]))
                at += len(mark[0])
                continue
            token = said.get(text[at : at + AHEAD])
            if token is not None:
                if not text.startswith(cuts.pieces[token], at):
                    break  # it went beyond the end
                at += len(cuts.pieces[token])
            elif (token := cuts.longest(text, at)) is None or (end := at + len(cuts.pieces[token])) == len(text):
                break
            else:
                at = end
            found.append(token)
        return found

    def learn(self, text: bytes, tokens: Sequence[int]) -> None:
        """``tokens`` were said where ``text`` was forced."""
        pieces, said = self._cuts.pieces, self._said
        at = 0
        for token in tokens:
            if at >= len(text) or token >= len(pieces):
                return
            if mark := named(text, at):
                at += len(mark[0])
                continue
            place = text[at : at + AHEAD]
            if place not in said and len(said) >= KEPT:
                said.clear()
            said[place] = token
            at += len(pieces[token])
