"""The anthropic package against a live server with a scripted model."""

import asyncio
import json

import anthropic
import pytest
from pydantic import BaseModel

from octavo.testing.scripted import Scripted
from octavo.testing.served import PATIENCE
from tests.contract import agents

WEATHER = {"name": "weather", "description": "of a city", "input_schema": agents.SCHEMA}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
TOOLS = [WEATHER, NOW]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Scripted(
        agents.folder(tmp_path_factory.mktemp("agent")), ["--api-key", "key", "--max-body-size", "1M"]
    ) as found:
        found.say_all(
            {
                "plain": ["It is sunny."],
                "think": [agents.THOUGHT + "Sunny."],
                "weather": [agents.THOUGHT + "Wait." + agents.CALL],
                "both": [agents.TWO_CALLS + "\nDone."],
                "forced": [agents.THOUGHT.strip() + agents.CALL],
                "json": ['{"city": "Oslo", "days": 3}'],
                "empty": [""],
                "endless": ["word " * 2000],
                "(": ["Athena)"],
            }
        )
        yield found


def connect(server, key="key", cls=anthropic.Anthropic):
    return cls(base_url=server.url, api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def client(server):
    with connect(server) as found:
        yield found


def ask(client, text, **more):
    given = {"model": "scripted", "max_tokens": 500, "messages": [{"role": "user", "content": text}], **more}
    return client.messages.create(**given)


def test_a_plain_answer(client):
    message = ask(client, "plain", system="Be brief.", extra_body={"temperature": 0.5}, metadata={"user_id": "u"})
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "scripted")
    assert [(block.type, block.text) for block in message.content] == [("text", "It is sunny.")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 0
    again = ask(client, "plain " * 20).usage
    cached = ask(client, "plain " * 20).usage
    assert cached.cache_read_input_tokens > 0
    assert cached.input_tokens + cached.cache_read_input_tokens == again.input_tokens + again.cache_read_input_tokens


def test_thinking_and_tools(client):
    message = ask(client, "weather", tools=TOOLS)
    thinking, text, use = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "I look it up.")
    assert thinking.signature
    assert text.text == "Wait."
    assert (use.name, use.input) == ("weather", {"city": "Oslo", "days": 3})
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens_details.thinking_tokens > 0
    both = ask(client, "both", tools=TOOLS)
    assert [block.name for block in both.content if block.type == "tool_use"] == ["weather", "now"]
    assert both.content[1].input == {}
    alone = ask(client, "both", tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.name for block in alone.content if block.type == "tool_use"] == ["weather"]
    none = ask(client, "weather", tools=TOOLS, tool_choice={"type": "none"})
    assert [block.type for block in none.content] == ["thinking", "text"]
    assert none.stop_reason == "end_turn"


def test_a_conversation_with_tools(client, server):
    server.say("rain all day", "Take a coat.")
    first = ask(client, "weather", tools=TOOLS)
    use = first.content[-1]
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "rain all day"}]},
    ]
    answer = client.messages.create(model="scripted", max_tokens=100, messages=messages, tools=TOOLS)
    assert answer.content[-1].text == "Take a coat."
    messages[2]["content"][0]["tool_use_id"] = "other"
    with pytest.raises(anthropic.BadRequestError, match="tool_use_id"):
        client.messages.create(model="scripted", max_tokens=100, messages=messages, tools=TOOLS)


def test_forced_tools(client):
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        message = ask(client, "forced", tools=[WEATHER], tool_choice=choice)
        assert message.content[-1].name == "weather"
        assert message.stop_reason == "tool_use"


@pytest.mark.parametrize("key", ["plain", "think", "weather", "both", "empty"])
def test_a_stream_says_what_the_whole_says(client, key):
    whole = ask(client, key, tools=TOOLS)
    given = {"model": "scripted", "max_tokens": 500, "messages": [{"role": "user", "content": key}], "tools": TOOLS}
    with client.messages.stream(**given) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"

    def bare(message):
        return [block.model_dump(exclude={"id", "parsed_output"}, exclude_none=True) for block in message.content]

    assert bare(final) == bare(whole)
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert whole.content


