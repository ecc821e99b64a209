"""What becomes of an Anthropic request, and of errors on its routes."""

import json

import pytest
from pydantic import ValidationError

from octavo.errors import BadRequest, Unsupported
from octavo.front.server.anthropic import errors
from octavo.front.server.anthropic.convert import chat_fields
from octavo.front.server.anthropic.schema import CountBody, MessagesBody
from octavo.front.server.errors import ErrorInfo

TOOL = {"name": "weather", "description": "of a city", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": "hi"}


def fields_of(*messages, **fields):
    given = {"model": "m", "max_tokens": 5, "messages": list(messages) or [USER], **fields}
    return chat_fields(MessagesBody.model_validate(given))


def text(value):
    return {"type": "text", "text": value}


def test_messages():
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
    found = fields_of(
        USER,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, text("ok"), use]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [text("rain")]},
                {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no net"},
                text("and?"),
            ],
        },
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, text("a"), text("b")]},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [text("c"), {"type": "text", "text": "d", "cache_control": {"type": "ephemeral"}}]},
        system=[text("x-anthropic-billing-header: 1"), text("You help.")],
    )
    function = {"name": "weather", "arguments": '{"city":"Oslo"}'}
    assert found["messages"] == [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": "ok",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "weather", "content": "rain"},
        {"role": "tool", "tool_call_id": "t1", "name": "weather", "content": "Error: no net"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": [text("a"), text("b")]},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [text("c"), text("d")]},
    ]
    assert "continue_final_message" not in found


def test_turns_alternate():
    found = fields_of(USER, USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER)
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "user"]
    assert found["messages"][0]["content"] == [text("hi"), text("hi")]
    assert found["messages"][1]["content"] == [text("a"), text("b")]


def test_a_last_assistant_message_is_gone_on_with():
    found = fields_of(USER, {"role": "assistant", "content": "It is ("})
    assert (found["continue_final_message"], found["add_generation_prompt"]) == (True, False)


def test_fields():
    found = fields_of(
        stop_sequences=["END"], temperature=0.5, top_k=3, top_p=0.9, metadata={"user_id": "u"}, seed=4,
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        thinking={"type": "enabled", "budget_tokens": 1024},
    )  # fmt: skip
    assert found["max_completion_tokens"] == 5
    assert (found["stop"], found["top_k"], found["user"], found["seed"]) == (["END"], 3, "u", 4)
    assert (found["reasoning_effort"], found["thinking_token_budget"]) == ("high", 1024)
    assert found["chat_template_kwargs"]["enable_thinking"] is True
    assert found["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert fields_of(thinking={"type": "disabled"})["reasoning_effort"] == "none"
    assert "max_completion_tokens" not in chat_fields(CountBody(model="m", messages=[USER]))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_tools_and_choices(choice, expected):
    found = fields_of(tools=[TOOL], tool_choice=choice | {"disable_parallel_tool_use": True})
    function = {"name": "weather", "parameters": {"type": "object"}, "description": "of a city"}
    assert found["tools"] == [{"type": "function", "function": function}]
    assert found["tool_choice"] == expected
    assert found["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        ((), {"container": "c"}, "container"),
        ((), {"mcp_servers": [{}]}, "mcp_servers"),
        ((), {"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ((), {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ((), {"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ((), {"tools": [TOOL | {"defer_loading": True}]}, "tools.0.defer_loading"),
        ((), {"tool_choice": {"type": "any"}}, "tool_choice"),
        ((), {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        (({"role": "user", "content": [{"type": "tool_use"}]},), {}, "messages.0.content.0.type"),
        (({"role": "user", "content": [{"type": "text"}]},), {}, "messages.0.content.0.text"),
        (
            ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]},),
            {},
            "messages.0.content.0.tool_use_id",
        ),
        (
            (USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}),
            {},
            "messages.1",
        ),
        ((), {"system": [{"type": "image"}]}, "system.0"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(messages, fields, param):
    with pytest.raises((BadRequest, Unsupported)) as caught:
        fields_of(*messages, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 0}, {"messages": []}, {"tool_choice": {"type": "all"}}, {"service_tier": "flex"}]
)
def test_bounds(fields):
    with pytest.raises(ValidationError):
        fields_of(**fields)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error"),
        (405, "invalid_request_error"), (413, "request_too_large"), (429, "rate_limit_error"), (500, "api_error"),
        (501, "api_error"), (503, "api_error"),
    ],
)  # fmt: skip
def test_errors(status, kind):
    said = json.loads(errors.encode(ErrorInfo("is wrong", "x", "max_tokens", status)))
    assert said == {"type": "error", "error": {"type": kind, "message": "max_tokens: is wrong"}}


def test_which_paths_have_these_errors():
    assert all(map(errors.speaks, ("/v1/messages", "/v1/messages/count_tokens", "/api/v1/messages/x")))
    assert not any(map(errors.speaks, ("/v1/models/messages", "/v1/messagesx", "/v1/chat/completions")))
