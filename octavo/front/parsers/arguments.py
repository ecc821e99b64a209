"""Readers of arguments: one for each way in which formats write them, but for tags. Constant work a character."""

import re
from typing import Any, Protocol

from octavo.front.parsers.calls import Calls
from octavo.front.parsers.coerce import Schema, loads
from octavo.front.parsers.elements import ElementReader
from octavo.front.parsers.spec import Elements, Json, JsonCall, Python
from octavo.front.parsers.values import JSON, PYTHON, Literal, Notation

_SPACE = " \t\r\n"
_IDENTIFIER = re.compile(r"[^\W\d][\w.\-]*")
_NAME_CHARS = re.compile(r"[\w.\-]+")
_NAME = 256


class Reader(Protocol):
    """``done``: the arguments (or the calls) are whole. ``broken``: they can be none; nothing more is read.

    ``inside``: in a string, where markers are data.
    """

    @property
    def done(self) -> bool: ...
    @property
    def broken(self) -> bool: ...
    @property
    def inside(self) -> bool: ...
    def take(self, text: str) -> int:
        """Reads; how many characters of ``text`` were used."""

    def quotes(self, literal: str) -> bool:
        """Whether a marker of the notation means something here."""

    def mark(self, literal: str) -> None:
        """It came."""

    def end(self) -> bool:
        """The state is left. True where everything was whole."""


def reader(style: Json | JsonCall | Python | Elements, calls: Calls, name: str) -> Reader:
    """``name``: of the call that is open, for ``Json``."""
    if isinstance(style, Elements):
        return ElementReader(calls, calls.schema(name), style)
    if isinstance(style, Json):
        return ObjectReader(calls, calls.schema(name), style.notation)
    return CallReader(calls, style) if isinstance(style, JsonCall) else PythonReader(calls, style.known)


class ObjectReader:
    """One object: the open call's arguments."""

    def __init__(self, calls: Calls, schema: Schema, notation: Notation):
        self._calls = calls
        self._literal = Literal(calls.write, notation, schema)
        self.broken = False

    @property
    def done(self) -> bool:
        return self._literal.done

    @property
    def inside(self) -> bool:
        return self._literal.inside

    def take(self, text: str) -> int:
        at = 0
        if not self._literal.started:
            at = len(text) - len(text.lstrip())
            if at < len(text) and text[at] != "{":
                self.broken = True
        if not self.broken:
            at = self._literal.take(text, at)
            self.broken = self._literal.broken
        return at

    def quotes(self, literal: str) -> bool:
        return self._literal.quotes(literal)

    def mark(self, literal: str) -> None:
        self._literal.mark()

    def end(self) -> bool:
        if not self._literal.started and not self.broken:
            self._calls.write("{}")
            return True
        return self.done


