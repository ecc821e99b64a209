"""`octavo bench front`: what the server alone can carry, and what it adds to a token's time.

The device is a fake that costs nothing and stamps each step (``octavo.testing.stamped``); sockets, engine process and
client are real, and the client runs beside the server. A token's added latency is the time from its step's stamp to the
moment when the client has the bytes of its chunk.
"""

import asyncio
import json
import re
import tempfile
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from octavo.bench import report
from octavo.bench.child import Child
from octavo.launch.listening import runner

COLUMNS = (
    "workload", "out_tok_s", "tokens_per_chunk", "added_ms_p50", "added_ms_p99", "added_ms_max", "front_us_per_token",
    "engine_us_per_token", "client_us_per_token", "front_rss_mb",
)  # fmt: skip
#: A token in an answer's text, JSON or not, as ``octavo.testing.stamped`` says it.
_SAID = re.compile(rb"<filler (\d+)>")
#: Seconds that a run may take beyond what its tokens need.
_PATIENCE = 300.0
#: Bytes that a token has at most.
_LONGEST = 32
#: How a chunked body ends, and nothing in it: JSON holds no bare carriage return.
_END = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class FrontLoad:
    """``connections`` streams at once, on each ``rounds`` requests of ``outputs`` tokens, one after another.

    ``step_ms``: milliseconds that the device takes a step; 0: as fast as the engine plans. ``apis``: API processes.
    """

    connections: int = 256
    rounds: int = 2
    outputs: int = 512
    step_ms: float = 0.0
    chat: bool = False
    apis: int = 1


@dataclass
class _Seen:
    """Arrivals of all streams: seconds, and the tokens that came then."""

    when: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def read(self, arrivals: Iterable[tuple[float, bytes]]) -> None:
        """One connection's pieces: what is between the tokens does not matter."""
        rest = b""
        for now, data in arrivals:
            data, end = rest + data, 0
            before = len(self.tokens)
            for said in _SAID.finditer(data):
                self.tokens.append(int(said[1]))
                end = said.end()
            rest = data[max(end, len(data) - _LONGEST) :]
            if count := len(self.tokens) - before:
                self.when.append(now)
                self.counts.append(count)


class _Client(asyncio.Protocol):
    """One connection: sends a request, notes what comes and when until the answer's end, and so on ``rounds`` times.

    It shares the processors with the server, so everything else is done afterwards.
    """

    def __init__(self, request: bytes, rounds: int, done: asyncio.Future):
        self._request, self._left, self._done = request, rounds, done
        self._last = b""
        self.when = array("d")
        self.pieces: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._ask()

    def _ask(self) -> None:
        self._left -= 1
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.when.append(time.monotonic())
        self.pieces.append(data)
        self._last = (self._last + data)[-len(_END) :]
        if self._last == _END:
            if self._left:
                self._ask()
            elif not self._done.done():
                self._done.set_result(None)
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            last = b"".join(self.pieces[-2:])[-300:]
            self._done.set_exception(error or ConnectionError(f"the server closed a stream: {last!r}"))


def front(load: FrontLoad) -> dict[str, Any]:
    """Run the load; a record. Raises ``ConfigError`` where the server does not start, ``OSError`` where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [folder, str(load.step_ms / 1000), "--max-num-seqs", str(load.connections), "--max-model-len", "4096"]
        flags += ["--api-server-count", str(load.apis)]
        with Child("octavo.testing.stamped", flags) as child:
            _drive(child, FrontLoad(connections=load.connections, rounds=1, outputs=16, chat=load.chat))  # warm
            before, begin = child.cpu_seconds(), time.monotonic()
            own = time.process_time()
            clients = _drive(child, load)
            seconds, own = time.monotonic() - begin, time.process_time() - own
            spent = {name: child.cpu_seconds()[name] - before[name] for name in before}
            memory = child.memory_mb()
        stamps = np.fromfile(Path(folder) / "stamps", np.float64)
    seen = _Seen()
    for client in clients:
        seen.read(zip(client.when, client.pieces, strict=True))
    added = np.repeat(np.asarray(seen.when), seen.counts) - stamps[np.asarray(seen.tokens)]
    p50, p99 = np.percentile(added, (50, 99)) * 1000
    return report.record(
        workload=f"front{' chat' if load.chat else ''} {load.connections} x {load.outputs}, {load.step_ms:g} ms a step",
        impl="octavo",
        model="a fake device",
        api_server_count=load.apis,
        seconds=round(seconds, 3),
        out_tok_s=round(len(added) / seconds, 1),
        tokens=len(added),
        tokens_per_chunk=round(len(added) / len(seen.when), 2),
        added_ms_p50=round(float(p50), 2),
        added_ms_p99=round(float(p99), 2),
        added_ms_max=round(float(added.max()) * 1000, 2),
        front_us_per_token=round(spent["front"] / len(added) * 1e6, 1),
        engine_us_per_token=round(spent["engine"] / len(added) * 1e6, 1),
        client_us_per_token=round(own / len(added) * 1e6, 1),
        front_rss_mb=memory["front"],
    )


def _drive(child: Child, load: FrontLoad) -> list[_Client]:
    limit = _PATIENCE + load.rounds * load.outputs * load.step_ms / 1000
    with runner() as loop:
        return loop.run(asyncio.wait_for(_streams(child.port, load), limit))


async def _streams(port: int, load: FrontLoad) -> list[_Client]:
    loop = asyncio.get_running_loop()
    done: Sequence[asyncio.Future] = [loop.create_future() for _ in range(load.connections)]
    request = _request(load)
    clients = [_Client(request, load.rounds, one) for one in done]
    waiting = iter(clients)
    for _ in clients:
        await loop.create_connection(lambda: next(waiting), "127.0.0.1", port)
    await asyncio.gather(*done)
    return clients


def _request(load: FrontLoad) -> bytes:
    body: dict[str, Any] = {"max_tokens": load.outputs, "ignore_eos": True, "stream": True}
    body |= {"messages": [{"role": "user", "content": "hello"}]} if load.chat else {"prompt": [100, 101, 102, 103]}
    data = json.dumps(body).encode()
    path = "/v1/chat/completions" if load.chat else "/v1/completions"
    head = (
        "POST " + path + " HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    )
    return "\r\n".join((*head, "", "")).encode() + data
