"""`octavo bench serve`: load on a running OpenAI-compatible server, measured as a client sees it.

Requests are spread over a few client processes, since one Python loop cannot read as fast as a server writes.
TTFT is the first chunk after sending, ITL the gaps between chunks, E2EL the whole latency, and
TPOT (latency - TTFT) / (tokens - 1).
"""

import asyncio
import json
import multiprocessing
import random
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from octavo.bench import report
from octavo.errors import ConfigError, EngineDead


@dataclass(kw_only=True)
class Load:
    """What to send. ``label``: name of the model in the record, instead of its own. ``rate``: requests a second
    (Poisson arrivals; 0 = as fast as ``concurrency`` allows)."""

    url: str
    model: str
    label: str | None = None
    requests: int = 100
    concurrency: int = 32
    inputs: int = 512
    outputs: int = 128
    rate: float = 0.0
    temperature: float = 0.6
    seed: int = 0
    processes: int = 4
    key: str | None = None
    chat: bool = False
    timeout: float = 600.0


@dataclass
class Seen:
    """What one client process saw; times in seconds."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    e2el: list[float] = field(default_factory=list)
    tokens: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, other: "Seen") -> None:
        for name in ("ttft", "itl", "tpot", "e2el", "errors"):
            getattr(self, name).extend(getattr(other, name))
        self.tokens += other.tokens


def models(url: str, key: str | None) -> list[str]:
    """The server's model names. Raises ConfigError where it cannot be reached or has none."""
    address = url.rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {key}"} if key else {})
        with urllib.request.urlopen(request, timeout=10) as answer:
            names = [one["id"] for one in json.load(answer)["data"]]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"no server answers at {address}: {error}") from None
    if not names:
        raise ConfigError(f"the server at {address} has no model")
    return names


