"""Reasoning: where an answer is in its reasoning, which no grammar rules, and its budget."""

from collections.abc import Sequence
from typing import NamedTuple

from octavo.core.grammar.base import Grammar
from octavo.wire.arrays import Ints
from octavo.wire.request import GrammarRef


class Stage(NamedTuple):
    """``open``: what comes is reasoning; None: it is where the first token opens it. ``size``: tokens in it so far.
    ``tail``: the last of them, as many as its end has less one. ``begun``: the first token of all is said."""

    open: bool | None
    size: int = 0
    tail: tuple[int, ...] = ()
    begun: bool = False


OVER = Stage(False)


class Reasoning:
    """``GrammarRef.after`` ends it. It is ``open`` from the start, or one of ``opens`` begins it as the first token.
    ``budget``: tokens of it, markers not counted, that may come before its end is forced.

    ``stage`` is a value: whoever looks ahead keeps it and puts it back.
    """

    __slots__ = ("_budget", "_end", "opens", "stage")

    def __init__(self, ref: GrammarRef):
        self._end, self._budget = ref.after, ref.budget
        self.opens = ref.opens
        self.stage = OVER if not ref.after else Stage(True if ref.open else None)

    def takes(self, token: int) -> bool:
        """Whether ``token``, coming next, is a part of the reasoning (its markers are)."""
        stage = self.stage
        return stage.open if stage.open is not None else token in self.opens

    def accept(self, token: int) -> bool:
        """Move on by a token. False where it is no part of the reasoning."""
        stage = self.stage
        if stage.open is None:
            self.stage = Stage(True, begun=True) if token in self.opens else OVER
            return bool(self.stage.open)
        if not stage.open:
            return False
        seen = (*stage.tail, token)
        if seen[-len(self._end) :] == self._end:
            self.stage = OVER
        else:
            counts = stage.begun or token not in self.opens  # only the first token of all can be what opens it
            tail = seen[1 - len(self._end) :] if len(self._end) > 1 else ()
            self.stage = Stage(True, stage.size + counts, tail, True)
        return True

    def forced(self) -> Sequence[int]:
        """The tokens that must come next: the rest of the end, where the budget is spent."""
        stage = self.stage
        if not stage.open or self._budget is None or stage.size < self._budget:
            return ()
        for size in range(len(self._end) - 1, 0, -1):
            if stage.tail[-size:] == self._end[:size]:
                return self._end[size:]
        return self._end


#: The kind of ``GrammarRef`` that leaves its answer any text.
FREE = "free"


class Free(Grammar):
    """The grammar of any text."""

    def accept(self, token: int) -> bool:
        return True

    def fill(self, bits: Ints) -> None:
        bits[:] = -1

    def rollback(self, count: int) -> None:
        pass

    def forced(self, limit: int) -> list[int]:
        return []
