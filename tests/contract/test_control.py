"""Control of a running engine: behind a flag and the key; nobody is lost, and nothing hangs."""

import concurrent.futures
import gzip
import json
import time

import pytest

from octavo.config.args import ServeArgs
from octavo.errors import ConfigError
from octavo.launch import online
from octavo.testing import tiny, tokenizer
from octavo.testing.served import ENDLESS, PATIENCE, Served, fake_model

KEY = {"Authorization": "Bearer key"}
ROUTES = [
    ("post", "/reset_prefix_cache"), ("post", "/pause"), ("post", "/resume"), ("get", "/is_paused"),
    ("post", "/sleep"), ("post", "/wake_up"), ("get", "/is_sleeping"), ("get", "/server_info"),
    ("post", "/start_profile"), ("post", "/stop_profile"),
]  # fmt: skip
LONG = {"prompt": "a", "max_tokens": 250, "ignore_eos": True, "seed": 1}


class Controlled:
    """A server with control routes, and a pool of clients."""

    def __init__(self, server):
        self.server = server
        self.pool = concurrent.futures.ThreadPoolExecutor(8)

    def post(self, path, **query):
        text = "&".join(f"{name}={value}" for name, value in query.items())
        return self.server.post(f"{path}?{text}", b"", **KEY)

    def get(self, path):
        status, body = self.server.get(path, **KEY)
        assert status == 200, body
        return json.loads(body)

    def ask(self, **more):
        return self.pool.submit(self.server.post, "/v1/completions", LONG | more, **KEY)

    def running(self, count, *asked):
        """So many are open, or one of ``asked`` was quicker than this program."""
        over = lambda: any(one.done() for one in asked)  # noqa: E731
        self.server.until(f"{count} open", lambda: over() or self.get("/load")["server_load"] == count)

    def tokens(self):
        """Generated, as far as it was told."""
        return self.count("vllm:generation_tokens_total")

    def begun(self):
        """Requests whose first token is known."""
        return self.count("vllm:time_to_first_token_seconds_count")

    def count(self, name):
        lines = self.server.get("/metrics", **KEY)[1].decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    brake = tmp_path_factory.mktemp("brake") / "brake"
    model = fake_model(tmp_path_factory.mktemp("model"), length=ENDLESS, latency=0.002, brake=str(brake))
    found = Served([str(model), "--api-key", "key", "--enable-control-routes"])
    try:
        found.brake = brake
        yield Controlled(found.ready())
    finally:
        found.stop()


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tiny.write_hf(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM")
    tokenizer.write(folder, size=320)
    traces = tmp_path_factory.mktemp("traces")
    config = json.dumps({"torch_profiler_dir": str(traces), "torch_profiler_record_shapes": True})
    flags = [str(folder), "--api-key", "key", "--enable-control-routes", "--profiler-config", config]
    found = Served([*flags, "--kv-cache-memory", "256MiB", "--threads", "1"], worker=None)
    try:
        found.traces = traces
        yield Controlled(found.ready())
    finally:
        found.stop()


def test_not_there_without_the_flag_nor_open_with_it(server, real):
    for verb, path in ROUTES:
        ask = server.get if verb == "get" else lambda path: server.post(path, b"")
        assert ask(path)[0] == 404, path
        ask = real.server.get if verb == "get" else lambda path: real.server.post(path, b"")
        assert ask(path)[0] == 401, path
    document = json.loads(real.server.get("/openapi.json", **KEY)[1])["paths"]
    assert {path for _, path in ROUTES} <= set(document)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"enable_control_routes": True}, "--enable-control-routes needs a key"),
        ({"enable_control_routes": True, "host": "0.0.0.0"}, "needs a key"),
        ({"profiler_config": {"torch_profiler_dir": "/tmp"}}, "--profiler-config needs a key"),
        ({"profiler_config": {}}, "torch_profiler_dir"),
        ({"profiler_config": {"profiler": "cuda", "torch_profiler_dir": "x"}}, "only profiler is torch"),
        ({"profiler_config": {"torch_profiler_dri": "x"}}, "did you mean 'torch_profiler_dir'"),
        ({"profiler_config": {"torch_profiler_dir": "/dev/null/x"}}, "cannot be made"),
    ],
)
def test_a_start_that_anybody_could_control_is_none(tmp_path, more, word):
    with pytest.raises(ConfigError, match=word):
        online.serve(ServeArgs(model=str(fake_model(tmp_path)), port=0, **more))