def serve(load: Load) -> dict[str, Any]:
    """Send the load; a record with vLLM's key names. Raises ConfigError where the server cannot be reached."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise ConfigError("octavo bench serve needs the aiohttp package: pip install 'octavo[bench]'") from None
    count = max(1, min(load.processes, load.concurrency, load.requests))
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
    total = Seen()
    for (receive, _), child in zip(pipes, children, strict=True):
        while not receive.poll(1.0):
            if not child.is_alive() and not receive.poll():
                raise EngineDead(f"a client process ended with exit code {child.exitcode}")
        total.add(receive.recv())
    seconds = time.perf_counter() - begin
    for child in children:
        child.join(10)
    return _summary(load, total, seconds)


def _summary(load: Load, seen: Seen, seconds: float) -> dict[str, Any]:
    done = len(seen.e2el)
    values: dict[str, Any] = {
        "workload": f"serve {load.inputs}/{load.outputs} at {load.concurrency}",
        "impl": "octavo",
        "model": load.label or load.model,
        "num_prompts": load.requests,
        "max_concurrency": load.concurrency,
        "request_rate": load.rate or "inf",
        "seconds": round(seconds, 3),
        "completed": done,
        "failed": len(seen.errors),
        "first_error": seen.errors[0] if seen.errors else None,
        "total_input_tokens": done * load.inputs,
        "total_output_tokens": seen.tokens,
        "request_throughput": round(done / seconds, 3),
        "out_tok_s": round(seen.tokens / seconds, 1),
        "in_tok_s": round(done * load.inputs / seconds, 1),
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        times = [value * 1e3 for value in getattr(seen, name)]
        values[f"mean_{name}_ms"] = round(sum(times) / len(times), 3) if times else None
        for q in (50, 99):
            values[f"p{q}_{name}_ms"] = round(report.percentile(times, q), 3) if times else None
    return report.record(**values)


def block(record: dict[str, Any]) -> str:
    """The result as the block of figures that users of vLLM know."""
    lines = ["============ Serving Benchmark Result ============"]

    def row(label: str, value: Any) -> None:
        text = "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else str(value)
        lines.append(f"{label:<40}{text:>10}")

    row("Successful requests:", record["completed"])
    row("Failed requests:", record["failed"])
    row("Maximum request concurrency:", record["max_concurrency"])
    row("Benchmark duration (s):", record["seconds"])
    row("Total input tokens:", record["total_input_tokens"])
    row("Total generated tokens:", record["total_output_tokens"])
    row("Request throughput (req/s):", record["request_throughput"])
    row("Output token throughput (tok/s):", record["out_tok_s"])
    row("Total token throughput (tok/s):", round(record["out_tok_s"] + record["in_tok_s"], 1))
    titles = {"ttft": "Time to First Token", "tpot": "Time per Output Token", "itl": "Inter-token Latency"}
    for name, title in (titles | {"e2el": "End-to-end Latency"}).items():
        lines.append(title.center(50, "-"))
        for key, label in (("mean", "Mean"), ("p50", "Median"), ("p99", "P99")):
            row(f"{label} {name.upper()} (ms):", record[f"{key}_{name}_ms"])
    if record["first_error"]:
        lines.append(f"First error: {record['first_error']}")
    return "\n".join([*lines, "=" * 50])


def _client(load: Load, index: int, count: int, barrier: Any, send: Any) -> None:
    send.send(asyncio.run(_drive(load, index, count, barrier)))


async def _drive(load: Load, index: int, count: int, barrier: Any) -> Seen:
    import aiohttp

    draw = random.Random(load.seed * 1000 + index)
    mine = load.requests // count + (index < load.requests % count)
    rows = load.concurrency // count + (index < load.concurrency % count)
    bodies = [_body(load, [draw.randint(100, 20_000) for _ in range(load.inputs)]) for _ in range(mine)]
    seen = Seen()
    headers = {"Authorization": f"Bearer {load.key}"} if load.key else {}
    url = load.url.rstrip("/").removesuffix("/v1") + ("/v1/chat/completions" if load.chat else "/v1/completions")
    barrier.wait(60)
    options: Any = {"connector": aiohttp.TCPConnector(limit=0), "timeout": aiohttp.ClientTimeout(total=load.timeout)}
    async with aiohttp.ClientSession(headers=headers, **options) as session:
        if load.rate:
            tasks = []
            for body in bodies:
                tasks.append(asyncio.create_task(_one(session, url, body, seen)))
                await asyncio.sleep(draw.expovariate(load.rate / count))
            await asyncio.gather(*tasks)
        else:
            left = iter(bodies)

            async def worker() -> None:
                for body in left:
                    await _one(session, url, body, seen)

            await asyncio.gather(*(worker() for _ in range(rows)))
    return seen


def _body(load: Load, ids: list[int]) -> dict[str, Any]:
    body = {
        "model": load.model,
        "max_tokens": load.outputs,
        "temperature": load.temperature,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if load.chat:
        return body | {"messages": [{"role": "user", "content": " ".join(map(str, ids))}]}
    return body | {"prompt": ids}


async def _one(session: Any, url: str, body: dict[str, Any], seen: Seen) -> None:
    begin = time.perf_counter()
    first = last = None
    made = 0
    try:
        async with session.post(url, json=body) as response:
            if response.status != 200:
                seen.errors.append(f"{response.status}: {(await response.text())[:200]}")
                return
            async for line in response.content:
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                chunk = json.loads(line[5:])
                if "error" in chunk:
                    seen.errors.append(str(chunk["error"])[:200])
                    return
                if chunk.get("usage"):
                    made = chunk["usage"]["completion_tokens"]
                if not chunk.get("choices") or not _has_text(chunk["choices"][0]):
                    continue
                now = time.perf_counter()
                if first is None:
                    first = now
                    seen.ttft.append(now - begin)
                else:
                    seen.itl.append(now - (last or now))
                last = now
    except Exception as error:
        seen.errors.append(f"{type(error).__name__}: {error}"[:200])
        return
    seen.tokens += made
    seen.e2el.append(time.perf_counter() - begin)
    if first is not None and last is not None and made > 1:
        seen.tpot.append((last - first) / (made - 1))


def _has_text(choice: dict[str, Any]) -> bool:
    """A first chat chunk has a role and no text: it is no token."""
    return "text" in choice or choice.get("delta", {}).get("content") not in (None, "")
