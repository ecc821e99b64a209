"""The openai package against a live server: what comes beside the answers themselves (headers, retries, timeouts,
typed errors), and what becomes of each field of OpenAI's that this server has no use for."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from octavo.testing.scripted import Scripted
from octavo.testing.served import ENDLESS, PATIENCE, Served, fake_model
from tests.contract import agents

HELLO = [{"role": "user", "content": "plain"}]
LONG = {"model": "slow", "prompt": [5], "max_tokens": 100_000, "extra_body": {"ignore_eos": True}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": agents.SCHEMA}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = agents.folder(tmp_path_factory.mktemp("agent"))
    with Scripted(folder, ["--api-key", "key", "--enable-request-id-headers"]) as found:
        found.say_all({"plain": ["It is sunny."], "tools": [agents.THOUGHT + agents.CALL], "endless": ["word " * 2000]})
        yield found


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as found:
        yield found


def ask(client, **more):
    extra = more.pop("extra_body", None)
    return client.chat.completions.create(
        **{"model": "scripted", "messages": HELLO, "max_tokens": 200} | more, extra_body=extra
    )


def test_raw_responses_and_streams(client):
    raw = client.chat.completions.with_raw_response.create(
        model="scripted", messages=HELLO, extra_headers={"X-Request-Id": "mine"}
    )
    assert raw.headers["x-request-id"] == "mine"
    assert raw.headers["content-type"] == "application/json"
    answer = raw.parse()
    assert answer._request_id == "mine"
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.system_fingerprint
    with client.chat.completions.with_streaming_response.create(
        model="scripted", messages=HELLO, stream=True
    ) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert list(streamed.iter_lines())[-2:] == ["data: [DONE]", ""]
    raw = client.completions.with_raw_response.create(model="scripted", prompt="plain", stream=True)
    assert "".join(chunk.choices[0].text for chunk in raw.parse() if chunk.choices) == "It is sunny."


def test_all_parameters_at_once(client):
    answer = ask(
        client,
        n=2, seed=1, temperature=0.7, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1, logprobs=True,
        top_logprobs=3, stop=["never said"], user="me", logit_bias={"90": 1.5, "91": -100}, tools=[TOOL],
        tool_choice="auto", parallel_tool_calls=False, response_format={"type": "text"}, max_completion_tokens=50,
        reasoning_effort="low", metadata={"a": "b"}, service_tier="auto", store=False, verbosity="medium",
        prompt_cache_key="k", safety_identifier="s", modalities=["text"],
        extra_body={"top_k": 40, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True},
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.message.content == "It is sunny."
        assert len(choice.logprobs.content) == len(choice.token_ids)
        assert all(len(entry.top_logprobs) >= 3 for entry in choice.logprobs.content)
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens
    assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in answer.choices)


@pytest.mark.parametrize(
    ("make", "error", "param"),
    [
        (lambda c: c.chat.completions.create(model="x", messages=HELLO), openai.NotFoundError, "model"),
        (lambda c: c.models.retrieve("x"), openai.NotFoundError, "model"),
        (lambda c: ask(c, temperature=9), openai.BadRequestError, "temperature"),
        (lambda c: ask(c, messages=[]), openai.BadRequestError, "messages"),
        (lambda c: ask(c, max_tokens=10**6), openai.BadRequestError, "max_tokens"),
        (lambda c: c.embeddings.create(model="scripted", input="x"), openai.InternalServerError, "model"),
        (lambda c: c.get("/nothing", cast_to=object), openai.NotFoundError, None),
        (lambda c: c.put("/models", cast_to=object), openai.APIStatusError, None),
        (lambda c: c.with_options(api_key="x").models.list(), openai.AuthenticationError, None),
    ],
)
def test_errors_are_typed(client, make, error, param):
    with pytest.raises(error) as caught:
        make(client)
    assert caught.value.param == param
    assert caught.value.type.endswith("Error")
    assert int(caught.value.code) == caught.value.status_code
    assert caught.value.request_id


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """One request at a time, one token in 20 ms, and hardly a queue."""
    folder = fake_model(tmp_path_factory.mktemp("slow"), length=ENDLESS, latency=0.02)
    found = Served([str(folder), "--served-model-name", "slow", "--max-num-seqs", "1", "--max-waiting", "1"])
    try:
        yield found.ready()
    finally:
        found.stop()


def test_a_client_comes_back_after_the_time_it_is_told(slow):
    turned_away = []

    def look(answer):
        if answer.status_code == 429:
            turned_away.append(int(answer.headers["retry-after"]))
            running.close()

    with (
        openai.OpenAI(
            base_url=f"{slow.url}/v1",
            api_key="none",
            max_retries=100,
            http_client=httpx.Client(event_hooks={"response": [look]}),
        ) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        running = client.completions.create(**LONG, stream=True)
        slow.until("start", lambda: slow.metric("vllm:num_requests_running") == 1)
        waiting = pool.submit(client.completions.create, model="slow", prompt=[6], max_tokens=1)
        slow.until("queue", lambda: slow.metric("vllm:num_requests_waiting") == 1)
        answer = client.completions.create(model="slow", prompt=[7], max_tokens=1)
        assert answer.usage.completion_tokens == 1
        assert waiting.result(PATIENCE).usage.completion_tokens == 1
        assert turned_away
        assert min(turned_away) >= 1


def test_a_client_that_waits_no_longer_frees_what_it_asked_for(slow):
    client = openai.OpenAI(base_url=f"{slow.url}/v1", api_key="none", max_retries=0, timeout=0.5)
    with client, pytest.raises(openai.APITimeoutError):
        client.completions.create(**LONG)
    slow.until("rest", lambda: slow.metric("vllm:num_requests_running") == 0)


#: Fields of the chat API, a value, and what becomes of it: 200, or the status and the name that it is refused by.
FIELDS = [
    ("store", False, 200, None),
    ("store", True, 200, None),  # agents send it always; there is nothing to fetch by the answer's id
    ("metadata", {"a": "b"}, 200, None),
    ("service_tier", "auto", 200, None),
    ("service_tier", "default", 200, None),
    ("service_tier", "flex", 200, None),
    ("prediction", {"type": "content", "content": "It is"}, 200, None),  # speeds things up elsewhere, changes nothing
    ("verbosity", "medium", 200, None),
    ("verbosity", "low", 501, "verbosity"),
    ("web_search_options", {}, 501, "web_search_options"),
    ("modalities", ["text"], 200, None),
    ("modalities", ["text", "audio"], 501, "modalities"),
    ("audio", {"voice": "x", "format": "wav"}, 501, "audio"),
    ("parallel_tool_calls", True, 200, None),
    ("parallel_tool_calls", "yes", 400, "parallel_tool_calls"),
    ("user", "me", 200, None),
    ("user", 5, 400, "user"),
    ("prompt_cache_key", "k", 200, None),
    ("safety_identifier", "s", 200, None),
    ("logit_bias", {"90": 1}, 200, None),
    ("logit_bias", {"ninety": 1}, 400, "logit_bias"),
    ("logit_bias", {"100000": 1}, 400, "logit_bias"),
    ("logit_bias", [1], 400, "logit_bias"),
    ("stream_options", {"include_usage": True}, 400, "stream_options"),
    ("max_completion_tokens", 3, 200, None),
    ("max_completion_tokens", 0, 400, "max_completion_tokens"),
    ("max_completion_tokens", -1, 400, "max_completion_tokens"),
    ("max_completion_tokens", 10**6, 400, "max_completion_tokens"),
    ("functions", [{"name": "f"}], 501, "functions"),
    ("function_call", "auto", 501, "function_call"),
    ("function_call", "none", 200, None),
    ("response_format", {"type": "text"}, 200, None),
    ("response_format", {"type": "xml"}, 400, "response_format.type"),
    ("tools", [{"type": "custom", "custom": {"name": "f"}}], 501, "tools.0.type"),
    ("tools", [], 400, "tools"),
    ("tool_choice", "required", 400, "tool_choice"),
    ("n", 0, 400, "n"),
    ("seed", "x", 400, "seed"),
    ("logprobs", 5, 400, "logprobs"),
    ("top_logprobs", 5, 400, "top_logprobs"),
    ("reasoning_effort", "high", 200, None),
    ("reasoning_effort", "immense", 400, "reasoning_effort"),
    ("stop", ["a", ""], 400, "stop"),
    ("suffix", "x", 501, "suffix"),
    ("a_field_of_tomorrow", {"x": 1}, 200, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "status", "param"), FIELDS)
def test_each_field_is_taken_or_refused_by_name(server, name, value, status, param):
    body = {"messages": HELLO, name: value}
    found, answer = server.post("/v1/chat/completions", body, Authorization="Bearer key")
    assert found == status, answer
    if status != 200:
        assert answer["error"]["param"] == param, answer
        assert param.split(".")[0].removeprefix("max_completion_") in answer["error"]["message"]


def test_obfuscation_of_streams_is_refused(client):
    ask(client, stream=True, stream_options={"include_obfuscation": False}).close()
    with pytest.raises(openai.BadRequestError, match="include_obfuscation"):
        ask(client, stream=True, stream_options={"include_obfuscation": True})


def test_the_newer_name_of_the_length_wins(client):
    answer = ask(client, messages=[{"role": "user", "content": "endless"}], max_tokens=5, max_completion_tokens=7)
    assert answer.usage.completion_tokens == 7
    assert answer.choices[0].finish_reason == "length"
