"""The OpenAPI document: it names every route, and every answer of every route is what it says."""

import re

import pytest
from fastapi import FastAPI
from jsonschema import ValidationError

from octavo.front.server import openapi
from octavo.testing.scripted import Scripted
from octavo.testing.served import ENDLESS
from tests.contract import agents
from tests.contract.document import Document

KEY = "key"
CHAT, TEXT, TOKENS = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
POOLING = ("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank",
           "/v2/rerank")  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": agents.SCHEMA}}]
FLAT = [{"type": "function", "name": "weather", "parameters": agents.SCHEMA}]
THEIRS = [{"name": "weather", "input_schema": agents.SCHEMA}]
USAGE = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
IDS = {"return_token_ids": True}
GENERATED = {"choices": [{"index": 0, "token_ids": [90, 91], "finish_reason": "stop"}]}


def says(text):
    return [{"role": "user", "content": text}]


def chat(text="plain", **more):
    return {"model": "scripted", "messages": says(text), "max_tokens": 200, **more}


def text(prompt="plain", **more):
    return {"prompt": prompt, "max_tokens": 8, **more}


def response(said="plain", **more):
    return {"input": said, "max_output_tokens": 200, **more}


def message(text="plain", **more):
    return {"model": "scripted", "max_tokens": 200, "messages": says(text), **more}


def tokens(**more):
    return {"token_ids": [90, 91], "sampling_params": {"max_tokens": 4, **more.pop("sampling_params", {})}, **more}


