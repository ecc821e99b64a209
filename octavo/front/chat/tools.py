"""Tools of a request: what may be given, and which of them the model may or must call."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from octavo.errors import BadRequest, Unsupported
from octavo.front.parsers.base import Tool
from octavo.front.tokenizers.base import check_text

MAX_TOOLS = 512
#: Bytes of one tool's schema as JSON, and of all of them.
MAX_SCHEMA = 1 << 17
MAX_SCHEMAS = 1 << 21
#: Levels of a schema.
MAX_DEPTH = 64
MAX_DESCRIPTION = 1 << 17
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
#: Of a function that takes nothing.
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")


class Choice(NamedTuple):
    """What the model does with its tools. ``name``: of the one that it must call."""

    mode: Literal["none", "auto", "required", "named"] = "none"
    name: str | None = None

    @property
    def forced(self) -> bool:
        return self.mode in ("required", "named")


def read_tools(given: Sequence[Mapping[str, Any]] | None) -> list[Tool]:
    """Raises ``BadRequest`` that names the tool and what is wrong with it."""
    if given is None:
        return []
    if not given:
        raise BadRequest("tools must hold at least one tool; leave it out where there is none", "tools")
    if len(given) > MAX_TOOLS:
        raise BadRequest(f"tools may hold at most {MAX_TOOLS} tools, got {len(given)}", "tools")
    found: dict[str, Tool] = {}
    size = 0
    for index, one in enumerate(given):
        where = f"tools.{index}"
        tool = _tool(one, where)
        if tool.name in found:
            raise BadRequest(f"two tools have the name {tool.name!r}", f"{where}.function.name")
        found[tool.name] = tool
        size += _size(tool.parameters, f"{where}.function.parameters")
        if size > MAX_SCHEMAS:
            raise BadRequest(f"the schemas of tools may have at most {MAX_SCHEMAS} bytes together", "tools")
    return list(found.values())


def _tool(one: Mapping[str, Any], where: str) -> Tool:
    kind = one.get("type", "function") if isinstance(one, Mapping) else None
    if kind != "function":
        what = f"{kind[:40]!r}" if isinstance(kind, str) else "missing"
        raise Unsupported(f"{where}.type is {what}; this server knows tools of type 'function' only", f"{where}.type")
    function = one.get("function")
    if not isinstance(function, Mapping):
        raise BadRequest(f"{where}.function must be an object with a name", f"{where}.function")
    where = f"{where}.function"
    name, strict = function.get("name"), function.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(
            f"{where}.name must be 1 to 128 letters, digits, underscores, dashes and dots", f"{where}.name"
        )
    description = function.get("description")
    if description is not None:
        check_text(description, f"{where}.description")
        if len(description) > MAX_DESCRIPTION:
            raise BadRequest(
                f"{where}.description may have at most {MAX_DESCRIPTION} characters, got {len(description)}",
                f"{where}.description",
            )
    if not isinstance(strict, (bool, type(None))):
        raise BadRequest(f"{where}.strict must be true or false", f"{where}.strict")
    parameters = function.get("parameters")
    if parameters is None or parameters == {}:
        return Tool(name, _NOTHING, bool(strict))
    if not isinstance(parameters, Mapping):
        raise BadRequest(f"{where}.parameters must be a JSON schema: an object", f"{where}.parameters")
    if parameters.get("type", "object") != "object":
        raise BadRequest(
            f"{where}.parameters must be the schema of an object: its type is "
            f"{str(parameters['type'])[:40]!r}, not 'object'",
            f"{where}.parameters.type",
        )
    return Tool(name, dict(parameters), bool(strict))


def _size(schema: Any, where: str) -> int:
    """Bytes of a schema as JSON. Raises ``BadRequest`` where it is too long or too deep."""
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise BadRequest(f"{where} may be nested at most {MAX_DEPTH} levels deep", where)
        level = [
            item
            for node in level
            for item in (node.values() if isinstance(node, Mapping) else node)
            if isinstance(item, (Mapping, list))
        ]
    size = len(msgspec.json.encode(schema))
    if size > MAX_SCHEMA:
        raise BadRequest(f"{where} may have at most {MAX_SCHEMA} bytes as JSON, got {size}", where)
    return size


def for_template(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Checked tools as templates write them: a schema is always there, what is only for the server is not."""
    shown = []
    for one in given:
        function = {name: value for name, value in one["function"].items() if name != "strict" and value is not None}
        function.setdefault("parameters", _NOTHING)
        shown.append({"type": "function", "function": function})
    return shown


def read_choice(given: Any, tools: Sequence[Tool]) -> Choice:
    """``tool_choice`` of a request with ``tools``. Raises ``BadRequest``."""
    if given is None:
        return Choice("auto" if tools else "none")
    if isinstance(given, str):
        if given not in ("none", "auto", "required"):
            raise BadRequest(
                f"tool_choice is {given[:40]!r}; possible: none, auto, required, or an object that names a function",
                "tool_choice",
            )
        if given == "required" and not tools:
            raise BadRequest("tool_choice is 'required', but the request has no tools", "tool_choice")
        return Choice("none" if not tools else given)  # type: ignore[arg-type]
    kind = given.get("type", "function") if isinstance(given, Mapping) else None
    if kind in ("allowed_tools", "custom"):
        raise Unsupported(f"tool_choice of type {kind!r} is not supported by this server", "tool_choice")
    function = given.get("function") if kind == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise BadRequest(
            'tool_choice must be none, auto, required, or {"type": "function", "function": {"name": ...}}',
            "tool_choice",
        )
    if all(tool.name != name for tool in tools):
        names = ", ".join(tool.name for tool in tools[:20])
        raise BadRequest(
            f"tool_choice names {name[:128]!r}, which is not in tools{f': {names}' if names else ''}",
            "tool_choice.function.name",
        )
    return Choice("named", name)


def loosened(tool: Tool) -> Tool:
    """``tool`` with as much of its schema as any grammar can hold: names of parameters and their plain types. A strict
    tool stays as it is."""
    if tool.strict:
        return tool
    given = tool.parameters.get("properties")
    properties = given if isinstance(given, Mapping) else {}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _plain(value) for name, value in properties.items()},
    }
    required = tool.parameters.get("required")
    if isinstance(required, list):
        schema["required"] = [name for name in required if isinstance(name, str)]
    return tool._replace(parameters=schema)


def _plain(schema: Any) -> dict[str, Any]:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return {"type": kind} if kind in _TYPES else {}
