"""The door: who gets in, what is kept of them, and how much anybody may ask for."""

import asyncio
import http.client
import json
import socket
from types import SimpleNamespace
from urllib.parse import urlsplit

import psutil
import pytest
from fastapi import FastAPI

from octavo.front.metrics.prometheus import Prometheus
from octavo.front.server import web
from octavo.front.server.app import build_app
from octavo.front.server.middleware import OPEN_PATHS
from octavo.front.server.options import Options
from octavo.testing.served import ENDLESS, PATIENCE, Served, fake_model

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
KEY = "first-key-0123456789"
HELD = {"Authorization": f"Bearer {KEY}"}
LONG = {"prompt": "the cat", "max_tokens": 400, "ignore_eos": True}
ENDED = "vllm:request_success_total{"


@pytest.fixture(scope="module")
def door(model, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"# who may come in\n\n{KEY}\nsecond key\n")
    flags = ["--api-key-file", str(keys), "--api-key", "third", "--log-format", "json", "--enable-log-requests"]
    flags += ["--max-stop", "2", "--max-prompts", "48", "--max-n", "40", "--write-timeout", "0.5", "--isolate-keys"]
    found = Served([str(model), *flags], env={"OCTAVO_API_KEY": "of-the-environment"})
    try:
        yield found.ready()
    finally:
        found.stop()


def raw(server, data, until=b""):
    """What comes back for bytes that are sent as they are; up to the end, or to ``until``."""
    where = urlsplit(server.url)
    said = b""
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        try:
            line.sendall(data)
            while not (until and until in said) and (more := line.recv(65536)):
                said += more
        except ConnectionError:
            pass
    return said


def status_of(said):
    return int(said.split(b" ", 2)[1]) if said else 0


# -- keys --


class App:
    """An application without an engine: nothing gets past its keys."""

    def __init__(self, **options):
        engine = SimpleNamespace(config=None, tokenizer=None, dead=None, stalled=None, drain=None)
        self.app, _ = build_app(engine, Options(api_keys=("k",), **options), Prometheus("m", 64, {}))
        api = self.app
        while not isinstance(api, FastAPI):
            api = vars(api).get("_app") or api.app
        self.routes = api.routes

    def status(self, method, path, *headers, kind="http"):
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {"type": kind, "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": list(headers), "root_path": "", "scheme": "http", "http_version": "1.1"}
        scope |= {"asgi": {"version": "3.0"}, "server": ("h", 1), "client": ("c", 1)}
        asyncio.run(self.app(scope, receive, send))
        return sent[0].get("status", sent[0]["type"])


def walk(routes):
    for route in routes:
        if hasattr(route, "routes"):
            yield from walk(route.routes)
        elif hasattr(route, "original_router"):
            yield from walk(route.original_router.routes)
        else:
            yield route


@pytest.mark.parametrize("web_ui", [True, False])
def test_every_route_of_the_table_needs_the_key(web_ui):
    app = App(web_ui=web_ui)
    open_paths = OPEN_PATHS | (web.OPEN_PATHS if web_ui else frozenset())
    seen = set()
    for route in walk(app.routes):
        path = "/".join("x" if part.startswith("{") else part for part in route.path.split("/"))
        seen.add(route.path)
        for method in {*(getattr(route, "methods", None) or ()), "GET", "POST", "HEAD", "OPTIONS", "DELETE", "MADEUP"}:
            if path not in open_paths:
                assert app.status(method, path) == 401, (method, path)
    assert {"/v1/completions", CHAT, "/v1/models", "/tokenize", "/metrics", "/openapi.json", "/docs"} <= seen
    for path in ("/no/such", "", "/healthx", "/health/", "/HEALTH", "//health", "/health/../metrics"):
        assert app.status("GET", path) == 401, path
    assert app.status("GET", "/v1/models", kind="websocket") == "websocket.close"
    assert app.status("GET", "/health", kind="websocket") == "websocket.close"
    assert app.status("GET", "/version") == 200


