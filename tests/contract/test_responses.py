"""The openai package's responses against a live server with a scripted model."""

import asyncio
import contextlib
import json

import httpx
import openai
import pytest
from pydantic import BaseModel

from octavo.testing.scripted import Scripted
from octavo.testing.served import ENDLESS, PATIENCE
from tests.contract import agents

WEATHER = {"type": "function", "name": "weather", "parameters": agents.SCHEMA, "strict": False}
NOW = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}, "strict": False}
TOOLS = [WEATHER, NOW]
KEYS = ("first", "second")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = agents.folder(tmp_path_factory.mktemp("agent"))
    with Scripted(folder, ["--api-key", *KEYS, "--response-store-count", "40"]) as found:
        found.say_all(
            {
                "plain": ["It is sunny."],
                "think": [agents.THOUGHT + "Sunny."],
                "weather": [agents.THOUGHT + "Wait." + agents.CALL],
                "both": [agents.TWO_CALLS],
                "json": ['{"city": "Oslo", "days": 3}'],
                "endless": ["word " * 2000],
            }
        )
        yield found


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A server whose answer to "endless" goes on as long as anybody looks."""
    folder = agents.folder(tmp_path_factory.mktemp("endless"), config={"max_position_embeddings": ENDLESS})
    with Scripted(folder, ["--api-key", "first"]) as found:
        found.say("endless", "word " * 30_000)
        yield found


def connect(server, key="first", cls=openai.OpenAI):
    return cls(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def client(server):
    with connect(server) as found:
        yield found


def ask(client, text, **more):
    return client.responses.create(model="scripted", input=text, **more)


def types_of(response):
    return [item.type for item in response.output]


def test_a_plain_answer(client):
    response = ask(
        client, "plain", instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=50, temperature=0.5, user="u"
    )
    assert response.object == "response"
    assert response.id.startswith("resp_")
    assert response.status == "completed"
    assert response.output_text == "It is sunny."
    (message,) = response.output
    assert (message.role, message.status) == ("assistant", "completed")
    assert (response.instructions, response.metadata, response.max_output_tokens) == ("Be brief.", {"a": "b"}, 50)
    assert (response.temperature, response.top_p, response.user) == (0.5, 1.0, "u")
    assert (response.tools, response.parallel_tool_calls, response.truncation) == ([], True, "disabled")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert response.usage.input_tokens_details.cached_tokens >= 0
    assert response.completed_at >= response.created_at


def test_reasoning_and_calls(client):
    response = ask(client, "weather", tools=TOOLS)
    assert types_of(response) == ["reasoning", "message", "function_call"]
    reasoning, message, call = response.output
    assert reasoning.content[0].text == "I look it up."
    assert message.content[0].text == "Wait."
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo", "days": 3})
    assert call.call_id
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    assert response.tool_choice == "auto"
    assert [tool.name for tool in response.tools] == ["weather", "now"]
    both = ask(client, "both", tools=TOOLS)
    assert [item.name for item in both.output] == ["weather", "now"]
    assert len({item.call_id for item in both.output}) == 2
    one = ask(client, "both", tools=TOOLS, parallel_tool_calls=False)
    assert [item.name for item in one.output] == ["weather"]


@pytest.mark.parametrize("key", ["plain", "think", "weather", "both"])
def test_a_stream_says_what_the_whole_says(client, key):
    whole = ask(client, key, tools=TOOLS)
    with client.responses.stream(model="scripted", input=key, tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert final.output_text == whole.output_text

    def bare(response):
        return [
            item.model_dump(exclude={"id", "call_id", "parsed_arguments"}, exclude_none=True)
            for item in response.output
        ]

    assert [item.type for item in final.output] == types_of(whole)
    assert [json.loads(item.arguments) for item in final.output if item.type == "function_call"] == [
        json.loads(item.arguments) for item in whole.output if item.type == "function_call"
    ]
    assert bare(events[-1].response)[0].get("content") == bare(whole)[0].get("content")
    assert final.usage.output_tokens == whole.usage.output_tokens
    stored = client.responses.retrieve(final.id)
    assert stored.output == events[-1].response.output or stored.output_text == final.output_text


def test_frames_on_the_wire(server):
    body = {"input": "plain", "stream": True}
    status, answer = server.raw("/v1/responses", json.dumps(body).encode(), Authorization="Bearer first")
    assert status == 200
    frames = answer.decode().split("\n\n")
    assert frames[-1] == ""
    names = []
    for frame in frames[:-1]:
        name, data = frame.split("\n")
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")
        names.append(name.removeprefix("event: "))
    assert names[0] == "response.created"
    assert names[-1] == "response.completed"
    assert b"[DONE]" not in answer


def test_the_length_ends_it(client):
    response = ask(client, "endless", max_output_tokens=10)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete"
    assert response.usage.output_tokens == 10
    events = list(ask(client, "endless", max_output_tokens=10, stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == response.output_text


def test_input_tokens_are_counted(client):
    response = ask(client, "weather", tools=TOOLS, instructions="Be brief.")
    count = client.responses.input_tokens.count(
        model="scripted", input="weather", tools=TOOLS, instructions="Be brief."
    )
    assert count.input_tokens == response.usage.input_tokens
    more = client.responses.input_tokens.count(model="scripted", input="x", previous_response_id=response.id)
    assert more.input_tokens > 0
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(model="none", input="x")


def test_conversations_go_on(client, server):
    server.say("It is sunny.<|turn_end|>\n<|turn|>user\nand", "Tomorrow too.")
    first = ask(client, "plain", instructions="Be brief.")
    second = ask(client, "and tomorrow?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.output_text == "Tomorrow too."
    listed = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.role for item in listed] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in listed] == ["plain", "It is sunny.", "and tomorrow?"]
    page = client.responses.input_items.list(second.id, limit=2)
    assert page.has_more
    assert [item.content[0].text for item in page.data] == ["and tomorrow?", "It is sunny."]
    rest = client.responses.input_items.list(second.id, after=page.last_id)
    assert [item.content[0].text for item in rest.data] == ["plain"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    assert len(list(client.responses.input_items.list(second.id))) == 3
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "more", previous_response_id=first.id)
    assert caught.value.param == "previous_response_id"


def test_tools_are_called_and_answered(client, server):
    server.say("rain all day", "Take a coat.")
    first = ask(client, "weather", tools=TOOLS)
    call = first.output[-1]
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "rain all day"}
    stored = client.responses.create(model="scripted", previous_response_id=first.id, input=[answer], tools=TOOLS)
    assert stored.output_text == "Take a coat."
    items = [{"role": "user", "content": "weather"}, *[item.to_dict() for item in first.output], answer]
    sent = client.responses.create(model="scripted", input=items, tools=TOOLS, store=False)
    assert sent.output_text == "Take a coat."
    assert sent.usage.input_tokens == stored.usage.input_tokens
    bare = client.responses.create(model="scripted", input=[items[0], *items[2:]], tools=TOOLS)
    assert bare.usage.input_tokens < sent.usage.input_tokens  # the reasoning was read too
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(sent.id)


def test_what_is_too_long_is_shortened_if_asked(client):
    items = [{"role": "user", "content": "hay " * 1500}, {"role": "assistant", "content": "ok"}] * 3
    items = [{"role": "system", "content": "be kind"}, *items, {"role": "user", "content": "plain"}]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, items)
    assert caught.value.param == "input"
    response = ask(client, items, truncation="auto", max_output_tokens=100)
    assert response.output_text == "It is sunny."
    assert response.truncation == "auto"
    assert 3000 < response.usage.input_tokens < 8192


def test_choices(client):
    assert types_of(ask(client, "weather", tools=TOOLS, tool_choice="none")) == ["reasoning", "message"]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}
    named = ask(client, "both", tools=TOOLS, tool_choice={"type": "function", "name": "now"})
    assert [item.name for item in named.output if item.type == "function_call"] == ["now"]
    few = ask(client, "plain", tools=TOOLS, tool_choice=allowed)
    many = ask(client, "plain", tools=TOOLS)
    assert few.usage.input_tokens < many.usage.input_tokens


class Trip(BaseModel):
    city: str
    days: int


def test_parse(client):
    response = client.responses.parse(model="scripted", input="json", text_format=Trip)
    assert response.output_parsed == Trip(city="Oslo", days=3)
    assert response.text.format.type == "json_schema"
    with client.responses.stream(model="scripted", input="json", text_format=Trip) as stream:
        assert stream.get_final_response().output_parsed == Trip(city="Oslo", days=3)


def test_log_probabilities(client):
    ask_for = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = ask(client, "think", **ask_for)
    part = response.output[-1].content[0]
    assert part.text == "Sunny."
    assert "".join(entry.token for entry in part.logprobs) == "Sunny."
    assert all(len(entry.top_logprobs) >= 2 for entry in part.logprobs)
    events = list(ask(client, "think", stream=True, **ask_for))
    told = [entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert "".join(told) == "Sunny."


def test_background(client, server):
    response = ask(client, "plain", background=True)
    assert response.status in ("queued", "in_progress", "completed")
    server.until("its end", lambda: client.responses.retrieve(response.id).status == "completed")
    response = client.responses.retrieve(response.id)
    assert response.output_text == "It is sunny."
    assert response.background
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(response.id)
    assert client.responses.retrieve(response.id).status == "completed"


def test_a_background_response_is_followed_and_cancelled(endless):
    with connect(endless) as client:
        check_following(client)
        background = ask(client, "endless", background=True)
        assert client.responses.cancel(background.id).status == "cancelled"


def check_following(client):
    stream = ask(client, "endless", background=True, stream=True)
    seen = [next(stream) for _ in range(12)]
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    stream.close()  # it goes on without anybody looking
    name = seen[0].response.id
    assert client.responses.retrieve(name).status == "in_progress"
    with client.responses.retrieve(name, stream=True, starting_after=8) as again:
        assert [next(again).sequence_number for _ in range(3)] == [9, 10, 11]
        cancelled = client.responses.cancel(name)
        rest = list(again)
    assert cancelled.status == "cancelled"
    assert rest[-1].type == "response.incomplete"
    assert rest[-1].response.status == "cancelled"
    assert client.responses.cancel(name).status == "cancelled"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "more", previous_response_id=name)
    assert caught.value.param == "previous_response_id"


def test_a_stored_stream_is_told_again(client):
    events = list(ask(client, "think", stream=True))
    name = events[0].response.id
    with client.responses.retrieve(name, stream=True, starting_after=4) as again:
        assert [event.to_dict() for event in again] == [event.to_dict() for event in events[5:]]
    whole = ask(client, "think")
    with client.responses.retrieve(whole.id, stream=True) as told:
        *_, last = told
    assert last.response.output_text == whole.output_text


def test_a_client_that_goes_away_ends_its_response(endless):
    for stream in (True, False):
        with contextlib.suppress(httpx.TimeoutException), httpx.Client(timeout=1.0) as http:
            body = {"input": "endless", "stream": stream, "max_output_tokens": 100_000, "ignore_eos": True}
            headers = {"Authorization": "Bearer first"}
            with http.stream("POST", f"{endless.url}/v1/responses", json=body, headers=headers) as answer:
                next(answer.iter_lines())
        endless.until("end", lambda: metric(endless, "octavo:num_requests_running") == 0)


def metric(server, name):
    lines = server.get("/metrics", Authorization="Bearer first")[1].decode().splitlines()
    found = [line for line in lines if line.startswith((name, name.replace("octavo:", "vllm:")))]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def test_each_key_has_its_own(server, client):
    mine = ask(client, "plain")
    with connect(server, "second") as other:
        for call in (
            lambda: other.responses.retrieve(mine.id),
            lambda: other.responses.delete(mine.id),
            lambda: other.responses.cancel(mine.id),
            lambda: other.responses.input_items.list(mine.id),
            lambda: ask(other, "x", previous_response_id=mine.id),
        ):
            with pytest.raises(openai.NotFoundError):
                call()
    assert client.responses.retrieve(mine.id).id == mine.id


def test_only_so_many_are_kept(client):
    first = ask(client, "plain")
    for _ in range(40):
        last = ask(client, "plain")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    assert client.responses.retrieve(last.id).output_text == "It is sunny."


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "x", "model": "none"}, "model"),
        ({"input": "x", "temperature": 3}, "temperature"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": 100000}, "max_output_tokens"),
        ({"input": "x", "conversation": "c"}, "conversation"),
        ({"input": "x", "service_tier": "flex"}, "service_tier"),
        ({"input": "x", "include": ["all"]}, "include.0"),
        ({"input": "x", "reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"input": "x", "tools": [{"type": "function", "name": "x", "parameters": 5}]}, "tools.0.parameters"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"type": "function_call", "call_id": "", "name": "f", "arguments": ""}]}, "input.0.call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "no"}}}},
         "text.format"),
        ({"input": "x", "stop": ["a"] * 10000}, "stop"),
        ({"input": "x", "seed": "five"}, "seed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(server, body, param):
    for stream in (False, True):
        status, answer = server.post("/v1/responses", body | {"stream": stream}, Authorization="Bearer first")
        assert status in (400, 404, 501), answer
        assert answer["error"]["param"] == param
        assert answer["error"]["code"] == status


def test_async(server):
    async def run():
        async with connect(server, cls=openai.AsyncOpenAI) as client:
            whole, parsed = await asyncio.gather(
                client.responses.create(model="scripted", input="think"),
                client.responses.parse(model="scripted", input="json", text_format=Trip),
            )
            async with client.responses.stream(model="scripted", input="think") as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert "response.reasoning_text.delta" in kinds
            assert final.output_text == whole.output_text
            assert parsed.output_parsed.city == "Oslo"
            assert (await client.responses.retrieve(whole.id)).output_text == whole.output_text

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_the_document_has_the_models(server):
    status, body = server.get("/openapi.json", Authorization="Bearer first")
    assert status == 200
    paths = json.loads(body)["paths"]
    for path, verb in [
        ("/v1/responses", "post"),
        ("/v1/responses/input_tokens", "post"),
        ("/v1/responses/{response_id}", "get"),
        ("/v1/responses/{response_id}/cancel", "post"),
        ("/v1/responses/{response_id}", "delete"),
        ("/v1/responses/{response_id}/input_items", "get"),
        ("/v1/messages", "post"),
        ("/v1/messages/count_tokens", "post"),
    ]:
        good = paths[path][verb]["responses"]["200"]["content"]["application/json"]["schema"]
        assert good["$ref"].startswith("#/components/schemas/")
        if verb == "post" and "cancel" not in path:
            assert paths[path][verb]["requestBody"]["content"]["application/json"]["schema"]["$ref"]


def test_a_server_that_keeps_nothing(tmp_path):
    with Scripted(agents.folder(tmp_path), ["--response-store-count", "0"]) as server, connect(server) as client:
        response = ask(client, "x")
        assert response.store is False
        for gone in (
            lambda: client.responses.retrieve(response.id),
            lambda: ask(client, "x", previous_response_id="y"),
        ):
            with pytest.raises(openai.NotFoundError):
                gone()
        for name in ("background", "store"):
            with pytest.raises(openai.BadRequestError) as caught:
                ask(client, "x", **{name: True})
            assert caught.value.param == name


def test_the_servers_end_is_an_end(tmp_path):
    folder = agents.folder(tmp_path, config={"max_position_embeddings": ENDLESS})
    with Scripted(folder, ["--shutdown-timeout", "0"]) as server:
        server.say("endless", "word " * 30_000)
        with connect(server) as client:
            followed = ask(client, "endless", background=True, stream=True)
            direct = ask(client, "endless", stream=True)
            events = [[next(stream) for _ in range(8)] for stream in (followed, direct)]
            server.process.terminate()
            for stream, some in zip((followed, direct), events, strict=True):
                some += stream
                assert some[-1].type == "response.failed"
                assert "shutting down" in some[-1].response.error.message
                assert some[-1].response.output_text.startswith("word")
        assert server.wait() == 0
