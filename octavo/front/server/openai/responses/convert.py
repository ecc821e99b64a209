"""A responses request as a chat request. Raises ``BadRequest`` or ``Unsupported`` under the request's own names."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import from_json

from octavo.errors import BadRequest, Unsupported
from octavo.front.server import ignored
from octavo.front.server.openai.derived import refuse
from octavo.front.server.openai.responses.schema import (
    CallItem,
    CallOutputItem,
    FunctionTool,
    Include,
    MessageItem,
    Part,
    ReasoningItem,
    ResponsesBody,
    Text,
)

AnyItem = MessageItem | ReasoningItem | CallItem | CallOutputItem
#: (the field that it came in, the item)
Placed = tuple[str, AnyItem]
LOGPROBS: Include = "message.output_text.logprobs"
_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
_MEDIA_PARTS = ("input_image", "input_file", "input_audio", "input_video")
#: Fields -> the values that ask for nothing, beside null.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "prompt": (),
    "conversation": (),
    "context_management": ([],),
    "moderation": (),
    "image": ({},),
    "n": (1,),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "enable_response_messages": (False,),
    "previous_input_messages": ([],),
}
#: Chat's names of fields -> those of this API, for errors.
NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}


def check(body: ResponsesBody) -> None:
    """Refuses what this server does not do."""
    given = body.model_extra or {}
    for name, harmless in _HARMLESS.items():
        refuse(given.get(name), name, harmless)
    ignored.tell(given, _HARMLESS)
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options needs stream", "stream_options")
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise BadRequest(f"top_logprobs needs {LOGPROBS!r} in include", "top_logprobs")
    if body.background and body.store is False:
        raise BadRequest("a background response must be stored: background needs store", "background")


def chat_fields(body: ResponsesBody, items: Iterable[Placed]) -> dict[str, Any]:
    """The fields of the chat request; ``items`` are the conversation, this request's input at its end."""
    tools, choice = _tools(body)
    found: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body.instructions, items),
        # One that others can follow while it runs comes token by token; so do log-probabilities, to be told apart.
        "stream": bool(body.stream or body.background or wants_logprobs(body)),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop,
        "user": body.user,
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_format": _response_format(body.text),
        **body.extras(),
    }
    if wants_logprobs(body):
        found["logprobs"], found["top_logprobs"] = True, body.top_logprobs or 0
    return {name: value for name, value in found.items() if value is not None}


def wants_logprobs(body: ResponsesBody) -> bool:
    return LOGPROBS in (body.include or ())


def _response_format(text: Text | None) -> dict[str, Any] | None:
    asked = text.format if text is not None else None
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return {"type": "json_object"}
    if asked.schema_ is None:
        raise BadRequest("text.format.schema is missing", "text.format.schema")
    schema: dict[str, Any] = {"name": asked.name or "answer", "schema": asked.schema_}
    if asked.description is not None:
        schema["description"] = asked.description
    if asked.strict is not None:
        schema["strict"] = asked.strict
    return {"type": "json_schema", "json_schema": schema}


def _tools(body: ResponsesBody) -> tuple[list[dict[str, Any]] | None, str | dict[str, Any] | None]:
    """Tools and choice in chat's form. ``allowed_tools`` leaves only those in the prompt."""
    tools = [_tool(tool, f"tools.{index}") for index, tool in enumerate(body.tools or ())]
    names = [tool["function"]["name"] for tool in tools]
    choice = body.tool_choice
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise BadRequest(
                f"tool_choice is {choice[:40]!r}; possible: none, auto, required, or an object", "tool_choice"
            )
        if choice == "required" and not tools:
            raise BadRequest("tool_choice required needs tools", "tool_choice")
        return tools or None, choice if tools else None
    if choice is None:
        return tools or None, None
    match choice.get("type"):
        case "function":
            name = _named(choice, "tool_choice", names)
            return tools, {"type": "function", "function": {"name": name}}
        case "allowed_tools":
            mode, allowed = choice.get("mode"), choice.get("tools")
            if mode not in ("auto", "required"):
                raise BadRequest("tool_choice.mode must be auto or required", "tool_choice.mode")
            if not isinstance(allowed, list) or not allowed or len(allowed) > len(tools):
                raise BadRequest("tool_choice.tools must be a list with some of the tools", "tool_choice.tools")
            kept = {_named(one, f"tool_choice.tools.{index}", names) for index, one in enumerate(allowed)}
            return [tool for tool in tools if tool["function"]["name"] in kept], mode
    raise BadRequest(
        f"tool_choice.type is {str(choice.get('type'))[:40]!r}; possible: function, allowed_tools", "tool_choice.type"
    )