@pytest.mark.parametrize(
    ("headers", "fine"),
    [
        (HELD, True),
        ({"x-api-key": KEY}, True),
        ({"X-API-Key": "second key"}, True),
        ({"Authorization": "BEARER third"}, True),
        ({"Authorization": "Bearer wrong", "x-api-key": KEY}, True),
        ({"Authorization": "Bearer of-the-environment"}, False),
        ({"Authorization": KEY}, False),
        ({"Authorization": f"Basic {KEY}"}, False),
        ({"Authorization": f"Bearer {KEY} "}, True),
        ({"Authorization": f"Bearer {KEY}x"}, False),
        ({"Authorization": f"Bearer {KEY[:-1]}"}, False),
        ({"Authorization": "Bearer # who may come in"}, False),
        ({"Authorization": "Bearer "}, False),
        ({"x-api-key": ""}, False),
        ({"x-api-key": f"Bearer {KEY}"}, False),
        ({"Authorization": "Bearer \xff\xfe"}, False),
        ({"Authorization": "Bearer " + "x" * 30_000}, False),
        ({"Cookie": f"api_key={KEY}"}, False),
    ],
)
def test_keys(door, headers, fine):
    where = urlsplit(door.url)
    line = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
    line.request("GET", "/v1/models", headers=headers)
    answer = line.getresponse()
    assert answer.status == (200 if fine else 401)
    if not fine:
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert KEY not in answer.read().decode()
    line.close()


@pytest.mark.parametrize(
    "head",
    [
        "GET /health/../v1/models HTTP/1.1\r\nHost: x",
        "GET /health/%2e%2e/v1/models HTTP/1.1\r\nHost: x",
        "GET /health%2f..%2fv1/models HTTP/1.1\r\nHost: x",
        "GET /v1/models?/health HTTP/1.1\r\nHost: x",
        "GET /v1/models;/health HTTP/1.1\r\nHost: x",
        "GET /v1/models HTTP/1.1\r\nHost: x/health?",
        "GET /v1/models HTTP/1.1\r\nHost: x/health#",
        "GET /v1/models HTTP/1.1\r\nHost: health\r\nX-Original-URL: /health\r\nX-Rewrite-URL: /health",
        "GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Forwarded-Prefix: /health\r\nX-Forwarded-Path: /health",
        "GET /v1/models HTTP/1.1\r\nHost: x\r\nX-HTTP-Method-Override: OPTIONS",
        "GET http://x/v1/models HTTP/1.1\r\nHost: x/health",
        "GET http://health/v1/models HTTP/1.1\r\nHost: x",
        "GET //x/../v1/models HTTP/1.1\r\nHost: x",
        "GET /V1/MODELS HTTP/1.1\r\nHost: x",
        "GET /v1/models/ HTTP/1.1\r\nHost: x",
        "GET /health%00/v1/models HTTP/1.1\r\nHost: x",
        "HEAD /v1/models HTTP/1.1\r\nHost: x",
        "OPTIONS /v1/models HTTP/1.1\r\nHost: x",
        "OPTIONS * HTTP/1.1\r\nHost: x",
        "PROPFIND /v1/models HTTP/1.1\r\nHost: x",
        "GET /v1/models HTTP/1.0",
        "GET /v1/models HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13",
        "PRI * HTTP/2.0\r\n\r\nSM",
    ],
)
def test_no_way_around_the_keys(door, head):
    said = raw(door, head.encode() + b"\r\nConnection: close\r\n\r\n", until=b"\r\n\r\n")
    assert status_of(said) in (400, 401, 404, 405), said
    assert b"tiny" not in said
    assert b"owned_by" not in said