def test_who_is_stopped_gets_what_was_made(fake):
    """Without a stream too, of which nothing is told before its end."""
    begun = fake.begun()  # what was asked before it is counted when its answer is there, or a little later
    whole = fake.ask().result(PATIENCE)[1]["choices"][0]["text"]
    fake.server.brake.write_text("0.25")
    running = fake.ask(max_tokens=100_000)
    fake.server.until("a token", lambda: fake.begun() >= begun + 2)
    assert fake.post("/pause", mode="abort")[0] == 200
    fake.server.brake.unlink()
    status, answer = running.result(PATIENCE)
    text, usage = answer["choices"][0]["text"], answer["usage"]
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "abort")
    assert text
    assert whole.startswith(text)
    assert usage["completion_tokens"] > 0
    assert fake.post("/resume")[0] == 200
    assert fake.ask().result(PATIENCE)[1]["choices"][0]["text"] == whole


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
def test_pause_and_resume(fake, mode):
    free = fake.ask().result(PATIENCE)[1]["choices"][0]["text"]
    fake.server.brake.write_text("0.25")
    running = fake.ask(**({"max_tokens": 100_000} if mode == "abort" else {}))
    fake.running(1)
    fake.server.brake.unlink()
    assert fake.post("/pause", mode=mode) == (200, {"is_paused": True})
    assert fake.get("/is_paused") == {"is_paused": True}
    assert fake.server.get("/health")[0] == 200
    if mode != "keep":
        status, answer = running.result(PATIENCE)
        assert status == 200
        assert answer["choices"][0]["finish_reason"] == ("abort" if mode == "abort" else "length")
    assert fake.post("/pause", mode=mode)[0] == 200  # what was in flight when it paused has come back by now
    before = fake.tokens()
    late = fake.ask(seed=1)
    time.sleep(0.3)
    assert fake.tokens() == before
    assert not late.done()
    assert fake.post("/pause", mode=mode)[0] == 200
    assert fake.post("/resume") == (200, {"is_paused": False})
    assert late.result(PATIENCE)[1]["choices"][0]["text"] == free
    if mode == "keep":
        assert running.result(PATIENCE)[1]["choices"][0]["text"] == free
    assert fake.post("/resume")[0] == 200
    fake.running(0)


def test_a_client_that_leaves_a_closed_gate(fake):
    import socket
    from urllib.parse import urlsplit

    fake.post("/pause")
    where = urlsplit(fake.server.url)
    body = json.dumps(LONG | {"max_tokens": 100_000}).encode()
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        line.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        time.sleep(0.1)
    before = fake.tokens()
    fake.post("/resume")
    assert fake.ask(max_tokens=2).result(PATIENCE)[0] == 200
    fake.running(0)
    assert fake.tokens() - before < 100_000


def test_the_prefix_cache_is_forgotten(fake):
    prompt = {"prompt": list(range(4, 104)), "max_tokens": 1}
    cached = lambda: fake.ask(**prompt).result(PATIENCE)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]  # noqa: E731
    cached()
    assert cached() > 0
    status, answer = fake.post("/reset_prefix_cache")
    assert status == 200
    assert answer["pages"] > 0
    assert cached() == 0
    assert fake.post("/pause", clear_cache="false")[0] == fake.post("/resume")[0] == 200
    assert cached() > 0
    assert fake.post("/pause")[0] == fake.post("/resume")[0] == 200
    assert cached() == 0


