"""An EngineCore in a process of its own, behind ZeroMQ. One thread computes, reads and writes."""

import gc
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
from msgspec.structs import replace

from octavo.common import log as logs
from octavo.common.log import logger
from octavo.config.engine import EngineConfig
from octavo.core.engine.core import EngineCore
from octavo.core.engine.inbox import Aborts, Adds, Event, Inbox, Job, Taught
from octavo.errors import ConfigError, EngineDead
from octavo.wire.codec import Codec
from octavo.wire.messages import Abort, Add, Answer, Call, Down, Join, Stalled, Teach, ToClient, ToCore, Told, Up
from octavo.wire.reply import AbortReason, StepReply

log = logger(__name__)

#: Seconds between two garbage collections; objects of the boot are frozen, so one takes well under a millisecond.
COLLECT_EVERY = 10.0
#: Seconds after which a thread that wants the interpreter's lock gets it.
SWITCH = 0.0005
#: Seconds that a core which cannot start waits for somebody to tell the reason to.
FAREWELL = 5.0


@dataclass(frozen=True)
class Setup:
    """``address`` is of the socket for everything, ``watch`` of the watchdog's. ``owner`` is the client that may close
    the core. ``drain``: seconds that open requests get after SIGTERM. ``log_level``: as much as the parent shows."""

    config: EngineConfig
    address: str
    watch: str
    owner: int = 0
    drain: float = 600.0
    log_level: str | None = None


def name_of(client: int) -> bytes:
    """The name of a client's socket."""
    return b"c" + client.to_bytes(4, "little")


def client_of(name: bytes) -> int:
    return int.from_bytes(name[1:], "little")


class SocketInbox(Inbox):
    """An inbox that also reads the clients' socket; the loop sleeps on both, and on the clients' lives."""

    def __init__(self, socket: zmq.Socket, owner: int):
        super().__init__()
        self._socket = socket
        self._owner = owner
        self._decoder = Codec(ToCore)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)
        self._lives: dict[int, int] = {}
        self._ends = select.poll()
        self._gone: set[int] = set()
        self.joined: list[int] = []
        self.close = False
        self.tell: Callable[[Job], None] | None = None

    def put(self, event: Event) -> None:
        super().put(event)
        self.ring()

    def ring(self) -> None:
        """Wake the loop. From any thread, or a signal handler."""
        os.eventfd_write(self._bell, 1)

    def drain(self) -> list[Event]:
        events = super().drain()
        ended = [self._lives[life] for life, _ in self._ends.poll(0)]  # before the look: what they said comes first
        while True:
            try:
                name, data = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                # One that said goodbye is forgotten already.
                return events + [self._bury(client) for client in ended if client in self._lives.values()]
            except ValueError:
                log.warning("a message with another number of frames than two was dropped")
                continue
            event = self._read(name, data)
            if event is not None:
                events.append(event)

    def wait(self, timeout: float | None) -> None:
        """Sleep until there is something to read, at most ``timeout`` seconds."""
        if self._events:
            return
        ready = dict(self._poller.poll(None if timeout is None else math.ceil(max(0.0, timeout) * 1000)))
        if self._bell in ready:
            try:
                os.eventfd_read(self._bell)
            except BlockingIOError:
                pass

    def gone(self, client: int) -> None:
        """The socket of this client does not exist any more."""
        super().put(Aborts(client, None, AbortReason.CLIENT))

    def _bury(self, client: int) -> Event:
        """The process of this client has ended: a loop that never sleeps sees that too. Its number comes never again,
        and what of its words is still on the way is nobody's."""
        log.warning("client %d is gone", client)
        self._gone.add(client)
        self._forget(client)
        return Aborts(client, None, AbortReason.CLIENT)

    def _forget(self, client: int) -> None:
        life = next(life for life, one in self._lives.items() if one == client)
        self._poller.unregister(life)
        self._ends.unregister(life)
        os.close(life)
        del self._lives[life]

    def _read(self, name: bytes, data: bytes) -> Event | None:
        try:
            message = self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            log.warning("a malformed message of %d bytes was dropped: %s", len(data), error)
            return None
        client = client_of(name)
        if client in self._gone:
            return None
        if isinstance(message, Add):
            return Adds([r if r.client == client else replace(r, client=client) for r in message.requests])
        if isinstance(message, Abort):
            return Aborts(client, message.handles, message.reason)
        if isinstance(message, Call):
            return RemoteJob(message.command, tuple(message.args), tell=self.tell, client=client, id=message.id)
        if isinstance(message, Join):
            self._join(client, message.pid)
            return None
        if isinstance(message, Teach):
            return Taught(message.vocabulary)
        if client == self._owner:
            self.close = True
            return None
        if client in self._lives.values():
            self._forget(client)
        return Aborts(client, None, AbortReason.SHUTDOWN)

    def _join(self, client: int, pid: int) -> None:
        self.joined.append(client)
        if client == self._owner:  # the parent: the process ends with it
            return
        try:
            life = os.pidfd_open(pid)
        except OSError:
            log.warning("client %d (process %d) cannot be watched", client, pid)
            return
        self._lives[life] = client
        self._poller.register(life, zmq.POLLIN)
        self._ends.register(life, select.POLLIN)


