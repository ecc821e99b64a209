"""Prose: content and reasoning on their way out, and which white space is part of them. Counter: reasoning's tokens."""

from collections.abc import Container, Sequence

from octavo.front.parsers.events import Event, Kind
from octavo.front.parsers.spec import CONTENT, REASONING, Think


class Prose:
    """White space in content is told with what follows it: in front of a call it is none of the content, and neither
    are the line breaks between reasoning and content.

    ``told`` False: reasoning is not told. ``hold``: it waits for content or a call, and is the content where there is
    none. ``blank``: neither content but space nor a call has come yet.
    """

    def __init__(self, events: list[Event], think: Think | None, told: bool, hold: bool = False):
        self._events = events
        self._tell_reasoning = told
        #: Reasoning that waits.
        self._waiting: list[str] | None = [] if hold else None
        #: The markers of reasoning that is content, and whether the first is to come.
        self._inline = (think.start, think.end) if think is not None and think.inline else None
        self._opening = False
        self._trim = think is not None and think.trim
        self._own_label = think.label if think is not None else ""
        self._label = self._own_label
        #: White space at the end of what came, of content and of reasoning.
        self._space: list[str] = []
        self._trailing: list[str] = []
        #: What is dropped from the front of content: line breaks behind reasoning, space behind a call.
        self._strip = ""
        self._told = self._reasoned = False
        self.blank = True

    def content(self, text: str) -> None:
        if self._strip:
            text = text.lstrip(self._strip)
            if not text:
                return
            self._strip = ""
        body = text.rstrip()
        if body:
            self.blank, self._told = False, True
            self._settle()
            self.release()
            self._events.append(Event(Kind.CONTENT, body))
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def release(self) -> None:
        """Tell the white space that waits."""
        self._events += [Event(Kind.CONTENT, piece) for piece in self._space]
        self._space = []

    def drop(self) -> None:
        """The white space that waits is none of the content."""
        self._space = []

    def edge(self) -> None:
        """The answer's own marker: neither the white space in front of it nor a line break behind it is content."""
        self._space, self._strip = [], "\r\n"

    def call(self) -> None:
        """A call began."""
        self._settle()
        self._space, self.blank = [], False
        if not self._told:
            self._strip = " \t\r\n"

    def divide(self, state: str) -> None:
        """A message begins: a line break divides it from an earlier one of its kind."""
        if state == CONTENT and self._told:
            self._space.append("\n")
        elif state == REASONING and self._reasoned:
            self.reasoning("\n")

    def entered_reasoning(self) -> None:
        self._label, self._opening = self._own_label, True
        if self._told:
            self.release()
        self._space = []

    def left_reasoning(self, marker: str) -> None:
        """By ``marker``; none: by what begins a call."""
        if self._inline:
            self._tell_inline(marker or self._inline[1])
            return
        if self._label:
            self.end_reasoning()  # the beginning of a label that never was one
        self._trailing, self._strip = [], "\r\n"

    def reasoning(self, text: str) -> None:
        if self._inline:
            self._tell_inline(text)
            return
        if not self._tell_reasoning and self._waiting is None:
            return
        self._reasoned = True
        if self._label:
            self._unlabel(text)
            return
        body = text.rstrip() if self._trim else text
        if body:
            self._reason([*self._trailing, body])
            self._trailing = []
        if len(body) < len(text):
            self._trailing.append(text[len(body) :])

    def _unlabel(self, text: str) -> None:
        """Drop the word of the format that stands first in reasoning, however it is cut."""
        text, label = "".join((*self._trailing, text)), self._label
        self._trailing = [text]
        if label.startswith(text) and text != label:
            return
        self._trailing, self._label = [], ""
        if rest := text.removeprefix(label):
            self.reasoning(rest)

    def end_reasoning(self) -> None:
        """The answer ends in reasoning."""
        self._reason(self._trailing)
        self._trailing, self._label = [], ""
        if self._inline:
            self.release()

    def _reason(self, pieces: list[str]) -> None:
        if self._waiting is not None:
            self._waiting += pieces
        elif self._tell_reasoning:
            self._events += [Event(Kind.REASONING, piece) for piece in pieces]

    def _tell_inline(self, text: str) -> None:
        """Reasoning that is content."""
        if not self._tell_reasoning or not self._inline:
            return
        blank = self.blank
        if self._opening:
            self._opening = False
            self.content(self._inline[0])
        self.content(text)
        self.blank = blank

    def _settle(self) -> None:
        """There is an answer, so that what waits is reasoning."""
        if self._waiting is not None:
            pieces, self._waiting = self._waiting, None
            self._reason(pieces)

    def end(self) -> None:
        """The answer is over: reasoning that still waits is all that there is of it."""
        if self._waiting:
            self._events += [Event(Kind.CONTENT, piece) for piece in self._waiting]
        self._waiting = None


class Counter:
    """Attributes tokens to reasoning, though their text may come later than they do. ``added``: ids that have marks."""

    def __init__(self, added: Container[int]):
        self._added = added
        self._ids: list[int] = []
        self.reasoning = 0

    def add(self, ids: Sequence[int]) -> None:
        self._ids += ids

    def until(self, token: int, reasoning: bool) -> None:
        """The mark of ``token`` is reached: what came before it belongs to the state so far."""
        if token in self._ids:
            at = self._ids.index(token)
            self.reasoning += at if reasoning else 0
            del self._ids[: at + 1]

    def rest(self, reasoning: bool) -> None:
        """Text has been read up to its end: so have the tokens in front of the next whose mark has not come."""
        if self._ids:
            end = next((i for i, token in enumerate(self._ids) if token in self._added), len(self._ids))
            self.reasoning += end if reasoning else 0
            del self._ids[:end]
