"""Keys, documents, metrics, ids: what holds for every route."""

import http.client
import json
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from octavo.front.metrics.prometheus import Prometheus
from octavo.front.metrics.strips import Sheet, Strips
from octavo.front.server.middleware import OPEN_PATHS
from octavo.testing.served import PATIENCE, Served

KEY = {"Authorization": "Bearer second key"}
NAMES = [
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info", "prompt_tokens",
    "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "request_success",
    "iteration_tokens_total", "time_to_first_token_seconds", "inter_token_latency_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_params_n", "request_params_max_tokens",
    "request_max_num_generation_tokens", "num_requests_waiting_by_reason",
]  # fmt: skip


@pytest.fixture(scope="module")
def locked(model):
    flags = [str(model), "--api-key", "first", "second key", "--enable-request-id-headers", "--root-path", "/api"]
    found = Served(flags)
    try:
        yield found.ready()
    finally:
        found.stop()


def document(server, **headers):
    status, body = server.get("/openapi.json", **headers)
    assert status == 200
    return json.loads(body)


def test_every_route_but_a_few_needs_the_key(locked):
    paths = document(locked, **KEY)["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/detokenize", "/metrics"} <= set(
        paths
    )
    assert set(paths) >= OPEN_PATHS
    for path, verbs in [*paths.items(), ("/docs", ["get"]), ("/openapi.json", ["get"]), ("/no/such/route", ["get"])]:
        for verb in verbs:
            filled = path.replace("{name}", "x")
            status, body = locked.get(filled) if verb == "get" else locked.post(filled, {})
            assert (status == 401) == (path not in OPEN_PATHS), (verb, path, status)
            if status == 401 and verb == "get":
                error = json.loads(body)["error"]
                assert error["code"] == 401
                assert error["type"] == "AuthenticationError"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic first", "first", "Bearer first second key", "Bearer firs"],
)
def test_wrong_keys(locked, header):
    assert locked.get("/v1/models", Authorization=header)[0] == 401


@pytest.mark.parametrize("header", ["Bearer first", "bearer first", "Bearer second key"])
def test_right_keys(locked, header):
    assert locked.get("/v1/models", Authorization=header)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1/../v1/models",
        "/V1/models",
        "/v1/models/",
        "/health/../v1/models",
        "/api/v1/models",
        "/health/",
    ],
)
def test_no_way_around_the_key(locked, path):
    assert locked.get(path, Host="x/health?")[0] in (401, 400)


def test_request_ids(locked):
    ask = {"prompt": "a", "max_tokens": 1}
    assert locked.post("/v1/completions", ask, **KEY, **{"X-Request-Id": "mine.7"})[1]["id"] == "cmpl-mine.7"
    odd = locked.post("/v1/completions", ask, **KEY, **{"X-Request-Id": "a b"})[1]["id"]
    assert " " not in odd
    assert locked.post("/v1/completions", ask | {"request_id": "own"}, **KEY)[1]["id"] == "cmpl-own"