def test_frames_on_the_wire(server):
    body = {"model": "scripted", "max_tokens": 50, "messages": [{"role": "user", "content": "think"}], "stream": True}
    status, answer = server.raw("/v1/messages", json.dumps(body).encode(), **{"x-api-key": "key"})
    assert status == 200
    told = []
    for frame in answer.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")
        told.append(json.loads(data.removeprefix("data: ")))
    deltas = [event["delta"]["type"] for event in told if event["type"] == "content_block_delta"]
    assert deltas[: deltas.index("signature_delta")] == ["thinking_delta"] * deltas.index("signature_delta")
    assert told[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert b"[DONE]" not in answer


def test_why_it_ended(client):
    cut = ask(client, "endless", max_tokens=7)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 7)
    far = ask(client, "endless " + "hay " * 1900, max_tokens=10_000)
    assert far.stop_reason == "model_context_window_exceeded"
    stopped = ask(client, "plain", stop_sequences=["sun", "moon"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "sun")
    assert stopped.content[0].text == "It is "


def test_an_answer_is_gone_on_with(client):
    messages = [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "She is ("}]
    assert ask(client, "", messages=messages).content[0].text == "Athena)"


class Trip(BaseModel):
    city: str
    days: int


def test_parse(client):
    given = {"model": "scripted", "max_tokens": 100, "messages": [{"role": "user", "content": "json"}]}
    message = client.messages.parse(**given, output_format=Trip)
    assert message.parsed_output == Trip(city="Oslo", days=3)
    with client.messages.stream(**given, output_format=Trip) as stream:
        assert stream.get_final_message().parsed_output == Trip(city="Oslo", days=3)


def test_count_tokens(client):
    messages = [{"role": "user", "content": "plain"}]
    count = client.messages.count_tokens(model="scripted", messages=messages).input_tokens
    usage = ask(client, "plain").usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens
    more = client.messages.count_tokens(model="scripted", messages=messages, system="Be brief.", tools=TOOLS)
    assert more.input_tokens > count
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="none", messages=messages)


@pytest.mark.parametrize(
    ("fields", "error", "kind", "said"),
    [
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
        ({"extra_body": {"temperature": 7}}, anthropic.BadRequestError, "invalid_request_error", "temperature"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error", "messages"),
        ({"model": "none"}, anthropic.NotFoundError, "not_found_error", "none"),
        ({"stop_sequences": [""]}, anthropic.BadRequestError, "invalid_request_error", "stop_sequences"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            anthropic.BadRequestError,
            "invalid_request_error",
            "custom",
        ),
        ({"extra_body": {"mcp_servers": [{}]}}, anthropic.BadRequestError, "invalid_request_error", "mcp_servers"),
        ({"system": "x" * 2_000_000}, anthropic.APIStatusError, "request_too_large", "max-body-size"),
    ],
)
def test_errors(client, fields, error, kind, said):
    for stream in (False, True):
        with pytest.raises(error) as caught:
            ask(client, "plain", stream=stream, **fields)
        assert caught.value.body["type"] == "error"
        assert caught.value.body["error"]["type"] == kind
        assert said in caught.value.body["error"]["message"]


def test_keys(server):
    with connect(server, "wrong") as stranger:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            ask(stranger, "plain")
        assert caught.value.body["error"]["type"] == "authentication_error"
    body = {"model": "scripted", "max_tokens": 5, "messages": [{"role": "user", "content": "plain"}]}
    assert server.post("/v1/messages", body, **{"x-api-key": "key"})[0] == 200
    assert server.post("/v1/messages", body, **{"x-api-key": "keys"})[0] == 401
    assert server.post("/v1/messages", body, Authorization="Bearer key")[0] == 200
    for path, data, status, kind in [
        ("/v1/messages", b"{", 400, "invalid_request_error"),
        ("/v1/messages", b"", 400, "invalid_request_error"),
        ("/v1/messages/batches", b"{}", 404, "not_found_error"),
    ]:
        got, answer = server.raw(path, data, **{"x-api-key": "key"})
        assert (got, json.loads(answer)["error"]["type"]) == (status, kind)


def test_async(server):
    async def run():
        async with connect(server, cls=anthropic.AsyncAnthropic) as client:
            given = {"model": "scripted", "max_tokens": 100, "messages": [{"role": "user", "content": "think"}]}
            whole = await client.messages.create(**given)
            async with client.messages.stream(**given) as stream:
                text = "".join([part async for part in stream.text_stream])
            assert text == whole.content[-1].text == "Sunny."
            assert (await client.messages.count_tokens(model="scripted", messages=given["messages"])).input_tokens

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
