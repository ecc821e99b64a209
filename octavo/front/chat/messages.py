"""Messages as templates want them: checked, text parts joined or kept, tool arguments as objects."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import BadRequest, Unsupported
from octavo.front.tokenizers.base import check_text

MAX_MESSAGES = 10_000
#: Types of content parts that are text, and the field which holds it.
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_WORDS = ("image", "audio", "video", "file")


def normalise(messages: Sequence[Mapping[str, Any]], as_parts: bool, as_text: bool) -> list[dict[str, Any]]:
    """Copies of ``messages`` for a template that takes content as a list of parts (``as_parts``), as text (``as_text``)
    or both. Raises ``BadRequest`` that names the message."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise BadRequest("messages must be a list of messages", "messages")
    if not messages:
        raise BadRequest("messages must not be empty", "messages")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"messages may hold at most {MAX_MESSAGES} entries, got {len(messages)}", "messages")
    return [_message(message, f"messages.{i}", as_parts, as_text) for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str, as_parts: bool, as_text: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadRequest(f"{where} must be an object with role and content", where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest(f"{where}.role must be a non-empty string", f"{where}.role")
    out = dict(message)
    out["content"] = _content(message.get("content"), f"{where}.content", as_parts, as_text)
    if out["content"] is None and role != "assistant":
        raise BadRequest(f"{where}.content must be text or a list of text parts", f"{where}.content")
    calls = message.get("tool_calls")
    if calls is None:
        out.pop("tool_calls", None)
    else:
        out["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    return out


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
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise BadRequest(f"{where}.{i} must be an object with a function", f"{where}.{i}")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except (ValueError, RecursionError):
                raise BadRequest(
                    f"{where}.{i}.function.arguments is not JSON", f"{where}.{i}.function.arguments"
                ) from None
        out.append({**call, "function": {**function, "arguments": {} if arguments is None else arguments}})
    return out
