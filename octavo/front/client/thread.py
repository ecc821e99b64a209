"""ThreadClient: an engine core of this process, run in a thread of its own, for an event loop that must not wait."""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from octavo.errors import EngineDead, OctavoError
from octavo.wire.hello import Ready
from octavo.wire.ports import CorePort
from octavo.wire.reply import AbortReason, Refused, StepReply
from octavo.wire.request import EngineRequest

#: Seconds that a poll of a busy core may wait for its device before new requests are looked at.
_PATIENCE = 1.0


@runtime_checkable
class LoopPort(CorePort, Protocol):
    """A core that an event loop can watch: ``fd`` becomes readable when ``poll(0)`` has something to give."""

    @property
    def fd(self) -> int: ...


class ThreadClient:
    """A ``LoopPort`` over an inline core. All calls into the core happen in one thread."""

    def __init__(self, core: CorePort):
        self._core = core
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outbox: list[StepReply] = []
        self._lock = threading.Lock()
        self._open: set[int] = set()
        self._dead: str | None = None
        self._receiver, self._sender = os.pipe()
        os.set_blocking(self._receiver, False)
        os.set_blocking(self._sender, False)
        self._thread = threading.Thread(target=self._run, name="octavo-core", daemon=True)
        self._thread.start()

    @property
    def fd(self) -> int:
        return self._receiver

    def start(self) -> Ready:
        return self._ask(self._core.start, None)

    def add(self, requests: Sequence[EngineRequest]) -> None:
        self._check_alive()
        taken = list(requests)

        def give() -> None:
            self._open.update(request.handle for request in taken)
            self._core.add(taken)

        self._inbox.put(give)

    def abort(self, handles: Sequence[int], reason: AbortReason) -> None:
        gone = list(handles)

        def end() -> None:
            self._open.difference_update(gone)
            self._core.abort(gone, reason)

        self._inbox.put(end)

    def poll(self, timeout: float | None = 0.0) -> list[StepReply]:
        """Replies so far; it never waits, whatever ``timeout`` says: the file descriptor tells when to come."""
        try:
            while os.read(self._receiver, 4096):
                pass
        except OSError:
            pass
        with self._lock:
            replies, self._outbox = self._outbox, []
        if not replies:
            self._check_alive()
        return replies

    def call(self, command: str, *args: Any, timeout: float = 60.0) -> Any:
        return self._ask(lambda: self._core.call(command, *args, timeout=timeout), timeout)

    def close(self, deadline: float = 5.0) -> None:
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join(deadline)
        if self._dead is None:
            self._dead = "the engine was closed"
            self._core.close(deadline)
            os.close(self._receiver)
            os.close(self._sender)

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDead(self._dead)

    def _ask(self, what: Callable[[], Any], timeout: float | None) -> Any:
        self._check_alive()
        answer: Future = Future()

        def run() -> None:
            try:
                answer.set_result(what())
            except Exception as error:
                answer.set_exception(error)

        self._inbox.put(run)
        return answer.result(timeout)

    def _run(self) -> None:
        try:
            while self._take():
                replies = self._core.poll(_PATIENCE if self._open else 0.0)
                if replies:
                    self._tell(replies)
        except Exception as error:
            self._dead = str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
            self._wake()

    def _take(self) -> bool:
        """Run what was asked; waits for it where the core has nothing to do. False: close."""
        wait = not self._open
        while True:
            try:
                todo = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            if todo is None:
                return False
            todo()
            wait = False

    def _tell(self, replies: list[StepReply]) -> None:
        for reply in replies:
            self._open.difference_update(delta.handle for delta in reply.deltas if delta.finish is not None)
            self._open.difference_update(said.handle for said in reply.answers if isinstance(said, Refused))
        with self._lock:
            self._outbox += replies
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._sender, b"\0")
        except BlockingIOError:
            pass  # the pipe is full: the reader is awake already