#: (path, body, status) of POSTs; each must be answered so, and as the document says.
ASKED = [
    (CHAT, chat(), 200),
    (CHAT, chat("all", tools=TOOLS), 200),
    (CHAT, chat("all", tools=TOOLS, stream=True), 200),
    (CHAT, chat("all", tools=TOOLS, **USAGE, **IDS, logprobs=True, top_logprobs=2, n=2), 200),
    (CHAT, chat("all", logprobs=True, top_logprobs=2, prompt_logprobs=2, n=2, **IDS), 200),
    (CHAT, chat("all", stop="up", temperature=0), 200),
    (CHAT, chat("all", stop="up", stream=True, logprobs=True), 200),
    (CHAT, chat(use_beam_search=True, n=2, max_tokens=3), 200),
    (CHAT, chat(max_tokens=-1), 400),
    (CHAT, chat(messages=[]), 400),
    (CHAT, chat(temperature="hot"), 400),
    (CHAT, chat(model="other"), 404),
    (CHAT, chat(modalities=["audio"]), 501),
    (CHAT, {}, 400),
    (CHAT, [], 400),
    (CHAT, b"{", 400),
    (CHAT, b"", 400),
    (CHAT, chat("long " * 70_000), 413),
    (TEXT, text(), 200),
    (TEXT, text(["plain", "all"], n=2, logprobs=2, echo=True, **IDS), 200),
    (TEXT, text([[90, 91], [92]], prompt_logprobs=1), 200),
    (TEXT, text(logprobs=2, echo=True, **USAGE, **IDS), 200),
    (TEXT, text(["plain", "all"], stream=True), 200),
    (TEXT, text(echo=True, max_tokens=0, logprobs=0), 200),
    (TEXT, text(use_beam_search=True, n=2, max_tokens=3), 200),
    (TEXT, text(stop_token_ids=[90], min_tokens=2), 200),
    (TEXT, text(5), 400),
    (TEXT, text(model="other"), 404),
    (TEXT, text(suffix="x"), 501),
    (RESPONSES, response(), 200),
    (RESPONSES, response("all", tools=FLAT, instructions="Be brief.", metadata={"a": "b"}, user="me"), 200),
    (RESPONSES, response("all", tools=FLAT, stream=True), 200),
    (RESPONSES, response(include=["message.output_text.logprobs"], top_logprobs=2, stream=True), 200),
    (RESPONSES, response(include=["message.output_text.logprobs"], top_logprobs=2), 200),
    (RESPONSES, response("endless", max_output_tokens=5), 200),
    (RESPONSES, response("endless", max_output_tokens=5, stream=True), 200),
    (RESPONSES, response(background=True), 200),
    (RESPONSES, response(background=True, stream=True), 200),
    (RESPONSES, response(text={"format": {"type": "json_object"}}), 200),
    (RESPONSES, response(input=[{"type": "message", "role": "robot", "content": "x"}]), 400),
    (RESPONSES, response(previous_response_id="resp_none"), 404),
    (RESPONSES, response(tools=[{"type": "web_search"}]), 400),
    (f"{RESPONSES}/input_tokens", response(tools=FLAT), 200),
    (f"{RESPONSES}/input_tokens", {"input": 7}, 400),
    (f"{RESPONSES}/resp_none/cancel", None, 404),
    (MESSAGES, message(), 200),
    (MESSAGES, message("all", tools=THEIRS), 200),
    (MESSAGES, message("all", tools=THEIRS, stream=True), 200),
    (MESSAGES, message("endless", max_tokens=5, stream=True), 200),
    (MESSAGES, message(stop_sequences=["sunny"]), 200),
    (MESSAGES, message(max_tokens=0), 400),
    (MESSAGES, message(model="other"), 404),
    (MESSAGES, message(mcp_servers=[{"type": "url"}]), 400),
    (MESSAGES, message(thread={"type": "create"}), 400),
    (MESSAGES, b"{", 400),
    (MESSAGES, message("long " * 70_000), 413),
    (f"{MESSAGES}/count_tokens", message(), 200),
    (f"{MESSAGES}/count_tokens", {}, 400),
    (TOKENS, tokens(), 200),
    (TOKENS, tokens(sampling_params={"n": 2, "logprobs": 2, "prompt_logprobs": 1}), 200),
    (TOKENS, tokens(**USAGE, sampling_params={"n": 2, "logprobs": 2}), 200),
    (TOKENS, tokens(stream=True), 200),
    (TOKENS, tokens(token_ids=[]), 400),
    (TOKENS, tokens(sampling_params={"temperature": -1}), 400),
    (TOKENS, tokens(model="other"), 404),
    (TOKENS, tokens(features={"image": 1}), 501),
    (f"{CHAT}/render", chat(tools=TOOLS, stream=True, stream_options={"include_usage": True}), 200),
    (f"{CHAT}/render", chat(messages=5), 400),
    (f"{TEXT}/render", text(["plain", "all"]), 200),
    (f"{TEXT}/render", text(use_beam_search=True), 501),
    (f"{CHAT}/derender", {"generate_response": GENERATED, "chat_request": chat()}, 200),
    (f"{CHAT}/derender", {"generate_response": {}}, 400),
    (f"{TEXT}/derender", {"generate_responses": [GENERATED, GENERATED], "prompt_tokens": [1, 2]}, 200),
    (f"{TEXT}/derender", {"generate_responses": [GENERATED], "stream": True}, 501),
    *[(path, {"input": "x"}, 501) for path in POOLING],
    *[(path, [], 400) for path in POOLING],
    ("/tokenize", {"prompt": "plain", "return_token_strs": True}, 200),
    ("/tokenize", {"messages": says("plain")}, 200),
    ("/tokenize", {}, 400),
    ("/tokenize", {"prompt": "plain", "model": "other"}, 404),
    ("/detokenize", {"tokens": [90, 91]}, 200),
    ("/detokenize", {"tokens": [10**20]}, 400),
    ("/detokenize", {"tokens": "x"}, 400),
    ("/ping", None, 200),
    ("/resume", None, 200),
    ("/pause?mode=keep&clear_cache=false", None, 200),
    ("/pause?mode=quickly", None, 400),
    ("/resume", None, 200),
    ("/reset_prefix_cache", None, 200),
    ("/reset_prefix_cache?reset_external=true", None, 501),
    ("/sleep?level=9", None, 400),
    ("/wake_up?tags=x", None, 400),
    ("/wake_up", None, 200),
]  # fmt: skip
READ = [
    ("/v1/models", 200),
    ("/v1/models/scripted", 200),
    ("/v1/models/other", 404),
    ("/v1/models/a%2Fb", 404),
    (f"{RESPONSES}/resp_none", 404),
    (f"{RESPONSES}/resp_none?stream=maybe", 400),
    (f"{RESPONSES}/resp_none/input_items?limit=0", 400),
    ("/health", 200),
    ("/ping", 200),
    ("/version", 200),
    ("/load", 200),
    ("/metrics", 200),
    ("/is_paused", 200),
    ("/is_sleeping", 200),
    ("/server_info", 200),
    ("/server_info?config_format=json", 200),
    ("/server_info?config_format=xml", 400),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = agents.folder(tmp_path_factory.mktemp("agent"), config={"max_position_embeddings": ENDLESS})
    flags = ["--api-key", KEY, "--max-body-size", "256K", "--enable-control-routes"]
    with Scripted(folder, flags) as found:
        found.say("plain", "It is sunny.")
        found.say("all", agents.THOUGHT + "I look it up. " + agents.CALL)
        found.say("endless", "word " * 30_000)
        yield found


@pytest.fixture(scope="module")
def document(server):
    return Document(server, KEY)


@pytest.mark.parametrize(("path", "body", "status"), ASKED)
def test_answers(document, path, body, status):
    assert document.checked("post", path, body)[0] == status


@pytest.mark.parametrize(("path", "status"), READ)
def test_reading(document, path, status):
    assert document.checked("get", path)[0] == status


def test_what_is_stored(document):
    endless = response("endless", background=True, max_output_tokens=100_000)
    for made in (response("all", tools=FLAT), response("all", background=True, stream=True), endless):
        _, answer = document.checked("post", RESPONSES, made)
        name = (answer[0]["response"] if isinstance(answer, list) else answer)["id"]
        path = f"{RESPONSES}/{name}"
        assert document.checked("get", path)[1]["id"] == name
        assert document.checked("get", f"{path}/input_items?order=asc")[1]["data"]
        assert document.checked("get", f"{path}/input_items?after=none")[0] == 400
        assert document.checked("post", f"{path}/cancel")[0] == (200 if made is endless else 400)
        status, events = document.checked("get", f"{path}?stream=true")
        assert status == 200
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert document.checked("delete", path)[0] == 200
        assert document.checked("delete", path)[0] == 404


def test_without_a_key(document):
    open_paths = set()
    for verb, path in document.operations():
        body = {} if "requestBody" in document.operation(verb, path)[1] else None
        filled = re.sub(r"\{\w+\}", "x", path)
        status, _ = document.checked(verb, filled, body, {"Authorization": ""})
        if status != 401:
            open_paths.add(path)
        said = document.operation(verb, filled)[1].get("security")
        assert (said == []) == (status != 401)
    assert open_paths == {"/health", "/ping", "/version"}
    assert {"type": "http", "scheme": "bearer"} in document.whole["components"]["securitySchemes"].values()


def test_the_examples_are_taken(document):
    shown = 0
    for verb, path in document.operations():
        content = document.operation(verb, path)[1].get("requestBody", {}).get("content", {})
        if "example" in content.get("application/json", {}):
            shown += 1
            assert document.checked(verb, path, content["application/json"]["example"])[0] == 200
    assert shown == len(openapi.EXAMPLES)


def test_nothing_is_left_out(document, server):
    """Runs last: every operation was asked, and each has a success and an error among its answers."""
    answered = {}
    for verb, path, status, _ in document.seen:
        answered.setdefault((verb, path), set()).add(status)
    assert set(answered) == set(document.operations())
    for verb, path in document.operations():
        responses = document.operation(verb, path)[1]["responses"]
        assert "422" not in responses
        if path not in POOLING:
            assert 200 in answered[verb, path] or path == "/sleep", path  # a fake device cannot sleep
        for status, said in responses.items():
            assert status[0] in "45" or status == "200"
            assert status == "200" or "$ref" in said["content"]["application/json"]["schema"]
    streams = {path for _, path, _, kind in document.seen if kind == "text/event-stream"}
    assert streams == {CHAT, TEXT, TOKENS, RESPONSES, f"{RESPONSES}/{{response_id}}", MESSAGES}


def test_the_document_itself(document):
    names = list(document.whole["components"]["schemas"])
    assert not [name for name in names if "__" in name]
    used = set(re.findall(r"#/components/schemas/(\w+)", str(document.whole)))
    assert used == set(names)
    ids = [document.operation(verb, path)[1]["operationId"] for verb, path in document.operations()]
    assert len(set(ids)) == len(ids)


def test_a_wrong_answer_is_seen(document):
    with pytest.raises(ValidationError):
        document.valid({"object": "list", "data": [], "more": 1}, {"$ref": "#/components/schemas/ModelList"})


def test_a_document_without_keys():
    found = openapi.build(FastAPI(), None)
    assert "security" not in found
    assert "securitySchemes" not in found["components"]
