"""`octavo bench serve`: what it makes of answers, its pictures, and a run against a live server."""

import asyncio
import contextlib
import json
import threading
import xml.etree.ElementTree as tree
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench import plot
from octavo.bench.result import block, goals, saved, summary
from octavo.bench.serving import Answer, Load, _ids
from octavo.cli.bench import main as bench
from octavo.cli.main import main
from octavo.errors import ConfigError

LOAD = Load(url="http://x", model="m", requests=3, concurrency=2)
#: Two that succeed, the second begun while the first runs, and one that fails.
ANSWERS = [
    Answer(10.0, 100, ttft=0.1, itl=[0.02] * 10, e2el=0.4, tokens=11),
    Answer(10.2, 50, ttft=0.3, itl=[0.1, 0.1], e2el=0.6, tokens=5),
    Answer(10.9, 50, error="500: broken"),
]
LINES = """============ Serving Benchmark Result ============
Successful requests:                     2
Failed requests:                         1
Maximum request concurrency:             2
Benchmark duration (s):                  2.00
Total input tokens:                      150
Total generated tokens:                  16
Request throughput (req/s):              1.00
Request goodput (req/s):                 0.50
Output token throughput (tok/s):         8.00
Peak output token throughput (tok/s):    16.00
Peak concurrent requests:                2
Total token throughput (tok/s):          83.00
---------------Time to First Token----------------
Mean TTFT (ms):                          200.00
Median TTFT (ms):                        200.00
P99 TTFT (ms):                           298.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          35.00
Median TPOT (ms):                        35.00
P99 TPOT (ms):                           49.70
---------------Inter-token Latency----------------
Mean ITL (ms):                           33.33
Median ITL (ms):                         20.00
P99 ITL (ms):                            100.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          500.00
Median E2EL (ms):                        500.00
P99 E2EL (ms):                           598.00
---------------Speculative Decoding---------------
Acceptance rate (%):                     50.00
Acceptance length:                       2.00
Drafts:                                  10
Draft tokens:                            20
Accepted tokens:                         10
Per-position acceptance (%):
  Position 0:                            80.00
  Position 1:                            20.00
==================================================
First error: 500: broken"""
DRAFTED = {
    "num_drafts": 10.0,
    "num_draft_tokens": 20.0,
    "num_accepted_tokens": 10.0,
    "num_accepted_tokens_per_pos:1": 2.0,
    "num_accepted_tokens_per_pos:0": 8.0,
}


def test_the_block_has_vllms_lines():
    record = summary(LOAD, ANSWERS, 2.0, goal={"ttft": 200.0}, drafted=DRAFTED)
    assert block(record) == LINES
    few = block(summary(LOAD, ANSWERS, 2.0, quantiles=[90, 99.9]), ["ttft"], [90, 99.9])
    assert "P90 TTFT (ms):" in few
    assert "P99.9 TTFT (ms):" in few
    assert "TPOT" not in few
    assert "goodput" not in few
    assert "Speculative" not in few


def test_nothing_but_failures_is_told_too():
    said = block(summary(LOAD, ANSWERS[2:], 1.0))
    assert "Failed requests:                         1" in said
    assert "Mean TTFT (ms):                          -" in said
    assert "First error: 500: broken" in said