def test_two_readings_of_one_request_are_none(door):
    """What a proxy and this server could read differently is refused, or ends the connection: nothing rides along."""
    body = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    for framing in (
        f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked",
        "Content-Length: 3\r\nContent-Length: 4",
        "Transfer-Encoding: chunked, identity",
        "Content-Length: -1",
        "Content-Length: 1_0",
        "Content-Length : 3",
    ):
        said = raw(door, f"POST /ping HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode() + body, until=b"\r\n\r\n")
        assert said.count(b"HTTP/1.1 ") <= 1, said
        assert not said or status_of(said) == 400, (framing, said)


def test_a_key_shares_no_cache_with_another(door):
    prompt = [7 + index % 50 for index in range(200)]

    def cached(key, **more):
        answer = door.post(TEXT, {"prompt": prompt, "max_tokens": 1} | more, **{"x-api-key": key})[1]
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(KEY) == 0
    assert cached(KEY) > 100
    assert cached("third") == 0
    assert cached("third", cache_salt="more") == 0
    assert cached("third", cache_salt="more") > 100


# -- what is logged, and ids --


def lines(server):
    return [json.loads(line) for line in server.lines if line.startswith("{")]


def test_the_log_is_json_and_says_who_not_what(door):
    secret = "a prompt that is nobodys business"
    asked = {"prompt": secret, "max_tokens": 1, "user": "somebody"}
    assert door.post(TEXT, asked, **HELD, **{"X-Request-Id": "one.two-3"})[0] == 200
    door.post("/v1/made%0Aup%1b[31m", {}, **HELD, **{"X-Request-Id": "four\tfive"})
    door.until("line", lambda: any(line.get("request_id") == "one.two-3" for line in lines(door)))
    door.until("line", lambda: any("made" in line["message"] for line in lines(door)))
    for line in lines(door):
        assert {"time", "level", "logger", "process", "message"} <= set(line)
        assert not {char for char in line["message"] if ord(char) < 32} - {"\n"}
    assert {"api", "engine"} <= {line["process"] for line in lines(door)}
    assert [text for text in door.lines if not text.startswith(("{", "octavo serves"))] == []
    for text in (secret, "business", KEY, "second key", "four", "of-the-environment"):
        assert text not in door.log


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 128])
def test_an_id_that_is_safe_comes_back(door, name):
    where = urlsplit(door.url)
    for path, status in (("/health", 200), ("/v1/models", 401), ("/nothing", 401)):
        line = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
        line.request("GET", path, headers={"X-Request-Id": name})
        answer = line.getresponse()
        assert (answer.status, answer.headers["X-Request-Id"]) == (status, name)
        line.close()


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "é", "a\tb", "../x", "a;b", "<x>", '"', "%0a"])
def test_another_id_does_not(door, name):
    said = raw(door, f"GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: {name}\r\nConnection: close\r\n\r\n".encode())
    found = [line.partition(b": ")[2] for line in said.split(b"\r\n") if line.lower().startswith(b"x-request-id")]
    assert len(found) == 1
    assert found[0] != name.encode()
    assert len(found[0]) == 32


# -- limits --


@pytest.mark.parametrize(
    ("more", "param", "flag"),
    [
        ({"stop": ["a", "b", "c"]}, "stop", "--max-stop"),
        ({"prompt": ["a"] * 49}, "prompt", "--max-prompts"),
        ({"prompt": ["a"] * 2, "n": 25}, "n", "--max-prompts"),
        ({"n": 41}, "n", "--max-n"),
        ({"logprobs": 21}, "logprobs", "--max-logprobs"),
    ],
)
def test_limits_name_their_flag(door, more, param, flag):
    status, body = door.post(TEXT, {"prompt": "a", "max_tokens": 1} | more, **HELD)
    assert status == 400
    assert body["error"]["param"] == param
    assert flag in body["error"]["message"]


def test_what_is_in_the_limits_is_fine(door):
    fine = {"prompt": ["a", "b", "c"], "max_tokens": 1, "stop": ["x", "y"], "logprobs": 20}
    assert door.post(TEXT, fine, **HELD)[0] == 200


