"""What is wrong with a request is a 4xx with a sentence, and the server goes on."""

import contextlib
import gzip
import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest

from octavo.testing import tokenizer
from octavo.testing.served import PATIENCE, Served, fake_model

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = {"role": "user", "content": "hi"}


def prompt(**more):
    return {"prompt": "the cat", **more}


def chat(**more):
    return {"messages": [USER], **more}


def check(answer, status, *words, param=None):
    found, body = answer
    assert found == status, body
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    for word in words:
        assert word in error["message"], error["message"]
    if param is not None:
        assert error["param"] == param
    assert "0x" not in error["message"]
    assert "Traceback" not in error["message"]


@pytest.fixture(autouse=True)
def still_alive(server):
    yield
    assert server.post(TEXT, prompt(max_tokens=1))[0] == 200


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "not valid JSON"),
        (b"", "empty"),
        (b'{"prompt": "a" "b"}', "not valid JSON"),
        (b'{"prompt": "\xff\xfe"}', "not valid JSON"),
        (b'{"prompt": "\\ud800 half a pair"}', "not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b'{"prompt": "a", "temperature": Infinity}', "not valid JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a":' * 30_000 + b"1" + b"}" * 30_000, "nested too deeply"),
        (b"[" * 100_001 + b"]" * 100_001, "too many values"),
    ],
)
def test_bodies_that_are_no_json(server, body, word):
    check(server.post(TEXT, body), 400, word)


@pytest.mark.parametrize("body", [b"[]", b"3", b'"text"', b"null", b"[1, 2]"])
def test_bodies_that_are_no_object(server, body):
    check(server.post(TEXT, body), 400)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_other_content_types(server, kind):
    check(server.post(TEXT, prompt(), **{"Content-Type": kind}), 400, "application/json", kind.partition(";")[0])


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.api+json", "APPLICATION/JSON"])
def test_json_content_types(server, kind):
    assert server.post(TEXT, prompt(max_tokens=1), **{"Content-Type": kind})[0] == 200


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [["a"]]}, "prompt"),
        ({"prompt": list(range(100)) + [{}] * 20_000}, "prompt"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": []}, "temperature"),
        ({"stop": 5}, "stop"),
        ({"stop": [5, 6]}, "stop.0"),
        ({"stop": [None] * 20_000}, "stop.0"),
        ({"stream": "yes"}, "stream"),
        ({"n": "2"}, "n"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias.5"),
        ({"stop_token_ids": "5"}, "stop_token_ids"),
        ({"stream_options": 5}, "stream_options"),
        ({"seed": 1.5}, "seed"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"request_id": "new\nline"}, "request_id"),
    ],
)
def test_wrong_types(server, more, param):
    check(server.post(TEXT, prompt(**more)), 400, param=param)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([5], "messages.0"),
        ([{"content": "a"}], "messages.0.role"),
        ([{"role": "", "content": "a"}], "messages.0.role"),
        ([{"role": 5, "content": "a"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([USER, {"role": "user", "content": [{"text": "a"}]}], "messages.1.content.0.type"),
    ],
)
def test_wrong_messages(server, messages, param):
    check(server.post(CHAT, {"messages": messages}), 400, param=param)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": 1e400}, None),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"repetition_penalty": 1e300}, "repetition_penalty"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": 10**30}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"n": 8, "prompt": ["a"] * 129}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": "x" * 100_000}, "stop"),
        ({"stop_token_ids": [320]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [2**63]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(200))}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [320]}, "allowed_token_ids"),
        ({"allowed_token_ids": [1, 7], "stop_token_ids": [7], "min_tokens": 1}, "allowed_token_ids"),
        ({"allowed_token_ids": [101], "bad_words": ["a"], "prompt": "a"}, "allowed_token_ids"),
        ({"logit_bias": {"320": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"5_0": 1}}, "logit_bias"),
        ({"logit_bias": {" 5": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {str(2**70): 1}}, "logit_bias"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": [f"word {index}" for index in range(10_000)]}, "bad_words"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -2}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"priority": 3}, "priority"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [320]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**63]}, "prompt"),
        ({"prompt": ["a"] * 2000}, "prompt"),
        ({"model": "other"}, "model"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_values_out_of_range(server, more, param):
    body = json.dumps(prompt(**more)).replace("Infinity", "1e400").encode()
    check(server.post(TEXT, body), 404 if param == "model" else 400, param=param)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 25}, "logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),  # the last message is the user's
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ],
)
def test_chat_values_out_of_range(server, more, param):
    check(server.post(CHAT, chat(**more)), 400, param=param)


def test_too_long_says_limit_prompt_and_answer(server):
    check(server.post(TEXT, {"prompt": [5] * 500, "max_tokens": 100}), 400, "512", "500", "100", param="max_tokens")
    check(server.post(TEXT, {"prompt": [5] * 600, "max_tokens": 1}), 400, "512", "600", param="prompt")
    check(server.post(TEXT, {"prompt": "word " * 20_000, "max_tokens": 1}), 400, "512", "100000", param="prompt")
    check(server.post(CHAT, {"messages": [{"role": "user", "content": "x" * 600}]}), 400, "512")
    check(server.post(CHAT, {"messages": [{"role": "user", "content": "word " * 20_000}]}), 400, "512", "characters")
    check(server.post(TEXT, {"prompt": [5] * 500, "max_tokens": 100, "stream": True}), 400, "512", param="max_tokens")
    assert server.post(TEXT, {"prompt": [5] * 500, "max_tokens": 12})[0] == 200


