"""Literal: one value written as JSON, Python or Gemma's notation, read as it comes and told as JSON.

What is told is a prefix of valid JSON whatever is read: a comma is told with the element behind it, a number or word
when it is over, an escape when it is whole. The work is constant a character.
"""

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from octavo.front.parsers.coerce import NOTHING, Schema, dumps, escaped, loads

#: Levels of brackets.
_DEPTH = 100
#: Characters of a number or a word.
_SCALAR = 1024
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PY_NUMBER = re.compile(
    r"[+-]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*\.?[0-9_]*([eE][+-]?[0-9]+)?|\.[0-9]+)"
)
_SPACE = " \t\r\n"
_ENDS = frozenset(",[]{}():;= \t\r\n")
#: What ends a word where words are strings.
_BARE_ENDS = frozenset(",]}\n")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", "\\": "\\", '"': '"', "'": "'"}
_PY_ESCAPES = _ESCAPES | {"a": "\a", "v": "\v", "0": "\0", "\n": ""}
_HEX = {"u": 4, "x": 2, "U": 8}


class Notation(NamedTuple):
    """``quotes``: characters that open strings. ``mark``: a marker that opens and closes them, with no escapes.

    ``python``: tuples, its numbers and escapes. ``bare``: keys without quotes, and words that are strings.
    """

    quotes: str = '"'
    mark: str = ""
    python: bool = False
    bare: bool = False


JSON = Notation()
PYTHON = Notation("\"'", python=True)


class _Frame(NamedTuple):
    close: str
    assign: str
    object: bool
    bare: bool


_STOPS = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]+") for quote in "\"'"}
_VALUE, _KEY, _BARE, _ASSIGN, _NEXT, _STRING, _ESCAPE, _SCALAR_STATE, _DONE = range(9)


