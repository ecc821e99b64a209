"""TagWriter: arguments that come as a pair of tags a parameter, to JSON. Constant work a character."""

import re

from octavo.front.parsers.calls import Calls
from octavo.front.parsers.coerce import dumps, escaped, loads
from octavo.front.parsers.spec import Tags, Trim

_KEY = re.compile(
    r"""\s*(?:name\s*=\s*)?(?P<quote>["']?)(?P<key>.*?)(?P=quote)(?:\s+string\s*=\s*["'](?P<string>true|false)["'])?\s*""",
    re.DOTALL,
)


class TagWriter:
    """Parameters as tags give them, told as the members of an object. A string goes out as it comes."""

    def __init__(self, calls: Calls, name: str, style: Tags):
        self._calls, self._schema, self._style = calls, calls.schema(name), style
        self._key = ""
        self._json = False
        self._first = self._at_start = True
        self._text = False
        self._space: list[str] = []
        #: What may be the beginning of the marker in front of a value.
        self._front = ""
        self._quoted = False
        self._parts: list[str] = []
        #: A parameter that may be all arguments in one: its key and value.
        self._wrapped: tuple[str, str] | None = None

    def key(self, text: str) -> None:
        found = _KEY.fullmatch(text)
        self._key = found["key"].strip() if found is not None else text.strip()
        self._json = found is not None and found["string"] == "false"
        self._space, self._parts, self._at_start = [], [], True
        self._front, self._quoted = "", False
        self._release()
        self._text = not self._json and self._schema.is_text(self._key) and not self._may_wrap()
        if self._text:
            self._member(self._key)
            self._calls.write('"')

    def value(self, text: str) -> None:
        opening, closing = self._style.quotes
        if opening and self._at_start:
            text = self._front + text
            self._front = ""
            if len(text) < len(opening) and opening.startswith(text):
                self._front = text
                return
            self._quoted = text.startswith(opening)
            text = text.removeprefix(opening) if self._quoted else text
            self._at_start = False
        if not self._text:
            self._parts.append(text)
            return
        if self._quoted:
            self._tell_quoted(text, closing)
            return
        trim = self._style.trim
        if self._at_start and trim is not Trim.NOTHING and text:
            text = text.lstrip() if trim is Trim.SPACE else text.removeprefix("\n")
            self._at_start = trim is Trim.SPACE and not text
        if not text:
            return
        # What may be the end of the value waits: only what stands behind it says whether it is.
        body = text if trim is Trim.NOTHING else text.rstrip() if trim is Trim.SPACE else text.removesuffix("\n")
        if body or trim is Trim.LINE:
            self._write("".join(self._space) + body)
            self._space = []
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def _tell_quoted(self, text: str, closing: str) -> None:
        """Text of which what may be the closing marker waits."""
        text = "".join((*self._space, text))
        size = next((n for n in range(min(len(closing), len(text)), 0, -1) if text.endswith(closing[:n])), 0)
        self._space = [text[len(text) - size :]] if size else []
        self._write(text[: len(text) - size])

    def close(self) -> None:
        """The value is over."""
        if self._front:
            self._at_start = False
            front, self._front = self._front, ""
            if self._text:
                self._write(front)
            else:
                self._parts.append(front)
        if self._text:
            if self._quoted:
                self._write("".join(self._space).removesuffix(self._style.quotes[1]))
                self._space = []
            self._calls.write('"')
            return
        text = "".join(self._parts)
        if self._quoted:
            text = text.removesuffix(self._style.quotes[1])
        if self._style.trim is Trim.SPACE:
            text = text.strip()
        elif self._style.trim is Trim.LINE:
            text = text.removeprefix("\n").removesuffix("\n")
        if self._may_wrap():
            self._wrapped = (self._key, text)
        else:
            self._whole(self._key, text)

    def end(self) -> None:
        """The call is over."""
        if self._wrapped is not None:
            try:
                found = loads(self._wrapped[1])
            except ValueError:
                found = None
            if isinstance(found, dict) and all(key in self._schema for key in found):
                self._calls.write(dumps(found))
                return
            self._release()
        self._calls.write("{}" if self._first else "}")

    def _may_wrap(self) -> bool:
        return (
            self._first and self._key in self._style.unwrap and len(self._schema) > 0 and self._key not in self._schema
        )

    def _release(self) -> None:
        if self._wrapped is not None:
            (key, text), self._wrapped = self._wrapped, None
            self._whole(key, text)

    def _whole(self, key: str, text: str) -> None:
        self._member(key)
        value = self._schema.coerce(key, text)
        if self._json and not self._schema.types(key):
            try:
                value = loads(text)
            except ValueError:
                value = text
        self._calls.write(dumps(value))

    def _member(self, key: str) -> None:
        self._calls.write("{" if self._first else ", ")
        self._first = False
        self._calls.write(f"{dumps(key)}: ")

    def _write(self, text: str) -> None:
        self._calls.write(escaped(text))
