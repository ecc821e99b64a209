"""What is asked of every process that serves the engine: one, or several that each have their own requests."""

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from octavo.front.server.peers import PATIENCE

if TYPE_CHECKING:
    from octavo.front.server.service import Service

#: What a sleeping engine's server says.
SLEEPS = "the engine sleeps; POST /wake_up wakes it"


class Everywhere:
    """Each method does its thing here and in the other processes. ``asleep``: 0 awake, else the level."""

    def __init__(self, service: "Service"):
        self._service = service
        self.asleep = 0
        self._words: dict[str, Callable[..., Any]] = {
            "close": service.gate.close,
            "open": service.gate.open,
            "abort": service.stop_open,
            "drain": service.engine.drain,
            "paused": self._paused,
            "load": lambda: len(service.open),
        }
        if service.peers is not None:
            service.peers.words |= self._words

    async def catch_up(self) -> None:
        """For a process that comes later: how the engine stands. What it missed was said before it listened."""
        found = await self._service.engine.call("health")
        self.asleep = found["asleep"]
        if found["paused"]:
            self._paused(True)
            self._service.gate.close(SLEEPS if self.asleep else None)

    async def close(self, why: str | None = None) -> None:
        await self._all("close", why)

    async def open(self) -> None:
        await self._all("open")

    async def abort(self) -> None:
        await self._all("abort")

    async def drain(self, seconds: float) -> bool:
        """Whether no request is open within ``seconds``."""
        return all(await self._all("drain", seconds, timeout=seconds + PATIENCE))

    async def paused(self, paused: bool) -> None:
        await self._all("paused", paused)

    async def load(self) -> int:
        return sum(await self._all("load"))

    async def _all(self, word: str, *args: Any, timeout: float = PATIENCE) -> list[Any]:
        peers = self._service.peers
        if peers is None:
            return [await self._here(word, *args)]
        mine, others = await asyncio.gather(self._here(word, *args), peers.ask_all(word, *args, timeout=timeout))
        return [mine, *others]

    async def _here(self, word: str, *args: Any) -> Any:
        found = self._words[word](*args)
        return await found if inspect.isawaitable(found) else found

    def _paused(self, paused: bool) -> None:
        self._service.engine.paused = paused
