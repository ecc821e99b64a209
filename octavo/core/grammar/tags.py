"""Structural tags: free text in which tags hold structured parts, written as Lark. Both forms: ``structures`` with
``triggers``, and a tree of ``format`` nodes."""

import json
from collections.abc import Callable
from typing import Any

from octavo.errors import BadRequest
from octavo.wire.request import GrammarRef

PARAM = "structured_outputs.structural_tag"
MAX_DEPTH = 32
MAX_PARTS = 1024
MAX_TEXT = 4096


def parse(text: str) -> Any:
    """The ``format`` node of a structural tag of either form. Raises ``BadRequest``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"structural_tag is no JSON: {str(error)[:100]}", PARAM) from None
    if not isinstance(value, dict):
        raise BadRequest("structural_tag must be an object", PARAM)
    if "format" in value:
        return value["format"]
    if "structures" in value:
        return _from_structures(value)
    raise BadRequest("structural_tag needs 'format', or 'structures' and 'triggers'", PARAM)


def write(
    ref: GrammarRef, schema: Callable[[Any], str], regex: Callable[[str], str], quoted: Callable[[str], str]
) -> str:
    """``schema``, ``regex`` and ``quoted`` write a term of a Lark rule. Raises ``BadRequest``."""
    writer = _Writer(schema, regex, quoted)
    term = writer.node(parse(ref.text), 0)
    return "\n".join([f"start: {term}", *writer.rules])


def _from_structures(value: dict[str, Any]) -> dict[str, Any]:
    """The older form as the newer one."""
    structures = _list(value, "structures")
    tags = []
    for one in structures:
        if not isinstance(one, dict):
            raise BadRequest("an entry of structures must be an object", PARAM)
        content = {"type": "json_schema", "json_schema": one.get("schema", True)}
        tags.append({"type": "tag", "begin": one.get("begin"), "content": content, "end": one.get("end", "")})
    return {"type": "triggered_tags", "triggers": value.get("triggers"), "tags": tags}


class _Writer:
    def __init__(self, schema: Callable[[Any], str], regex: Callable[[str], str], quoted: Callable[[str], str]):
        self._schema, self._regex, self._quoted = schema, regex, quoted
        self.rules: list[str] = []
        self._parts = 0

    def node(self, value: Any, depth: int) -> str:
        """A format node as a term; what needs a rule of its own is added to ``rules``."""
        self._parts += 1
        if depth > MAX_DEPTH or self._parts > MAX_PARTS:
            raise BadRequest(f"structural_tag is too large: at most {MAX_PARTS} parts, {MAX_DEPTH} deep", PARAM)
        kind = value.get("type") if isinstance(value, dict) else None
        write = self._KINDS.get(kind) if isinstance(kind, str) else None
        if write is None:
            raise BadRequest(
                f"a format of structural_tag has the type {str(kind)[:40]!r}; possible: {', '.join(self._KINDS)}", PARAM
            )
        return write(self, value, depth + 1)

    def _rule(self, body: str, name: str = "part", mark: str = "") -> str:
        name = f"{name}_{len(self.rules)}"
        self.rules.append(f"{name}{mark}: {body}")
        return name

    def _const(self, value: dict[str, Any], depth: int) -> str:
        return self._quoted(_text(value, "value"))

    def _json(self, value: dict[str, Any], depth: int) -> str:
        return self._rule(self._schema(value.get("json_schema", True)))

    def _pattern(self, value: dict[str, Any], depth: int) -> str:
        return self._rule(self._regex(_text(value, "pattern")))

    def _any(self, value: dict[str, Any], depth: int) -> str:
        return self._rule(r"/(.|\n)*/", "TEXT")

    def _sequence(self, value: dict[str, Any], depth: int) -> str:
        return self._rule(" ".join(self.node(one, depth) for one in _list(value, "elements")))

    def _or(self, value: dict[str, Any], depth: int) -> str:
        return self._rule(" | ".join(self.node(one, depth) for one in _list(value, "elements")))

    def _tag(self, value: dict[str, Any], depth: int) -> str:
        return self._behind(value, "", depth)

    def _behind(self, value: Any, trigger: str, depth: int) -> str:
        """A tag whose ``trigger`` was said already."""
        if not isinstance(value, dict) or value.get("type", "tag") != "tag":
            raise BadRequest("tags must hold formats of the type tag", PARAM)
        begin, end = _text(value, "begin"), value.get("end")
        ends = [end] if isinstance(end, str) else end
        if not isinstance(ends, list) or not ends or not all(isinstance(one, str) for one in ends):
            raise BadRequest("'end' of a tag must be text", PARAM)
        head = self._quoted(begin[len(trigger) :]) if len(begin) > len(trigger) else ""
        content = value.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and all(ends):
            # Text that stops at the first end.
            stops = " | ".join(self._rule(rf"/(.|\n)*/ {self._quoted(one)}", "upto", "[lazy]") for one in ends)
            return self._rule(f"{head} ({stops})")
        tail = " | ".join(self._quoted(one) for one in ends if one)
        body = self.node(content, depth)
        optional = "?" if tail and "" in ends else ""
        return self._rule(f"{head} {body} {f'({tail}){optional}' if tail else ''}")

    def _triggered(self, value: dict[str, Any], depth: int) -> str:
        triggers = _texts(value, "triggers")
        tags = _list(value, "tags")
        if value.get("excludes"):
            raise BadRequest("'excludes' of triggered_tags is not supported", PARAM)
        options = []
        for trigger in triggers:
            mine = [tag for tag in tags if isinstance(tag, dict) and str(tag.get("begin")).startswith(trigger)]
            if not mine:
                raise BadRequest(f"no tag begins with the trigger {trigger[:80]!r}", PARAM)
            head = self._rule(rf"/(.|\n)*/ {self._quoted(trigger)}", "head", "[lazy]")
            bodies = " | ".join(self._behind(tag, trigger, depth) for tag in mine)
            options.append(self._rule(f"{head} ({bodies})"))
        for tag in tags:
            begin = tag.get("begin") if isinstance(tag, dict) else None
            if not isinstance(begin, str) or not begin.startswith(tuple(triggers)):
                raise BadRequest(f"the tag {str(begin)[:80]!r} begins with none of the triggers", PARAM)
        some, text = " | ".join(options), self._rule(r"/(.|\n)*/", "TEXT")
        once = _flag(value, "stop_after_first")
        if _flag(value, "at_least_one"):
            first = " | ".join(self._behind(tag, "", depth) for tag in tags)
            return self._rule(f"({first})" if once else f"({first}) ({some})* {text}")
        return self._rule(f"({some}) | {text}" if once else f"({some})* {text}")

    def _separated(self, value: dict[str, Any], depth: int) -> str:
        one = " | ".join(self._behind(tag, "", depth) for tag in _list(value, "tags"))
        between = self._quoted(_text(value, "separator", empty=True)) if value.get("separator") else ""
        many = f"({one})" if _flag(value, "stop_after_first") else f"({one}) ({between} ({one}))*"
        return self._rule(many if _flag(value, "at_least_one") else f"({many})?")

    _KINDS: dict[str, Callable[["_Writer", dict[str, Any], int], str]] = {
        "const_string": _const,
        "json_schema": _json,
        "regex": _pattern,
        "any_text": _any,
        "sequence": _sequence,
        "or": _or,
        "tag": _tag,
        "triggered_tags": _triggered,
        "tags_with_separator": _separated,
    }


def _text(value: dict[str, Any], name: str, empty: bool = False) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not (text or empty) or len(text) > MAX_TEXT:
        raise BadRequest(f"{name!r} of structural_tag must be text of 1 to {MAX_TEXT} characters", PARAM)
    return text


def _texts(value: dict[str, Any], name: str) -> list[str]:
    return [_text({name: one}, name) for one in _list(value, name)]


def _list(value: dict[str, Any], name: str) -> list[Any]:
    items = value.get(name)
    if not isinstance(items, list) or not items:
        raise BadRequest(f"{name!r} of structural_tag must be a list that is not empty", PARAM)
    if len(items) > MAX_PARTS:
        raise BadRequest(f"{name!r} of structural_tag may hold at most {MAX_PARTS} entries, got {len(items)}", PARAM)
    return items


def _flag(value: dict[str, Any], name: str) -> bool:
    flag = value.get(name, False)
    if not isinstance(flag, bool):
        raise BadRequest(f"{name!r} of structural_tag must be true or false", PARAM)
    return flag
