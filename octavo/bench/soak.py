"""`octavo bench soak`: many short requests, a part of them given up midway, and faults; what is left afterwards.

The device is a fake that costs nothing; all else is real. A record says whether every request that was received ended
in exactly one way, whether pages and requests are back at nothing, and how much memory the processes held meanwhile.
With ``faults`` there are, beside the requests, malformed bodies, half-open sockets and connections that never read;
then servers whose engine or front is killed under load; of several API processes, one at a time is.
"""

import asyncio
import contextlib
import functools
import json
import os
import random
import re
import signal
import socket
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from octavo.bench import report
from octavo.bench.child import START_WITHIN, Child

COLUMNS = (
    "workload",
    "seconds",
    "done",
    "given_up",
    "refused",
    "broken",
    "balanced",
    "at_rest",
    "growth_mb",
    "faults_ok",
)
SERVER = "octavo.testing.stamped"
#: Seconds within which a server comes to rest, or ends.
_REST = 240.0
_SAMPLES = 20
#: API processes that are killed one after another.
_KILLED = 3
_OUTCOMES = ("succeeded", "failed", "aborted", "rejected")
_MALFORMED = (
    b"",
    b"{",
    b"[]",
    b"\x00\xff\xfe",
    b'{"prompt": 5, "max_tokens": "many"}',
    b'{"prompt": [1, 2, 99999999], "max_tokens": 4}',
    b'{"prompt": "x", "max_tokens": -1}',
    b'{"prompt": "x", "temperature": NaN}',
    b'{"prompt": "x", "model": "another"}',
    b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
)


@dataclass(frozen=True, kw_only=True)
class SoakLoad:
    """``requests`` of up to ``outputs`` tokens over ``connections``; ``given_up``: the share whose client goes away.
    ``apis``: API processes of the server.

    With ``faults``: ``silent`` connections never read, ``half_open`` sockets never finish a request's head.
    """

    requests: int = 100_000
    connections: int = 64
    given_up: float = 1 / 3
    outputs: int = 16
    apis: int = 1
    faults: bool = False
    silent: int = 1000
    half_open: int = 100
    seed: int = 0


@dataclass
class _Tally:
    """What the client saw: done, given_up, refused (an answer of 4xx), broken (anything else)."""

    left: int
    counts: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)
    started: int = 0


