"""ThreadClient: an engine core of this process, run in a thread of its own, for an event loop that must not wait."""

import os
import threading
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from octavo.errors import EngineDead, OctavoError
from octavo.wire.hello import Ready
from octavo.wire.ports import CorePort
from octavo.wire.reply import AbortReason, StepReply
from octavo.wire.request import EngineRequest
from octavo.wire.vocabulary import Vocabulary


@runtime_checkable
class LoopPort(CorePort, Protocol):
    """A core that an event loop can watch: ``fd`` becomes readable when ``poll(0)`` has something to give."""

    @property
    def fd(self) -> int: ...

    @property
    def stalled(self) -> str | None:
        """What the core's watchdog says; None while there is progress."""


class ThreadClient:
    """A ``LoopPort`` over an inline core that is started. The thread does nothing but ``poll``; ``add``, ``abort`` and
    ``call`` go straight to the core, which takes them from any thread."""

    def __init__(self, core: CorePort):
        self._core = core
        self._outbox: list[StepReply] = []
        self._lock = threading.Lock()
        self._closed = False
        self._dead: str | None = None
        self._receiver, self._sender = os.pipe()
        os.set_blocking(self._receiver, False)
        os.set_blocking(self._sender, False)
        self._thread = threading.Thread(target=self._run, name="octavo-core", daemon=True)
        self._thread.start()

    @property
    def fd(self) -> int:
        return self._receiver

    @property
    def stalled(self) -> str | None:
        return getattr(self._core, "stalled", None)

    def start(self) -> Ready:
        return self._core.start()

    def add(self, requests: Sequence[EngineRequest]) -> None:
        self._check_alive()
        self._core.add(requests)

    def abort(self, handles: Sequence[int], reason: AbortReason) -> None:
        self._core.abort(handles, reason)

    def teach(self, vocabulary: Vocabulary) -> None:
        self._check_alive()
        self._core.teach(vocabulary)

    def poll(self, timeout: float | None = 0.0) -> list[StepReply]:
        """Replies so far; it never waits, whatever ``timeout`` says: the file descriptor tells when to come."""
        try:
            while os.read(self._receiver, 4096):
                pass
        except OSError:  # nothing more to read
            pass
        with self._lock:
            replies, self._outbox = self._outbox, []
        if not replies:
            self._check_alive()
        elif self._dead is not None:
            self._wake()  # its end came together with its last words, and is told the next time
        return replies

    def call(self, command: str, *args: Any, timeout: float = 60.0) -> Any:
        self._check_alive()
        return self._core.call(command, *args, timeout=timeout)

    def close(self, deadline: float = 5.0) -> None:
        if self._closed:
            return
        self._closed = True
        self._core.abort((), AbortReason.SHUTDOWN)  # wakes the thread
        self._thread.join(deadline)
        self._core.close(deadline)
        self._dead = self._dead or "the engine was closed"
        if not self._thread.is_alive():
            os.close(self._receiver)
            os.close(self._sender)

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDead(self._dead)

    def _run(self) -> None:
        try:
            while not self._closed:
                replies = self._core.poll(None)
                if replies:
                    with self._lock:
                        self._outbox += replies
                    self._wake()
        except Exception as error:
            self._dead = str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
            self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._sender, b"\0")
        except BlockingIOError:
            pass  # the pipe is full: the reader is awake already
