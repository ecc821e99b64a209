"""What ``call`` may name. A command is a function of the core and its arguments; anything else goes to the worker."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import BadRequest, RequestError

if TYPE_CHECKING:
    from octavo.core.engine.core import EngineCore


def health(core: "EngineCore") -> dict[str, Any]:
    """Alive and moving: ``stalled`` is None, or the sentence of the watchdog. ``pid`` is the core's process."""
    return {
        "stalled": core.stalled,
        "unfinished": core.scheduler.unfinished,
        "closing": core.scheduler.closing,
        "paused": core.scheduler.paused,
        "asleep": core.asleep,
        "steps": core.steps,
        "faults": core.faults,
        "pid": os.getpid(),
    }


def stats(core: "EngineCore") -> dict[str, Any]:
    """Gauges of now, and what the loop did since the start."""
    book = core.scheduler.book
    pool = book.kv.pool
    return {
        "running": len(book.running),
        "waiting": len(book.live) - len(book.running),
        "kv_usage": pool.usage,
        "pages": pool.pages - 1,
        "pages_free": pool.free,
        "pages_cached": pool.cached,
        "rows_free": book.rows.available,
        "inflight": core.outstanding,
        "steps": core.steps,
        "busy_seconds": core.spent.busy,
        "plan_seconds": core.spent.plan,
        "launch_seconds": core.spent.launch,
        "wait_seconds": core.spent.wait,
        "draft_tokens": book.drafted,
        "accepted_tokens": book.accepted,
    }


def reset_prefix_cache(core: "EngineCore") -> int:
    """Forget all cached prefixes; requests that run keep their pages. Returns how many pages were forgotten."""
    return core.scheduler.book.kv.pool.reset()


def pause(core: "EngineCore") -> int:
    """Plan no steps until ``resume``; what is in flight comes back. Returns how many requests wait."""
    core.scheduler.paused = True
    return core.scheduler.unfinished


def resume(core: "EngineCore") -> int:
    """Go on. Returns how many requests there are. Raises ``BadRequest`` where the engine sleeps."""
    if core.asleep:
        raise BadRequest("the engine sleeps; wake it first")
    core.scheduler.paused = False
    return core.scheduler.unfinished


def sleep(core: "EngineCore", level: int) -> Any:
    """Pause, and give the device's memory back: the KV cache and the weights, which level 1 keeps in host memory and
    level 2 loads again. Requests wait; those that ran compute their tokens' KV again. Returns what the worker says.

    Raises ``ValueError`` where the worker cannot, and changes nothing then.
    """
    if level not in (1, 2):
        raise BadRequest(f"level must be 1 or 2, got {level}", "level")
    if core.asleep >= level:
        return None
    paused = core.scheduler.paused
    core.stand_down()
    try:
        told = core.worker.call("sleep", level)
    except ValueError:
        core.scheduler.paused = paused
        raise
    core.asleep = level
    core.scheduler.book.kv.pool.reset()
    return told


def wake(core: "EngineCore", tags: Sequence[str]) -> bool:
    """Bring back what ``tags`` name: "weights", "kv_cache". True once all is there; ``resume`` then goes on."""
    if core.asleep and core.worker.call("wake", list(tags)):
        core.asleep = 0
    return not core.asleep


def drain(core: "EngineCore") -> int:
    """Refuse new requests from now on, go on with those there are. Returns how many there are."""
    core.scheduler.closing = True
    return core.scheduler.unfinished


COMMANDS: dict[str, Callable[..., Any]] = {
    "health": health,
    "stats": stats,
    "reset_prefix_cache": reset_prefix_cache,
    "pause": pause,
    "resume": resume,
    "drain": drain,
    "sleep": sleep,
    "wake": wake,
}


def run(core: "EngineCore", command: str, args: tuple) -> Any:
    """Run a command by name: the core's own, else the worker's, whose error names the known ones of both."""
    own = COMMANDS.get(command)
    if own is not None:
        return own(core, *args)
    try:
        return core.worker.call(command, *args)
    except RequestError:
        raise
    except ValueError as error:
        raise ValueError(f"{error}; known to the core: {', '.join(COMMANDS)}") from error
