"""langchain's ChatOpenAI against a live server."""

import asyncio
import json
from typing import Annotated, TypedDict

import pytest
from pydantic import BaseModel, Field

from octavo.testing.scripted import Scripted
from tests.contract import agents

ChatOpenAI = pytest.importorskip("langchain_openai").ChatOpenAI
messages = pytest.importorskip("langchain_core.messages")
tools = pytest.importorskip("langchain_core.tools")

CITY = {"city": "Oslo", "days": 3}


class Forecast(BaseModel):
    """What is asked of a forecast."""

    city: str = Field(description="which")
    days: int = Field(description="how many")


class ForecastDict(TypedDict):
    """What is asked of a forecast."""

    city: Annotated[str, ..., "which"]
    days: Annotated[int, ..., "how many"]


@tools.tool
def weather(city: str, days: int = 1) -> str:
    """Weather of a city."""
    return f"rain in {city} for {days} days"


@tools.tool
def now() -> str:
    """The time."""
    return "noon"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Scripted(agents.folder(tmp_path_factory.mktemp("agent")), ["--api-key", "key"]) as found:
        found.say_all(
            {
                "plain": ["It is sunny."],
                "think": [agents.THOUGHT + "Sunny."],
                "weather": [agents.THOUGHT + "Wait." + agents.CALL],
                "both": [agents.TWO_CALLS],
                "forecast": [
                    '<tool_call>\n{"name": "Forecast", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
                ],
                "json": [json.dumps(CITY)],
                "rain in Oslo": ["Take a coat."],
            }
        )
        yield found


@pytest.fixture(scope="module")
def chat(server):
    return connect(server)


def connect(server, **more):
    given = {"model": "scripted", "base_url": f"{server.url}/v1", "api_key": "key", "max_retries": 0}
    return ChatOpenAI(**given | {"stream_usage": True, "max_tokens": 200} | more)


def whole(chunks):
    """The message that a stream's chunks add up to."""
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


def test_whole_and_streamed(chat):
    answer = chat.invoke([messages.SystemMessage("Be brief."), messages.HumanMessage("plain")])
    assert answer.content == "It is sunny."
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == "scripted"
    streamed = whole(chat.stream([messages.SystemMessage("Be brief."), messages.HumanMessage("plain")]))
    assert streamed.content == answer.content
    assert streamed.response_metadata["finish_reason"] == "stop"
    for said in (answer, streamed):
        usage = said.usage_metadata
        assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
        assert usage["output_token_details"]["reasoning"] == 0
    assert streamed.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]
    thought = chat.invoke("think")
    assert thought.content == "Sunny."
    assert 0 < thought.usage_metadata["output_token_details"]["reasoning"] < thought.usage_metadata["output_tokens"]


def test_tools(chat):
    bound = chat.bind_tools([weather, now])
    for answer in (bound.invoke("weather"), whole(bound.stream("weather"))):
        assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("weather", CITY)]
        assert answer.content == "Wait."
        assert answer.response_metadata["finish_reason"] == "tool_calls"
        assert not answer.invalid_tool_calls
    both = whole(bound.stream("both"))
    assert [call["name"] for call in both.tool_calls] == ["weather", "now"]
    assert len({call["id"] for call in both.tool_calls}) == 2
    alone = chat.bind_tools([weather, now], parallel_tool_calls=False).invoke("both")
    assert [call["name"] for call in alone.tool_calls] == ["weather"]


def test_a_loop_with_tools(chat):
    bound = chat.bind_tools([weather])
    talk = [messages.HumanMessage("weather")]
    talk.append(bound.invoke(talk))
    talk += [weather.invoke(call) for call in talk[-1].tool_calls]
    assert bound.invoke(talk).content == "Take a coat."
    talk[-1] = talk[-1].model_copy(update={"content": [{"type": "text", "text": "rain in Oslo"}]})
    assert bound.invoke(talk).content == "Take a coat."


@pytest.mark.parametrize("choice", ["any", "required", "weather", True])
def test_forced_tools(chat, choice):
    answer = chat.bind_tools([weather], tool_choice=choice, strict=True).invoke("weather")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("weather", CITY)]


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
@pytest.mark.parametrize("schema", [Forecast, ForecastDict, Forecast.model_json_schema()])
def test_structured_output(chat, method, schema):
    key = "forecast" if method == "function_calling" and schema is not ForecastDict else "json"
    if method == "function_calling" and schema is ForecastDict:
        pytest.skip("the same as of a model, by another name")
    asked = chat.with_structured_output(schema, method=method, include_raw=True)
    for answer in (asked.invoke(key), whole(asked.stream(key))):
        assert answer["parsing_error"] is None
        parsed = answer["parsed"]
        assert (parsed.model_dump() if isinstance(parsed, Forecast) else parsed) == CITY


def test_parameters(server):
    chat = connect(server, temperature=0.3, top_p=0.9, seed=1, n=2, logprobs=True, top_logprobs=2, stop=["never"],
                   presence_penalty=0.1, frequency_penalty=0.1, extra_body={"top_k": 10})  # fmt: skip
    (found,) = chat.generate([[messages.HumanMessage("plain")]]).generations
    assert [one.text for one in found] == ["It is sunny."] * 2
    assert len(found[0].generation_info["logprobs"]["content"]) > 0


def test_async_and_batches(chat):
    async def run():
        async def stream():
            return whole([chunk async for chunk in chat.astream("plain")]).content

        return await asyncio.gather(stream(), stream(), chat.abatch(["plain", "plain"]), chat.ainvoke("plain"))

    first, second, batch, last = asyncio.run(run())
    assert {first, second, last.content, *[one.content for one in batch]} == {"It is sunny."}
    assert [one.content for one in chat.batch(["plain", "think"])] == ["It is sunny.", "Sunny."]


def test_the_responses_api(server):
    chat = connect(server, use_responses_api=True)
    answer = chat.bind_tools([weather]).invoke("weather")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("weather", CITY)]
    streamed = whole(chat.stream("plain"))
    assert streamed.text == "It is sunny."
    assert streamed.usage_metadata["total_tokens"] > 0
    assert chat.with_structured_output(Forecast).invoke("json") == Forecast(**CITY)


def test_errors(server, chat):
    openai = pytest.importorskip("openai")
    for more, error in (
        ({"model": "other"}, openai.NotFoundError),
        ({"api_key": "wrong"}, openai.AuthenticationError),
        ({"temperature": 7}, openai.BadRequestError),
    ):
        with pytest.raises(error):
            connect(server, **more).invoke("plain")
