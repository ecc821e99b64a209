"""A process in which grammars are compiled first: one that takes too long or too much memory, or crashes the library,
costs its own request and nothing else.

The process stands back behind the engine's; a grammar that is not ready soon gets only what nobody else wants."""

import contextlib
import math
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

import msgspec
import numpy as np
from msgspec import Struct

from octavo.common.log import logger
from octavo.common.math import cdiv
from octavo.common.proc import Child, spawn, stand_back
from octavo.core.grammar.base import ENGINES, PARAM, Engine, Grammar
from octavo.core.grammar.cost import DEAR
from octavo.errors import BadRequest, RequestError, RequestFailed, Unsupported
from octavo.wire.request import GrammarRef
from octavo.wire.vocabulary import Vocabulary

log = logger(__name__)

#: Seconds of a processor that one grammar may take, how many times as long it may take where others have the
#: processor, and seconds that the process may take to start.
DEADLINE = 5.0
SLOWER = 6
START = 60.0
#: Seconds of a processor after which a grammar is no common one, seconds between two looks at that, and the priority of
#: the others.
QUICK = 0.1
LOOK = 0.05
NICE = 10
#: Bytes that compiling may take beside what the process has when it is ready.
MEMORY = 2 << 30
#: Bytes of the stack that compiling gets; what works there works on a usual one.
STACK = 4 << 20
#: Tokens of a random answer that a grammar is tried with, and forced ones that it is asked for before each.
STEPS = 16
AHEAD = 8
_HEAD = struct.Struct("<I")


class Setup(Struct, array_like=True):
    backend: str
    vocabulary: Vocabulary
    width: int
    memory: int


class Verdict(Struct, array_like=True):
    """``text``: the grammar as ``Engine.build`` takes it. ``error``: what is wrong with it instead; ``status`` then.
    ``dearest``, ``mean``, ``told``: seconds, as ``Cost`` takes and judges them."""

    text: str = ""
    error: str | None = None
    param: str | None = None
    status: int = 400
    dearest: float = 0.0
    mean: float = 0.0
    told: float = 0.0


class TookTooLong(BadRequest):
    """A grammar that was not compiled in time."""


class Outlasted(BadRequest):
    """A grammar that is no quick one, and was not compiled beside what else the machine does."""


class NoTime(RequestFailed):
    """The process gets no processor."""


class Trial:
    """The parent's side. One caller at a time. The process starts with the first grammar, and again after it died.
    ``deadline``: instead of ``DEADLINE``."""

    def __init__(self, backend: str, vocabulary: Vocabulary, width: int, deadline: float | None = None):
        self._setup = msgspec.msgpack.encode(Setup(backend, vocabulary, width, MEMORY))
        self._deadline = DEADLINE if deadline is None else deadline
        self._child: Child | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, where there is one."""
        return None if self._child is None else self._child.pid

    def check(self, ref: GrammarRef) -> Verdict:
        """The grammar as ``Engine.build`` takes it, which will then succeed, and what it costs. Raises ``BadRequest``,
        and ``RequestFailed`` where it is not the grammar that is to blame."""
        try:
            verdict = self._ask(ref)
        except EOFError:  # somebody may have ended the process, whatever it was doing; a second time it is the grammar
            try:
                verdict = self._ask(ref)
            except EOFError:
                raise BadRequest(
                    "the grammar is too complex: compiling it took too much memory or depth", PARAM
                ) from None
        if verdict.error is not None:
            kind = Unsupported if verdict.status == Unsupported.status else BadRequest
            raise kind(verdict.error, verdict.param)
        return verdict

    def _ask(self, ref: GrammarRef) -> Verdict:
        """Raises ``EOFError`` where the process ended over it, or had ended before."""
        if self._socket is None:
            try:
                self._start()
            except (OSError, EOFError) as error:  # a time-out is an OSError
                self._end()
                raise RequestFailed(f"the process that compiles grammars did not start: {error}") from None
        assert self._socket is not None
        assert self.pid is not None
        try:
            begun = _spent(self.pid)
            _send(self._socket, msgspec.msgpack.encode(ref))
            until = time.monotonic() + SLOWER * self._deadline
            quick = True
            while not select.select([self._socket], [], [], LOOK if quick else min(self._deadline, 1.0))[0]:
                spent = _spent(self.pid) - begun
                if spent >= self._deadline:
                    raise TimeoutError
                if time.monotonic() >= until:
                    self._end()
                    if not quick:
                        raise Outlasted(self._too_long(), PARAM)
                    raise NoTime("the process that compiles grammars does not get on; the machine is too busy")
                if quick and spent >= QUICK:
                    quick = False
                    _go_last(self.pid)
            return msgspec.msgpack.decode(_receive(self._socket, time.monotonic() + self._deadline), type=Verdict)
        except TimeoutError:
            self._end()
            raise TookTooLong(self._too_long(), PARAM) from None
        except (OSError, EOFError) as error:
            how = "ended" if self._child is None else self._child.end_text()
            self._end()
            if self._closed:
                raise RequestFailed("the engine is closing") from None
            log.warning("a grammar of kind %s could not be compiled: the process for it %s (%s)", ref.kind, how, error)
            raise EOFError from None

    def _too_long(self) -> str:
        return f"the grammar is too complex: compiling it took over {self._deadline:g} seconds"

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            self._socket = ours
            if self._closed:
                raise EOFError("the engine is closing")
            self._child = spawn(
                "octavo.core.grammar.trial:main", theirs.fileno(), name="octavo-grammar", fds=(theirs.fileno(),)
            )
        _send(ours, self._setup)
        _receive(ours, time.monotonic() + START)

    def _end(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.close()
            if self._socket is not None:
                self._socket.close()
            self._child = self._socket = None

    def close(self) -> None:
        """From any thread: a caller that waits is told that the process has ended."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.kill()


