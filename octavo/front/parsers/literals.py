"""Grammars of values in a notation that is not JSON, from a JSON schema, in the Lark dialect of llguidance."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from octavo.front.parsers.coerce import dumps, resolve, types
from octavo.front.parsers.values import Notation

#: Levels of a schema that are followed; below them any value goes.
_DEPTH = 16
#: How models write JSON: one space behind a comma and a colon, none elsewhere.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NOTHING = '""'
#: What a schema says of numbers and of JSON strings is left to llguidance.
_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OF_STRINGS = ("minLength", "maxLength", "pattern", "format")


def json_term(schema: Mapping[str, Any]) -> str:
    """JSON that keeps to ``schema``, laid out as models write it, as a term of a rule."""
    return f"%json {json.dumps({**schema, 'x-guidance': _LAYOUT}, ensure_ascii=False)}"


class Literals:
    """Adds rules to ``rules``. ``text``: a text as terminals. ``token``: the notation's mark is a special token."""

    def __init__(self, rules: list[str], text: Callable[[str], str], notation: Notation, token: bool):
        self._rules, self._text, self._notation, self._token = rules, text, notation, token
        self._true, self._false, self._null = (
            ("True", "False", "None") if notation.python else ("true", "false", "null")
        )
        self._comma, self._colon = (text(","), text(":")) if notation.bare else (text(", "), text(": "))
        self._any = False
        #: Rules of what a $ref of a root means.
        self._refs: dict[tuple[int, str], str] = {}

    def members(self, name: str, root: Mapping[str, Any], assign: str = "") -> str:
        """The members of the object that ``root`` describes, without its brackets. ``assign``: behind a bare key."""
        schema = resolve(root, root)
        if not schema.get("properties"):
            return self._free(assign)
        return self._members(name, schema, root, 0, assign)

    def _free(self, assign: str = "") -> str:
        """Any members, or none."""
        self._add_any()
        member = f"any_key {self._text(assign)} any" if assign else "any_member"
        return f"({member} ({self._comma} {member})*)?"

    def _members(self, name: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, assign: str) -> str:
        """Members in the schema's order, those that are not required may be missing: a rule for what may follow each,
        behind a comma or as the first."""
        required = schema.get("required") or ()
        follow = {"first": "", "more": ""}
        entries = list(enumerate(schema["properties"].items()))
        for i, (key, value) in reversed(entries):
            rule = f"{name}_{i}"
            written = f"{self._text(key)} {self._text(assign)}" if assign else self._key(key)
            self._rules.append(f"{rule}: {written} {self._value(f'{rule}_value', value, root, depth + 1)}")
            rest = follow["more"]
            for kind, comma in (("first", ""), ("more", self._comma)):
                taken = f"{comma} {rule} {rest}".strip()
                choice = taken if key in required else f"({taken}) | {follow[kind] or _NOTHING}"
                self._rules.append(f"{rule}_{kind}: {choice}")
            follow = {kind: f"{rule}_{kind}" for kind in follow}
        return follow["first"]

    def _key(self, key: str) -> str:
        if not self._notation.bare:
            return f"{self._text(dumps(key))} {self._colon}"
        mark = self._notation.mark
        return f"{self._text(key if key.isidentifier() else f'{mark}{key}{mark}')} {self._colon}"

    def _value(self, name: str, schema: Any, root: Mapping[str, Any], depth: int) -> str:
        """The rule of a value; its name."""
        ref = schema.get("$ref") if isinstance(schema, Mapping) else None
        if isinstance(ref, str):
            known = self._refs.setdefault((id(root), ref), name)
            if known != name:
                return known
        schema = resolve(schema, root)
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        parts = schema.get("anyOf") or schema.get("oneOf")
        kinds = types(schema, root)
        if isinstance(choices, list) and choices:
            found = [self._text(self._written(choice)) for choice in choices]
        elif depth < _DEPTH and isinstance(parts, list) and parts:
            found = [self._value(f"{name}_{i}", part, root, depth + 1) for i, part in enumerate(parts)]
        elif depth < _DEPTH and kinds:
            found = [self._kind(f"{name}_{kind}", kind, schema, root, depth) for kind in sorted(kinds)]
        else:
            self._add_any()
            found = ["any"]
        self._rules.append(f"{name}: {' | '.join(found)}")
        return name

    def _kind(self, name: str, kind: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        if kind == "null":
            return self._text(self._null)
        if kind == "boolean":
            return f"({self._text(self._true)} | {self._text(self._false)})"
        if kind == "string":
            self._string(name, schema)
            return name
        if kind == "array":
            item = self._value(f"{name}_item", schema.get("items"), root, depth + 1)
            least = schema.get("minItems")
            items = f"{item} ({self._comma} {item})*"
            self._rules.append(f"{name}: {self._text('[')} {items if least else f'({items})?'} {self._text(']')}")
            return name
        if kind == "object":
            inner = self._members(name, schema, root, depth, "") if schema.get("properties") else self._free()
            self._rules.append(f"{name}: {self._text('{')} {inner} {self._text('}')}")
            return name
        self._json(name, {"type": kind, **{word: schema[word] for word in _OF_NUMBERS if word in schema}})
        return name

    def _string(self, name: str, schema: Mapping[str, Any]) -> None:
        mark = self._notation.mark
        if not mark:
            self._json(name, {"type": "string", **{word: schema[word] for word in _OF_STRINGS if word in schema}})
        elif self._token:
            least, most = (schema.get(word) for word in ("minLength", "maxLength"))
            bounded = isinstance(least, int) or isinstance(most, int)
            size = f"{{{least or 0},{'' if most is None else most}}}" if bounded else "*"
            self._rules.append(f"{name}: {self._text(mark)} {name}_text {self._text(mark)}")
            self._rules.append(f"{name}_text: /(?s:.{size})/")
        else:
            self._rules.append(f"{name}: {self._text(mark)} {name}_text")
            self._rules.append(f"{name}_text[suffix={json.dumps(mark)}]: /(?s:.*)/")

    def _add_any(self) -> None:
        if self._any:
            return
        self._any = True
        words = " | ".join(self._text(word) for word in (self._true, self._false, self._null))
        self._string("any_text", {})
        self._json("any_number", {"type": "number"})
        self._rules += [
            f"any: any_text | any_number | {words} | any_object | any_array",
            "any_key: /[A-Za-z_][A-Za-z0-9_]*/",
            f"any_member: {'any_key' if self._notation.bare else 'any_text'} {self._colon} any",
            f"any_object: {self._text('{')} (any_member ({self._comma} any_member)*)? {self._text('}')}",
            f"any_array: {self._text('[')} (any ({self._comma} any)*)? {self._text(']')}",
        ]

    def _json(self, rule: str, schema: Mapping[str, Any]) -> None:
        self._rules.append(f"{rule}: {json_term(schema)}")

    def _written(self, value: Any, depth: int = 0) -> str:
        """``value`` in the notation."""
        if value is None or isinstance(value, bool):
            return self._null if value is None else self._true if value else self._false
        comma, colon = (",", ":") if self._notation.bare else (", ", ": ")
        if isinstance(value, list) and depth < _DEPTH:
            return f"[{comma.join(self._written(item, depth + 1) for item in value)}]"
        if isinstance(value, dict) and depth < _DEPTH:
            quoted = ((key if self._notation.bare else dumps(key), item) for key, item in value.items())
            return "{" + comma.join(f"{key}{colon}{self._written(item, depth + 1)}" for key, item in quoted) + "}"
        mark = self._notation.mark
        return f"{mark}{value}{mark}" if mark and isinstance(value, str) else dumps(value)