def test_headers(server, locked):
    where = urlsplit(locked.url)
    line = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
    line.request("GET", "/health", headers={"Origin": "http://page", "X-Request-Id": "seen"})
    answer = line.getresponse()
    assert answer.read() == b""
    assert answer.headers["X-Request-Id"] == "seen"
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    ask = {
        "Origin": "http://page",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    line.request("OPTIONS", "/v1/completions", headers=ask)
    assert line.getresponse().status == 200
    line.close()
    where = urlsplit(server.url)
    line = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
    body = json.dumps({"prompt": "a", "max_tokens": 1, "stream": True})
    line.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = line.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Request-Id"]
    assert answer.headers["Server"] is None
    line.close()


def test_open_routes(server):
    assert server.get("/health") == (200, b"")
    assert server.get("/ping") == (200, b"")
    assert set(json.loads(server.get("/version")[1])) == {"version"}


def test_the_document_tells_bodies_and_errors(server):
    found = document(server)
    schemas = found["components"]["schemas"]
    assert {"ChatBody", "CompletionBody", "ChatAnswer", "CompletionAnswer", "ErrorAnswer"} <= set(schemas)
    assert {"temperature", "stop", "seed", "min_p", "cache_salt"} <= set(schemas["ChatBody"]["properties"])
    assert {"400", "401", "404", "429"} <= set(found["paths"]["/v1/chat/completions"]["post"]["responses"])


def test_the_docs_load_nothing_from_outside(server):
    status, page = server.get("/docs")
    assert status == 200
    assert b"http://" not in page
    assert b"https://" not in page
    assert b"openapi.json" in page


def test_metrics(server):
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 4, "ignore_eos": True})[0] == 200
    server.until("metrics of the request", lambda: server.metric("vllm:generation_tokens_total") >= 4)
    families = {one.name: one for one in text_string_to_metric_families(server.get("/metrics")[1].decode())}
    for name in NAMES:
        assert f"vllm:{name}" in families, name
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
        buckets = [one.value for one in families[f"vllm:{name}"].samples if one.name.endswith("_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] >= 1
    reasons = {one.labels["finished_reason"] for one in families["vllm:request_success"].samples}
    assert reasons == {"stop", "length", "abort", "error"}
    assert families["vllm:num_requests_running"].samples[0].labels["model_name"] == "tiny"
    assert server.metric('http_requests_total{handler="/v1/completions"') >= 1
    server.get("/made/up/path")
    assert "made/up" not in server.get("/metrics")[1].decode()


def test_a_whole_answer_is_measured_as_a_streamed_one(server):
    """Its tokens are told seldom, and yet each of them is timed and counted."""
    names = ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_generation_tokens")
    params, longest = "vllm:request_params_n_", "vllm:request_max_num_generation_tokens_"
    seen = {}
    for stream in (False, True):
        body = {"prompt": "a b c", "max_tokens": 70, "n": 2, "ignore_eos": True, "stream": stream, "logprobs": 1}
        wanted = [f"vllm:{name}_{what}" for name in names for what in ("count", "sum")]
        wanted += [head + what for head in (params, longest) for what in ("count", "sum")]
        before = [server.metric(name) for name in wanted]
        status, said = server.raw("/v1/completions", json.dumps(body).encode())
        assert status == 200
        if not stream:
            answer = json.loads(said)
            assert answer["usage"]["completion_tokens"] == 140
            assert [len(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]] == [70, 70]
        server.until("its end", lambda ended=before[-2]: server.metric(longest + "count") > ended)
        after = [server.metric(name) for name in wanted]
        seen[stream] = dict(zip(wanted, [y - x for x, y in zip(before, after, strict=True)], strict=True))
    for stream, found in seen.items():
        assert found["vllm:time_to_first_token_seconds_count"] == 1, stream
        assert found["vllm:inter_token_latency_seconds_count"] == 2 * 69
        assert found["vllm:inter_token_latency_seconds_sum"] > 0
        assert (found["vllm:request_generation_tokens_count"], found["vllm:request_generation_tokens_sum"]) == (2, 140)
        assert (found[params + "count"], found[params + "sum"]) == (1, 2)
        assert (found[longest + "count"], found[longest + "sum"]) == (1, 70)


def test_a_value_may_count_many_times():
    """And the text is that of Prometheus' own client."""
    registry = CollectorRegistry()
    sheet = Sheet(Strips(), 0)
    registry.register(sheet)
    many = sheet.add("histogram", "x", "text", ("a",), (1.0, 2.5)).histogram("b")
    one = Histogram("y", "text", ("a",), buckets=(1.0, 2.5), registry=registry)
    for value, times in ((0.5, 3), (1.0, 2), (2.0, 1), (9.0, 4)):
        many.observe(value, times)
        for _ in range(times):
            one.labels("b").observe(value)
    lines = [line for line in generate_latest(registry).decode().splitlines() if "created" not in line]
    mine, theirs = ([line for line in lines if f"{name}_" in line or f" {name} " in line] for name in "xy")
    assert [line.replace("x", "y", 1) for line in mine] == theirs
    assert 'x_bucket{a="b",le="2.5"} 6.0' in mine


def test_made_up_methods_are_counted_together():
    metrics = Prometheus("m", 64, {})
    for method in ("GET", "MADE-UP-1", "MADE-UP-2"):
        metrics.http("none", method, 404, 0.1)
    text = metrics.text().decode()
    assert 'method="other",status="4xx"} 2.0' in text
    assert "MADE-UP" not in text


def test_no_middleware_that_costs_a_task_a_chunk():
    import octavo.front.server.app as app
    import octavo.front.server.middleware as middleware

    for module in (app, middleware):
        assert not any("BaseHTTPMiddleware" in str(value) for value in vars(module).values() if isinstance(value, type))
