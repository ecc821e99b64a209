"""How a server of several API processes begins and ends: signals, and deaths of each kind of process."""

import contextlib
import json
import os
import re
import signal
import socket
import tempfile

import psutil
import pytest
from ports import free_port
from test_server_life import LONG, TEXT, Asker, dead, gone, running

from octavo.testing.served import ENDLESS, PATIENCE, Served, fake_model

OUTCOMES = ("succeeded", "failed", "aborted", "rejected")


@contextlib.contextmanager
def served(folder, *flags, env=None, **fake):
    model = fake_model(folder / "model", length=ENDLESS, latency=0.01, **fake)
    server = Served([str(model), "--api-server-count", "2", *flags], env=env)
    try:
        yield server
    finally:
        server.stop()


def family(server):
    """Name -> process, of the children of the server's process."""
    return {child.name(): child for child in psutil.Process(server.process.pid).children()}


def two_askers(server, **more):
    """A request to each of the API processes, both of which run."""
    askers = [Asker(server, LONG | {"stream": True} | more)]
    assert askers[0].begun.wait(PATIENCE)
    askers.append(Asker(server, LONG | {"stream": True} | more))
    assert askers[1].begun.wait(PATIENCE)
    return askers


def books(server):
    """(received, ended) by what the metrics say."""
    text = server.get("/metrics")[1].decode()
    received = float(re.search(r"^octavo:requests_received_total\S* (\S+)", text, re.M)[1])
    ended = re.findall(r"^octavo:requests_ended_total\S*outcome=\"(\w+)\"\S* (\S+)", text, re.M)
    assert {name for name, _ in ended} == set(OUTCOMES)
    return received, {name: float(value) for name, value in ended}


def all_gone(server, *processes):
    server.until("end of all", lambda: all(gone(process) for process in processes))


def test_a_signal_lets_requests_of_all_finish(tmp_path):
    with served(tmp_path, "--shutdown-timeout", str(PATIENCE)) as server:
        server.ready()
        processes = family(server)
        assert set(processes) == {"octavo-engine", "octavo-api-1", "octavo-api-2"}
        # Structured answers of each, which the engine was taught by whoever came first.
        for _ in range(2):
            ruled = {"prompt": "a", "max_tokens": 40, "structured_outputs": {"choice": ["yes", "no"]}}
            status, answer = server.post(TEXT, ruled)
            assert (status, answer["choices"][0]["text"] in ("yes", "no")) == (200, True)
        askers = two_askers(server, max_tokens=60)
        server.process.terminate()
        for asker in askers:
            assert '"finish_reason":"length"' in asker.done().text
        assert server.wait() == 0
        all_gone(server, *processes.values())


@pytest.mark.slow
def test_what_is_not_finished_in_time_is_aborted_everywhere(tmp_path):
    with served(tmp_path) as server:
        server.ready()
        askers = two_askers(server)
        server.process.send_signal(signal.SIGINT)
        for asker in askers:
            assert '"finish_reason":"abort"' in asker.done().text
            assert asker.text.rstrip().endswith("data: [DONE]")
        assert server.wait() == 0


def test_a_signal_to_the_whole_group_is_no_failure(tmp_path):
    with served(tmp_path, "--shutdown-timeout", str(PATIENCE)) as server:
        server.ready()
        askers = two_askers(server, max_tokens=60)
        os.killpg(server.process.pid, signal.SIGTERM)
        for asker in askers:
            assert '"finish_reason":"length"' in asker.done().text
        assert server.wait() == 0


def test_a_second_signal_ends_at_once(tmp_path):
    with (
        tempfile.TemporaryDirectory() as folder,  # of a short name, since it is for sockets
        served(tmp_path, "--shutdown-timeout", str(10 * PATIENCE), env={"TMPDIR": folder}) as server,
    ):
        server.ready()
        processes = family(server)
        two_askers(server)
        assert os.listdir(folder)
        server.process.terminate()
        server.until("drain", lambda: "open requests get" in server.log)
        server.process.terminate()
        assert server.wait() == 128 + signal.SIGTERM
        all_gone(server, *processes.values())
        assert os.listdir(folder) == []


def test_an_api_process_that_dies_comes_again_or_ends_the_server(tmp_path):
    with served(tmp_path) as server:
        server.ready()
        processes = family(server)
        engine = processes["octavo-engine"]
        askers = two_askers(server)
        kept = [server.post("/v1/responses", {"input": "a", "max_output_tokens": 2})[1]["id"] for _ in range(2)]
        processes["octavo-api-2"].kill()
        server.until("a cut connection", lambda: sum(not asker.is_alive() for asker in askers) == 1)
        (alive,) = (asker for asker in askers if asker.is_alive())
        length = len(alive.text)
        server.until(
            "a new process",
            lambda: family(server).get("octavo-api-2", processes["octavo-api-2"]).pid != processes["octavo-api-2"].pid,
        )
        running(server, 1)  # the engine has aborted the other
        server.until("progress", lambda: len(alive.text) > length)
        received, ended = books(server)
        assert (ended["aborted"], received) == (1, sum(ended.values()) + 1)
        # What it kept is gone, with a word; the other's is there.
        statuses = {}

        def settled():
            statuses.update(
                {(name[5:7], turn): server.get(f"/v1/responses/{name}")[0] for name in kept for turn in (0, 1)}
            )
            return 503 not in statuses.values()

        server.until("both", settled)
        assert statuses == {("00", 0): 200, ("00", 1): 200, ("01", 0): 404, ("01", 1): 404}
        made = {server.post("/v1/responses", {"input": "a", "max_output_tokens": 2})[1]["id"][5:7] for _ in range(4)}
        assert made == {"00", "01"}
        assert "[server]" in server.log
        assert re.search(r"api 2 \(pid \d+\) was ended by SIGKILL.*; it is started again", server.log)
        # Once more, and the new one finds that it cannot serve.
        (tmp_path / "model" / "tokenizer.json").unlink()
        family(server)["octavo-api-1"].kill()
        alive.done()
        assert server.wait() == 1
        assert re.match("octavo serve: .*tokenizer", server.lines[-1])
        assert "Traceback" not in server.log
        all_gone(server, engine)


