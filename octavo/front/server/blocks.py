"""Blocks: the parsed events of one answer as pieces one after another, each closed before the next one opens.

Responses and Anthropic's messages are both made of such pieces; only their names for them differ.
"""

import enum
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from octavo.front.parsers.events import Event, Kind


class Block:
    """A stretch of reasoning, text or one call (``kind`` REASONING, CONTENT, CALL); ``index`` counts from 0.

    ``whole``: nothing of it is missing, known once it is closed.
    """

    def __init__(self, kind: Kind, index: int, name: str = "", id: str = ""):
        self.kind = kind
        self.index = index
        self.name = name
        self.id = id
        self.whole = False
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """Of a call: its arguments, as JSON."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def grow(self, text: str) -> None:
        self._pieces.append(text)


class Move(enum.IntEnum):
    OPEN, GROW, CLOSE = range(3)


class Step(NamedTuple):
    """``text``: what a block grew by."""

    move: Move
    block: Block
    text: str = ""


class Blocks:
    """``feed`` it the events of one choice, ``finish`` it once; both return the steps that these make.

    Text or reasoning that comes while a call is open waits for the call's end.
    """

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None
        self._held: list[Event] = []

    def feed(self, events: Iterable[Event]) -> list[Step]:
        steps: list[Step] = []
        for event in events:
            match event.kind:
                case Kind.CALL:
                    self._end_call(steps)
                    self._begin(Kind.CALL, steps, event.text, event.id)
                case Kind.ARGUMENTS:
                    assert self._in_call, "arguments of no call"
                    self._grow(event.text, steps)
                case Kind.CALL_END:
                    self._end_call(steps)
                case _ if self._in_call:
                    self._held.append(event)
                case _:
                    self._say(event, steps)
        return steps

    def finish(self, cut: bool, fill: bool = True) -> list[Step]:
        """``cut``: the answer ended before the model ended it, so its last block may lack something. ``fill``: an
        answer of nothing is one empty text."""
        steps: list[Step] = []
        self._end_call(steps)
        if fill and not self.all:
            self._begin(Kind.CONTENT, steps)
        self._close(steps, whole=not cut)
        return steps

    @property
    def _in_call(self) -> bool:
        return self._open is not None and self._open.kind is Kind.CALL

    def _say(self, event: Event, steps: list[Step]) -> None:
        if not event.text:
            return
        if self._open is None or self._open.kind is not event.kind:
            self._begin(event.kind, steps)
        self._grow(event.text, steps)

    def _begin(self, kind: Kind, steps: list[Step], name: str = "", id: str = "") -> None:
        self._close(steps, whole=True)
        self._open = Block(kind, len(self.all), name, id)
        self.all.append(self._open)
        steps.append(Step(Move.OPEN, self._open))

    def _grow(self, text: str, steps: list[Step]) -> None:
        if text:
            assert self._open is not None
            self._open.grow(text)
            steps.append(Step(Move.GROW, self._open, text))

    def _end_call(self, steps: list[Step]) -> None:
        if self._open is None or not self._in_call:
            return
        self._close(steps, whole=_is_json(self._open.text))
        held, self._held = self._held, []
        for event in held:
            self._say(event, steps)

    def _close(self, steps: list[Step], whole: bool) -> None:
        if self._open is not None:
            self._open.whole = whole
            steps.append(Step(Move.CLOSE, self._open))
            self._open = None


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
