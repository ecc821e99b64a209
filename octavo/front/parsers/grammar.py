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
from octavo.front.parsers.spec import ARGS, CONTENT, Elements, Json, ParserSpec, Python, Role, Style, Tags, To, Wire
from octavo.front.parsers.values import JSON, PYTHON

#: Calls in one answer that a grammar without ``parallel`` limits allows.
MAX_CALLS = 128
#: Levels of elements that follow the schema; what is deeper is JSON, which is read too.
_NESTED = 4
#: What a marker in content leads to, if it begins a call.
_OF_CALLS = (Role.WRAP, Role.LABEL, Role.NAME, Role.ARGS)
_FIELD = re.compile(r"(\{name\}|\{index\}|\{key\}|\{string\}|\{text\})")


def tool_grammar(
    spec: ParserSpec,
    ids: Mapping[str, int],
    tools: Sequence[Tool],
    *,
    required: bool,
    named: str | None,
    parallel: bool,
    answer: str = "",
) -> str | None:
    """A Lark grammar. None where the format has no ``Wire``, or, if text may come first (neither ``required`` nor
    ``named``), where the vocabulary has no tokens that tell the format's messages apart, or no marker begins calls.

    ``named``: only this tool, once. ``parallel`` False: one call. ``answer``: a term that the last of a format's
    messages keeps to, where text may come first.
    """
    wire = spec.grammar
    chosen = [tool for tool in tools if named is None or tool.name == named]
    if wire is None or not chosen:
        return None
    start: str | None
    forced = required or named is not None
    if wire.says and not forced and not all(marker in ids for marker in spec.tokens):
        return None
    writer = _Writer(ids, wire, spec.args.get(ARGS))
    calls = " | ".join(writer.tool(i, tool) for i, tool in enumerate(chosen))
    begin, between, end = (writer.text(piece) for piece in (wire.begin, wire.between, wire.end))
    more = f"({between} call){{0,{MAX_CALLS - 1}}}" if parallel and named is None else ""
    body = f"{begin} call {more} {end}"
    if forced:
        lead = f"({writer.text(wire.says[0] + wire.then)})?" if wire.says else "SPACE"
        start = f"start: {lead} {body}"
    elif wire.says:
        start = _messages(writer, wire, between if parallel else "", answer)
    else:
        start = _prose(spec, writer, ids, chosen, body, f"{more} {end}")
    if start is None:
        return None
    return "\n".join([start, f"call: {calls}", *writer.rules, r"SPACE: /[ \n]{0,2}/", "TEXT: /(?s:.*)/"]) + "\n"


def _messages(writer: "_Writer", wire: Wire, between: str, answer: str) -> str:
    """Rules of messages of which each may be a call, with ``between`` empty only the last."""
    says = [writer.text(message) for message in wire.says]
    last = [*says[:-1], writer.text(wire.says[-1].replace("{text}", "")) + f" {answer}"] if answer else says
    turns = [f"say {writer.text(wire.then)}", *([f"call {between}"] if between else [])]
    return "\n".join(
        [
            f"start: ({' | '.join(turns)}){{0,{MAX_CALLS - 1}}} (call | {'last' if answer else 'say'})",
            f"say: {' | '.join(says[:-1] if answer else says)}",
            *([f"last: {last[-1]}"] if answer else []),
        ]
    )


def _prose(
    spec: ParserSpec, writer: "_Writer", ids: Mapping[str, int], chosen: Sequence[Tool], body: str, rest: str
) -> str | None:
    """Rules of text, with calls behind it or none; None where no marker begins calls.

    The text has nothing that the parser takes for the beginning of a call: a marker that is a special token is never
    text, any other is looked for.
    """
    assert spec.grammar is not None
    opening = spec.grammar.begin or spec.grammar.call
    begins = {
        marker: to if isinstance(to, To) else To(to)
        for marker, to in spec.table.get(CONTENT, {}).items()
        if spec.role(to.state if isinstance(to, To) else to) in _OF_CALLS
    }
    where = {marker: _where(to) + _escaped(marker) for marker, to in begins.items() if marker not in ids}
    begun = f"({'|'.join(where.values())})"
    prose = "PROSE: /(?s:.*)/" + (f" & ~/{begun}(?s:.*)/" if where else "")
    if any(opening.startswith(marker) for marker in ids):
        return f"start: PROSE ({body})?\n{prose}"
    head = max((marker for marker in begins if opening.startswith(marker)), key=len, default="")
    if not head:
        return None
    # Text up to the marker that begins calls, or without it: only a text's own end tells them apart.
    cut = min((head.find(marker) for marker in ids if marker in head), default=len(head))
    before = f"BEFORE: /{_where(begins[head])}{_escaped(head[:cut])}/ & ~/{begun}(?s:.+)/"
    first = f"{writer.text(spec.grammar.begin[len(head) :])} call"
    if not spec.grammar.begin:
        first = f"({' | '.join(writer.tool(i, tool, len(head), f'first_{i}') for i, tool in enumerate(chosen))})"
    return f"start: PROSE | BEFORE {writer.text(head[cut:])} {first} {rest}\n{prose}\n{before}"


def _where(to: To) -> str:
    """A regex of what stands before a marker that counts."""
    return r"[\s\x1c-\x1f]*" if to.first else r"((?s:.*)\n)?" if to.line else "(?s:.*)"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


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
        self.rules.append(f"{rule}_value: /(?s:.*){_escaped(after[:at])}/")
        return f"{rule}_value {self._literal(after[at:])}"

    def _json(self, rule: str, schema: Mapping[str, Any]) -> None:
        self.rules.append(f"{rule}: {json_term(schema)}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else '""'
