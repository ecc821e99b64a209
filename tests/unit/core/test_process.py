"""The core in its own process: answers, deaths on either side, and the way out."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq

from octavo.core.engine.inbox import Aborts, Adds
from octavo.core.engine.process import SocketInbox, name_of
from octavo.errors import CheckpointError, EngineDead
from octavo.front.client.process import ProcessClient
from octavo.testing.cores import Told, fake_config, hear
from octavo.testing.fakes import expected
from octavo.testing.served import PATIENCE
from octavo.wire.arrays import pack_tokens
from octavo.wire.codec import Codec
from octavo.wire.messages import Add, Close, Join, ToCore
from octavo.wire.reply import AbortReason, FinishReason
from octavo.wire.request import EngineRequest, Sampling


def ask(handle: int, out: int = 10, client: int = 0, **changes) -> EngineRequest:
    prompt = [handle + 1, 2, 3]
    return EngineRequest(handle, pack_tokens(prompt), Sampling(seed=handle), 3 + out, client=client, **changes)


def right(handle: int, out: int = 10) -> list[int]:
    return expected([handle + 1, 2, 3], handle, 3 + out)


@pytest.fixture
def start():
    clients: list[ProcessClient] = []

    def make(fake: dict | None = None, **schedule) -> ProcessClient:
        client = ProcessClient(fake_config(fake, **schedule))
        clients.append(client)
        client.start()
        return client

    yield make
    for client in clients:
        client.close(1.0)


def listen(client: ProcessClient, told: dict[int, Told], enough) -> None:
    """Poll until ``enough()``."""
    until = time.monotonic() + PATIENCE
    while not enough():
        assert time.monotonic() < until, f"nothing more came: {told}"
        hear(client.poll(1.0), told)


def watch_and_poll(client: ProcessClient, watch) -> None:
    """As an event loop does it: only when the descriptor says so."""
    while watch.poll(PATIENCE * 1000):
        client.poll(0.0)


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ended(pid: int) -> bool:
    until = time.monotonic() + PATIENCE
    while running(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_answers_commands_and_the_end(start):
    client = start(depth=2)
    assert client.start().vocab == 97
    told: dict[int, Told] = {}
    client.add([ask(handle) for handle in range(4)])
    listen(client, told, lambda: len(told) == 4 and all(one.finish is not None for one in told.values()))
    for handle in range(4):
        assert told[handle].admitted
        assert told[handle].tokens == right(handle)
    assert client.call("health")["stalled"] is None
    assert client.call("stats")["running"] == 0
    assert client.call("echo", 1, "two", [3]) == [1, "two", [3]]
    with pytest.raises(ValueError, match=r"known to the worker: echo.*known to the core: health"):
        client.call("no such thing")
    pid = client.pid
    client.close()
    client.close()
    assert not running(pid)
    with pytest.raises(EngineDead, match="closed"):
        client.add([ask(9)])


def test_fd_tells_of_replies_and_of_death(start):
    client = start({"latency": 0.01})
    told: dict[int, Told] = {}
    watch = select.poll()
    watch.register(client.fd, select.POLLIN)
    client.add([ask(0)])
    until = time.monotonic() + PATIENCE
    while not (told and told[0].finish):
        assert time.monotonic() < until
        assert watch.poll(PATIENCE * 1000), "the file descriptor slept over a reply"
        hear(client.poll(0.0), told)
    assert told[0].tokens == right(0)
    # A call in between may read replies that belong to the poller: the descriptor still tells.
    client.add([ask(1)])
    client.call("stats")
    while not (1 in told and told[1].finish):
        assert watch.poll(PATIENCE * 1000)
        hear(client.poll(0.0), told)
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(EngineDead, match="SIGKILL"):
        watch_and_poll(client, watch)


def test_kill_is_noticed_by_open_and_later_requests(start):
    client = start({"latency": 0.05})
    told: dict[int, Told] = {}
    client.add([ask(0, 200)])
    listen(client, told, lambda: 0 in told and told[0].tokens)
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(EngineDead, match="SIGKILL"):
        listen(client, told, lambda: told[0].finish is not None)
    with pytest.raises(EngineDead, match="SIGKILL"):
        client.add([ask(1)])
    with pytest.raises(EngineDead, match="SIGKILL"):
        client.call("health")
    client.abort([0], AbortReason.CLIENT)  # nothing to say any more


def test_death_in_a_call(start, tmp_path):
    brake = tmp_path / "brake"
    client = start({"brake": str(brake)})
    brake.write_text("inf")
    client.add([ask(0)])
    threading.Timer(0.5, os.kill, (client.pid, signal.SIGKILL)).start()
    with pytest.raises(EngineDead, match="SIGKILL"):
        keep_calling(client)


def keep_calling(client: ProcessClient) -> None:
    """The first calls may be answered, before the core hangs in its first step."""
    while True:
        client.call("stats", timeout=PATIENCE)


def test_what_is_told_together_with_an_answer_is_not_slept_over(start):
    """A call in another thread may read replies and its answer in one go, before the poller's loop has looked."""
    client = start()
    client.add([ask(0)])
    pump = client._pump

    def until_answered():
        pump()
        while any(waiting.answer is None for waiting in client._waiting.values()) and client.dead is None:
            client._socket.poll(PATIENCE * 1000)
            pump()

    client._pump = until_answered
    while client.call("stats", timeout=PATIENCE)["running"] or not client._replies:
        client._quiet(client._bell)
    client._quiet(client._bell)
    client.call("stats", timeout=PATIENCE)
    watch = select.poll()
    watch.register(client.fd, select.POLLIN)
    assert watch.poll(0), "the file descriptor slept over replies"
    told: dict[int, Told] = {}
    listen(client, told, lambda: 0 in told and told[0].finish is not None)


