"""litellm against a live server, by each of the APIs that it speaks. It is told to ask nobody else anything."""

import asyncio
import json
import os

import pytest

from octavo.testing.scripted import Scripted
from tests.contract import agents

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm = pytest.importorskip("litellm")
litellm.telemetry = False
litellm.suppress_debug_info = True

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of its own types
PROVIDERS = ("hosted_vllm", "openai", "anthropic")
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": agents.SCHEMA}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
CITY = {"city": "Oslo", "days": 3}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": agents.SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Scripted(agents.folder(tmp_path_factory.mktemp("agent")), ["--api-key", "key"]) as found:
        found.say_all(
            {
                "plain": ["It is sunny."],
                "think": [agents.THOUGHT + "Sunny."],
                "weather": [agents.THOUGHT + "Wait." + agents.CALL],
                "both": [agents.TWO_CALLS],
                "json": [json.dumps(CITY)],
                "rain": ["Take a coat."],
            }
        )
        yield found


def asked(server, provider, text, **more):
    url = server.url if provider == "anthropic" else f"{server.url}/v1"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    given = {"model": f"{provider}/scripted", "api_base": url, "api_key": "key", "messages": messages}
    return given | {"max_tokens": 200, "num_retries": 0, "max_retries": 0} | more


@pytest.mark.parametrize("provider", PROVIDERS)
def test_whole_and_streamed(server, provider):
    whole = litellm.completion(**asked(server, provider, "plain", temperature=0.5, top_p=0.9, stop=["never said"]))
    assert whole.choices[0].message.content == "It is sunny."
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens > 0
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(
        litellm.completion(**asked(server, provider, "plain", stream=True, stream_options={"include_usage": True}))
    )
    built = litellm.stream_chunk_builder(chunks)
    assert built.choices[0].message.content == "It is sunny."
    assert built.choices[0].finish_reason == "stop"
    assert built.usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("stream", [False, True])
def test_tools(server, provider, stream):
    for key, names in (("weather", ["weather"]), ("both", ["weather", "now"])):
        answer = litellm.completion(**asked(server, provider, key, tools=TOOLS, stream=stream))
        if stream:
            answer = litellm.stream_chunk_builder(list(answer))
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert [call.function.name for call in choice.message.tool_calls] == names
        assert json.loads(choice.message.tool_calls[0].function.arguments) == CITY
        assert all(call.id for call in choice.message.tool_calls)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_conversation_with_tools(server, provider):
    first = asked(server, provider, "weather", tools=TOOLS)
    message = litellm.completion(**first).choices[0].message
    (call,) = message.tool_calls
    told = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "rain"}
    answer = litellm.completion(**first | {"messages": [*first["messages"], message.model_dump(), told]})
    assert answer.choices[0].message.content == "Take a coat."


@pytest.mark.parametrize("provider", PROVIDERS)
def test_forced_tools(server, provider):
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = litellm.completion(**asked(server, provider, "weather", tools=TOOLS[:1], tool_choice=choice))
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", CITY)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_reasoning(server, provider):
    answer = litellm.completion(**asked(server, provider, "think"))
    assert answer.choices[0].message.reasoning_content == "I look it up."
    assert answer.choices[0].message.content == "Sunny."
    built = litellm.stream_chunk_builder(list(litellm.completion(**asked(server, provider, "think", stream=True))))
    assert built.choices[0].message.reasoning_content == "I look it up."


@pytest.mark.parametrize("provider", ["hosted_vllm", "openai"])
def test_structured(server, provider):
    for form in (FORMAT, {"type": "json_object"}):
        answer = litellm.completion(**asked(server, provider, "json", response_format=form))
        assert json.loads(answer.choices[0].message.content) == CITY


@pytest.mark.parametrize("provider", PROVIDERS)
def test_errors_are_typed(server, provider):
    for more, error in (
        ({"model": f"{provider}/other"}, litellm.NotFoundError),
        ({"api_key": "wrong"}, litellm.AuthenticationError),
        ({"temperature": 7}, litellm.BadRequestError),
        ({"messages": [{"role": "user", "content": "long " * 20_000}]}, litellm.BadRequestError),
    ):
        with pytest.raises(error):
            litellm.completion(**asked(server, provider, "plain") | more)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_async(server, provider):
    async def stream():
        answer = await litellm.acompletion(**asked(server, provider, "plain", stream=True))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    async def run():
        whole = litellm.acompletion(**asked(server, provider, "plain"))
        return await asyncio.gather(whole, *[stream() for _ in range(4)])

    whole, *streams = asyncio.run(run())
    assert {whole.choices[0].message.content, *streams} == {"It is sunny."}


def test_completions_and_parameters_of_vllm(server):
    given = {"api_base": f"{server.url}/v1", "api_key": "key", "prompt": "plain", "max_tokens": 4}
    answer = litellm.text_completion(model="text-completion-openai/scripted", **given, extra_body={"min_tokens": 2})
    assert answer.choices[0].text
    more = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
    answer = litellm.completion(**asked(server, "hosted_vllm", "plain", extra_body=more, logprobs=True, top_logprobs=2))
    assert answer.choices[0].logprobs.content


def test_responses(server):
    given = {"model": "openai/scripted", "api_base": f"{server.url}/v1", "api_key": "key", "input": "weather"}
    answer = litellm.responses(**given, tools=[{"type": "function", "name": "weather", "parameters": agents.SCHEMA}])
    kinds = [item.type for item in answer.output]
    assert kinds == ["reasoning", "message", "function_call"]
    events = list(litellm.responses(**given | {"input": "plain"}, stream=True))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output[0].content[0].text == "It is sunny."
