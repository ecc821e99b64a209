"""ElementReader: arguments as nested elements, to JSON. Constant work a character."""

from dataclasses import dataclass, field

from octavo.front.parsers.calls import Calls
from octavo.front.parsers.coerce import Schema, dumps, escaped
from octavo.front.parsers.spec import Elements

#: Levels of elements, and characters of a tag.
_DEPTH, _TAG = 64, 512
#: The key of text that stands beside elements.
_TEXT = "$text"


@dataclass(slots=True)
class _Element:
    """An open element. ``kind``: "" while nothing tells, else "string", "object" or "array". ``empty``: it holds no
    member yet. ``parts``: its text that is not told."""

    name: str
    schema: Schema
    kind: str = ""
    empty: bool = True
    parts: list[str] = field(default_factory=list)


class ElementReader:
    """The elements of one call: members of the open call's arguments.

    What an element holds is decided by its schema and its content: elements make an object, elements that are items or
    stand where the schema says list make a list, text alone is a value that the schema coerces. Text of a string goes
    out as it comes; in a string all but its own end is text.
    """

    def __init__(self, calls: Calls, schema: Schema, style: Elements):
        self._write, self._style = calls.write, style
        self._stack = [_Element("", schema, "object")]
        self._started = False
        #: Text that may be the beginning of a mark, or a tag that has not ended.
        self._held = ""
        self.broken = False
        self.done = False
        self.inside = False

    def take(self, text: str) -> int:
        """All of ``text`` is read: what is no element is text of the innermost, and between parameters nothing."""
        size = len(text)
        mark = self._style.mark
        while text and not self.broken:
            if self._held.startswith(mark):
                text = self._tag(text)
                continue
            # At most a mark's characters wait, so that they are seen again at most once.
            text, self._held = self._held + text, ""
            at = text.find(mark)
            if at >= 0:
                self._text(text[:at])
                self._held, text = mark, text[at + len(mark) :]
                continue
            size_held = next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
            self._text(text[: len(text) - size_held])
            self._held, text = text[len(text) - size_held :], ""
        return size

    def quotes(self, literal: str) -> bool:
        return False

    def mark(self, literal: str) -> None:
        raise AssertionError(literal)

    def end(self) -> bool:
        """Elements that are open end too. False where one could not be read."""
        if self.broken:
            return False
        if not self._held.startswith(self._style.mark):
            self._text(self._held)
        while len(self._stack) > 1:
            self._close()
        self._write("}" if self._started else "{}")
        self.done = True
        return True

    def _tag(self, text: str) -> str:
        """Some of a tag behind a mark; what of ``text`` is left."""
        mark = self._style.mark
        at = text.find(">")
        piece = text if at < 0 else text[: at + 1]
        begun = self._held[len(mark) :]
        if not begun and piece[0] != "<":
            self._held = ""
            self._text(mark)
            return text
        self._held += piece
        if len(self._held) > _TAG + len(mark):
            self.broken = True
        elif at >= 0:
            tag, self._held = self._held[len(mark) :], ""
            self._element(tag)
        return text[len(piece) :]

    def _element(self, tag: str) -> None:
        top = self._stack[-1]
        closing = tag.startswith("</")
        name = tag[2 if closing else 1 : -1].strip()
        if top.kind == "string":
            if closing and name == top.name:
                self._close()
            else:
                self._text(self._style.mark + tag)
        elif not closing:
            self._open(name)
        elif any(element.name == name for element in self._stack[1:]):
            while self._stack[-1].name != name:
                self._close()  # inner elements whose end is missing
            self._close()

    def _open(self, name: str) -> None:
        top = self._stack[-1]
        if not name or len(self._stack) > _DEPTH:
            self.broken = True
            return
        if not top.kind:
            listed = "array" in top.schema.kinds and not ("object" in top.schema.kinds and name in top.schema)
            top.kind = "array" if listed or (name == self._style.item and name not in top.schema) else "object"
            self._write("[" if top.kind == "array" else "{")
        if top.kind == "array":
            if not top.empty:
                self._write(", ")
            schema = top.schema.items
        else:
            if len(self._stack) == 1:
                self._write(", " if self._started else "{")
                self._started = True
            elif not top.empty:
                self._write(", ")
            self._write(f"{dumps(name)}: ")
            schema = top.schema.member(name)
        top.empty = False
        element = _Element(name, schema)
        self._stack.append(element)
        if schema.kinds == {"string"}:
            element.kind = "string"
            self._write('"')

    def _text(self, text: str) -> None:
        top = self._stack[-1]
        if not text or len(self._stack) == 1:
            return
        if top.kind == "string":
            self._write(escaped(text))
            return
        top.parts.append(text)
        if not top.kind and not top.schema.kinds and not text.isspace():
            top.kind = "string"  # nothing says what it is, and it does not begin with an element
            self._write('"' + escaped("".join(top.parts)))

    def _close(self) -> None:
        top = self._stack.pop()
        if top.kind == "string":
            self._write('"')
            return
        text = "".join(top.parts)
        if not top.kind:
            self._write(dumps(_value(text, top.schema)))
            return
        if text.strip():
            # A list has no place for it but its end.
            key = "" if top.kind == "array" else f"{dumps(_TEXT)}: "
            self._write(f"{'' if top.empty else ', '}{key}{dumps(text.strip())}")
        self._write("]" if top.kind == "array" else "}")


def _value(text: str, schema: Schema) -> object:
    """Of an element that holds text alone: none of it is an empty list or object where one is meant."""
    if not text.strip():
        if "string" in schema.kinds or not schema.kinds:
            return text
        if "array" in schema.kinds:
            return []
        if "object" in schema.kinds:
            return {}
    return schema.value(text)