def _named(choice: Any, where: str, names: Sequence[str]) -> str:
    if not isinstance(choice, dict) or choice.get("type") != "function":
        raise BadRequest(f"{where} must be an object of type function", where)
    name = choice.get("name")
    if not isinstance(name, str) or name not in names:
        raise BadRequest(f"{where}.name is {str(name)[:80]!r}, which is none of the tools", f"{where}.name")
    return name


def _tool(tool: FunctionTool, where: str) -> dict[str, Any]:
    if tool.type != "function":
        raise BadRequest(
            f"{where} is of type {tool.type[:40]!r}; this server supports tools of type function", f"{where}.type"
        )
    if not tool.name:
        raise BadRequest(f"{where}.name is missing", f"{where}.name")
    refuse((tool.model_extra or {}).get("defer_loading"), f"{where}.defer_loading", (False,))
    function: dict[str, Any] = {"name": tool.name}
    for name in ("description", "parameters", "strict"):
        if getattr(tool, name) is not None:
            function[name] = getattr(tool, name)
    return {"type": "function", "function": function}


def _messages(instructions: str | None, items: Iterable[Placed]) -> list[dict[str, Any]]:
    """Items as messages: what an assistant thought, said and called in a row is one message."""
    found: list[dict[str, Any]] = []
    if instructions is not None:
        found.append({"role": "system", "content": instructions})
    names: dict[str, str] = {}
    for where, item in items:
        match item:
            case MessageItem():
                content = _content(item.content, f"{where}.content")
                if item.role == "assistant":
                    _assistant(found, "content", "tool_calls")["content"] = content
                else:
                    found.append({"role": item.role, "content": content})
            case ReasoningItem():
                parts = item.content or item.summary
                texts = [_text(part, f"{where}.content.{index}") for index, part in enumerate(parts)]
                if any(texts):
                    _assistant(found, "reasoning", "content", "tool_calls")["reasoning"] = "\n".join(texts)
            case CallItem():
                refuse(item.namespace, f"{where}.namespace")
                names[item.call_id] = item.name
                function = {"name": item.name, "arguments": _arguments(item, f"{where}.arguments")}
                calls = _assistant(found).setdefault("tool_calls", [])
                calls.append({"id": item.call_id, "type": "function", "function": function})
            case CallOutputItem():
                if item.call_id not in names:
                    raise BadRequest(
                        f"{where}.call_id is {item.call_id[:80]!r}, but no function_call before it has that call_id",
                        f"{where}.call_id",
                    )
                found.append(
                    {
                        "role": "tool",
                        "tool_call_id": item.call_id,
                        "name": names[item.call_id],
                        "content": _content(item.output, f"{where}.output"),
                    }
                )
    return found


def _arguments(call: CallItem, where: str) -> str:
    """As JSON; of a call that was cut off, what is there."""
    try:
        found = from_json(call.arguments or "{}", allow_partial=call.status == "incomplete")
    except ValueError:
        raise BadRequest(f"{where} is not JSON", where) from None
    return json.dumps(found) if call.status == "incomplete" else call.arguments


def _assistant(messages: list[dict[str, Any]], *without: str) -> dict[str, Any]:
    """The assistant's message that is being put together, or a new one where that has one of ``without``."""
    if not messages or messages[-1]["role"] != "assistant" or any(name in messages[-1] for name in without):
        messages.append({"role": "assistant"})
    return messages[-1]


def _content(content: str | Sequence[Part], where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    texts = [_text(part, f"{where}.{index}") for index, part in enumerate(content)]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _text(part: Part, where: str) -> str:
    field = _TEXT_PARTS.get(part.type)
    if field is None:
        if part.type in _MEDIA_PARTS:
            raise Unsupported(f"{where} is of type {part.type}; this model takes text only", where)
        raise BadRequest(f"{where}.type is {part.type[:40]!r}; possible: {', '.join(_TEXT_PARTS)}", f"{where}.type")
    text = getattr(part, field)
    if text is None:
        raise BadRequest(f"{where}.{field} must be text", f"{where}.{field}")
    return text