def soak(load: SoakLoad) -> dict[str, Any]:
    """Run it; a record. Raises ``ConfigError`` where a server does not start."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Child(SERVER, _flags(folder, load.apis)) as child:
        tally, memory = _Tally(load.requests), []

        def sample() -> None:
            memory.append(child.memory_mb())

        with _noise(child, load) if load.faults else contextlib.nullcontext():
            asyncio.run(_clients(child.port, load, tally, sample))
        at_rest = _until(lambda: _rests(_metrics(child)))
        # a client that gave up is counted a moment after the engine forgot it
        _until(lambda: _balanced(_metrics(child)))
        metrics = _metrics(child)
    received, ended = _books(metrics)
    quarter = max(1, len(memory) // 4)
    growth = {
        name: round(_middle(memory[-quarter:], name) - _middle(memory[quarter : 2 * quarter], name), 1)
        for name in ("front", "engine")
    }
    record = report.record(
        workload=f"soak {load.requests} x {load.outputs}{' with faults' if load.faults else ''}",
        api_server_count=load.apis,
        impl="octavo",
        model="a fake device",
        seconds=round(time.monotonic() - begin, 1),
        **{name: tally.counts[name] for name in ("done", "given_up", "refused", "broken")},
        reasons=dict(tally.reasons),
        received=received,
        ended=ended,
        balanced=_balanced(metrics),
        at_rest=at_rest,
        memory_mb=memory,
        growth_mb=growth,
    )
    if load.faults:
        record["faults"] = {name: _killed(load, name) for name in ("engine", "front")}
        if load.apis > 1:
            record["faults"]["api"] = _api_killed(load)
        record["faults_ok"] = all(all(found.values()) for found in record["faults"].values())
    record["failed"] = tally.counts["broken"] + (not at_rest) + (not record["balanced"])
    record["failed"] += not record.get("faults_ok", True)
    return record


def _flags(folder: str, apis: int) -> list[str]:
    return [folder, "0", "--max-num-seqs", "64", "--max-model-len", "4096", "--api-server-count", str(apis)]


def _middle(samples: list[dict[str, float]], name: str) -> float:
    return report.median([sample[name] for sample in samples])


def _api_killed(load: SoakLoad) -> dict[str, bool]:
    """A server under load of which API processes are killed, one after another: do the others serve on, and do the
    books balance?"""
    with tempfile.TemporaryDirectory() as folder, Child(SERVER, _flags(folder, load.apis)) as child:
        tally = _Tally(10**9)
        lives = SoakLoad(requests=10**9, connections=load.connections, given_up=0.1, outputs=64)

        def served_again(before: list[int], done: int) -> bool:
            return len(set(child.apis()) - set(before)) == 1 and tally.counts["done"] > done + load.connections

        async def run() -> bool:
            clients = asyncio.ensure_future(_clients(child.port, lives, tally, lambda: None))
            again = True
            for _ in range(_KILLED):
                before, done = child.apis(), tally.counts["done"]
                os.kill(before[0], signal.SIGKILL)
                check = functools.partial(served_again, before, done)
                again = await asyncio.to_thread(_until, check, START_WITHIN) and again
            tally.left = 0
            await asyncio.wait_for(clients, _REST)
            return again

        try:
            again = asyncio.run(run())
        except TimeoutError:
            again = False
        at_rest = _until(lambda: _rests(_metrics(child)))
        received, ended = _books(_metrics(child))
        balanced = received == sum(ended.values())
        return {"started_again": again, "at_rest": at_rest, "balanced": balanced, "aborted": ended["aborted"] > 0}


def _killed(load: SoakLoad, victim: str) -> dict[str, bool]:
    """A server under load of which a process is killed, "front" (the first) or "engine": does everything end?"""
    with tempfile.TemporaryDirectory() as folder, Child(SERVER, _flags(folder, load.apis)) as child:
        endless = SoakLoad(requests=10**9, connections=load.connections, given_up=0.1, outputs=64)
        tally = _Tally(endless.requests)

        async def run() -> None:
            clients = asyncio.ensure_future(_clients(child.port, endless, tally, lambda: None))
            await asyncio.sleep(2.0)
            front = {child.pid, *child.apis()}
            pids = [child.pid] if victim == "front" else [pid for pid in child.processes() if pid not in front]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(1.0)
            tally.left = 0
            await asyncio.wait_for(clients, _REST)

        clients_end = True
        try:
            asyncio.run(run())
        except TimeoutError:
            clients_end = False
        status = child.wait(_REST)
        return {
            "served_before": tally.counts["done"] > 0,
            "clients_end": clients_end,
            "ends_with_an_error": status not in (0, None),
            "nothing_is_left": _until(lambda: not child.processes()),
        }


@contextlib.contextmanager
def _noise(child: Child, load: SoakLoad) -> Iterator[None]:
    """Sockets that never finish what they began, and such that never read what they asked for."""
    endless = _request(
        {"prompt": [100], "max_tokens": 4000, "ignore_eos": True, "stream": True, "return_token_ids": True}
    )
    sockets = []
    try:
        for index in range(load.half_open + load.silent):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", child.port))
            one.sendall(endless[:40] if index < load.half_open else endless)
            sockets.append(one)
        yield
    finally:
        for one in sockets:
            one.close()


async def _clients(port: int, load: SoakLoad, tally: _Tally, sample: Callable[[], None]) -> None:
    draw = random.Random(load.seed)
    every = max(1, load.requests // _SAMPLES)

    async def client() -> None:
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while tally.left > 0:
            tally.left -= 1
            tally.started += 1
            if tally.started % every == 0:
                sample()
            try:
                streams = streams or await asyncio.open_connection("127.0.0.1", port)
                outcome = await asyncio.wait_for(_one(*streams, load, draw), _REST)
            except (OSError, asyncio.IncompleteReadError, ValueError, TimeoutError) as error:
                outcome = "broken"
                tally.reasons[type(error).__name__] += 1
            tally.counts[outcome] += 1
            if outcome in ("given_up", "broken") and streams is not None:
                streams[1].close()
                streams = None
            if outcome == "broken":
                await asyncio.sleep(0.05)
        if streams is not None:
            streams[1].close()

    await asyncio.gather(*(client() for _ in range(load.connections)))


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, load: SoakLoad, draw: random.Random) -> str:
    """One request; how it ended. Raises what a broken connection raises."""
    if load.faults and draw.random() < 0.1:
        writer.write(_post(draw.choice(_MALFORMED)))
        status, _ = await _answer(reader)
        if not 400 <= status < 500:
            raise ValueError(f"a malformed body was answered with {status}")
        return "refused"
    leaves = draw.random() < load.given_up
    stream = draw.random() < 0.7
    prompt = [draw.randrange(4, 20_000) for _ in range(draw.randint(1, 24))]
    tokens = 2000 if leaves else draw.randint(1, load.outputs)
    writer.write(_request({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}))
    if leaves:
        if stream:
            await reader.readuntil(b"data: ")
        else:
            await asyncio.sleep(draw.random() * 0.02)
        return "given_up"
    status, body = await _answer(reader)
    if status == 429:
        return "refused"
    if status != 200 or (stream and not body.rstrip().endswith(b"data: [DONE]")) or b'"error"' in body:
        raise ValueError(f"{status}: {body[:200]!r}")
    return "done"


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """(status, body) of an answer, chunked or not."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" in head:
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return status, body
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    return status, await reader.readexactly(int(length or b"0"))


def _request(body: dict[str, Any]) -> bytes:
    return _post(json.dumps(body).encode())


def _post(data: bytes) -> bytes:
    head = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join((*head, f"Content-Length: {len(data)}", "", "")).encode() + data


def _metrics(child: Child) -> dict[str, float]:
    """Samples of /metrics by name (and outcome, where they have one), added up over their other labels."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(child.url + "/metrics", timeout=_REST) as answer:
        for line in answer.read().decode().splitlines():
            if line and line[0] != "#":
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                if outcome := re.search('outcome="([a-z]+)"', series):
                    name += f" {outcome[1]}"
                found[name] = found.get(name, 0.0) + float(value)
    return found


def _books(metrics: dict[str, float]) -> tuple[float, dict[str, float]]:
    """(requests received, how they ended)."""
    ended = {name: metrics[f"octavo:requests_ended_total {name}"] for name in _OUTCOMES}
    return metrics["octavo:requests_received_total"], ended


def _balanced(metrics: dict[str, float]) -> bool:
    received, ended = _books(metrics)
    return received == sum(ended.values())


def _rests(metrics: dict[str, float]) -> bool:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return not any(metrics[f"vllm:{name}"] for name in names)


def _until(check: Callable[[], bool], within: float = _REST) -> bool:
    end = time.monotonic() + within
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
