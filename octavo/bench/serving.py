"""`octavo bench serve`: load on a running OpenAI-compatible server, measured as a client sees it.

Requests are spread over a few client processes, since one Python loop cannot read as fast as a server writes.
"""

import asyncio
import json
import math
import multiprocessing
import random
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from octavo.common.client import FAILURES, Identity, bearer, fetch, reason, refusal
from octavo.errors import ConfigError, EngineDead

#: Ids under this one are often special tokens: random prompts leave them out where the vocabulary allows.
_FIRST_ID = 100


@dataclass(kw_only=True)
class Load:
    """What to send. ``label``: name of the model in the record, instead of its own. ``concurrency``: most requests at
    once; None: any number, which needs a rate. ``rate``: requests a second (0 = as fast as ``concurrency`` allows),
    their distances gamma-distributed with shape ``burstiness`` (1: Poisson).
    ``prefix``: prompt tokens that all requests share, before ``inputs`` of their own. ``spread``: lengths are drawn
    evenly from within this share around ``inputs`` and ``outputs``. ``vocabulary``: random ids lie under it."""

    url: str
    model: str
    label: str | None = None
    requests: int = 100
    concurrency: int | None = 32
    inputs: int = 512
    outputs: int = 128
    prefix: int = 0
    vocabulary: int = 20_000
    spread: float = 0.0
    rate: float = 0.0
    burstiness: float = 1.0
    temperature: float = 0.6
    seed: int = 0
    processes: int = 4
    warmups: int = 0
    key: str | None = None
    who: Identity | None = None
    chat: bool = False
    endpoint: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    timeout: float = 600.0

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def path(self) -> str:
        return self.endpoint or ("/v1/chat/completions" if self.chat else "/v1/completions")


@dataclass
class Answer:
    """One request as its client saw it. ``start``: on the machine's monotonic clock; other times in seconds.

    ``ttft``: from sending to the first chunk; ``itl``: the gaps between chunks; ``e2el``: to the end.
    """

    start: float
    inputs: int
    ttft: float | None = None
    itl: list[float] = field(default_factory=list)
    e2el: float = 0.0
    tokens: int = 0
    error: str = ""

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None where there is none."""
        return sum(self.itl) / (self.tokens - 1) if self.ttft is not None and self.itl and self.tokens > 1 else None


def models(url: str, key: str | None, who: Identity | None = None) -> list[str]:
    """The server's model names. Raises ConfigError where it cannot be reached or has none."""
    address = url.rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        request = urllib.request.Request(address, headers=bearer(key))
        with fetch(request, 10, who) as answer:
            names = [one["id"] for one in json.load(answer)["data"]]
    except urllib.error.HTTPError as error:
        raise ConfigError(f"the server at {address} does not tell its models: {refusal(error)}") from None
    except (*FAILURES, ValueError, KeyError) as error:
        raise ConfigError(f"no server answers at {address}: {reason(error)}") from None
    if not names:
        raise ConfigError(f"the server at {address} has no model")
    return names


def speculation(load: Load) -> dict[str, float]:
    """The server's counters of speculative decoding, by name and position; empty where it has none."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, float] = {}
    try:
        request = urllib.request.Request(load.base + "/metrics", headers=bearer(load.key))
        with fetch(request, 10, load.who) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                for sample in family.samples if family.name.startswith("vllm:spec_decode_") else ():
                    name = sample.name.removeprefix("vllm:spec_decode_").removesuffix("_total")
                    if not name.endswith("_created"):
                        name += f":{sample.labels['position']}" if "position" in sample.labels else ""
                        found[name] = found.get(name, 0.0) + sample.value
    except (*FAILURES, ValueError):
        return {}
    return found


class Sent(NamedTuple):
    """What came of a load: its answers, and the seconds it took. ``busiest``: share of its time in which the busiest of
    the client processes computed; near 1 it was the clients that were measured."""

    answers: list[Answer]
    seconds: float
    busiest: float


def serve(load: Load) -> Sent:
    """Send the load. Raises ConfigError where the server cannot be reached."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise ConfigError("octavo bench serve needs the aiohttp package: pip install 'octavo[bench]'") from None
    if load.warmups:
        first = replace(
            load, requests=load.warmups, concurrency=load.warmups, rate=0.0, processes=1, seed=load.seed + 1
        )
        failed = [one.error for one in _run(first).answers if one.error]
        if failed:
            raise ConfigError(f"a request to warm up failed: {failed[0]}")
    return _run(load)


def _run(load: Load) -> Sent:
    count = max(1, min(load.processes, load.concurrency or load.processes, load.requests))
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count + 1)
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    children = [
        context.Process(target=_client, args=(load, index, count, barrier, pipes[index][1]), daemon=True)
        for index in range(count)
    ]
    for child in children:
        child.start()
    try:
        barrier.wait(60)
    except threading.BrokenBarrierError:
        raise EngineDead("the client processes did not start within 60 s") from None
    begin = time.perf_counter()
    answers: list[Answer] = []
    spent = [0.0]
    for (receive, _), child in zip(pipes, children, strict=True):
        while not receive.poll(1.0):
            if not child.is_alive() and not receive.poll():
                raise EngineDead(f"a client process ended with exit code {child.exitcode}")
        some, computed = receive.recv()
        answers += some
        spent.append(computed)
    seconds = time.perf_counter() - begin
    for child in children:
        child.join(10)
    return Sent(answers, seconds, max(spent) / seconds)


