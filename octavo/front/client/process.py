"""ProcessClient: a CorePort over ZeroMQ, for an engine core in a process of its own."""

import builtins
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from octavo import errors
from octavo.common.log import level as log_level
from octavo.common.log import logger
from octavo.common.net import IpcDirectory
from octavo.common.proc import Child, spawn
from octavo.config.engine import EngineConfig
from octavo.errors import EngineDead
from octavo.wire.codec import Codec
from octavo.wire.hello import Ready
from octavo.wire.messages import Abort, Add, Answer, Call, Close, Down, Join, Stalled, Teach, ToClient, ToCore, Told, Up
from octavo.wire.reply import AbortReason, StepReply
from octavo.wire.request import EngineRequest
from octavo.wire.vocabulary import Vocabulary

log = logger(__name__)

#: What a child runs; named, not imported: floors never import one another.
MAIN = "octavo.core.engine.process:main"
#: Milliseconds that a dying core's last words may take to arrive.
LAST_WORDS = 500
_LOOK_EVERY = 0.1


@dataclass(slots=True)
class _Waiting:
    """A call that waits for its answer in some thread."""

    bell: int = field(default_factory=lambda: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
    answer: Answer | None = None


class ProcessClient:
    """``start`` runs the core as a child and waits until it can serve; a second client joins it by ``join``.

    ``fd`` is readable whenever ``poll(0)`` has something to give or to raise: give it to ``loop.add_reader``. The
    core's death is seen on it too, at once. Methods may be called from any thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        client: int = 0,
        join: tuple[str, str, int] | None = None,
        start_timeout: float = 1800.0,
    ):
        """``join``: address, watch address and process id of a core that another client started (its ``place``)."""
        self.config = config
        self.client = client
        self.dead: str | None = None
        self.stalled: str | None = None
        self._start_timeout = start_timeout
        self._join = join
        self._ready: Ready | None = None
        self._down: Down | None = None
        self._child: Child | None = None
        self._directory: IpcDirectory | None = None
        self._life = -1
        self._closed = False
        self._started = False
        self._calls = 0
        self._waiting: dict[int, _Waiting] = {}
        self._replies: list[StepReply] = []
        self._lock = threading.RLock()
        self._encoder = Codec(ToCore)
        self._decoder = Codec(ToClient)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._watch = self._context.socket(zmq.SUB)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # What the core causes, and around it what this side causes: a thread in ``call`` sleeps on the first alone.
        self._outside = select.epoll()
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._epoll.register(self._outside.fileno(), select.EPOLLIN)
        self._ended = select.poll()

    @property
    def fd(self) -> int:
        return self._epoll.fileno()

    @property
    def place(self) -> tuple[str, str, int]:
        """What another client needs to join the same core."""
        assert self._started, "the core is not started"
        return self._place

    @property
    def pid(self) -> int:
        """The core's process."""
        return self.place[2]

    # CorePort.

    def launch(self) -> None:
        """Start the core's process without waiting for it, which ``start`` then does: there is other work meanwhile."""
        if not self._started:
            self._connect()

    def start(self, look: Callable[[], None] | None = None) -> Ready:
        """Raises ``ConfigError`` with what the core says is wrong, or ``EngineDead``. ``look`` is called now and then
        meanwhile; what it raises ends the start."""
        if self._ready is not None:
            return self._ready
        try:
            self.launch()
            return self._await_ready(look)
        except BaseException:
            self.close(1.0)
            raise

    def add(self, requests: Sequence[EngineRequest]) -> None:
        self._check_alive()
        self._send(Add(list(requests)))

    def abort(self, handles: Sequence[int], reason: AbortReason = AbortReason.CLIENT) -> None:
        """Nothing to do where the core is gone."""
        if self.dead is None:
            self._send(Abort(list(handles), reason))

    def teach(self, vocabulary: Vocabulary) -> None:
        self._check_alive()
        self._send(Teach(vocabulary))

    def poll(self, timeout: float | None = 0.0) -> list[StepReply]:
        """Replies so far, waiting up to ``timeout`` seconds for the first (None: without end). Raises ``EngineDead``
        once the core is gone and everything it said is told."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self._quiet(self._bell)
                self._pump()
                if self._replies:
                    replies, self._replies = self._replies, []
                    return replies
                self._check_alive()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return []
            self._epoll.poll(left)

    def call(self, command: str, *args: Any, timeout: float = 60.0) -> Any:
        """Raises what the command raised, ``TimeoutError``, or ``EngineDead``. ``health`` of a core whose loop hangs is
        answered from what its watchdog says."""
        until = time.monotonic() + timeout
        waiting = _Waiting()
        with self._lock:
            self._check_alive()
            self._calls += 1
            number = self._calls
            self._waiting[number] = waiting
        poller = select.poll()
        poller.register(waiting.bell, select.POLLIN)
        poller.register(self._outside.fileno(), select.POLLIN)
        try:
            self._send(Call(number, command, list(args)))
            while True:
                with self._lock:
                    self._quiet(waiting.bell)
                    self._pump()
                    if self._replies:
                        self._ring(self._bell)  # for whoever polls; they may have come together with the answer
                    if waiting.answer is not None:
                        return _given(waiting.answer)
                    self._check_alive()
                    if command == "health" and self.stalled is not None:
                        return {"stalled": self.stalled, "pid": self.pid}
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"the engine did not answer {command!r} within {timeout:g} seconds")
                poller.poll(left * 1000)
        finally:
            with self._lock:
                del self._waiting[number]
                os.close(waiting.bell)

    def close(self, deadline: float = 5.0) -> None:
        """End the core if this client started it, else leave it. It is killed when ``deadline`` seconds do not do."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._started and self.dead is None:
                self._send(Close())
        if self._child is not None:
            # One that never served has nothing to finish, and its loading cannot be asked to end.
            if self._ready is not None and not self._child.wait(deadline):
                log.warning("the engine process did not end within %g seconds and is killed", deadline)
            self._child.close()
        with self._lock:
            self.dead = self.dead or "the engine is closed"
            for waiting in self._waiting.values():
                self._ring(waiting.bell)
            for socket in (self._socket, self._watch):
                socket.close(linger=0 if self._child is not None else 500)
            self._epoll.close()
            self._outside.close()
            os.close(self._bell)
            if self._life >= 0:
                os.close(self._life)
        self._context.term()
        if self._directory is not None:
            self._directory.close()

    # Life.

    def _connect(self) -> None:
        if self._join is None:
            self._directory = IpcDirectory()
            address, watch = self._directory.address("core"), self._directory.address("watch")
            setup = {"config": self.config, "address": address, "watch": watch, "owner": self.client}
            setup["log_level"] = log_level()
            self._child = spawn(MAIN, setup, name="octavo-engine")
            self._place = (address, watch, self._child.pid)
            life = self._child.fd
        else:
            self._place = self._join
            address, watch, pid = self._join
            try:
                life = self._life = os.pidfd_open(pid)
            except ProcessLookupError:
                raise EngineDead("the engine process is gone") from None
        self._outside.register(life, select.EPOLLIN)
        self._ended.register(life, select.POLLIN)
        self._life_fd = life
        self._socket.setsockopt(zmq.IDENTITY, b"c" + self.client.to_bytes(4, "little"))
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.connect(address)
        self._watch.setsockopt(zmq.SUBSCRIBE, b"")
        self._watch.setsockopt(zmq.RECONNECT_IVL, 20)
        self._watch.connect(watch)
        self._outside.register(self._socket.FD, select.EPOLLIN)
        self._outside.register(self._watch.FD, select.EPOLLIN)
        self._started = True

    def _await_ready(self, look: Callable[[], None] | None) -> Ready:
        self._send(Join(os.getpid()))
        until = time.monotonic() + self._start_timeout
        while True:
            with self._lock:
                self._pump()
                if self._ready is not None:
                    return self._ready
                if self._down is not None:
                    kind = getattr(errors, self._down.kind, EngineDead)
                    raise kind(self._down.text)
                self._check_alive()
            left = until - time.monotonic()
            if left <= 0:
                raise EngineDead(f"the engine was not ready within {self._start_timeout:.0f} seconds")
            if look is not None:
                look()
            self._epoll.poll(left if look is None else min(left, _LOOK_EVERY))

    def _check_alive(self) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)

    def _die(self) -> None:
        """The core's process has ended: hear its last words, then remember why."""
        killed = self._child is not None and self._child.killed
        if not killed and self._socket.poll(LAST_WORDS) and self._drain(self._socket):
            while self._socket.poll(0) and self._drain(self._socket):
                pass
        if self._down is not None:
            self.dead = self._down.text
        else:
            how = self._child.end_text() if self._child is not None else "is gone"
            self.dead = f"the engine process (pid {self._place[2]}) {how}"
        self._outside.unregister(self._life_fd)
        self._ring(self._bell)
        for waiting in self._waiting.values():
            self._ring(waiting.bell)

    # Sockets. All of it under the lock.

    def _send(self, message: ToCore) -> None:
        with self._lock:
            if self.dead is not None:
                return
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
            # Sending may take the edge that tells of something to read: then the bell says it.
            if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._ring(self._bell)

    def _pump(self) -> None:
        """Read everything there is."""
        if self.dead is not None or self._closed:
            return
        self._drain(self._socket)
        self._drain(self._watch)
        if self._ended.poll(0):
            self._die()

    def _drain(self, socket: zmq.Socket) -> bool:
        read = False
        while True:
            try:
                data = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return read
            read = True
            self._take(self._decoder.decode(data))

    def _take(self, message: ToClient) -> None:
        if isinstance(message, Told):
            self._replies.append(message.reply)
        elif isinstance(message, Answer):
            waiting = self._waiting.get(message.id)
            if waiting is not None:
                waiting.answer = message
                self._ring(waiting.bell)
        elif isinstance(message, Stalled):
            self.stalled = message.text
            for waiting in self._waiting.values():
                self._ring(waiting.bell)
        elif isinstance(message, Up):
            self._ready = message.ready
        else:
            self._down = message

    @staticmethod
    def _ring(bell: int) -> None:
        os.eventfd_write(bell, 1)

    @staticmethod
    def _quiet(bell: int) -> None:
        try:
            os.eventfd_read(bell)
        except BlockingIOError:
            pass


def _given(answer: Answer) -> Any:
    """The value of an answer, or the error it carries, as octavo's own class, a builtin one, or RuntimeError."""
    if answer.error is None:
        return answer.value
    kind = getattr(errors, answer.kind, None) or getattr(builtins, answer.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    raise kind(answer.error)