def test_the_saved_result_has_vllms_keys():
    record = summary(LOAD, ANSWERS, 2.0, quantiles=[99], goal={"e2el": 1.0})
    found = json.loads(json.dumps(saved(LOAD, record, ANSWERS, {"note": "x"}, detailed=True)))
    assert set(found) >= {
        "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
        "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
        "total_output_tokens", "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
        "max_output_tokens_per_s", "max_concurrent_requests", "note",
        *(f"{head}_{name}_ms" for head in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")),
        "input_lens", "output_lens", "ttfts", "itls", "errors",
    }  # fmt: skip
    assert found["request_goodput"] == 0
    assert found["output_throughput"] == 8.0
    assert found["errors"] == ["", "", "500: broken"]
    assert [len(found[name]) for name in ("input_lens", "output_lens", "ttfts", "itls")] == [3] * 4
    assert "ttfts" not in saved(LOAD, record, ANSWERS, {}, detailed=False)


def test_goals():
    assert goals(["ttft:200", "e2el:1.5"]) == {"ttft": 200, "e2el": 1.5}
    for wrong in ("ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "speed:3"):
        with pytest.raises(ConfigError):
            goals([wrong])


def test_ids_lie_in_the_vocabulary():
    assert _ids(LOAD) == range(100, 20_000)
    assert _ids(Load(url="", model="", vocabulary=3)) == range(1, 3)
    assert _ids(Load(url="", model="", vocabulary=1)) == range(1)


def records(count):
    answers = lambda n: [Answer(0.0, 10, ttft=0.01 * n, itl=[0.001 * n] * 9, e2el=0.02 * n, tokens=10)]  # noqa: E731
    return [summary(LOAD, answers(n) * n, 1.0) for n in range(1, count + 1)]


def test_a_picture_is_well_formed_and_holds_every_point(tmp_path):
    path = tmp_path / "new" / "x.svg"
    plot.draw(path, records(4), ["1", "2", "<3>", "4"], 'a <model> & "more"')
    root = tree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{space}circle")) == 4 * 2 * len(plot.PANELS)
    texts = [one.text for one in root.iter(f"{space}text")]
    assert 'a <model> & "more"' in texts
    assert texts.count("<3>") == len(plot.PANELS)
    width, height = (float(root.get(name)) for name in ("width", "height"))
    for one in root.iter(f"{space}circle"):
        assert 0 <= float(one.get("cx")) <= width
        assert 0 <= float(one.get("cy")) <= height


def test_one_point_and_answers_of_one_token_can_be_drawn(tmp_path):
    one = summary(LOAD, [Answer(0.0, 10, ttft=0.1, e2el=0.1, tokens=1)], 1.0)
    plot.draw(tmp_path / "x.svg", [one], ["1"], "t")
    assert "Time per output token" not in (tmp_path / "x.svg").read_text()
    with pytest.raises(ConfigError, match="nothing to draw"):
        plot.draw(tmp_path / "x.svg", [summary(LOAD, ANSWERS[2:], 1.0)], ["1"], "t")


def test_a_png_needs_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="matplotlib"):
        plot.check("x.png")
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    plot.draw(plot.check(str(tmp_path / "x.png")), records(2), ["1", "2"], "t")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@given(st.floats(0, 1e9))
def test_ticks_reach_over_the_values(most):
    found = plot.ticks(most)
    assert found[0] == 0
    assert found[-1] >= most * 0.999
    assert 2 <= len(found) <= 8
    assert found == sorted(set(found))


class Handler(BaseHTTPRequestHandler):
    """Enough of a server to be measured: three chunks, then usage."""

    bodies: list = []

    def do_GET(self):
        self._answer(json.dumps({"data": [{"id": "m"}]}).encode() if self.path == "/v1/models" else b"")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.bodies.append((self.path, self.headers["X-Extra"], body))
        chunks = [{"choices": [{"text": "a"}]}] * 3
        chunks.append({"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": 3}})
        self._answer(b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in chunks) + b"data: [DONE]\n\n")

    def _answer(self, data):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def listening():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_sweep_end_to_end(tmp_path, capsys):
    pytest.importorskip("aiohttp")
    Handler.bodies.clear()
    with listening() as url:
        words = [
            "--backend", "vllm", "--dataset-name", "random", "--ignore-eos", "--seed", "3",
            "--base-url", url, "--num-prompts", "5", "--sweep", "1,2", "--input-len", "4", "--random-output-len",
            "3", "--random-prefix-len", "2", "--random-vocab-size", "50", "--num-warmups", "1", "--processes", "1",
            "--extra-body", '{"top_k": 7}', "--header", "X-Extra=yes", "--plot", str(tmp_path / "x.svg"),
            "--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "x.json", "--output-json",
            str(tmp_path / "x.jsonl"),
        ]  # fmt: skip
        assert main(["bench", "serve", *words]) == 0
    said = capsys.readouterr().out
    assert said.count("Serving Benchmark Result") == 2
    assert len(Handler.bodies) == 12
    first, second = Handler.bodies[1:6], Handler.bodies[7:]
    for path, header, body in first + second:
        assert (path, header, body["top_k"], len(body["prompt"])) == ("/v1/completions", "yes", 7, 6)
        assert all(25 <= token < 50 for token in body["prompt"])
    for run in (first, second):
        assert len({tuple(body["prompt"][:2]) for _, _, body in run}) == 1, "the prefix is shared"
    assert first[0][2]["prompt"] != second[0][2]["prompt"], "no run knows the prompts of another"
    results = json.loads((tmp_path / "x.json").read_text())
    assert [(one["max_concurrency"], one["completed"], one["total_output_tokens"]) for one in results] == [
        (1, 5, 15), (2, 5, 15),
    ]  # fmt: skip
    assert all(len(gaps) == 2 for gaps in results[0]["itls"])
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 2
    tree.parse(tmp_path / "x.svg")


