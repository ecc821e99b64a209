"""A messages request as a chat request. Raises ``BadRequest`` or ``Unsupported`` under the request's own names."""

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.errors import BadRequest, Unsupported
from octavo.front.server import ignored
from octavo.front.server.anthropic.schema import Block, Content, CountBody, MessageIn, MessagesBody, Tool
from octavo.front.server.openai.derived import refuse

#: A line that some clients put before the system prompt. It differs in each request, and would spoil the prefix cache.
_BILLING = "x-anthropic-billing-header"
_MEDIA = ("image", "document", "container_upload")
#: Fields -> the values that ask for nothing, beside null.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": ({},),
    "diagnostics": (),
    "fallbacks": ([],),
    "inference_geo": (),
    "mcp_servers": ([],),
    "output_format": (),
    "speed": ("standard",),
    "thread": (),  # a conversation that the server would hold
    "n": (1,),
    "kv_transfer_params": (),
}
_TOOL_HARMLESS: dict[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "input_examples": ([],),
}
#: Chat's names of fields -> those of this API, for errors.
NAMES = {
    "max_completion_tokens": "max_tokens",
    "prompt": "messages",
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "thinking_token_budget": "thinking.budget_tokens",
}


def chat_fields(body: CountBody) -> dict[str, Any]:
    """The fields of the chat request; for one that only counts, those that make the prompt."""
    given = body.model_extra or {}
    for name, harmless in _HARMLESS.items():
        refuse(given.get(name), name, harmless)
    ignored.tell(given, _HARMLESS)
    messages = _messages(body.system, body.messages)
    found: dict[str, Any] = {"model": body.model, "messages": messages, **_tools(body), **_thinking(body)}
    if messages[-1]["role"] == "assistant":
        if "tool_calls" in messages[-1]:
            last = len(body.messages) - 1
            raise BadRequest(
                f"messages.{last} ends with a tool_use block; a user message with its tool_result must follow",
                f"messages.{last}",
            )
        found |= {"continue_final_message": True, "add_generation_prompt": False}
    config = body.output_config
    if config is not None and config.format is not None:
        schema = {"name": "answer", "schema": config.format.schema_, "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    if isinstance(body, MessagesBody):
        found |= {
            "max_completion_tokens": body.max_tokens,
            "stream": bool(body.stream),
            "stop": body.stop_sequences,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "user": body.metadata.user_id if body.metadata else None,
        }
    return body.extras() | {name: value for name, value in found.items() if value is not None}


def _thinking(body: CountBody) -> dict[str, Any]:
    """Thinking on, off or bounded. Where the request says nothing, the model's template decides."""
    thinking = body.thinking
    effort = body.output_config.effort if body.output_config else None
    if thinking is None:
        return {"reasoning_effort": effort}
    if thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise BadRequest("thinking.budget_tokens is missing", "thinking.budget_tokens")
    budget = thinking.budget_tokens if thinking.type == "enabled" else None
    kwargs = {"enable_thinking": True, "thinking": True} | (body.chat_template_kwargs or {})
    return {"reasoning_effort": effort, "thinking_token_budget": budget, "chat_template_kwargs": kwargs}


def _tools(body: CountBody) -> dict[str, Any]:
    tools = [_tool(tool, f"tools.{index}") for index, tool in enumerate(body.tools or ())]
    choice = body.tool_choice
    found: dict[str, Any] = {"tools": tools or None}
    if choice is None:
        return found
    if choice.type == "tool" and choice.name not in [tool["function"]["name"] for tool in tools]:
        raise BadRequest(
            f"tool_choice.name is {str(choice.name)[:80]!r}, which is none of the tools", "tool_choice.name"
        )
    if choice.type == "any" and not tools:
        raise BadRequest("tool_choice any needs tools", "tool_choice")
    if not tools:
        return found
    if choice.disable_parallel_tool_use:
        found["parallel_tool_calls"] = False
    named = {"type": "function", "function": {"name": choice.name}}
    found["tool_choice"] = {"auto": "auto", "any": "required", "none": "none", "tool": named}[choice.type]
    return found


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise BadRequest(
            f"{where} is of type {tool.type[:40]!r}; this server supports tools of type custom", f"{where}.type"
        )
    for name, harmless in _TOOL_HARMLESS.items():
        refuse((tool.model_extra or {}).get(name), f"{where}.{name}", harmless)
    if tool.input_schema is None:
        raise BadRequest(f"{where}.input_schema is missing", f"{where}.input_schema")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _messages(system: Content | None, given: Sequence[MessageIn]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    texts = _texts(system or "", "system")
    if system is not None:
        texts = [text for text in texts if not text.startswith(_BILLING)]
    if any(texts):
        found.append({"role": "system", "content": _content(texts)})
    names: dict[str, str] = {}
    for index, message in enumerate(given):
        where = f"messages.{index}.content"
        match message.role:
            case "assistant":
                _assistant(found, message.content, where, names)
            case "system":
                found.append({"role": "system", "content": _content(_texts(message.content, where))})
            case _:
                _user(found, message.content, where, names)
    return found


def _assistant(found: list[dict[str, Any]], content: Content, where: str, names: dict[str, str]) -> None:
    """Thoughts, texts and calls of a turn as one message."""
    message: dict[str, Any] = {"role": "assistant"}
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(_blocks(content)):
        place = f"{where}.{index}"
        match block.type:
            case "text":
                texts.append(_field(block, "text", place))
            case "thinking":
                thoughts.append(_field(block, "thinking", place))
            case "redacted_thinking":
                pass  # never made here: nobody else's can be read
            case "tool_use":
                call, name = _field(block, "id", place), _field(block, "name", place)
                if block.input is None:
                    raise BadRequest(f"{place}.input must be an object", f"{place}.input")
                names[call] = name
                arguments = msgspec.json.encode(block.input).decode()
                calls.append({"id": call, "type": "function", "function": {"name": name, "arguments": arguments}})
            case _:
                raise _unknown(block, place, "text, thinking, redacted_thinking, tool_use")
    if thoughts:
        message["reasoning"] = "\n".join(thoughts)
    if texts or not calls:
        message["content"] = _content(texts)
    if calls:
        message["tool_calls"] = calls
    _add(found, message)


def _user(found: list[dict[str, Any]], content: Content, where: str, names: dict[str, str]) -> None:
    """Results of tools are messages of their own, in the order of the blocks."""
    texts: list[str] = []

    def say() -> None:
        if texts:
            _add(found, {"role": "user", "content": _content(texts)})
            texts.clear()

    blocks = _blocks(content)
    for index, block in enumerate(blocks):
        place = f"{where}.{index}"
        match block.type:
            case "text":
                texts.append(_field(block, "text", place))
            case "tool_result":
                say()
                found.append(_result(block, place, names))
            case _:
                raise _unknown(block, place, "text, tool_result")
    if texts or not blocks:
        _add(found, {"role": "user", "content": _content(texts)})


def _add(found: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Texts of one role in a row are one turn: many templates want turns to alternate."""
    if found and all(
        one.keys() == {"role", "content"} and one["role"] == message["role"] for one in (found[-1], message)
    ):
        parts = [*_parts(found[-1]["content"]), *_parts(message["content"])]
        message = {"role": message["role"], "content": parts}
        found.pop()
    found.append(message)


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _result(block: Block, where: str, names: dict[str, str]) -> dict[str, Any]:
    call = _field(block, "tool_use_id", where)
    if call not in names:
        raise BadRequest(
            f"{where}.tool_use_id is {call[:80]!r}, but no tool_use block before it has that id", f"{where}.tool_use_id"
        )
    texts = _texts(block.content or "", f"{where}.content")
    if block.is_error:
        # Templates know no failed results, so the model is told in words.
        texts = ["Error: " + "\n".join(texts)]
    return {"role": "tool", "tool_call_id": call, "name": names[call], "content": _content(texts)}


def _blocks(content: Content) -> Sequence[Block]:
    return [Block(type="text", text=content)] if isinstance(content, str) else content


def _texts(content: Content, where: str) -> list[str]:
    found = []
    for index, block in enumerate(_blocks(content)):
        if block.type != "text":
            raise _unknown(block, f"{where}.{index}", "text")
        found.append(_field(block, "text", f"{where}.{index}"))
    return found


def _content(texts: Sequence[str]) -> str | list[dict[str, Any]]:
    if len(texts) < 2:
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _field(block: Block, name: str, where: str) -> str:
    value = getattr(block, name)
    if value is None:
        raise BadRequest(f"{where}.{name} must be text", f"{where}.{name}")
    return value


def _unknown(block: Block, where: str, possible: str) -> BadRequest | Unsupported:
    if block.type in _MEDIA:
        return Unsupported(f"{where} is of type {block.type}; this model takes text only", where)
    return BadRequest(f"{where}.type is {block.type[:40]!r}; possible: {possible}", f"{where}.type")
