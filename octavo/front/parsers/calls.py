"""Calls: numbers, names and ids of an answer's tool calls, and their news in order."""

import secrets
import string
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from octavo.front.parsers.coerce import NOTHING, Schema
from octavo.front.parsers.events import Event, Kind

_ALPHANUMERIC = string.ascii_letters + string.digits


class Tool(NamedTuple):
    """A function that the model may call. ``parameters``: its JSON schema."""

    name: str
    parameters: dict[str, Any]
    strict: bool = False


class Calls:
    """``ids``: how ids are made: "random", "mistral" (nine letters and digits) or "kimi" (functions.name:number, the
    numbers going on from ``history``)."""

    __slots__ = ("_ids", "_open", "_schemas", "_seen", "_start", "count", "events", "silent", "tools", "wrote")

    def __init__(self, tools: Sequence[Tool], ids: str, history: int, silent: bool):
        self.tools = {tool.name: tool for tool in tools}
        self.events: list[Event] = []
        self.count = 0
        #: Calls are read and not told: the request forbade them.
        self.silent = silent
        self.wrote = False
        self._ids, self._start = ids, history
        self._seen: set[str] = set()
        self._schemas: dict[str, Schema] = {}
        self._open = False

    def schema(self, name: str) -> Schema:
        """Of a tool that nobody gave: one that says nothing."""
        if name not in self.tools:
            return NOTHING
        if name not in self._schemas:
            self._schemas[name] = Schema(self.tools[name].parameters)
        return self._schemas[name]

    def open(self, name: str, call_id: str = "") -> None:
        assert not self._open
        self._open, self.wrote = True, False
        self.count += 1
        name, call_id = _text(name), _text(call_id)
        if not self.silent:
            self.events.append(Event(Kind.CALL, name, self.count - 1, self._id(name, call_id)))

    def write(self, piece: str) -> None:
        """A piece of the open call's arguments."""
        assert self._open
        self.wrote = True
        if not self.silent:
            self.events.append(Event(Kind.ARGUMENTS, piece, self.count - 1))

    def close(self) -> None:
        if self._open:
            self._open = False
            if not self.silent:
                self.events.append(Event(Kind.CALL_END, "", self.count - 1))

    @property
    def is_open(self) -> bool:
        return self._open

    def _id(self, name: str, given: str) -> str:
        """The model's own id where it gave one that is not in use, else a new one."""
        found = given
        number = self._start + self.count - 1
        while not found or found in self._seen:
            if self._ids == "mistral":
                found = "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
            elif self._ids == "kimi":
                found, number = f"functions.{name}:{number}", number + 1
            else:
                found = f"call_{uuid.uuid4().hex[:24]}"
        self._seen.add(found)
        return found


def _text(text: str) -> str:
    """``text`` without halves of UTF-16 pairs, which no answer can hold."""
    return text.encode("utf-8", "replace").decode()
