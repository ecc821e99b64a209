"""Two API processes before one engine: whoever is asked, it is as if there were one."""

import contextlib
import http.client
import json
import re
import time
from collections import Counter
from urllib.parse import urlsplit

import pytest

from octavo.testing.served import ENDLESS, PATIENCE, Served, fake_model

KEYS = [{"Authorization": f"Bearer {name}"} for name in ("one", "two")]
JSON = {"Content-Type": "application/json"}
LONG = {"prompt": "the cat", "max_tokens": 100_000, "ignore_eos": True}
RESPONSE = {"input": "the cat", "max_output_tokens": 6, "temperature": 0}
OUTCOMES = ("succeeded", "failed", "aborted", "rejected")


class Line:
    """A connection that stays, and with it the process at its other end. ``mark`` is that of what it keeps."""

    def __init__(self, server):
        where = urlsplit(server.url)
        self._line = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
        self._line.connect()
        self.mark = ""

    def open(self, verb, path, body=None, key=0):
        """The answer, to be read."""
        data = None if body is None else json.dumps(body)
        self._line.request(verb, path, data, KEYS[key] | JSON)
        return self._line.getresponse()

    def ask(self, verb, path, body=None, key=0):
        answer = self.open(verb, path, body, key)
        text = answer.read()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.ask("POST", path, {} if body is None else body, **more)

    def metrics(self):
        """Sample -> value."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line[0] != "#"]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def metric(self, name):
        return sum(value for sample, value in self.metrics().items() if sample.startswith(name))

    def close(self):
        self._line.close()


def until(what, check):
    end = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < end, f"no {what} within {PATIENCE} s"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = fake_model(tmp_path_factory.mktemp("model"), length=ENDLESS, latency=0.002)
    for name, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):  # no answer just ends
        said = json.loads((model / name).read_text())
        del said[key]
        (model / name).write_text(json.dumps(said))
    flags = ["--served-model-name", "tiny", "-asc", "2", "--api-key", "one", "two", "--enable-control-routes"]
    found = Served([str(model), *flags, "--timeout-keep-alive", "1000", "--enable-log-requests"])
    try:
        yield found.ready()
    finally:
        found.stop()


@pytest.fixture
def lines(server):
    """A connection to each of the two."""
    found = [Line(server), Line(server)]
    for line in found:
        line.mark = line.post("/v1/responses", RESPONSE)[1]["id"][5:7]
    assert {line.mark for line in found} == {"00", "01"}
    yield found
    for line in found:
        line.close()


@pytest.fixture
def gone(lines):
    """Called: the other one has nothing open any more."""
    return lambda: until("rest", lambda: lines[0].get("/load")[1]["server_load"] == 0)


def test_connections_are_dealt_out_evenly(server):
    with contextlib.ExitStack() as stack:
        some = [stack.enter_context(contextlib.closing(Line(server))) for _ in range(12)]
        marks = Counter(line.post("/v1/responses", RESPONSE)[1]["id"][5:7] for line in some)
    assert marks == {"00": 6, "01": 6}


def test_each_answers_with_names_and_draws_of_its_own(lines):
    body = {"prompt": "the cat", "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
    found = [line.post("/v1/completions", body)[1] for line in lines for _ in range(3)]
    assert len({one["id"] for one in found}) == 6
    assert len({tuple(one["choices"][0]["token_ids"]) for one in found}) == 6
    alike = [line.post("/v1/completions", body | {"seed": 5})[1]["choices"][0]["token_ids"] for line in lines]
    assert alike[0] == alike[1]


def test_streams_and_chat(lines):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "seed": 2}
    for line in lines:
        whole = line.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
        text = line.post("/v1/chat/completions", body | {"stream": True})[1]
        pieces = [json.loads(piece[6:]) for piece in text.split("\n\n") if piece[:7] == "data: {"]
        assert "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces) == whole
        assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("way", [(0, 1), (1, 0)])
def test_a_stored_response_is_the_same_for_whoever_is_asked(lines, way):
    keeper, other = (lines[at] for at in way)
    first = keeper.post("/v1/responses", RESPONSE)[1]
    path = f"/v1/responses/{first['id']}"
    assert first["id"].startswith(f"resp_{keeper.mark}")
    assert keeper.get(path) == other.get(path) == (200, first)
    assert other.get(path + "/input_items") == keeper.get(path + "/input_items")
    assert other.get(path + "/input_items")[1]["data"][0]["content"][0]["text"] == "the cat"
    replayed = other.get(path + "?stream=true")[1]
    assert replayed == keeper.get(path + "?stream=true")[1]
    assert "event: response.incomplete" in replayed
    # It goes on where it was begun, and counts the conversation.
    more = {"input": "and then?", "previous_response_id": first["id"], "max_output_tokens": 4, "temperature": 0}
    second = other.post("/v1/responses", more)[1]
    assert second["id"].startswith(f"resp_{keeper.mark}")
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    counts = [line.post("/v1/responses/input_tokens", more)[1] for line in lines]
    assert (
        counts[0] == counts[1] == {"object": "response.input_tokens", "input_tokens": second["usage"]["input_tokens"]}
    )
    streamed = other.post("/v1/responses", more | {"stream": True})[1]
    assert f'"id":"resp_{keeper.mark}' in streamed
    assert "event: response." in streamed.rpartition("\n\n")[0]
    # Another key's is nobody's, and what is wrong with a request is said as well.
    assert other.get(path, key=1)[0] == keeper.get(path, key=1)[0] == 404
    assert other.post(path + "/cancel") == keeper.post(path + "/cancel")
    assert other.post(path + "/cancel")[0] == 400
    assert other.ask("DELETE", path)[0] == 200
    assert keeper.get(path)[0] == other.get(path)[0] == 404


def test_ids_that_nobody_keeps(lines):
    for name in (f"resp_{'0' * 34}", f"resp_01{'f' * 32}", f"resp_ff{'0' * 32}", "resp_x", "made-up"):
        for line in lines:
            status, body = line.get(f"/v1/responses/{name}")
            assert status == 404, name
            assert name in body["error"]["message"]
            assert line.post("/v1/responses", RESPONSE | {"previous_response_id": name})[0] == 404


def test_a_response_in_the_background(lines):
    keeper, other = lines
    body = {"input": "the cat", "background": True, "max_output_tokens": 30}
    path = f"/v1/responses/{keeper.post('/v1/responses', body)[1]['id']}"
    until("end", lambda: other.get(path)[1]["status"] == "incomplete")
    endless = f"/v1/responses/{keeper.post('/v1/responses', body | {'max_output_tokens': 90_000})[1]['id']}"
    seen = other.open("GET", endless + "?stream=true")
    assert seen.status == 200
    assert seen.readline().startswith(b"event: response.created")
    assert keeper.post(endless + "/cancel")[1]["status"] == "cancelled"
    assert b'"status":"cancelled"' in seen.read()
    assert other.get(endless)[1]["status"] == "cancelled"
    assert other.post(endless + "/cancel")[1]["status"] == "cancelled"


def test_who_leaves_a_forwarded_stream_ends_it_where_it_runs(server, lines, gone):
    keeper, other = lines
    first = keeper.post("/v1/responses", RESPONSE)[1]["id"]
    aborted = keeper.metric('octavo:requests_ended_total{engine="0",model_name="tiny",outcome="aborted"')
    more = {"input": "go on", "previous_response_id": first, "max_output_tokens": 90_000, "stream": True}
    answer = other.open("POST", "/v1/responses", more)
    assert answer.readline().startswith(b"event: response.created")
    answer.close()
    other.close()
    name = 'octavo:requests_ended_total{engine="0",model_name="tiny",outcome="aborted"'
    until("abort", lambda: keeper.metric(name) == aborted + 1)
    until("rest", lambda: keeper.metric("vllm:num_requests_running") == 0)


def test_metrics_are_the_sums_whoever_is_asked(lines):
    started = [line.open("POST", "/v1/completions", LONG | {"max_tokens": 300, "stream": True}) for line in lines]
    for answer in started:
        answer.read()
    one, two = lines
    until("statistics", lambda: one.metric("vllm:num_requests_running") == 0)

    def still(line):
        return {name: value for name, value in line.metrics().items() if not re.match(r"http_|process_", name)}

    assert still(one) == still(two)
    before = one.metrics()
    for turn in range(6):
        line = lines[turn % 2]
        line.post("/v1/completions", {"prompt": "a", "max_tokens": 3})
        after = lines[1 - turn % 2].metrics()
        grew = {name for name, value in after.items() if value > before.get(name, 0.0)}
        fell = {name for name, value in after.items() if value < before.get(name, 0.0)}
        assert not {name for name in fell if re.search("_(total|bucket|count|sum)({|$)", name)}
        assert {'octavo:requests_received_total{engine="0",model_name="tiny"}'} <= grew
        before = after
    received = before['octavo:requests_received_total{engine="0",model_name="tiny"}']
    ended = [
        before[f'octavo:requests_ended_total{{engine="0",model_name="tiny",outcome="{name}"}}'] for name in OUTCOMES
    ]
    assert received == sum(ended)
    assert before["vllm:cache_config_info" + next(iter(k for k in before if "cache_config" in k))[22:]] == 1
    handled = [value for name, value in before.items() if 'http_requests_total{handler="/metrics"' in name]
    assert len(handled) == 1


def test_load_is_that_of_all(lines, gone):
    gone()
    one, two = lines
    answer = one.open("POST", "/v1/completions", LONG | {"stream": True})
    answer.readline()
    assert two.get("/load")[1] == {"server_load": 1}
    answer.close()
    one.close()
    until("abort", lambda: two.get("/load")[1] == {"server_load": 0})


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
@pytest.mark.parametrize("way", [(0, 1), (1, 0)])
def test_a_pause_holds_all_and_anyone_ends_it(server, lines, mode, way, gone):
    gone()
    one, two = (lines[at] for at in way)
    work = Line(server), Line(server)
    body = LONG | {"stream": True, "max_tokens": 400 if mode == "wait" else 100_000}
    answers = [line.open("POST", "/v1/completions", body) for line in work]
    for answer in answers:
        answer.readline()
    assert one.post(f"/pause?mode={mode}") == (200, {"is_paused": True})
    assert [line.get("/is_paused")[1] for line in lines] == [{"is_paused": True}] * 2
    if mode != "keep":
        for answer in answers:
            assert f'"finish_reason":"{"abort" if mode == "abort" else "length"}"' in answer.read().decode()
    late = Line(server), Line(server)
    for line in late:  # they wait, wherever they are
        line._line.request("POST", "/v1/completions", json.dumps(LONG | {"max_tokens": 3}), KEYS[0] | JSON)
    assert two.get("/load")[1]["server_load"] == (2 if mode == "keep" else 0)
    assert two.post("/resume") == (200, {"is_paused": False})
    assert [line.get("/is_paused")[1] for line in lines] == [{"is_paused": False}] * 2
    for line in late:
        assert json.loads(line._line.getresponse().read())["choices"][0]["finish_reason"] == "length"
    if mode == "keep":
        assert answers[0].readline() is not None
    for line in (*work, *late):
        line.close()


def test_a_cache_is_reset_by_anyone(lines):
    body = {"prompt": [7] * 64, "max_tokens": 2}
    for line in lines:
        line.post("/v1/completions", body)
        assert line.post("/reset_prefix_cache")[1]["pages"] > 0
        assert lines[0].post("/reset_prefix_cache")[1]["pages"] == 0
    assert [line.post("/start_profile")[0] for line in lines] == [404, 404]  # nobody asked for it
    assert [line.post("/sleep")[0] for line in lines] == [501, 501]  # a fake device does not
    assert [line.get("/is_sleeping")[1] for line in lines] == [{"is_sleeping": False}] * 2
    assert [line.get("/is_paused")[1] for line in lines] == [{"is_paused": False}] * 2


def test_a_forwarded_request_is_counted_and_named_once(lines):
    keeper, other = lines
    path = f"/v1/responses/{keeper.post('/v1/responses', RESPONSE)[1]['id']}"
    name = 'http_requests_total{handler="/v1/responses/{response_id}",method="GET",status="2xx"'
    before = keeper.metric(name)
    answer = other.open("GET", path)
    assert len(answer.headers.get_all("x-request-id")) == 1
    answer.read()
    assert keeper.metric(name) == before + 1


def test_bodies_are_bounded_and_keys_wanted_on_every_way(lines):
    keeper, other = lines
    path = f"/v1/responses/{keeper.post('/v1/responses', RESPONSE)[1]['id']}"
    other._line.request("GET", path)
    answer = other._line.getresponse()
    answer.read()
    assert answer.status == 401


def test_lines_of_the_log_say_who(server, lines):
    for line in lines:
        line.get("/version")
    for name in ("api 1", "api 2"):
        server.until(name, lambda name=name: f"[{name}]" in server.log)
    assert "[engine]" in server.log


def test_the_terminal_board(server, capsys):
    from octavo.cli.top import main

    assert main([server.url, "--api-key", "one", "--once", "--interval", "0.1"]) == 0
    assert "tiny" in capsys.readouterr().out
