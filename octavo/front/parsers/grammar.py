"""Grammars of tool calls in a family's own notation, in the Lark dialect of llguidance.

What the grammar allows is what the parser of the same ``ParserSpec`` reads.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.front.parsers.calls import Tool
from octavo.front.parsers.coerce import resolve, types
from octavo.front.parsers.spec import ARGS, ParserSpec, Tags, Wire

#: Calls in one answer that a grammar without ``parallel`` limits allows.
MAX_CALLS = 128
_FIELD = re.compile(r"(\{name\}|\{index\}|\{key\}|\{string\}|\{text\})")
#: How models write JSON: one space behind a comma and a colon, none elsewhere.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


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
    and calls begin with no special token, which a grammar could not tell from text.

    ``named``: only this tool, once. ``parallel`` False: one call.
    """
    wire = spec.grammar
    chosen = [tool for tool in tools if named is None or tool.name == named]
    if wire is None or not chosen:
        return None
    writer = _Writer(ids, wire, isinstance(spec.args.get(ARGS), Tags))
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
        return None
    return "\n".join([start, f"call: {calls}", *writer.rules, r"SPACE: /[ \n]{0,2}/", "TEXT: /(?s:.*)/"]) + "\n"


class _Writer:
    """``rules``: the lines of the grammar that calls refer to."""

    def __init__(self, ids: Mapping[str, int], wire: Wire, tags: bool):
        self._ids, self._wire, self._tags = ids, wire, tags
        self._markers = re.compile("|".join(re.escape(one) for one in sorted(ids, key=len, reverse=True)) or r"(?!)")
        self.rules: list[str] = []

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

    def _pieces(self, text: str) -> list[str]:
        found, at = [], 0
        for match in self._markers.finditer(text):
            if match.start() > at:
                found.append(_quoted(text[at : match.start()]))
            found.append(f"<[{self._ids[match[0]]}]>")
            at = match.end()
        return [*found, _quoted(text[at:])] if at < len(text) else found

    def tool(self, number: int, tool: Tool) -> str:
        """Adds the rules of one tool's call; the rule's name."""
        name = f"call_{number}"
        wire = self._wire
        arguments = self._parameters(name, tool) if self._tags else f"{name}_arguments"
        if not self._tags:
            self._json(arguments, {"type": "object", **(tool.parameters or {})})
        call, close = self.text(wire.call, name=tool.name), self.text(wire.close, name=tool.name)
        self.rules.append(f"{name}: {call} {arguments} {close}")
        return name

    def _parameters(self, name: str, tool: Tool) -> str:
        """The parameters in the schema's order; those that are not required may be missing."""
        root = tool.parameters or {}
        schema = resolve(root, root)
        required = schema.get("required") or ()
        found = []
        for i, (key, value) in enumerate((schema.get("properties") or {}).items()):
            rule = f"{name}_{i}"
            self._parameter(rule, key, value, root)
            found.append(rule if key in required else f"{rule}?")
        return " ".join(found)

    def _parameter(self, rule: str, key: str, value: Any, root: Mapping[str, Any]) -> None:
        assert self._wire.value is not None
        before, after = self._wire.value
        schema = resolve(value, root)
        is_text = types(value, root) <= {"string"}
        opening = self.text(before, key=key, string="true" if is_text else "false")
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if is_text and choices is not None:
            self.rules.append(f"{rule}_value: {' | '.join(_quoted(str(choice)) for choice in choices)}")
        elif is_text and not any(after.startswith(marker) for marker in self._ids):
            self.rules.append(f"{rule}_value[suffix={_quoted(after)}]: /(?s:.*)/")
            self.rules.append(f"{rule}: {opening} {rule}_value")
            return
        elif is_text:
            self.rules.append(f"{rule}_value: /(?s:.*)/")
        else:
            shared = {word: root[word] for word in ("$defs", "definitions") if word in root}
            self._json(f"{rule}_value", {**shared, **value})
        self.rules.append(f"{rule}: {opening} {rule}_value {self.text(after)}")

    def _json(self, rule: str, schema: Mapping[str, Any]) -> None:
        self.rules.append(f"{rule}: %json {json.dumps({**schema, 'x-guidance': _LAYOUT}, ensure_ascii=False)}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else '""'