class Literal:
    """``write``: takes pieces of JSON. ``schema``: of the value; a string in it, at any depth, that is to be no string
    waits for its end and is coerced.

    ``done``: the value is whole. ``broken``: it can be none; nothing more is read.
    """

    __slots__ = (
        "_buffer",
        "_empty",
        "_escape",
        "_frames",
        "_in_key",
        "_key",
        "_notation",
        "_parts",
        "_quote",
        "_scalar",
        "_schemas",
        "_state",
        "_write",
        "broken",
        "kind",
        "started",
    )  # fmt: skip

    def __init__(self, write: Callable[[str], None], notation: Notation = JSON, schema: Schema | None = None):
        self._write, self._notation = write, notation
        #: Of the value that is next at each level, the whole and then what open brackets hold.
        self._schemas = [schema if schema is not None else NOTHING]
        self._state = _VALUE
        self._frames: list[_Frame] = []
        #: Whether the innermost bracket holds nothing yet, a level.
        self._empty: list[bool] = []
        #: A member's name as JSON has it, and its pieces while they come.
        self._key = ""
        self._parts: list[str] = []
        self._buffer: list[str] | None = None
        self._escape = ""
        self._quote = ""
        self._scalar: list[str] = []
        self._in_key = False
        self.broken = False
        self.started = False
        #: First character of the value: what kind it is.
        self.kind = ""

    @classmethod
    def keywords(cls, write: Callable[[str], None], notation: Notation, schema: Schema) -> "Literal":
        """The keyword arguments of a call, read from behind its opening parenthesis: told as an object."""
        found = cls(write, notation, schema)
        found.started, found.kind = True, "("
        found._push(_Frame(")", "=", True, True))
        return found

    @property
    def done(self) -> bool:
        return self._state == _DONE

    @property
    def inside(self) -> bool:
        """In a string: markers are data."""
        return self._state in (_STRING, _ESCAPE)

    def take(self, text: str, at: int = 0) -> int:
        """Read ``text`` from ``at``; where reading ended: behind the value, or at what cannot be part of it."""
        size = len(text)
        while at < size and not self.broken and self._state != _DONE:
            state = self._state
            if state == _STRING:
                at = self._string(text, at)
            elif state == _ESCAPE:
                self._escaped(text[at])
                at += 1
            elif state == _SCALAR_STATE:
                if text[at] in (_BARE_ENDS if self._notation.bare else _ENDS):
                    self._end_scalar()
                else:
                    self._scalar.append(text[at])
                    self.broken = len(self._scalar) > _SCALAR
                    at += 1
            elif state == _BARE:
                at = self._bare(text, at)
            elif text[at] in _SPACE or self._step(text[at]):
                at += 1
        return at

    def quotes(self, literal: str) -> bool:
        """Whether a marker opens or closes a string here."""
        if literal != self._notation.mark or not self.started:
            return False
        return self._state == _VALUE or (self._state == _STRING and not self._quote) or self._state == _KEY

    def mark(self) -> None:
        """The marker that opens and closes strings came."""
        if self._state == _STRING:
            self._end_string()
        else:
            self._open_string("", self._state == _KEY)

    def end(self) -> None:
        """Nothing more comes: a number that nothing stands behind is over, where it is the whole value."""
        if self._state == _SCALAR_STATE and not self._frames:
            self._end_scalar()

    def _step(self, char: str) -> bool:
        """One character between strings and words. True where it is used up."""
        state = self._state
        if state == _NEXT:
            frame = self._frames[-1]
            if char == ",":
                self._state = _KEY if frame.object else _VALUE
            elif char == frame.close:
                self._pop()
            else:
                self.broken = True
                return False
            return True
        if state == _ASSIGN:
            if char != self._frames[-1].assign:
                self.broken = True
                return False
            # With the comma before it, so that one that hangs is never told.
            self._comma()
            self._write(f'"{self._key}": ')
            self._state = _VALUE
            return True
        if self._frames and char == self._frames[-1].close and (state == _KEY or not self._frames[-1].object):
            self._pop()
            return True
        if state == _KEY:
            return self._start_key(char)
        return self._start_value(char)

    def _start_key(self, char: str) -> bool:
        if char in self._notation.quotes and not self._frames[-1].bare:
            self._open_string(char, True)
            return True
        if self._frames[-1].bare and char not in _ENDS:
            self._parts, self._state = [], _BARE
            return False
        self.broken = True
        return False

    def _start_value(self, char: str) -> bool:
        self._begin(char)
        notation = self._notation
        if char == "{":
            self._push(_Frame("}", ":", True, notation.bare))
        elif char == "[" or (char == "(" and notation.python):
            self._push(_Frame("]" if char == "[" else ")", "", False, False))
        elif char in notation.quotes:
            self._open_string(char, False)
        elif char in _ENDS:
            self.broken = True
            return False
        else:
            self._scalar, self._state = [char], _SCALAR_STATE
        return True

    def _begin(self, char: str) -> None:
        if not self.started:
            self.started, self.kind = True, char

    def _comma(self) -> None:
        """Before an element of a list or a key of an object."""
        if self._frames:
            if not self._empty[-1]:
                self._write(", ")
            self._empty[-1] = False

    def _push(self, frame: _Frame) -> None:
        if len(self._frames) >= _DEPTH:
            self.broken = True
            return
        if self._frames and not self._frames[-1].object:
            self._comma()
        self._schemas.append(NOTHING if frame.object else self._schemas[-1].items)
        self._frames.append(frame)
        self._empty.append(True)
        self._write("{" if frame.object else "[")
        self._state = _KEY if frame.object else _VALUE

    def _pop(self) -> None:
        frame = self._frames.pop()
        self._empty.pop()
        self._schemas.pop()
        self._write("}" if frame.object else "]")
        self._over()

    def _over(self) -> None:
        self._state = _NEXT if self._frames else _DONE

    def _open_string(self, quote: str, key: bool) -> None:
        self._begin('"')
        self._quote, self._in_key, self._state = quote, key, _STRING
        if key:
            self._parts = []
            return
        if self._frames and self._schemas[-1].no_text:
            self._buffer = []
            return
        if not (self._frames and self._frames[-1].object):
            self._comma()
        self._write('"')

    def _string(self, text: str, at: int) -> int:
        if not self._quote:
            self._chars(text[at:])
            return len(text)
        found = _STOPS[self._quote].match(text, at)
        if found is not None:
            self._chars(found[0])
            return found.end()
        char = text[at]
        if char == self._quote:
            self._end_string()
        elif char == "\\":
            self._escape, self._state = "\\", _ESCAPE
        else:
            self._chars(char)
        return at + 1

    def _chars(self, text: str) -> None:
        self._piece(escaped(text))

    def _piece(self, piece: str) -> None:
        """Characters of a string as JSON has them."""
        if self._in_key:
            self._parts.append(piece)
        elif self._buffer is not None:
            self._buffer.append(piece)
        else:
            self._write(piece)

    def _end_string(self) -> None:
        if self._in_key:
            self._end_key()
            return
        if self._buffer is not None:
            raw = loads(f'"{"".join(self._buffer)}"')
            self._buffer = None
            if not self._frames[-1].object:
                self._comma()
            self._write(dumps(self._schemas[-1].value(raw)))
        else:
            self._write('"')
        self._over()

    def _end_key(self) -> None:
        self._key, self._state = "".join(self._parts), _ASSIGN
        self._schemas[-1] = self._schemas[-2].member(loads(f'"{self._key}"'))

    def _escaped(self, char: str) -> None:
        self._escape += char
        kind = self._escape[1]
        if kind in _HEX and (kind == "u" or self._notation.python):
            if len(self._escape) > 2 and char not in "0123456789abcdefABCDEF":
                self._give_up_escape()
            elif len(self._escape) == 2 + _HEX[kind]:
                code = int(self._escape[2:], 16)
                self._state = _STRING
                if 0xD800 <= code < 0xE000:
                    self._piece(f"\\u{code:04x}")  # halves of a pair meet again in the reader's JSON
                else:
                    self._chars(chr(code) if code < 0x110000 else "\ufffd")
            return
        self._state = _STRING
        known = (_PY_ESCAPES if self._notation.python else _ESCAPES).get(kind)
        self._chars(self._escape if known is None else known)

    def _give_up_escape(self) -> None:
        """Not an escape after all: its characters as they are; the last may end the string."""
        text, self._state = self._escape, _STRING
        self._chars(text[:-1])
        self._string(text[-1], 0)

    def _bare(self, text: str, at: int) -> int:
        char = text[at]
        if char == self._frames[-1].assign:
            self._parts = [escaped("".join(self._parts).strip())]
            self._end_key()
            return at
        if char in ",{}[]()" or len(self._parts) > _SCALAR:
            self.broken = True
            return at
        self._parts.append(char)
        return at + 1

    def _end_scalar(self) -> None:
        text = "".join(self._scalar).strip()
        told = self._told(text)
        if told is None:
            self.broken = True
            return
        if self._frames and not self._frames[-1].object:
            self._comma()
        self._write(told)
        self._over()

    def _told(self, text: str) -> str | None:
        """A number or a word as JSON; None where it is neither."""
        if self._notation.bare and self._frames and self._schemas[-1].kinds:
            return dumps(self._schemas[-1].value(text))
        if text in _WORDS:
            return _WORDS[text]
        if _JSON_NUMBER.fullmatch(text):
            return text
        if _PY_NUMBER.fullmatch(text):
            return _number(text)
        return dumps(text) if self._notation.bare else None


def _number(text: str) -> str | None:
    """A number of Python's as JSON."""
    bare = text.replace("_", "")
    try:
        return str(int(bare) if bare.lstrip("+-").isdecimal() else int(bare, 0))
    except ValueError:
        pass
    try:
        value = float(bare)
    except ValueError:
        return None
    return dumps(value) if math.isfinite(value) else None
