"""GuidedCalls: calls written as a JSON list, as ``tools.calls_schema`` makes a model write them."""

import re
import uuid

from octavo.front.parsers.events import Event, Kind

_NAME = re.compile(r'"name" ?: ?"([^"\\]*)"')
_SPACES = re.compile(r"\s+")
_PLAIN = re.compile(r'[^"{}\[\]\\]+')
_STRING = re.compile(r'[^"\\]+')


class GuidedCalls:
    """Reads the list as it comes; the work is constant a character. ``truncated``: the last call is not whole."""

    __slots__ = ("_depth", "_escape", "_head", "_string", "_whole", "calls")

    def __init__(self) -> None:
        self.calls = 0
        self._head = ""
        #: Brackets of the arguments that are open; 0 between calls.
        self._depth = 0
        self._string = self._escape = False
        self._whole = True

    @property
    def truncated(self) -> bool:
        return not (self._whole or "}" in self._head)

    def feed(self, text: str) -> list[Event]:
        """The news of ``text``."""
        events: list[Event] = []
        at = 0
        while at < len(text):
            at = self._arguments(text, at, events) if self._depth else self._between(text, at, events)
        return events

    def _between(self, text: str, at: int, events: list[Event]) -> int:
        """The first brace opens a call, the next one its arguments: between them stands its name."""
        brace = text.find("{", at)
        end = len(text) if brace < 0 else brace
        self._head = _SPACES.sub(" ", self._head + text[at:end])
        if brace < 0:
            return end
        head, self._head = self._head, ""
        name = _NAME.search(head)
        if name is None:
            self._whole = self._whole or "}" in head
            return brace + 1
        events.append(Event(Kind.CALL, name[1], self.calls, f"call_{uuid.uuid4().hex[:24]}"))
        self.calls += 1
        self._depth, self._whole = 1, False
        events.append(Event(Kind.ARGUMENTS, "{", self.calls - 1))
        return brace + 1

    def _arguments(self, text: str, at: int, events: list[Event]) -> int:
        start, size = at, len(text)
        while at < size:
            char = text[at]
            if self._escape:
                self._escape = False
                at += 1
            elif self._string:
                if char == '"':
                    self._string = False
                elif char == "\\":
                    self._escape = True
                elif run := _STRING.match(text, at):
                    at = run.end()
                    continue
                at += 1
            elif run := _PLAIN.match(text, at):
                at = run.end()
            else:
                at += 1
                if char == '"':
                    self._string = True
                elif char in "{[":
                    self._depth += 1
                elif char in "}]":
                    self._depth -= 1
                    if self._depth == 0:
                        events.append(Event(Kind.ARGUMENTS, text[start:at], self.calls - 1))
                        events.append(Event(Kind.CALL_END, "", self.calls - 1))
                        return at
        events.append(Event(Kind.ARGUMENTS, text[start:at], self.calls - 1))
        return at