def test_errors_of_the_boot_arrive_as_they_are():
    client = ProcessClient(fake_config({"boot_error": "model.safetensors is cut short"}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is cut short"):
        client.start()
    client = ProcessClient(fake_config({"no such option": 1}))
    with pytest.raises(EngineDead, match="could not start: TypeError"):
        client.start()


PARENT = """
import sys, time
from octavo.front.client.process import ProcessClient
from octavo.testing.cores import fake_config
client = ProcessClient(fake_config({"latency": 0.05}))
client.start()
print(client.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("thread", [False, True])
def test_the_engine_ends_with_its_parent(thread):
    code = PARENT
    if thread:  # started from a thread that ends at once: the engine must outlive that, but not the process
        code = code.replace("client.start()", "import threading; t = threading.Thread(target=client.start)")
        code = code.replace("print(client", "t.start(); t.join(); client.call('health'); print(client")
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert running(pid)
        parent.kill()
        assert ended(pid), "the engine outlived its parent"
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_sigterm_lets_open_requests_end(start, tmp_path):
    brake = tmp_path / "brake"
    client = start({"brake": str(brake)})
    told: dict[int, Told] = {}
    brake.write_text("0.1")
    client.add([ask(0, 200)])
    listen(client, told, lambda: 0 in told and told[0].tokens)
    os.kill(client.pid, signal.SIGTERM)
    client.add([ask(1)])
    brake.unlink()
    listen(client, told, lambda: told[0].finish is not None)
    assert told[0].finish is FinishReason.LENGTH
    assert told[0].tokens == right(0, 200)
    with pytest.raises(EngineDead, match="exit code 0"):
        listen(client, told, lambda: False)


def test_close_ends_open_requests_within_its_deadline(start):
    client = start({"latency": 0.02})
    told: dict[int, Told] = {}
    client.add([ask(0, 200)])
    listen(client, told, lambda: 0 in told and told[0].tokens)
    pid = client.pid
    client.close(5.0)
    assert not running(pid)


def test_sigint_is_for_the_parent_to_judge(start):
    client = start()
    os.kill(client.pid, signal.SIGINT)
    assert client.call("health")["pid"] == client.pid


def test_malformed_messages_are_dropped(start):
    client = start()
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, b"c\x09\0\0\0")
    socket.connect(client.place[0])
    for junk in (b"", b"\xff" * 100, b"\x92\xa3add\x01", b"\x91\xa5close\x00", b"\x93\xa4call\x01\x02"):
        socket.send(junk)
    socket.send_multipart([b"one", b"two", b"three"])
    told: dict[int, Told] = {}
    client.add([ask(0)])
    listen(client, told, lambda: 0 in told and told[0].finish is not None)
    assert told[0].tokens == right(0)
    socket.close(linger=0)
    context.term()


def test_two_clients_hear_their_own(start):
    first = start({"latency": 0.005})
    second = ProcessClient(first.config, client=1, join=first.place)
    assert second.start() == first.start()
    told: list[dict[int, Told]] = [{}, {}]
    first.add([ask(0), ask(1, 30)])
    second.add([ask(0, 20, client=1), ask(2, client=1)])
    listen(first, told[0], lambda: len(told[0]) == 2 and all(one.finish is not None for one in told[0].values()))
    listen(second, told[1], lambda: len(told[1]) == 2 and all(one.finish is not None for one in told[1].values()))
    assert told[0][0].tokens == right(0)
    assert told[0][1].tokens == right(1, 30)
    assert told[1][0].tokens == right(0, 20)
    second.add([ask(5, 200, client=1)])
    listen(second, told[1], lambda: 5 in told[1] and told[1][5].tokens)
    second.close()
    until = time.monotonic() + PATIENCE
    while first.call("stats")["running"]:
        assert time.monotonic() < until, "a client that left keeps its pages"
    assert first.call("health")["unfinished"] == 0


def test_a_hanging_step_is_reported(start, tmp_path):
    brake = tmp_path / "brake"
    client = start({"brake": str(brake)}, step_timeout=0.4)
    brake.write_text("inf")
    client.add([ask(0)])
    until = time.monotonic() + PATIENCE
    while (health := client.call("health", timeout=PATIENCE))["stalled"] is None:
        assert time.monotonic() < until
    assert "no progress" in health["stalled"]
    brake.unlink()
    told: dict[int, Told] = {}
    listen(client, told, lambda: 0 in told and told[0].finish is not None)
    assert told[0].tokens == right(0)
    while client.call("health")["stalled"] is not None:
        assert time.monotonic() < until


def test_an_idle_engine_sleeps(start):
    client = start()

    def wakes() -> int:
        """How often a thread of it began to wait."""
        tasks = Path(f"/proc/{client.pid}/task").glob("*/status")
        return sum(int(line.split()[1]) for task in tasks for line in task.open() if line.startswith("voluntary"))

    def ticks() -> int:
        fields = Path(f"/proc/{client.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    client.call("health")
    # Neither polling nor spinning, once it has come to rest; what it takes exactly is measured by `octavo bench startup
    # --served`.
    until = time.monotonic() + PATIENCE
    while True:
        before = wakes(), ticks()
        time.sleep(1.0)
        if wakes() - before[0] < 100 and ticks() - before[1] < os.sysconf("SC_CLK_TCK") / 4:
            break
        assert time.monotonic() < until, "it never rests"


def test_a_loop_that_never_sleeps_sees_the_death_of_a_client(tmp_path):
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    codec = Codec(ToCore)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        router.bind(f"ipc://{tmp_path}/core")
        inbox = SocketInbox(router, 0)
        dealer.setsockopt(zmq.IDENTITY, name_of(1))
        dealer.connect(f"ipc://{tmp_path}/core")

        def hears(*words):
            for word in words:
                dealer.send(codec.encode(word))
                assert router.poll(PATIENCE * 1000)
            return inbox.drain()

        assert hears(Join(process.pid)) == []
        process.kill()
        process.wait()
        # What it said before it died comes first, so that its end ends that too; what comes later is nobody's.
        added, *ended = hears(Add([ask(1, client=1)]))
        assert isinstance(added, Adds)
        assert ended == [Aborts(1, None, AbortReason.CLIENT)]
        assert hears(Add([ask(2, client=1)])) == []
        assert inbox.drain() == []
    finally:
        process.kill()
        process.wait()
        context.destroy(linger=0)


def test_a_client_that_says_goodbye_and_ends_is_aborted_once(tmp_path):
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        router.bind(f"ipc://{tmp_path}/core")
        inbox = SocketInbox(router, 0)
        dealer.setsockopt(zmq.IDENTITY, name_of(1))
        dealer.connect(f"ipc://{tmp_path}/core")
        dealer.send(Codec(ToCore).encode(Join(process.pid)))
        assert router.poll(PATIENCE * 1000)
        assert inbox.drain() == []
        process.kill()
        process.wait()
        dealer.send(Codec(ToCore).encode(Close()))
        assert router.poll(PATIENCE * 1000)
        assert inbox.drain() == [Aborts(1, None, AbortReason.SHUTDOWN)]
        assert inbox.drain() == []
    finally:
        process.kill()
        process.wait()
        context.destroy(linger=0)