def test_requests_come_at_their_rate(monkeypatch):
    """With a rate the client waits between requests, and nothing else holds them up."""
    pytest.importorskip("aiohttp")
    from octavo.bench import serving

    waits, real = [], asyncio.sleep

    async def sleep(seconds):
        waits.append(seconds)
        await real(0)

    async def one(session, url, size, body):
        return Answer(0.0, size)

    class Barrier:
        def wait(self, timeout):
            pass

    monkeypatch.setattr(serving.asyncio, "sleep", sleep)
    monkeypatch.setattr(serving, "_one", one)
    load = Load(url="http://x", model="m", requests=400, concurrency=None, inputs=1, rate=50.0, burstiness=4.0)
    assert len(asyncio.run(serving._drive(load, 0, 2, Barrier()))[0]) == 200
    assert sum(waits) / len(waits) == pytest.approx(2 / 50, rel=0.15)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'data: {"choices":[{"text":"hi","finish_reason":null}],"usage":null}', True),
        (b'data: {"choices": [{"text": "hi"}]}', True),
        (b'data: {"choices":[{"text":"a \\"usage\\":{ and \\"error\\": of text"}]}', True),
        (b'data: {"choices":[{"text":""}],"usage":{"completion_tokens":7,"prompt_tokens":3}}', True),
        (b'data: {"choices":[],"usage":{"completion_tokens":7,"prompt_tokens":3}}', False),
        (b'data: {"error":{"message":"the \\"text\\":\\"x"}}', False),
        (b'data: {"choices":[{"delta":{"role":"assistant"}}]}', False),
        (b'data: {"choices":[{"delta":{"content":"x"}}]}\r', True),
        (b"data: [DONE]", False),
        (b": ping", False),
        (b"", False),
    ],
)
def test_a_quick_look_at_a_line_says_what_reading_it_would(line, text):
    from octavo.bench.serving import _plain, _read

    found = Answer(0.0, 0)
    assert _read(line, found) == text
    assert not _plain(line) or text
    assert bool(found.tokens) == (b'"usage":{"' in line)
    assert not (_plain(line) and (found.tokens or found.error))


def test_workloads_of_a_server():
    from octavo.bench.workloads import SERVED, pick_served

    assert pick_served(["served"]) == SERVED
    assert [work.concurrency for work in pick_served(["s1", "s256"])] == [1, 256]
    assert {(work.inputs, work.outputs) for work in SERVED} == {(512, 128)}
    with pytest.raises(ConfigError, match="did you mean 's64'"):
        pick_served(["s46"])
    for more in (["--sweep", "1,2"], ["--max-concurrency", "3"], ["--request-rate", "2"]):
        with pytest.raises(ConfigError, match="names its own concurrency"):
            bench(["serve", "--workload", "s1", "--model", "x", *more])