def test_the_engine_is_killed(tmp_path):
    with served(tmp_path) as server:
        server.ready()
        processes = family(server)
        askers = two_askers(server)
        processes["octavo-engine"].kill()
        server.until("503", lambda: dead(server))
        for asker in askers:
            assert "the engine is gone" in asker.done().text
            assert asker.text.rstrip().endswith("data: [DONE]")
        assert server.wait() == 1
        assert "SIGKILL" in server.log
        assert "started again" not in server.log
        all_gone(server, *processes.values())


@pytest.mark.slow
def test_an_engine_that_is_stopped_is_given_up(tmp_path):
    with served(tmp_path, "--step-timeout", "0.5") as server:
        server.ready()
        processes = family(server)
        askers = two_askers(server)
        processes["octavo-engine"].suspend()
        for asker in askers:
            assert "the engine is gone" in asker.done().text
        assert server.wait() == 1
        all_gone(server, *processes.values())


def test_the_parent_is_killed(tmp_path):
    with served(tmp_path) as server:
        server.ready()
        processes = family(server)
        server.process.kill()
        server.wait()
        all_gone(server, *processes.values())


def test_a_signal_while_it_loads(tmp_path):
    brake = tmp_path / "brake"
    brake.write_text("inf")
    with served(tmp_path, brake=str(brake)) as server:
        server.until("all processes", lambda: len(psutil.Process(server.process.pid).children()) == 3)
        processes = psutil.Process(server.process.pid).children()
        server.process.terminate()
        assert server.wait() == 128 + signal.SIGTERM
        assert "Traceback" not in server.log
        all_gone(server, *processes)


def test_what_cannot_start_says_why(tmp_path):
    with served(tmp_path, boot_error="model.safetensors: the file ends too early") as server:
        assert server.wait() == 1
        assert server.lines[-1] == "octavo serve: model.safetensors: the file ends too early"
        assert "Traceback" not in server.log
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        served(tmp_path / "used", "--port", str(other.getsockname()[1])) as server,
    ):
        assert server.wait() == 1
        assert "is in use" in server.log
        assert len(server.lines) == 1
    model = fake_model(tmp_path / "third")
    (model / "tokenizer.json").write_text("{}")
    server = Served([str(model), "-asc", "2"])
    try:
        assert server.wait() == 1
        assert re.match("octavo serve: .*tokenizer", server.lines[-1])
        assert "Traceback" not in server.log
    finally:
        server.stop()


@pytest.mark.parametrize("count", ["0", "65", "-1"])
def test_a_count_that_is_none(tmp_path, count):
    server = Served([str(fake_model(tmp_path)), f"--api-server-count={count}"])
    try:
        assert server.wait() == 1
        assert server.lines == [f"octavo serve: --api-server-count must be from 1 to 64, got {count}"]
    finally:
        server.stop()


def test_https_and_grpc(tmp_path):
    grpc = pytest.importorskip("grpc")
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    import http.client
    import ssl

    from grpc_health.v1 import health_pb2_grpc

    from octavo.testing.certificates import Papers

    papers = Papers(tmp_path)
    port = free_port()
    flags = ["--ssl-certfile", papers.cert, "--ssl-keyfile", papers.key, "--grpc-port", str(port)]
    with served(tmp_path, *flags) as server:
        server.ready()
        host = server.url.removeprefix("https://")
        for _ in range(2):
            line = http.client.HTTPSConnection(
                host, timeout=PATIENCE, context=ssl.create_default_context(cafile=papers.ca)
            )
            line.request(
                "POST", TEXT, json.dumps({"prompt": "a", "max_tokens": 3}), {"Content-Type": "application/json"}
            )
            assert line.getresponse().status == 200
            line.close()
        with socket.create_connection(
            host.split(":"), timeout=PATIENCE
        ) as plain:  # no TLS: cut off, nobody else harmed
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.recv(1000)
        with open(papers.ca, "rb") as file:
            trust = grpc.ssl_channel_credentials(file.read())
        with grpc.secure_channel(
            f"127.0.0.1:{port}", trust, (("grpc.ssl_target_name_override", "localhost"),)
        ) as channel:
            said = health_pb2_grpc.HealthStub(channel).Check(health.HealthCheckRequest(), timeout=PATIENCE)
        assert said.status == health.HealthCheckResponse.SERVING
        server.process.terminate()
        assert server.wait() == 0
