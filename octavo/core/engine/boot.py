"""Boot: what the worker needs and has -> a layout -> a worker that can run -> Ready."""

import time
from dataclasses import dataclass

from octavo.common.log import logger
from octavo.common.words import size
from octavo.config.engine import EngineConfig
from octavo.core.kv.manager import KVManager
from octavo.core.kv.planner import plan_layout, step_tokens
from octavo.errors import ConfigError
from octavo.wire.hello import Hello, Ready
from octavo.wire.kv import KVLayout
from octavo.wire.ports import WorkerPort

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Booted:
    hello: Hello
    layout: KVLayout
    kv: KVManager
    ready: Ready


def boot(config: EngineConfig, worker: WorkerPort) -> Booted:
    """Settle what only the device can say. Raises ``ConfigError`` (``OutOfMemory``, ``CheckpointError``)."""
    hello = worker.hello()
    schedule = config.schedule
    if schedule.policy not in ("fcfs", "priority"):
        raise ConfigError(f"--scheduling-policy {schedule.policy!r} is not known; known: fcfs, priority")
    if schedule.speculation is not None and schedule.speculation.asked:
        check_drafts(schedule.speculation.tokens, hello)
    positions = config.model.facts.max_positions if schedule.max_model_len is None else schedule.max_model_len
    asked = schedule.max_model_len is not None
    layout, length = plan_layout(hello, config.cache, schedule, positions, asked)
    if length < positions:
        log.warning("the longest request is cut from %d to %d tokens: what the KV cache holds", positions, length)
    begin = time.monotonic()
    worker.build(layout, length)
    built = time.monotonic()
    model = config.model
    kv = KVManager(
        layout,
        identity="\0".join((model.path, model.dtype, model.quantization or "", model.load_format, str(model.seed))),
        dtype=hello.dtype if config.cache.dtype == "auto" else config.cache.dtype,
        step=step_tokens(schedule),
        caching=config.cache.prefix_caching,
    )
    tokens = (layout.pages - 1) * length // max(1, kv.need(length))
    phases = {**hello.phases, "build": built - begin}
    ready = Ready(length, hello.vocab, layout.page, layout.pages, tokens, hello.limits, hello.backends, phases)
    log.info("memory of %s\n%s", hello.device, memory_table(hello, layout, tokens))
    return Booted(hello, layout, kv, ready)


def check_drafts(tokens: int, hello: Hello) -> None:
    most = hello.limits.drafts
    if not most:
        raise ConfigError(f"--speculative-config: on {hello.device} ({hello.platform}) steps verify no drafts yet")
    if tokens > most:
        raise ConfigError(
            f"--speculative-config has num_speculative_tokens {tokens}; a step verifies at most {most} a request"
        )


def others(hello: Hello) -> list[tuple[str, int, str]]:
    """The rows that only a device with memory of its own has."""
    return [
        ("graphs", hello.graphs, "at most"),
        ("margin", hello.margin, ""),
        ("others", hello.others, "other processes, the driver, libraries"),
        ("device", hello.total, "all there is"),
    ]


def memory_table(hello: Hello, layout: KVLayout, tokens: int) -> str:
    """Where the memory goes, for people."""
    rows = [
        ("weights", size(hello.weights), ""),
        ("activations", size(hello.activations), ""),
        *((name, size(amount), note) for name, amount, note in others(hello) if amount),
        ("KV cache", size(layout.total_bytes), f"{tokens:,} tokens, {layout.pages - 1:,} pages of {layout.page}"),
    ]
    return "\n".join(f"  {name:<12} {amount:>10}  {note}".rstrip() for name, amount, note in rows)