class CallReader:
    """Objects that name the function and hold its arguments, in any order of keys."""

    def __init__(self, calls: Calls, style: JsonCall):
        self._calls, self._style = calls, style
        self._list = False
        self._levels = 0
        self._expect = "start"
        self._key = ""
        self._literal: Literal | None = None
        self._parts: list[str] = []
        self._arguments: str | None = None
        self._schema = calls.schema("")
        self._id = ""
        #: A name that is no tool's, which arguments have to follow.
        self._unknown = ""
        self.done = self.broken = False

    @property
    def inside(self) -> bool:
        return self._literal is not None and self._literal.inside

    def take(self, text: str) -> int:
        at = 0
        while at < len(text) and not self.done and not self.broken:
            if self._literal is not None:
                at = self._literal.take(text, at)
                if self._literal.broken:
                    self.broken = True
                elif self._literal.done:
                    self._over()
            elif text[at] in _SPACE or self._step(text[at]):
                at += 1
        return at

    def quotes(self, literal: str) -> bool:
        return False

    def mark(self, literal: str) -> None:
        raise AssertionError(literal)

    def end(self) -> bool:
        return self.done

    def _step(self, char: str) -> bool:
        """A character between values. True where it is used up."""
        expect = self._expect
        if expect == "start" and char == "[" and not self._list:
            self._list = True
        elif expect == "start" and char == "{":
            self._expect, self._levels = "key", 1
        elif (expect == "start" and char == "]" and self._list) or (expect == "next" and not self._levels):
            return self._separator(char)
        elif expect == "key" and char == '"':
            self._begin()
            return False
        elif expect == "colon" and char == ":":
            self._expect = "value"
        elif expect == "value":
            return self._value(char)
        elif expect == "next" and char == ",":
            self._expect = "key"
        elif expect in ("next", "key") and char == "}":
            self._leave()
        else:
            self.broken = True
            return False
        return True

    def _separator(self, char: str) -> bool:
        if char == "]":
            self.done = True
        elif char == ",":
            self._expect = "start"
        else:
            self.broken = True
            return False
        return True

    def _begin(self) -> None:
        """Read a value for ourselves."""
        self._parts = []
        self._literal = Literal(self._parts.append, JSON)

    def _value(self, char: str) -> bool:
        if self._key == "function" and self._key not in self._style.arguments and char == "{":
            self._levels, self._expect = self._levels + 1, "key"
            return True
        if self._is_arguments() and char == "{" and self._calls.is_open:
            self._literal = Literal(self._calls.write, JSON, self._schema)
        else:
            self._begin()
        return False

    def _is_arguments(self) -> bool:
        return self._key in self._style.arguments or not self._style.name

    def _over(self) -> None:
        """A key or a value is whole."""
        self._literal = None
        parts, self._parts = self._parts, []
        if self._expect == "key":
            self._found_key(loads("".join(parts)))
            return
        self._expect = "next"
        if self._key in self._style.name and not self._calls.is_open:
            name = _loaded("".join(parts))
            if not isinstance(name, str) or not name:
                self.broken = True
            elif self._style.bare and name not in self._calls.tools and self._arguments is None:
                self._unknown = name
            else:
                self._open(name)
        elif self._key in self._style.id:
            value = _loaded("".join(parts))
            self._id = value if isinstance(value, str) else "".join(parts)[:_NAME]
        elif self._is_arguments() and parts:
            self._found_arguments("".join(parts))

    def _found_key(self, key: str) -> None:
        self._key, self._expect = key, "colon"
        style = self._style
        if not style.name:
            self.broken = self._calls.is_open or not key
            if not self.broken:
                self._open(key)
        elif key in style.arguments and self._unknown:
            self._open(self._unknown)
        elif key not in (*style.name, *style.arguments, *style.id, "function", "type", "index", "tool_call_id"):
            # No call, or one that nobody can read: known at its first strange key, not at its end.
            self.broken = True

    def _found_arguments(self, text: str) -> None:
        if text.startswith('"'):
            text = loads(text)  # arguments as JSON within JSON
        if not text.strip() or text == "null":
            text = "{}"
        if self._calls.is_open:
            self._replay(text)
        else:
            self._arguments = text

    def _open(self, name: str) -> None:
        self._unknown = ""
        self._calls.open(name, self._id)
        self._schema = self._calls.schema(name)
        if self._arguments is not None:
            self._replay(self._arguments)

    def _replay(self, text: str) -> None:
        if not text.lstrip().startswith("{"):
            self.broken = True
            return
        literal = Literal(self._calls.write, JSON, self._schema)
        used = literal.take(text)
        self.broken = literal.broken or not literal.done or bool(text[used:].strip())

    def _leave(self) -> None:
        self._levels -= 1
        self._expect = "next"
        if self._levels:
            return
        if not self._calls.is_open:
            self.broken = True
            return
        if not self._calls.wrote:
            self._calls.write("{}")
        self._calls.close()
        self._arguments, self._id = None, ""
        self.done = not self._list


def _loaded(text: str) -> Any:
    """A value that was read to its end; None for one that Python cannot hold, such as 1e999."""
    try:
        return loads(text)
    except ValueError:
        return None


class PythonReader:
    """Calls with keyword arguments that are literals. Nothing is ever evaluated."""

    def __init__(self, calls: Calls, known: bool):
        self._calls, self._known = calls, known
        self._list = False
        self._name = ""
        self._expect = "start"
        self._literal: Literal | None = None
        self.done = self.broken = False

    @property
    def inside(self) -> bool:
        return self._literal is not None and self._literal.inside

    def take(self, text: str) -> int:
        at = 0
        while at < len(text) and not self.done and not self.broken:
            char = text[at]
            if self._literal is not None:
                at = self._literal.take(text, at)
                if self._literal.broken:
                    self.broken = True
                elif self._literal.done:
                    self._literal, self._expect = None, "next"
                    self._calls.close()
            elif char in _SPACE and not self._name:
                at += 1
            elif char == "(" and self._allowed():
                self._calls.open(self._name)
                self._literal = Literal.keywords(self._calls.write, PYTHON, self._calls.schema(self._name))
                self._name, at = "", at + 1
            elif self._name or self._expect != "next" or not (self._list or char in ",;"):
                at = self._head(text, at)
            elif char == "]" and self._list:
                self.done, at = True, at + 1
            elif char in ",;":
                self._expect, at = "more", at + 1
            else:
                self.broken = True
        return at

    def _allowed(self) -> bool:
        """Whether the name can be that of a call."""
        if self._name in self._calls.tools:
            return True
        return not self._known and _IDENTIFIER.fullmatch(self._name) is not None

    def _head(self, text: str, at: int) -> int:
        """A list's bracket, or some of a name."""
        char = text[at]
        if char == "[" and self._expect == "start" and not self._name and not self._list:
            self._list = True
            return at + 1
        if char == "]" and self._list and not self._name:
            # An empty list is no call.
            self.done = self._expect == "more"
            self.broken = not self.done
            return at + self.done
        found = _NAME_CHARS.match(text, at)
        if found is None or len(self._name) > _NAME:
            self.broken = True
            return at
        self._name += found[0]
        if not _IDENTIFIER.fullmatch(self._name):
            self.broken = not any(tool.startswith(self._name) for tool in self._calls.tools)
        return found.end()

    def quotes(self, literal: str) -> bool:
        return False

    def mark(self, literal: str) -> None:
        raise AssertionError(literal)

    def end(self) -> bool:
        return not self._list and self._literal is None and self._expect == "next"
