"""Watchdog: reports a loop that has work and makes no progress; being alive is not enough."""

import threading
import time
from collections.abc import Callable

from octavo.common.log import logger

log = logger(__name__)


class Watchdog:
    """Its thread sleeps; it looks a few times a ``timeout``. A listener is called, in that thread, with a sentence when
    the loop stalls and with None when it moves again."""

    def __init__(self, timeout: float):
        self.timeout = timeout
        self.stalled: str | None = None
        self._tell: Callable[[str | None], None] | None = None
        self._since: float | None = None
        self._what = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="octavo-watchdog", daemon=True)
        self._thread.start()

    def listen(self, tell: Callable[[str | None], None]) -> None:
        self._tell = tell

    def begin(self, what: str) -> None:
        """The loop starts on something that has to end."""
        self._what = what
        self._since = time.monotonic()

    def end(self) -> None:
        """It ended, or there is nothing to do."""
        self._since = None

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _watch(self) -> None:
        while not self._stop.wait(self.timeout / 4):
            since, what = self._since, self._what
            waited = 0.0 if since is None else time.monotonic() - since
            if waited >= self.timeout and self.stalled is None:
                self.stalled = f"{what} has made no progress for {waited:.0f} seconds"
                log.error("%s", self.stalled)
                if self._tell is not None:
                    self._tell(self.stalled)
            elif waited < self.timeout and self.stalled is not None:
                self.stalled = None
                log.warning("the engine makes progress again")
                if self._tell is not None:
                    self._tell(None)