@dataclass(slots=True)
class RemoteJob(Job):
    client: int = 0
    id: int = 0


class EngineProcess:
    """Sockets around a core."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        # Nothing is ever dropped for want of room, and a client that is gone is an error, not a silence.
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.bind(setup.address)
        self.watch = self.context.socket(zmq.PUB)
        self.watch.setsockopt(zmq.LINGER, 0)
        self.watch.bind(setup.watch)
        self.inbox = SocketInbox(self.socket, setup.owner)
        self.inbox.tell = self._answer
        self.encoder = Codec(ToClient)
        self.clients: set[int] = set()
        self.term_at: float | None = None
        self._collected = time.monotonic()
        self._watch_lock = threading.Lock()

    def run(self) -> int:
        """Boot and serve until told to end. Returns the exit code."""
        try:
            core = EngineCore(self.setup.config, inbox=self.inbox)
            ready = core.start()
        except Exception as error:
            return self._no_start(error)
        core.watchdog.listen(self._stalled)
        signal.signal(signal.SIGTERM, self._terminate)
        sys.setswitchinterval(SWITCH)
        gc.collect()
        gc.freeze()
        gc.disable()
        code = 0
        try:
            up = Up(ready, os.getpid())
            while not self.inbox.close and not self._drained(core):
                self._send(core.step())
                self._greet(up)
                self._collect()
                if not (core.outstanding or core.runnable or self.inbox.close):
                    core.rest(self._until_term())
            core.scheduler.book.abort_all(AbortReason.SHUTDOWN)
            self._send(core.replies.flush())
        except EngineDead as error:
            self._tell_all(Down("EngineDead", str(error)))
            code = 1
        core.close(deadline=2.0)
        self._end()
        return code

    def _no_start(self, error: Exception) -> int:
        """Tell the first client why, and end."""
        if isinstance(error, ConfigError):
            down = Down(type(error).__name__, str(error))
        else:
            log.exception("the engine could not start")
            down = Down("EngineDead", f"the engine could not start: {type(error).__name__}: {error}")
        until = time.monotonic() + FAREWELL
        while time.monotonic() < until and self.setup.owner not in self.clients:
            self.inbox.wait(until - time.monotonic())
            self.inbox.drain()
            self._greet(down)
        self._end()
        return 1

    def _greet(self, word: Up | Down) -> None:
        for client in self.inbox.joined:
            self.clients.add(client)
            self._write(client, word)
        self.inbox.joined.clear()

    def _send(self, replies: list[StepReply]) -> None:
        for reply in replies:
            self._write(reply.client, Told(reply))
        # Who started the core hears all statistics: where there are several clients it is the one that adds up.
        owner = self.setup.owner
        if replies and (stats := replies[0].stats) is not None and all(reply.client != owner for reply in replies):
            self._write(owner, Told(StepReply(owner, stats=stats)))

    def _tell_all(self, message: ToClient) -> None:
        for client in self.clients.copy():
            self._write(client, message)

    def _write(self, client: int, message: ToClient) -> None:
        try:
            self.socket.send_multipart([name_of(client), self.encoder.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            if client in self.clients:
                log.warning("client %d does not listen any more", client)
                self.clients.discard(client)
                self.inbox.gone(client)

    def _answer(self, job: Job) -> None:
        assert isinstance(job, RemoteJob)
        if job.error is not None:
            self._write(job.client, Answer(job.id, None, str(job.error), type(job.error).__name__))
            return
        try:
            self._write(job.client, Answer(job.id, job.answer))
        except (TypeError, NotImplementedError) as error:
            self._write(job.client, Answer(job.id, None, f"{job.command}: {error}", "TypeError"))

    def _stalled(self, text: str | None) -> None:
        with self._watch_lock:
            if not self.watch.closed:
                self.watch.send(self.encoder.encode(Stalled(text)), zmq.NOBLOCK)

    def _terminate(self, *_: object) -> None:
        self.term_at = self.term_at or time.monotonic()
        self.inbox.ring()

    def _drained(self, core: EngineCore) -> bool:
        """After SIGTERM: nobody new, and the end with the last open request or with the time for it."""
        if self.term_at is None:
            return False
        core.scheduler.closing = True
        return not core.scheduler.unfinished or self._until_term() == 0.0

    def _until_term(self) -> float | None:
        if self.term_at is None:
            return None
        return max(0.0, self.term_at + self.setup.drain - time.monotonic())

    def _collect(self) -> None:
        now = time.monotonic()
        if now - self._collected > COLLECT_EVERY:
            self._collected = now
            gc.collect()

    def _end(self) -> None:
        self.socket.close()
        with self._watch_lock:
            self.watch.close()
        self.context.term()


def main(setup: dict[str, Any]) -> None:
    """The child's main function (``common.proc.spawn``); ``setup`` holds the fields of ``Setup``."""
    asked = Setup(**setup)
    logs.setup(asked.log_level, tag="engine")
    sys.exit(EngineProcess(asked).run())