def _client(load: Load, index: int, count: int, barrier: Any, send: Any) -> None:
    send.send(asyncio.run(_drive(load, index, count, barrier)))


async def _drive(load: Load, index: int, count: int, barrier: Any) -> tuple[list[Answer], float]:
    import aiohttp

    draw = random.Random(load.seed * 1000 + index)
    mine = load.requests // count + (index < load.requests % count)
    most = load.concurrency or load.requests
    rows = most // count + (index < most % count)
    shared = random.Random(load.seed).choices(_ids(load), k=load.prefix)
    bodies = [_body(load, shared, draw) for _ in range(mine)]
    answers: list[Answer] = []
    headers = ({"Authorization": f"Bearer {load.key}"} if load.key else {}) | load.headers
    url = load.base + load.path
    barrier.wait(60)
    begin = time.process_time()
    options: dict[str, Any] = {
        "connector": aiohttp.TCPConnector(limit=0, ssl=True if load.who is None else load.who.context()),
        "timeout": aiohttp.ClientTimeout(total=load.timeout),
    }
    async with aiohttp.ClientSession(headers=headers, **options) as session:
        left = iter(bodies)

        async def worker() -> None:
            for size, body in left:
                answers.append(await _one(session, url, size, body))

        async def single(free: asyncio.Semaphore, size: int, body: dict[str, Any]) -> None:
            async with free:
                answers.append(await _one(session, url, size, body))

        if load.rate:
            free, tasks = asyncio.Semaphore(max(1, rows)), []
            mean = count / load.rate
            for size, body in bodies:
                tasks.append(asyncio.create_task(single(free, size, body)))
                await asyncio.sleep(draw.gammavariate(load.burstiness, mean / load.burstiness))
            await asyncio.gather(*tasks)
        else:
            await asyncio.gather(*(worker() for _ in range(rows)))
    return answers, time.process_time() - begin


def _ids(load: Load) -> range:
    return range(min(_FIRST_ID, load.vocabulary // 2), load.vocabulary)


def _body(load: Load, shared: list[int], draw: random.Random) -> tuple[int, dict[str, Any]]:
    """(prompt tokens, body) of a request."""

    def length(mean: int) -> int:
        if not load.spread:
            return mean
        return draw.randint(max(1, math.floor(mean * (1 - load.spread))), math.ceil(mean * (1 + load.spread)))

    ids = [*shared, *draw.choices(_ids(load), k=length(load.inputs))]
    body: dict[str, Any] = {
        "model": load.model,
        "max_tokens": length(load.outputs),
        "temperature": load.temperature,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    said = {"messages": [{"role": "user", "content": " ".join(map(str, ids))}]} if load.chat else {"prompt": ids}
    return len(ids), body | said | load.extra


async def _one(session: Any, url: str, size: int, body: dict[str, Any]) -> Answer:
    found = Answer(time.perf_counter(), size)
    last = found.start
    try:
        async with session.post(url, json=body) as response:
            if response.status != 200:
                found.error = f"{response.status}: {(await response.text())[:200]}"
                return found
            rest = b""
            async for block in response.content.iter_any():
                now = time.perf_counter()
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    if not (_plain(line) or _read(line, found)):
                        continue
                    if found.ttft is None:
                        found.ttft = now - found.start
                    else:
                        found.itl.append(now - last)
                    last = now
                if found.error:
                    return found
    except Exception as error:
        found.error = f"{type(error).__name__}: {error}"[:200]
        return found
    found.e2el = time.perf_counter() - found.start
    return found


def _plain(line: bytes) -> bool:
    """Whether a line is a chunk of a completion with text and nothing more: most lines are, and need no JSON read. (A
    quotation mark within a text has a backslash before it.)"""
    return (
        line.startswith(b'data: {"')
        and b'"text":"' in line
        and b'"usage":{' not in line
        and b'"usage": {' not in line
        and b'"error":' not in line
    )


def _read(line: bytes, found: Answer) -> bool:
    """Take what a line says into ``found``; whether it brings text."""
    if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
        return False
    chunk = json.loads(line[5:])
    if "error" in chunk:
        found.error = str(chunk["error"])[:200]
        return False
    if usage := chunk.get("usage"):
        found.tokens, found.inputs = usage["completion_tokens"], usage["prompt_tokens"]
    return bool(chunk.get("choices")) and _has_text(chunk["choices"][0])


def _has_text(choice: dict[str, Any]) -> bool:
    """A first chat chunk has a role and no text: it is no token."""
    delta = choice.get("delta", {})
    return "text" in choice or any(
        delta.get(name) for name in ("content", "reasoning", "reasoning_content", "tool_calls")
    )