@pytest.mark.parametrize("head", [b"a: b\r\n" * 257, b"a:b\r\n" * 9000, b"Cookie: " + b"x" * 70_000 + b"\r\n"])
def test_headers_are_limited(door, head):
    said = raw(door, b"GET /health HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
    assert status_of(said) == 400
    assert b"headers" in said
    assert door.get("/health")[0] == 200


def test_headers_up_to_the_limit(door):
    said = raw(door, b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 255 + b"Connection: close\r\n\r\n")
    assert status_of(said) == 200


@pytest.mark.parametrize("side", ["left", "right", None])
def test_a_very_long_prompt_that_is_cut_costs_little(door, side):
    text = "the cat " * 650_000
    body = {"prompt": text, "max_tokens": 1, "truncate_prompt_tokens": 10, "truncation_side": side}
    status, answer = door.post(TEXT, body, **HELD)
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == 10
    talk = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    cut = {"truncate_prompt_tokens": 10, "truncation_side": side}
    status, answer = door.post(CHAT, talk | cut, **HELD)
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == 10
    for path, whole in ((TEXT, {"prompt": text}), (CHAT, talk)):
        status, answer = door.post(path, whole, **HELD)
        assert status == 400
        assert "characters" in answer["error"]["message"]


def test_the_side_that_is_cut(door):
    body = {"prompt": "a b c d", "max_tokens": 1, "truncate_prompt_tokens": 2, "return_token_ids": True}
    whole = door.post("/tokenize", {"prompt": "a b c d"}, **HELD)[1]["tokens"]
    for side, kept in (("left", whole[-2:]), ("right", whole[:2])):
        answer = door.post(TEXT, body | {"truncation_side": side}, **HELD)[1]
        assert answer["choices"][0]["prompt_token_ids"] == kept
    status, body = door.post(TEXT, body | {"truncation_side": "middle"}, **HELD)
    assert (status, body["error"]["param"]) == (400, "truncation_side")


# -- those who do not read --


class Deaf:
    """A client that asks for much and reads nothing of it."""

    def __init__(self, server, body, **headers):
        data = json.dumps(body).encode()
        where = urlsplit(server.url)
        self.line = socket.socket()
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.line.connect((where.hostname, where.port))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.line.sendall(
            f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )


def test_a_client_that_does_not_read_is_cut_off(door):
    resident = psutil.Process(door.process.pid).memory_info
    before, over = resident().rss, door_metric(door, ENDED)
    # More than sockets hold between them: each token with what else it could have been. Whether the answers were at
    # their end when the connection was cut is a matter of speed.
    body = LONG | {"n": 24, "logprobs": 20, "stream": True, "max_tokens": 500}
    deaf = Deaf(door, body, **HELD)
    door.until("the end of all answers", lambda: door_metric(door, ENDED) == over + 24)
    door.until("cut connections", lambda: connections(door) == 0)
    door.until("rest", lambda: running(door) == 0)
    assert resident().rss - before < 96 << 20
    assert door.post(TEXT, {"prompt": "a", "max_tokens": 1}, **HELD)[0] == 200
    deaf.line.close()


def door_metric(server, name):
    text = server.get("/metrics", **HELD)[1].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in text if line.startswith(name))


def running(server):
    return door_metric(server, "vllm:num_requests_running{") + door_metric(server, "vllm:num_requests_waiting{")


def connections(server):
    """Open ones of clients."""
    return len(
        [one for one in psutil.Process(server.process.pid).net_connections("tcp") if one.status == "ESTABLISHED"]
    )


# -- the queue --


def queue(server):
    """A request that never ends runs, and two wait; (connection that ends it, the two connections)."""
    busy = Deaf(server, LONG | {"max_tokens": 100_000})
    server.until("start", lambda: server.metric("vllm:num_requests_running") == 1)
    where = urlsplit(server.url)
    queued = []
    for stream in (False, True):
        line = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
        body = {"prompt": [5] * 120, "max_tokens": 1, "stream": stream}
        line.request("POST", TEXT, json.dumps(body), {"Content-Type": "application/json"})
        queued.append(line)
    return busy.line, queued


def one_at_a_time(folder, *flags):
    model = fake_model(folder / "model", length=ENDLESS, latency=0.01)
    return Served([str(model), "--max-num-seqs", "1", "--max-num-batched-tokens", "16", *flags])


def test_a_queue_with_a_limit_of_tokens(tmp_path):
    server = one_at_a_time(tmp_path, "--max-waiting-tokens", "300")
    try:
        server.ready()
        busy, queued = queue(server)
        server.until("queue", lambda: server.metric("vllm:num_requests_waiting") == 2)
        status, body = server.post(TEXT, {"prompt": [5] * 120, "max_tokens": 1})
        assert status == 429
        assert "--max-waiting-tokens" in body["error"]["message"]
        busy.close()
        for line in queued:
            assert line.getresponse().status == 200
            line.close()
        assert server.post(TEXT, {"prompt": [5] * 400, "max_tokens": 1})[0] == 200
    finally:
        server.stop()


def test_a_queue_with_a_limit_of_time(tmp_path):
    server = one_at_a_time(tmp_path, "--max-waiting-time", "1.5")
    try:
        server.ready()
        busy, queued = queue(server)
        for line in queued:
            answer = line.getresponse()
            assert answer.status == 429
            assert int(answer.headers["Retry-After"]) >= 1
            error = json.load(answer)["error"]
            assert error["type"] == "OverloadedError"
            assert "--max-waiting-time" in error["message"]
            line.close()
        server.until("the one that runs", lambda: server.metric("vllm:num_requests_running") == 1)
        busy.close()
        server.until("rest", lambda: server.metric("vllm:num_requests_running") == 0)
    finally:
        server.stop()
