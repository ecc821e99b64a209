"""How a server begins and ends: signals, deaths of either process, clients that go away."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from faulty import FAULTY_LIMIT

from octavo.testing.served import ENDLESS, FAKE, PATIENCE, Served, fake_model

TEXT = "/v1/completions"
#: Whenever it is looked at it is in the middle: a hundred thousand steps of the fake device.
LONG = {"prompt": "the cat", "max_tokens": 100_000, "ignore_eos": True, "seed": 1}
ABORTED = 'vllm:request_success_total{engine="0",finished_reason="abort"'


@contextlib.contextmanager
def served(folder, *flags, latency=0.01, worker=FAKE, **fake):
    model = fake_model(folder / "model", length=ENDLESS, latency=latency, **fake)
    server = Served([str(model), *flags], worker, {"PYTHONPATH": str(Path(__file__).parent)})
    try:
        yield server
    finally:
        server.stop()


def engine_of(server):
    (engine,) = psutil.Process(server.process.pid).children()
    assert engine.name() == "octavo-engine"
    return engine


def gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Client:
    """One request on a connection of its own, which can be cut."""

    def __init__(self, server, body):
        where = urlsplit(server.url)
        self.line = socket.create_connection((where.hostname, where.port), timeout=PATIENCE)
        data = json.dumps(body).encode()
        head = (
            f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.line.sendall(head.encode() + data)

    def read_some(self):
        return self.line.recv(4096)

    def cut(self):
        self.line.close()


class Asker(threading.Thread):
    """A request in a thread, answered or not."""

    def __init__(self, server, body):
        super().__init__(daemon=True)
        self.server, self.body, self.status, self.text = server, body, None, ""
        self.begun = threading.Event()
        self.start()

    def run(self):
        where = urlsplit(self.server.url)
        line = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
        try:
            line.request("POST", TEXT, json.dumps(self.body), {"Content-Type": "application/json"})
            answer = line.getresponse()
            self.status = answer.status
            while part := answer.readline():
                self.text += part.decode()
                self.begun.set()
        except (OSError, http.client.HTTPException) as error:
            self.text += f"<{type(error).__name__}>"
        finally:
            line.close()

    def done(self):
        self.join(PATIENCE)
        assert not self.is_alive(), "the request was never answered"
        return self


def running(server, count):
    server.until(f"{count} running", lambda: server.metric("vllm:num_requests_running") == count)


def opened(server, count):
    """The server has so many requests, whatever its engine does."""
    server.until(f"{count} open", lambda: json.loads(server.get("/load")[1])["server_load"] == count)


def dead(server):
    """It says 503 for a moment, and is gone then."""
    try:
        return server.get("/health")[0] == 503
    except OSError:
        return server.process.poll() is not None


@pytest.fixture
def brake(tmp_path):
    """A file that slows the device down, as long as it is there."""
    return tmp_path / "brake"


def at_rest(server):
    """Nothing runs or waits, and every page is free."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return all(server.metric(name) == 0 for name in names)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """One request at a time, four tokens a step: prompts take long, others queue."""
    flags = ("--max-num-seqs", "1", "--max-num-batched-tokens", "4")
    with served(tmp_path_factory.mktemp("slow"), *flags, latency=0.02) as server:
        yield server.ready()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_is_aborted(slow, stream):
    aborted, said = slow.metric(ABORTED), slow.metric("vllm:generation_tokens_total")
    client = Client(slow, LONG | {"stream": stream})
    if stream:
        client.read_some()
    running(slow, 1)
    client.cut()
    slow.until("abort", lambda: slow.metric(ABORTED) == aborted + 1)
    slow.until("rest", lambda: at_rest(slow))
    assert slow.metric("vllm:generation_tokens_total") < said + LONG["max_tokens"]


def test_a_client_that_goes_away_in_the_queue_or_in_its_prefill(slow):
    aborted, said = slow.metric(ABORTED), slow.metric("vllm:generation_tokens_total")
    prefill = Client(slow, LONG | {"prompt": [5] * 100_000, "max_tokens": 1})
    running(slow, 1)
    queued = [Client(slow, LONG | {"stream": stream}) for stream in (True, False)]
    slow.until("queue", lambda: slow.metric("vllm:num_requests_waiting") == 2)
    for client in queued:
        client.cut()
    slow.until("queue's abort", lambda: slow.metric(ABORTED) == aborted + 2)
    assert slow.metric("vllm:num_requests_running") == 1
    prefill.cut()
    slow.until("prefill's abort", lambda: slow.metric(ABORTED) == aborted + 3)
    slow.until("rest", lambda: at_rest(slow))
    assert slow.metric("vllm:generation_tokens_total") == said
    assert slow.post(TEXT, {"prompt": "a", "max_tokens": 2, "ignore_eos": True})[0] == 200


def test_an_idle_server_sleeps(slow):
    assert slow.post(TEXT, LONG | {"max_tokens": 5})[0] == 200
    processes = [psutil.Process(slow.process.pid), engine_of(slow)]

    def spent():
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    def rests():
        before = spent()
        time.sleep(1)
        return spent() - before < 0.15

    # It neither polls nor spins, once it has done what it does while nobody waits; what it takes exactly is measured
    # by `octavo bench startup --served`.
    slow.until("rest", rests)


def test_a_queue_that_is_full_says_when_to_come_again(tmp_path):
    with served(tmp_path, "--max-num-seqs", "1", "--max-waiting", "1", latency=0.02) as server:
        server.ready()
        first = Client(server, LONG)
        running(server, 1)
        second = Client(server, LONG)
        server.until("queue", lambda: server.metric("vllm:num_requests_waiting") == 1)
        where = urlsplit(server.url)
        for stream in (False, True):
            line = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
            line.request("POST", TEXT, json.dumps(LONG | {"stream": stream}), {"Content-Type": "application/json"})
            answer = line.getresponse()
            assert answer.status == 429
            assert int(answer.headers["Retry-After"]) >= 1
            assert json.load(answer)["error"]["type"] == "OverloadedError"
            line.close()
        first.cut()
        second.cut()


def test_the_engine_is_killed(tmp_path):
    with served(tmp_path, latency=0.03) as server:
        server.ready()
        engine = engine_of(server)
        askers = [Asker(server, LONG | {"stream": stream}) for stream in (True, False)]
        running(server, 2)
        engine.kill()
        server.until("503", lambda: dead(server))
        for asker in askers:
            asker.done()
            assert '"error"' in asker.text
            assert "the engine is gone" in asker.text
        assert askers[0].text.rstrip().endswith("data: [DONE]")
        assert askers[1].status == 503
        assert server.wait() == 1
        assert "SIGKILL" in server.log
        assert gone(engine)


def test_the_api_process_is_killed(tmp_path):
    with served(tmp_path, latency=0.03) as server:
        server.ready()
        engine = engine_of(server)
        client = Client(server, LONG)
        running(server, 1)
        server.process.kill()
        server.wait()
        server.until("end of the engine", lambda: gone(engine))
        client.cut()


def test_a_signal_lets_open_requests_finish(tmp_path, brake):
    with served(tmp_path, "--shutdown-timeout", str(PATIENCE), latency=0.0, brake=str(brake)) as server:
        server.ready()
        engine = engine_of(server)
        brake.write_text("0.25")
        askers = [Asker(server, LONG | {"max_tokens": 1000, "stream": stream}) for stream in (True, False)]
        opened(server, 2)
        server.process.terminate()
        server.until("drain", lambda: "open requests get" in server.log)
        brake.unlink()
        for asker in askers:
            asker.done()
            assert asker.status == 200
            assert '"finish_reason":"length"' in asker.text
        assert server.wait() == 0
        assert gone(engine)


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGTERM, "0"), (signal.SIGINT, "0.3")])
def test_what_is_not_finished_in_time_is_aborted(tmp_path, number, seconds):
    with served(tmp_path, "--shutdown-timeout", seconds, latency=0.05) as server:
        server.ready()
        asker = Asker(server, LONG | {"stream": True})
        assert asker.begun.wait(PATIENCE)
        server.process.send_signal(number)
        assert '"finish_reason":"abort"' in asker.done().text
        assert asker.text.rstrip().endswith("data: [DONE]")
        assert server.wait() == 0


def test_an_answer_of_nothing_is_none(tmp_path):
    """Who does not stream has been told of nothing when the server ends."""
    with served(tmp_path, "--shutdown-timeout", "0", latency=0.05) as server, ThreadPoolExecutor(1) as pool:
        server.ready()
        answer = pool.submit(server.post, TEXT, LONG)
        opened(server, 1)
        server.process.send_signal(signal.SIGTERM)
        status, body = answer.result(PATIENCE)
        assert status == 503, body
        assert "shutting down" in body["error"]["message"]
        assert server.wait() == 0


def test_a_row_that_fails_fails_one_request(tmp_path):
    with served(tmp_path, worker="faulty:Faulty") as server:
        server.ready()
        good = Asker(server, LONG | {"max_tokens": 60})
        for stream in (False, True):
            bad = Asker(
                server, {"prompt": [5] * 10, "max_tokens": FAULTY_LIMIT - 10, "ignore_eos": True, "stream": stream}
            ).done()
            assert "a number that is none" in bad.text
            assert bad.status == (200 if stream else 500)
            assert bad.text.rstrip().endswith("data: [DONE]") == stream
        assert '"finish_reason":"length"' in good.done().text
        failed = 'vllm:request_success_total{engine="0",finished_reason="error"'
        server.until("failures", lambda: server.metric(failed) == 2)
        assert server.get("/health")[0] == 200
        server.until("rest", lambda: at_rest(server))


def test_an_engine_that_hangs_does_not_hold_up_the_end(tmp_path, brake):
    with served(tmp_path, brake=str(brake)) as server:
        server.ready()
        engine = engine_of(server)
        first = Asker(server, LONG | {"stream": True})
        assert first.begun.wait(PATIENCE)
        brake.write_text("inf")
        second = Asker(server, LONG)
        server.until("the second", lambda: server.metric("octavo:requests_received_total") == 2)
        server.process.terminate()
        assert first.done().status == 200
        assert second.done().status == 503
        assert "shutting down" in second.text
        assert server.wait() == 0
        assert gone(engine)


def test_a_step_that_hangs_is_told(tmp_path, brake):
    # It is given up after five times as long, by which time the questions must be asked.
    with served(tmp_path, "--step-timeout", "4", brake=str(brake)) as server:
        server.ready()
        brake.write_text("inf")
        asker = Asker(server, LONG | {"max_tokens": 3})
        server.until("503", lambda: server.get("/health")[0] == 503)
        status, body = server.post(TEXT, LONG)
        assert status == 503
        assert "stuck" in body["error"]["message"]
        assert "stuck" in json.loads(server.get("/health")[1])["error"]["message"]
        brake.unlink()
        assert asker.done().status == 200
        server.until("health", lambda: server.get("/health")[0] == 200)


def test_an_engine_that_is_stopped_is_given_up(tmp_path):
    with served(tmp_path, "--step-timeout", "0.5", latency=0.03) as server:
        server.ready()
        engine = engine_of(server)
        askers = [Asker(server, LONG | {"stream": stream}) for stream in (True, False)]
        assert askers[0].begun.wait(PATIENCE)
        with contextlib.suppress(psutil.NoSuchProcess):  # where it has no processor it is given up already
            engine.suspend()
        server.until("503", lambda: dead(server))
        for asker in askers:
            assert "told nothing" in asker.done().text
        assert askers[1].status == 503
        assert server.wait() == 1
        assert gone(engine)


def test_an_engine_that_is_stopped_for_a_moment_goes_on(tmp_path):
    with served(tmp_path, "--step-timeout", "4") as server:
        server.ready()
        engine = engine_of(server)
        asker = Asker(server, LONG | {"stream": True})
        assert asker.begun.wait(PATIENCE)
        engine.suspend()
        server.until("503", lambda: server.get("/health")[0] == 503)
        said = len(asker.text)
        engine.resume()
        server.until("health", lambda: server.get("/health")[0] == 200)
        server.until("more of the answer", lambda: len(asker.text) > said)
        assert '"error"' not in asker.text


def test_a_signal_to_the_whole_group_is_no_failure(tmp_path):
    with served(tmp_path) as server:
        server.ready()
        os.killpg(server.process.pid, signal.SIGTERM)
        assert server.wait() == 0


def test_a_second_signal_ends_at_once(tmp_path):
    with served(tmp_path, "--shutdown-timeout", "300", latency=0.05) as server:
        server.ready()
        engine = engine_of(server)
        client = Client(server, LONG)
        running(server, 1)
        server.process.terminate()
        server.until("drain", lambda: "open requests get" in server.log)
        time.sleep(0.2)  # two signals that are pending at once are one
        server.process.terminate()
        assert server.wait() == 128 + signal.SIGTERM
        server.until("end of the engine", lambda: gone(engine))
        client.cut()


def test_a_signal_while_it_loads(tmp_path, brake):
    brake.write_text("inf")
    with served(tmp_path, brake=str(brake)) as server:
        server.until("the engine's process", lambda: psutil.Process(server.process.pid).children())
        engine = psutil.Process(server.process.pid).children()[0]
        server.process.terminate()
        assert server.wait() == 128 + signal.SIGTERM
        assert "Traceback" not in server.log
        server.until("end of the engine", lambda: gone(engine))


def test_a_used_port_fails_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with served(tmp_path, "--port", str(port)) as server:
            assert server.wait() == 1
            assert f"port {port} is in use" in server.log
            assert len(server.lines) == 1
        server = Served(["./nowhere", "--port", str(port)])
        try:
            assert server.wait() == 1
            assert "model './nowhere' is neither" in server.log, "what will not do on any port is told first"
        finally:
            server.stop()


def test_an_output_that_cannot_be_written_is_no_reason_to_end(tmp_path):
    model = fake_model(tmp_path / "model")
    command = [sys.executable, "-m", "octavo.testing.served", FAKE, str(model), "--host", "127.0.0.1", "--port", "0"]
    with open("/dev/full", "w") as full, open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, stdout=full, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + PATIENCE
        while "cannot be written" not in (tmp_path / "log").read_text():
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.05)
        found = psutil.Process(process.pid).net_connections("tcp4")
        (port,) = [one.laddr.port for one in found if one.status == psutil.CONN_LISTEN]
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        line.request("GET", "/health")
        assert line.getresponse().status == 200
        line.close()
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_an_engine_that_cannot_start_says_why(tmp_path):
    with served(tmp_path, boot_error="model.safetensors: the file ends too early") as server:
        assert server.wait() == 1
        assert server.lines[-1] == "octavo serve: model.safetensors: the file ends too early"
        assert "killed" not in server.log
        assert "Traceback" not in server.log


def test_keys_from_the_environment_and_a_limit_of_time(tmp_path):
    environment = {"OCTAVO_API_KEY": "secret", "OCTAVO_LOGLEVEL": "x"}
    folder = fake_model(tmp_path / "model", length=ENDLESS, latency=0.01)
    server = Served([str(folder), "--request-timeout", "0.5"], env=environment)
    try:
        server.ready()
        key = {"Authorization": "Bearer secret"}
        assert server.get("/v1/models")[0] == 401
        assert server.get("/v1/models", **key)[0] == 200
        assert "OCTAVO_LOGLEVEL" in server.log
        assert "did you mean 'OCTAVO_LOG_LEVEL'" in server.log
        assert "secret" not in server.log
        status, body = server.post(TEXT, LONG, **key)
        assert status == 200
        assert body["choices"][0]["finish_reason"] == "abort"
        assert body["usage"]["completion_tokens"] < LONG["max_tokens"]
    finally:
        server.stop()
