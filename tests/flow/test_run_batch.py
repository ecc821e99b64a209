"""octavo run-batch: a file of requests becomes a file of answers, in order, whatever is wrong with single lines."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from octavo.cli import run_batch
from octavo.errors import ConfigError
from octavo.testing.served import ENDLESS, FAKE, PATIENCE, fake_model

ASK = {"max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(fake_model(tmp_path_factory.mktemp("model")))


def line(name, url="/v1/completions", method="POST", **body):
    return {"custom_id": name, "method": method, "url": url, "body": body}


def run(model, folder, lines, *flags):
    """(exit status, results)."""
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    source.write_bytes(b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines) + b"\n")
    status = run_batch.main([model, "-i", str(source), "-o", str(target), "--served-model-name", "tiny", *flags], FAKE)
    assert not list(folder.glob("*.partial"))
    return status, [json.loads(one) for one in target.read_text().splitlines()]


def test_answers_in_order(model, tmp_path):
    lengths = [40, 1, 20, 2, 3, 30, 1, 1]
    lines = [line(f"n{i}", prompt="the cat", max_tokens=n, ignore_eos=True, seed=i) for i, n in enumerate(lengths)]
    lines.insert(3, line("chat", "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], **ASK))
    status, found = run(model, tmp_path, lines, "--max-concurrency", "3")
    assert status == 0
    assert [one["custom_id"] for one in found] == [one["custom_id"] for one in lines]
    assert all(one["error"] is None and one["response"]["status_code"] == 200 for one in found)
    assert len({one["id"] for one in found}) == len({one["response"]["request_id"] for one in found}) == len(lines)
    bodies = [one["response"]["body"] for one in found]
    assert bodies[3]["object"] == "chat.completion"
    del bodies[3]
    assert [body["usage"]["completion_tokens"] for body in bodies] == lengths


def test_a_bad_line_is_an_error_and_nothing_else(model, tmp_path):
    good = line("good", prompt="a", **ASK)
    wrong = [
        (b"{", None, 400, "line 1: it is not valid JSON"),
        (b"[1]", None, 400, "line 2"),
        ({"custom_id": "x", "url": "/v1/completions"}, "x", 400, "body"),
        ({"url": "/v1/completions", "body": {}}, None, 400, "custom_id"),
        (line("", prompt="a"), "", 400, "custom_id"),
        (line("y", "/v1/completion", prompt="a"), "y", 400, "did you mean '/v1/completions'"),
        (line("get", method="GET", prompt="a"), "get", 400, "POST"),
        (line("stream", prompt="a", stream=True), "stream", 400, "stream"),
        (line("later", "/v1/responses", input="a", background=True), "later", 400, "background"),
        (line("hot", prompt="a", temperature=9), "hot", 400, "temperature"),
        (line("model", prompt="a", model="other"), "model", 404, "other"),
        (line("vector", "/v1/embeddings", input="a"), "vector", 501, "pooling"),
        (line("long", prompt="a" * 5000), "long", 400, "longer than 4096 bytes"),
        (line("deep", prompt="a" + "]" * 10, logit_bias={"x": 1}), "deep", 400, "logit_bias"),
        (b'{"custom_id": "\xff"}', None, 400, "valid JSON"),
        (line("hot", prompt="a"), "hot", 400, "before"),
    ]
    lines = [one for one, *_ in wrong] + [b"", good]
    status, found = run(model, tmp_path, lines, "--max-body-size", "4096")
    assert status == 3
    assert len(found) == len(wrong) + 1
    for result, (_, name, code, words) in zip(found, wrong, strict=False):
        name = None if code == 400 and "longer" in words else name
        assert (result["custom_id"], result["response"]["status_code"]) == (name, code), result
        assert result["response"]["body"] is None
        assert words in result["error"]["message"], result["error"]
    assert found[-1]["error"] is None


def test_an_empty_file(model, tmp_path):
    assert run(model, tmp_path, [b""]) == (0, [])


def test_what_cannot_start_says_why(model, tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        run_batch.main([model, "-i", str(tmp_path / "nowhere.jsonl"), "-o", str(tmp_path / "out")], FAKE)
    (tmp_path / "in").write_text("")
    with pytest.raises(ConfigError, match="files of this machine"):
        run_batch.main([model, "-i", "http://host/in", "-o", str(tmp_path / "out")], FAKE)
    with pytest.raises(ConfigError, match="No such file"):
        run_batch.main([model, "-i", str(tmp_path / "in"), "-o", str(tmp_path / "no" / "out")], FAKE)
    for flags in (["-i", "x"], ["-i", "x", "-o", "y", "--port", "1"], ["-i", "x", "-o", "y", "--max-concurrency", "0"]):
        with pytest.raises(SystemExit) as caught:
            run_batch.main([model, *flags], FAKE)
        assert caught.value.code == 2
    assert "--max-concurrency" in capsys.readouterr().err


def test_a_run_that_is_killed_leaves_the_old_output(tmp_path):
    slow = str(fake_model(tmp_path / "model", length=ENDLESS, latency=0.01))
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    target.write_text("old")
    source.write_text(
        "\n".join(json.dumps(line(str(i), prompt="a", max_tokens=100_000, ignore_eos=True)) for i in range(8))
    )
    code = f"import sys; from octavo.cli import run_batch; sys.exit(run_batch.main(sys.argv[1:], {FAKE!r}))"
    command = [sys.executable, "-c", code, slow, "-i", str(source), "-o", str(target), "--max-concurrency", "1"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + PATIENCE
        while not (tmp_path / "out.jsonl.partial").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
    assert target.read_text() == "old"


def test_no_more_run_at_once_than_asked():
    running = most = 0

    async def answer(one):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(7 - int(one.custom_id) % 7):
            await asyncio.sleep(0)
        running -= 1
        return 200, one.custom_id, {}

    async def work():
        lines = (
            (run_batch.Line(str(i), "/v1/completions", {}), str(i), "") if i % 5 else (None, str(i), "bad")
            for i in range(60)
        )
        return [one async for one in run_batch.ordered(lines, answer, 4)]

    found = asyncio.run(work())
    assert [one["custom_id"] for one in found] == [str(i) for i in range(60)]
    assert [one["error"] is not None for one in found] == [i % 5 == 0 for i in range(60)]
    assert 1 < most <= 4
