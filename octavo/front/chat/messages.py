"""Messages as templates want them: checked, text parts joined or kept, tool arguments as objects."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from octavo.errors import BadRequest, Unsupported
from octavo.front.tokenizers.base import check_text

MAX_MESSAGES = 10_000
#: Tool calls of one message.
MAX_CALLS = 1024
#: Types of content parts that are text, and the field which holds it.
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_WORDS = ("image", "audio", "video", "file")


class Takes(NamedTuple):
    """What a template takes: content as a list of ``parts``, as ``text`` or both; ``null`` content beside calls."""

    parts: bool = False
    text: bool = True
    null: bool = True


def normalise(messages: Sequence[Mapping[str, Any]], takes: Takes, developer: bool = False) -> list[dict[str, Any]]:
    """Copies of ``messages`` as the template takes them; one that does not know the role ``developer`` gets "system".
    Raises ``BadRequest`` that names the message."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise BadRequest("messages must be a list of messages", "messages")
    if not messages:
        raise BadRequest("messages must not be empty", "messages")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"messages may hold at most {MAX_MESSAGES} entries, got {len(messages)}", "messages")
    return [_message(message, f"messages.{i}", takes, developer) for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str, takes: Takes, developer: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadRequest(f"{where} must be an object with role and content", where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest(f"{where}.role must be a non-empty string", f"{where}.role")
    if message.get("function_call"):
        raise BadRequest(f"{where}.function_call is the old form of a call; use tool_calls", f"{where}.function_call")
    out = {name: value for name, value in message.items() if name not in ("tool_calls", "function_call")}
    if role == "developer" and not developer:
        out["role"] = "system"
    out["content"] = _content(message.get("content"), f"{where}.content", takes.parts, takes.text)
    if out["content"] is None and role != "assistant":
        raise BadRequest(f"{where}.content must be text or a list of text parts", f"{where}.content")
    calls = message.get("tool_calls")
    if calls is not None:
        calls = _calls(calls, f"{where}.tool_calls")
    if calls:
        if role != "assistant":
            raise BadRequest(f"only an assistant calls tools, not {role[:40]!r} ({where})", f"{where}.tool_calls")
        out["tool_calls"] = calls
    if out["content"] is None and not takes.null:
        out["content"] = "" if takes.text else []
    _reasoning(out, where)
    return out


def _reasoning(out: dict[str, Any], where: str) -> None:
    """Earlier reasoning under both of the names that templates read."""
    for name in ("reasoning", "reasoning_content"):
        text = out.get(name)
        if text is None:
            out.pop(name, None)
        else:
            check_text(text, f"{where}.{name}")
    text = out.get("reasoning", out.get("reasoning_content"))
    if text is not None:
        out["reasoning"] = out["reasoning_content"] = text


def _content(content: Any, where: str, as_parts: bool, as_text: bool) -> Any:
    if content is None:
        return None
    if isinstance(content, str):
        check_text(content, where)
        return content if as_text else [{"type": "text", "text": content}]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise BadRequest(f"{where} must be text or a list of text parts, got {type(content).__name__}", where)
    texts = [_part(part, f"{where}.{i}") for i, part in enumerate(content)]
    return [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        check_text(part, where)
        return part
    if not isinstance(part, Mapping):
        raise BadRequest(f"{where} must be an object with a type", where)
    kind = part.get("type", "text")
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        if isinstance(kind, str) and any(word in kind for word in _MEDIA_WORDS):
            raise Unsupported(f"{where} is of type {kind[:40]!r}; this model takes text only", where)
        raise BadRequest(f"{where}.type is {str(kind)[:40]!r}; possible: {', '.join(_TEXT_PARTS)}", f"{where}.type")
    text = part.get(field)
    if not isinstance(text, str):
        raise BadRequest(f"{where}.{field} must be text", f"{where}.{field}")
    check_text(text, where)
    return text


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Tool calls with their arguments as objects: OpenAI sends them as JSON text, templates write them themselves."""
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise BadRequest(f"{where} must be a list", where)
    if len(calls) > MAX_CALLS:
        raise BadRequest(f"{where} may hold at most {MAX_CALLS} calls, got {len(calls)}", where)
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise BadRequest(f"{where}.{i} must be an object with a function", f"{where}.{i}")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise BadRequest(f"{where}.{i}.function.name must be a non-empty string", f"{where}.{i}.function.name")
        if not isinstance(call.get("id"), (str, type(None))):
            raise BadRequest(f"{where}.{i}.id must be a string", f"{where}.{i}.id")
        arguments = _arguments(function.get("arguments"), f"{where}.{i}.function.arguments")
        out.append({**call, "type": "function", "function": {**function, "arguments": arguments}})
    return out


def _arguments(given: Any, where: str) -> Mapping[str, Any]:
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given) if given.strip() else {}
        except (ValueError, RecursionError):
            raise BadRequest(f"{where} is not JSON", where) from None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise BadRequest(f"{where} must be a JSON object, got {type(given).__name__}", where)
    return given