def test_bodies_that_are_too_large(server):
    check(server.post(TEXT, prompt(user="x" * 300_000)), 413, "262144")
    # Without Content-Length the limit holds while reading: the answer comes before the body has ended.
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        head = (
            f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        line.sendall(head.encode())
        for _ in range(5):
            line.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        answer = b""
        while b"PayloadTooLarge" not in answer and (more := line.recv(65536)):
            answer += more
    assert b" 413 " in answer.partition(b"\r\n")[0]
    assert b"PayloadTooLarge" in answer


def test_bodies_in_another_coding(server):
    data = gzip.compress(json.dumps(prompt()).encode())
    check(server.post(TEXT, data, **{"Content-Encoding": "gzip"}), 400, "Content-Encoding", "gzip")
    assert server.post(TEXT, prompt(max_tokens=1), **{"Content-Encoding": "identity"})[0] == 200


def test_a_body_that_breaks_off_is_nobodys_fault(server):
    where = urlsplit(server.url)
    before = len(server.lines)
    for _ in range(3):
        with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
            head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
            line.sendall(head.encode() + b'{"prompt": ')
    assert server.get("/health")[0] == 200
    assert not [line for line in server.lines[before:] if "Traceback" in line or "ClientDisconnect" in line]


@pytest.mark.parametrize("tail", [b"X: y\r\n" * 40_000, b"X: " + b"y" * 200_000, b""])
def test_what_frames_a_body_is_bounded(server, tail):
    """Trailers, or where there are none the extension of a chunk."""
    where = urlsplit(server.url)
    body = json.dumps(prompt(max_tokens=1)).encode()
    extension = b"" if tail else b";" + b"x" * 200_000
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        head = (
            f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = f"{len(body):x}".encode() + extension + b"\r\n" + body + b"\r\n"
        with contextlib.suppress(ConnectionError):
            line.sendall(head.encode() + chunk + b"0\r\n" + tail)
            answer = line.recv(65536)
            assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 200 "))
            while line.recv(65536):  # it is closed: a bound, not an answer, ended it
                pass


def test_a_body_in_small_chunks_is_read(server):
    where = urlsplit(server.url)
    body = json.dumps(prompt(max_tokens=1, user="x" * 30_000)).encode()
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        head = (
            f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        line.sendall(head.encode() + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_no_such_route_or_method(server):
    check(server.post("/v1/nothing", {}), 404)
    check(server.post("/v1/models", {}), 405)
    status, body = server.get(TEXT)
    assert status == 405
    assert json.loads(body)["error"]["code"] == 405


def test_tokenize_and_detokenize(server):
    status, body = server.post("/tokenize", {"prompt": "the cat", "return_token_strs": True})
    assert status == 200
    assert body["count"] == 2
    assert body["max_model_len"] == 512
    assert body["token_strs"] == ["the", "Ġcat"]
    assert server.post("/detokenize", {"tokens": body["tokens"]}) == (200, {"prompt": "the cat"})
    status, body = server.post("/tokenize", {"messages": [USER]})
    assert status == 200
    assert (
        server.post("/detokenize", {"tokens": body["tokens"]})[1]["prompt"]
        == "<|turn|>user\nhi<|turn_end|>\n<|turn|>assistant\n"
    )
    check(server.post("/tokenize", {"prompt": "x" * 200_000}), 400, "512", "200000", param="prompt")
    check(server.post("/detokenize", {"tokens": [320]}), 400, "320", param="tokens")
    check(server.post("/detokenize", {"tokens": [2**64]}), 400)
    check(server.post("/detokenize", {"tokens": [-1]}), 400, param="tokens")
    check(server.post("/tokenize", {"model": "other", "prompt": "a"}), 404, param="model")
    check(server.post("/tokenize", {}), 400)
    nameless = {"messages": [USER], "tools": [{"type": "function"}]}
    check(server.post("/tokenize", nameless), 400, param="tools.0.function")
    check(server.post("/tokenize", {"messages": [USER], "add_special_tokens": True}), 501, param="add_special_tokens")


@pytest.mark.parametrize("head", [b"X-Long: " + b"x" * 400_000, b"X: y\r\n" * 60_000, b"A" * 400_000])
def test_heads_that_are_too_large(server, head):
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        with contextlib.suppress(ConnectionError):
            line.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + head)
        with contextlib.suppress(ConnectionError):
            assert line.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_a_header_too_many(server):
    where = urlsplit(server.url)
    line = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
    line.request("GET", "/v1/models", headers={"X-Request-Id": "bad id; " * 20})
    assert line.getresponse().status == 200
    line.close()


def test_a_template_that_raises(tmp_path):
    template = (
        "{% if messages|length > 1 %}{{ raise_exception('one message, please') }}{% endif %}" + tokenizer.CHAT_TEMPLATE
    )
    server = Served([str(fake_model(tmp_path / "model", template)), "--trust-request-chat-template"])
    try:
        server.ready()
        assert server.post(CHAT, chat(max_tokens=1))[0] == 200
        check(server.post(CHAT, {"messages": [USER, USER]}), 400, "one message, please")
        check(server.post(CHAT, {"messages": [USER, USER], "stream": True}), 400, "one message, please")
        for wild in (
            "{{ 1 / 0 }}",
            "{% for",
            "{{ 'a' * 10**9 }}",
            "{{ x.__class__.__mro__ }}",
            "{% for i in range(10**9) %}{% endfor %}",
        ):
            check(server.post(CHAT, chat(chat_template=wild)), 400)
        assert server.post(CHAT, chat(chat_template="{{ messages[0].content }}", max_tokens=1))[0] == 200
    finally:
        server.stop()