def _spent(pid: int) -> float:
    """Seconds that a process has computed. Raises ``OSError`` where there is none."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _go_last(pid: int) -> None:
    """The threads of a process, all but the first, get what time no other thread of the machine wants."""
    with contextlib.suppress(OSError):
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            if thread != pid:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def _send(channel: socket.socket, data: bytes) -> None:
    channel.sendall(_HEAD.pack(len(data)) + data)


def _receive(channel: socket.socket, until: float | None) -> bytes:
    """One message. Raises ``TimeoutError`` after ``until`` (monotonic seconds), ``EOFError`` where nobody is there."""
    (length,) = _HEAD.unpack(_exactly(channel, _HEAD.size, until))
    return _exactly(channel, length, until)


def _exactly(channel: socket.socket, count: int, until: float | None) -> bytes:
    pieces: list[bytes] = []
    while count:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0 or not select.select([channel], [], [], left)[0]:
                raise TimeoutError
        piece = channel.recv(min(count, 1 << 20))
        if not piece:
            raise EOFError("the other side is gone")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def main(number: int) -> None:
    """The child's main function: grammars in, verdicts out, until the parent is gone. The work is done on a stack half
    as large as the parent's, so that what is deep enough to break one breaks here; a thread for each grammar, since
    one that was told to go last cannot come back."""
    stand_back(NICE)
    threading.stack_size(STACK)
    channel = socket.socket(fileno=number)
    setup = msgspec.msgpack.decode(_receive(channel, None), type=Setup)
    engine: Engine | None = None
    refused: RequestError | None = None
    try:
        engine = ENGINES.load(setup.backend)(setup.vocabulary, setup.width)
    except RequestError as error:
        refused = error
    _bound(setup.memory)
    _send(channel, b"")
    decoder = msgspec.msgpack.Decoder(GrammarRef)

    def answer(ref: GrammarRef) -> None:
        _send(channel, msgspec.msgpack.encode(_verdict(ref, engine, refused, setup.width)))

    while True:
        try:
            ref = decoder.decode(_receive(channel, None))
        except EOFError:
            return
        thread = threading.Thread(target=answer, args=(ref,))
        thread.start()
        thread.join()


def _verdict(ref: GrammarRef, engine: Engine | None, refused: RequestError | None, width: int) -> Verdict:
    try:
        if refused is not None:
            raise refused
        assert engine is not None
        text = engine.prepare(ref)
        template = engine.build(text)
        took = _walk(template.open(), width)
        told = _told(template.open(), width)
        if told > DEAR:  # of two tries the quicker one counts: the other was the machine's doing
            told = min(told, _told(engine.build(text).open(), width))
        return Verdict(text, dearest=max(took), mean=sum(took) / len(took), told=told)
    except RequestError as error:
        return Verdict("", error.message, error.param, error.status)
    except MemoryError:
        os._exit(1)
    except BaseException as error:  # a panic of the library is no Exception
        return Verdict("", f"the grammar could not be compiled: {str(error)[:200]}", PARAM)


def _walk(grammar: Grammar, width: int, ahead: Callable[[], None] = lambda: None) -> list[float]:
    """Say a few random tokens, calling ``ahead`` before each. Gives the seconds of each mask, one at least. Raises
    ``BadRequest`` where the grammar passes the limits of its engine."""
    random = np.random.default_rng(0)
    took: list[float] = []
    for _ in range(STEPS):
        bits = np.zeros(cdiv(width, 32), np.int32)
        ahead()
        begin = time.thread_time()
        try:
            grammar.fill(bits)
        except RuntimeError as error:
            raise BadRequest(f"the grammar is too complex: {str(error)[:120]}", PARAM) from None
        took.append(time.thread_time() - begin)
        may = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        if not len(may) or not grammar.accept(int(random.choice(may))):
            break
    return took


def _told(grammar: Grammar, width: int) -> float:
    """Seconds in which what it forces is told, the most of a few times; for ever where it cannot be."""
    dearest = 0.0

    def ahead() -> None:
        nonlocal dearest
        begin = time.thread_time()
        grammar.forced(AHEAD)
        dearest = max(dearest, time.thread_time() - begin)

    try:
        _walk(grammar, width, ahead)
    except (RuntimeError, RequestError):
        return math.inf
    return dearest


def _bound(memory: int) -> None:
    """No more than ``memory`` bytes of address space beside what is there; no core file of a crash."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
