"""The gate before the engine: open, or closed while the engine is paused or sleeps."""

import asyncio
import time
from collections.abc import Callable

from octavo.errors import Overloaded, RequestError

#: Requests that wait at a closed gate, and seconds between two looks at whether the server lives.
MOST, LOOK_EVERY = 10_000, 1.0


class Closed(RequestError):
    """The engine takes no requests now, since somebody asked for that."""

    status = 503
    type = "ServiceUnavailableError"


class Gate:
    """``passed`` returns at once while it is open. Closed, requests wait, or are refused with ``why``."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._why: str | None = None
        self._waiting = 0

    @property
    def closed(self) -> bool:
        return not self._open.is_set()

    def close(self, why: str | None = None) -> None:
        """From now on requests wait; with ``why`` they are refused, those that wait already too."""
        self._why = why
        self._open.clear()

    def open(self) -> None:
        self._why = None
        self._open.set()

    async def passed(self, check: Callable[[], None], deadline: float | None) -> None:
        """Once it is open. ``check`` raises where waiting has no use any more; ``deadline``: monotonic seconds.

        Raises ``Closed`` where requests are refused or the deadline passes, ``Overloaded`` where too many wait.
        """
        if not self.closed:
            return
        if self._waiting >= MOST:
            raise Overloaded(f"the engine is paused, and {MOST} requests wait already")
        self._waiting += 1
        try:
            while self.closed:
                if self._why is not None:
                    raise Closed(self._why)
                check()
                if deadline is not None and time.monotonic() >= deadline:
                    raise Closed("the engine is paused, and the time for this request has passed")
                try:
                    await asyncio.wait_for(self._open.wait(), LOOK_EVERY)
                except TimeoutError:
                    pass
        finally:
            self._waiting -= 1