def test_what_cannot_be_is_said(fake):
    for path, query, status in (
        ("/pause", {"mode": "stop"}, 400),
        ("/pause", {"clear_cache": "perhaps"}, 400),
        ("/sleep", {"level": 3}, 400),
        ("/sleep", {"level": "x"}, 400),
        ("/wake_up", {"tags": "all"}, 400),
        ("/reset_prefix_cache", {"reset_running_requests": "true"}, 501),
        ("/sleep", {}, 501),  # the fake device cannot
    ):
        found, answer = fake.post(path, **query)
        assert found == status, (path, query, answer)
        assert answer["error"]["message"]
    assert fake.get("/is_sleeping") == {"is_sleeping": False}
    assert fake.ask(max_tokens=2).result(PATIENCE)[0] == 200


def test_server_info_tells_no_secret(tmp_path):
    model = fake_model(tmp_path / "model")
    secrets = {"HF_TOKEN": "s3cret-1", "OCTAVO_API_KEY": "s3cret-2", "HF_ENDPOINT": "https://me:s3cret-3@host/x"}
    found = Served([str(model), "--enable-control-routes"], env=secrets)
    try:
        server, key = found.ready(), {"Authorization": "Bearer s3cret-2"}
        for form in ("text", "json"):
            status, body = server.get(f"/server_info?config_format={form}", **key)
            assert status == 200
            assert b"s3cret" not in body
            said = json.loads(body)
            assert isinstance(said["vllm_config"], str if form == "text" else dict)
            assert said["vllm_env"]["HF_ENDPOINT"] == "https://host/x"
        assert said["vllm_config"]["text"]["served_names"]
        assert said["engine"]["pages"] > 0
    finally:
        found.stop()


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_changes_no_token(real, level):
    want = real.ask(max_tokens=20).result(PATIENCE)[1]["choices"][0]["text"]
    busy = [real.ask(max_tokens=40, temperature=0.9, n=2, seed=i) for i in range(3)]
    real.running(3, *busy)
    assert real.post("/sleep", level=level, mode="keep") == (200, {"is_sleeping": True})
    assert real.get("/is_sleeping") == {"is_sleeping": True}
    assert real.post("/resume")[0] == 400
    assert real.post("/pause")[0] == 400
    late = real.ask(max_tokens=20)
    assert real.post("/wake_up", tags="kv_cache")[0] == 400
    assert real.post("/wake_up", tags="weights")[0] == 200
    assert real.post("/wake_up") == (200, {"is_sleeping": False})
    assert real.post("/wake_up") == (200, {"is_sleeping": False})
    assert real.get("/is_paused") == {"is_paused": False}
    assert late.result(PATIENCE)[1]["choices"][0]["text"] == want
    texts = [[choice["text"] for choice in one.result(PATIENCE)[1]["choices"]] for one in busy]
    again = [real.ask(max_tokens=40, temperature=0.9, n=2, seed=i) for i in range(3)]
    assert [[choice["text"] for choice in one.result(PATIENCE)[1]["choices"]] for one in again] == texts


def test_a_sleeper_refuses_with_mode_abort(real):
    running = real.ask(max_tokens=110)
    real.running(1, running)
    assert real.post("/sleep")[0] == 200
    assert running.result(PATIENCE)[1]["choices"][0]["finish_reason"] in ("abort", "length")
    status, answer = real.ask(max_tokens=2).result(PATIENCE)
    assert (status, answer["error"]["type"]) == (503, "ServiceUnavailableError")
    assert "/wake_up" in answer["error"]["message"]
    assert real.server.get("/health")[0] == 200
    assert real.post("/wake_up")[0] == 200
    assert real.ask(max_tokens=2).result(PATIENCE)[0] == 200


def test_a_profile_is_written(real):
    assert real.post("/stop_profile")[0] == 400
    assert real.post("/start_profile") == (200, None)
    assert real.post("/start_profile")[0] == 400
    assert real.ask(max_tokens=3).result(PATIENCE)[0] == 200
    assert real.post("/stop_profile") == (200, None)
    (path,) = real.server.traces.iterdir()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert any("aten::" in str(event.get("name")) for event in events)
