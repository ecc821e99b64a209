"""Grammars of tool calls in a family's own notation, in the Lark dialect of llguidance.

What the grammar allows is what the parser of the same ``ParserSpec`` reads.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.front.parsers.calls import Tool
from octavo.front.parsers.coerce import resolve, types
from octavo.front.parsers.literals import Literals, json_term
from octavo.front.parsers.spec import ARGS, CONTENT, Elements, Json, ParserSpec, Python, Style, Tags, To, Wire
from octavo.front.parsers.values import JSON, PYTHON

#: Calls in one answer that a grammar without ``parallel`` limits allows.
MAX_CALLS = 128
#: Levels of elements that follow the schema; what is deeper is JSON, which is read too.
_NESTED = 4
_FIELD = re.compile(r"(\{name\}|\{index\}|\{key\}|\{string\}|\{text\})")


def tool_grammar(
    spec: ParserSpec,
    ids: Mapping[str, int],
    tools: Sequence[Tool],
    *,
    required: bool,
    named: str | None,
    parallel: bool,
) -> str | None:
    """A Lark grammar; None where the format has no ``Wire``, or text may come first (not ``required``, no ``named``)
    and calls are a whole answer or reasoning is part of the grammar.

    ``named``: only this tool, once. ``parallel`` False: one call.
    """
    wire = spec.grammar
    chosen = [tool for tool in tools if named is None or tool.name == named]
    if wire is None or not chosen:
        return None
    writer = _Writer(ids, wire, spec.args.get(ARGS))
    calls = " | ".join(writer.tool(i, tool) for i, tool in enumerate(chosen))
    begin, between, end = (writer.text(piece) for piece in (wire.begin, wire.between, wire.end))
    first = [marker for marker in ids if (wire.begin or wire.call).startswith(marker)]
    body = f"{begin} call {end}"
    if parallel and named is None:
        body = f"{begin} call ({between} call){{0,{MAX_CALLS - 1}}} {end}"
    if required or named is not None:
        start = f"start: ({writer.text(wire.lead)})? {body}" if wire.lead else f"start: SPACE {body}"
    elif first and not wire.lead:
        start = f"start: TEXT ({body})?"
    else:
        begins = [one for one, to in spec.table.get(CONTENT, {}).items() if not isinstance(to, To) or not to.first]
        head = max((one for one in begins if (wire.begin or wire.call).startswith(one)), key=len, default="")
        if wire.lead or not head:
            return None
        # Text up to the marker that begins calls, or without it: only a text's own end tells them apart.
        rest = [writer.text(wire.begin[len(head) :]), "call"]
        if not wire.begin:
            rest = [" | ".join(f"{writer.tool(i, tool, len(head), f'first_{i}')}" for i, tool in enumerate(chosen))]
            rest = [f"({rest[0]})"]
        marker = re.escape(head).replace("/", r"\/")
        more = f"({between} call){{0,{MAX_CALLS - 1}}}" if parallel else ""
        start = "\n".join(
            [
                f"start: PROSE | {writer.until('until', head)} {' '.join(rest)} {more} {end}",
                f"PROSE: /(?s:.*)/ & ~/(?s:.*){marker}(?s:.*)/",
            ]
        )
    return "\n".join([start, f"call: {calls}", *writer.rules, r"SPACE: /[ \n]{0,2}/", "TEXT: /(?s:.*)/"]) + "\n"


class _Writer:
    """``rules``: the lines of the grammar that calls refer to."""

    def __init__(self, ids: Mapping[str, int], wire: Wire, style: Style | None):
        self._ids, self._wire, self._style = ids, wire, style
        self._markers = re.compile("|".join(re.escape(one) for one in sorted(ids, key=len, reverse=True)) or r"(?!)")
        self.rules: list[str] = []
        notation = PYTHON if isinstance(style, Python) else style.notation if isinstance(style, Json) else JSON
        self._literals: Literals | None = None
        if notation != JSON:
            self._literals = Literals(self.rules, self._literal, notation, notation.mark in ids)

    def text(self, text: str, **fields: str) -> str:
        """``text`` as terminals: special tokens by id, the rest as strings. {index} is any number, {text} anything."""
        found: list[str] = []
        for part in _FIELD.split(text):
            if part == "{index}":
                found.append("/[0-9]{1,6}/")
            elif part == "{text}":
                found.append("TEXT")
            elif part[1:-1] in fields and part.startswith("{"):
                found.append(_quoted(fields[part[1:-1]]))
            else:
                found += self._pieces(part)
        return " ".join(found)

    def _literal(self, text: str) -> str:
        return " ".join(self._pieces(text)) or _quoted("")

    def _pieces(self, text: str) -> list[str]:
        found, at = [], 0
        for match in self._markers.finditer(text):
            if match.start() > at:
                found.append(_quoted(text[at : match.start()]))
            found.append(f"<[{self._ids[match[0]]}]>")
            at = match.end()
        return [*found, _quoted(text[at:])] if at < len(text) else found

    def tool(self, number: int, tool: Tool, skip: int = 0, name: str = "") -> str:
        """Adds the rules of one tool's call, without its first ``skip`` characters; the rule's name."""
        name = name or f"call_{number}"
        wire = self._wire
        if isinstance(self._style, Tags | Elements):
            arguments = self._parameters(name, tool)
        elif self._literals is not None:
            python = isinstance(self._style, Python)
            arguments = self._literals.members(f"{name}_arguments", tool.parameters or {}, "=" if python else "")
            arguments = arguments if python else f'"{{" {arguments} "}}"'
        else:
            arguments = f"{name}_arguments"
            self._json(arguments, {"type": "object", **(tool.parameters or {})})
        call, close = self.text(wire.call[skip:], name=tool.name), self.text(wire.close, name=tool.name)
        self.rules.append(f"{name}: {call} {arguments} {close}")
        return name

    def _parameters(self, name: str, tool: Tool) -> str:
        root = tool.parameters or {}
        return self._members(name, resolve(root, root), root, 0)

    def _members(self, name: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        """The parameters in the schema's order; those that are not required may be missing."""
        required = schema.get("required") or ()
        found = []
        for i, (key, value) in enumerate((schema.get("properties") or {}).items()):
            rule = f"{name}_{i}"
            self._parameter(rule, key, value, root, depth)
            found.append(rule if key in required else f"{rule}?")
        return " ".join(found)

    def _parameter(self, rule: str, key: str, value: Any, root: Mapping[str, Any], depth: int) -> None:
        assert self._wire.value is not None
        before, after = self._wire.value
        schema = resolve(value, root)
        nested = isinstance(self._style, Elements)
        is_text = types(value, root) <= {"string"}
        opening = self.text(before, key=key, string="true" if is_text else "false")
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if is_text and choices is not None:
            self.rules.append(f"{rule}_value: {' | '.join(_quoted(str(choice)) for choice in choices)}")
        elif is_text:
            self.rules.append(f"{rule}: {opening} {self.until(rule, after.replace('{key}', key))}")
            return
        elif nested and (inner := self._elements(rule, schema, root, depth)):
            self.rules.append(f"{rule}_value: {inner}")
        else:
            shared = {word: root[word] for word in ("$defs", "definitions") if word in root}
            self._json(f"{rule}_value", {**shared, **value})
        self.rules.append(f"{rule}: {opening} {rule}_value {self.text(after, key=key)}")

    def _elements(self, rule: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        """What stands in an element that holds a list or an object; "" for one that is written as JSON."""
        assert isinstance(self._style, Elements)
        kinds = types(schema, root)
        if depth >= _NESTED:
            return ""
        if kinds == {"array"} and isinstance(schema.get("items"), Mapping):
            self._parameter(f"{rule}_item", self._style.item, schema["items"], root, depth + 1)
            return f"{rule}_item*"
        if kinds == {"object"} and isinstance(schema.get("properties"), Mapping) and schema["properties"]:
            return self._members(rule, schema, root, depth + 1)
        return ""

    def until(self, rule: str, after: str) -> str:
        """Any text up to ``after``, and that. Special tokens are no text: what stands in front of one is matched with
        the text that it ends."""
        at = min((after.find(marker) for marker in self._ids if marker in after), default=-1)
        if at < 0:
            self.rules.append(f"{rule}_value[suffix={_quoted(after)}]: /(?s:.*)/")
            return f"{rule}_value"
        front = re.escape(after[:at]).replace("/", r"\/")
        self.rules.append(f"{rule}_value: /(?s:.*){front}/")
        return f"{rule}_value {self._literal(after[at:])}"

    def _json(self, rule: str, schema: Mapping[str, Any]) -> None:
        self.rules.append(f"{rule}: {json_term(schema)}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else '""'
