"""`octavo serve --api-server-count N`: N API processes before one engine, and this one, which starts and ends them.

This process listens and hands each connection to the next API process in turn. (Measured once each, 256 connections to
four processes, in a burst or 3 ms apart: the fullest gets 1.0 times the mean so, 1.05 to 1.23 times with SO_REUSEPORT,
1.4 to 2.3 times where all listen on one socket. And a process that dies takes no waiting connection with it, nor can
another server share the port.)
It is the engine's first client: it hears its statistics, and the metrics that it keeps outlive every API process.

An API process that dies loses its own requests, which the engine aborts and the metrics count as such; the others go
on, and it is started again. One that cannot serve again, or ends again and again, ends the server with status 1.
"""

import asyncio
import errno
import os
import signal
import socket
from collections import defaultdict, deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from octavo.common import log
from octavo.common.net import IpcDirectory
from octavo.common.proc import Child, spawn
from octavo.config.args import ServeArgs
from octavo.config.engine import EngineConfig
from octavo.errors import ConfigError, EngineDead, OctavoError
from octavo.front.client.process import ProcessClient
from octavo.front.metrics.strips import Strips
from octavo.launch.house import MOURNING, Word, follow, metrics_of
from octavo.launch.listening import BACKLOG, FAREWELL

if TYPE_CHECKING:
    from octavo.front.server.options import Options
    from octavo.launch.online import Announced
    from octavo.wire.stats import StepStats

#: Seconds that API processes may take to serve once the engine can.
PATIENCE = 300.0
#: So many ends of an API process within so many seconds end the server: what ends it does not go away.
ENDS, WITHIN = 5, 60.0
#: Connections that are accepted before others get their turn; seconds until the next try where no file can be opened.
_AT_ONCE, _PAUSE = 64, 0.1
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = log.logger(__name__)


class API:
    """An API process. ``line``: connections to it, words from it, the last of them ``word``. ``serves``: whether it
    gets connections."""

    def __init__(self, number: int, child: Child, line: socket.socket):
        self.number, self.child, self.line = number, child, line
        self.serves = False
        self.deaf = False
        self.word: Word | None = None
        line.setblocking(False)

    @property
    def name(self) -> str:
        return f"api {self.number + 1}"

    def hear(self) -> Word | None:
        """Its next word, if there is one; ``deaf`` once there will be none."""
        try:
            said = self.line.recv(1 << 16)
        except BlockingIOError:
            return None
        except ConnectionError:
            said = b""
        self.deaf = not said
        if said:
            self.word = msgspec.json.decode(said, type=Word)
            return self.word
        return None

    def take(self, connection: socket.socket) -> bool:
        """Whether the connection is with it now."""
        try:
            socket.send_fds(self.line, [b"c"], [connection.fileno()])
        except OSError:  # it is dead, or so busy that its line is full
            return False
        return True

    def close(self) -> None:
        self.line.close()
        self.child.close()


class Ends:
    """When API processes ended, by their number."""

    def __init__(self) -> None:
        self._at: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=ENDS))

    def many(self, number: int, now: float) -> bool:
        """Whether that one, which ends ``now``, does so for the ``ENDS``th time within ``WITHIN`` seconds."""
        at = self._at[number]
        at.append(now)
        return len(at) == ENDS and now - at[0] <= WITHIN


class Several:
    """A context manager: within it there are API processes. ``client`` is of an engine that is on its way."""

    def __init__(
        self,
        args: ServeArgs,
        config: EngineConfig,
        options: "Options",
        listener: socket.socket,
        client: ProcessClient,
        announced: "Announced",
        count: int,
    ):
        self.args, self.config, self.options = args, config, options
        self.listener, self.client, self.announced, self.count = listener, client, announced, count
        self.status = 0
        self._apis: dict[int, API] = {}
        self._clients = client.client
        self._ends = Ends()
        self._turn = 0
        self._ending = False
        self._listening = False
        self._gone = False
        self._error: OctavoError | None = None
        self._news, self._over = asyncio.Event(), asyncio.Event()
        self._held: socket.socket | None = None
        self._listeners: list[Callable[[StepStats], None]] = []

    def __enter__(self) -> "Several":
        log.setup(tag="server")
        self._folder = IpcDirectory()
        self._memory = Strips.share(self.count + 1)
        strips = Strips(self.count + 1, self._memory)
        try:
            for number in range(self.count):
                self._start(number)
            ready = self.client.start(self._look)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.announced.up(ready.max_model_len, ready.phases)
        self.metrics = metrics_of(self.config, ready, strips, 0)
        follow(self._listeners.append, self.metrics, self.args)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for api in self._apis.values():
            api.close()
        self._apis.clear()
        if self._held is not None:
            self._held.close()
        os.close(self._memory)
        self._folder.close()

    async def serve(self) -> int:
        """Until the end; the exit status. Raises what keeps an API process from serving."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_reader(self.client.fd, self._read)
        for api in self._apis.values():
            self._watch(api)
        late = loop.call_later(
            PATIENCE, self._fail, EngineDead(f"an API process did not serve within {PATIENCE:.0f} s")
        )
        while not (self._ending or self._gone or all(api.serves for api in self._apis.values())):
            self._news.clear()
            await self._news.wait()
        late.cancel()
        if not (self._ending or self._gone):
            self._listen()
        if self._listening:
            self.announced.say()
        await self._over.wait()
        if self._error is not None:
            raise self._error
        return self.status

    # The engine.

    def _read(self) -> None:
        try:
            for reply in self.client.poll(0.0):
                if reply.stats is not None:
                    for listen in self._listeners:
                        listen(reply.stats)
        except EngineDead as error:
            self._lose_engine(str(error))

    def _lose_engine(self, reason: str) -> None:
        self._gone = True
        _log.error("the engine is dead: %s", reason)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.client.fd)
        self._news.set()
        if not self._ending:  # a signal to the whole group ends the engine too, which is no failure
            self.status = 1
        # API processes say so for a while, then they end by themselves.
        loop.call_later(MOURNING + self._patience, self._kill)

    # API processes.

    def _start(self, number: int) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._clients += 1  # never the number of one that died: the engine would take the one for the other
        with theirs:
            setup = {
                "args": self.args,
                "config": self.config,
                "options": self.options,
                "engine": self.client.place,
                "client": self._clients,
                "number": number,
                "count": self.count,
                "host": self.listener.getsockname()[0],
                "folder": self._folder.path,
                "memory": self._memory,
                "line": theirs.fileno(),
                "log_level": log.level(),
            }
            fds = (self._memory, theirs.fileno())
            child = spawn("octavo.launch.api:main", setup, name=f"octavo-api-{number + 1}", fds=fds)
        self._apis[number] = API(number, child, mine)

    def _look(self) -> None:
        """While the engine starts: raises what an API process found to be wrong. Of an engine that is dead its own
        client tells more."""
        for api in self._apis.values():
            api.hear()
            if (word := api.word) is not None and word.error and word.kind != EngineDead.__name__:
                raise word.exception

    def _watch(self, api: API) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(api.line, self._heard, api)
        loop.add_reader(api.child.fd, self._ended, api)
        if api.word is not None and not api.word.error:  # said while the engine started
            self._serves(api)

    def _heard(self, api: API) -> None:
        while (word := api.hear()) is not None:
            if not word.error:
                self._serves(api)
            elif api.serves and not self._gone:
                self._read()  # who started the engine knows more of its end
                if not self._gone:  # it lives, and does not speak any more
                    self._lose_engine(word.error)
                    self.client.close(0.0)
        if api.deaf:
            asyncio.get_running_loop().remove_reader(api.line)

    def _serves(self, api: API) -> None:
        api.serves = True
        self._news.set()
        self._accept()

    def _ended(self, api: API) -> None:
        loop = asyncio.get_running_loop()
        for fd in (api.line, api.child.fd):
            loop.remove_reader(fd)
        self.metrics.bury(api.number + 1)
        api.hear()
        how = f"{api.name} (pid {api.child.pid}) {api.child.end_text()}"
        del self._apis[api.number]
        api.close()
        if not self._gone:
            self._read()  # if the engine is dead, this is why
        if self._ending or self._gone:
            if not self._apis:
                self._over.set()
        elif not api.serves:
            self._fail(api.word.exception if api.word else EngineDead(f"{how} before it could serve"))
        elif self._ends.many(api.number, loop.time()):
            self._fail(EngineDead(f"{how}; so it ended {ENDS} times within {WITHIN:.0f} seconds"))
        else:
            _log.warning("%s; it is started again", how)
            self._start(api.number)
            self._watch(self._apis[api.number])

    # Connections.

    def _listen(self) -> None:
        try:
            self.listener.listen(BACKLOG)
        except OSError as error:
            self._fail(ConfigError(f"cannot listen on {self.announced.url}: {error.strerror}"))
            return
        self.listener.setblocking(False)
        self._listening = True
        asyncio.get_running_loop().add_reader(self.listener, self._accept)

    def _accept(self) -> None:
        """Hand on what waits; while nobody takes any, it waits in the kernel's queue."""
        loop = asyncio.get_running_loop()
        for _ in range(_AT_ONCE if self._listening else 0):
            if self._held is None:
                try:
                    self._held, _ = self.listener.accept()
                except BlockingIOError:
                    loop.add_reader(self.listener, self._accept)
                    return
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        continue  # the client has left
                    _log.warning("a connection has to wait: %s", error.strerror)
            if self._held is None or not self._hand_on(self._held):
                loop.remove_reader(self.listener)
                loop.call_later(_PAUSE, self._accept)
                return
            self._held.close()
            self._held = None
        if self._listening:
            loop.add_reader(self.listener, self._accept)  # more may wait, and it may be a pause that is over

    def _hand_on(self, connection: socket.socket) -> bool:
        for _ in range(self.count):
            self._turn = (self._turn + 1) % self.count
            api = self._apis.get(self._turn)
            if api is not None and api.serves and api.take(connection):
                return True
        return False

    # The end.

    def _signalled(self, number: signal.Signals) -> None:
        if self._ending:
            self._kill()
            self.client.close(0.0)
            self._folder.close()
            os._exit(128 + number)
        _log.info("%s: open requests get %g seconds to finish", number.name, self.args.shutdown_timeout or 0.0)
        self._end()

    def _fail(self, error: OctavoError) -> None:
        self._error = self._error or error
        self._end()

    def _end(self) -> None:
        """Nobody new; API processes end when their requests have."""
        if self._ending:
            return
        self._ending, self._listening = True, False
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.listener)
        self.listener.close()
        for api in self._apis.values():
            api.child.terminate()
        loop.call_later(self._patience, self._kill)
        self._news.set()
        if not self._apis:
            self._over.set()

    @property
    def _patience(self) -> float:
        """Seconds within which an API process that was told to ends: for its requests, and for its answers."""
        return 2 * (self.args.shutdown_timeout or 0.0) + 4 * FAREWELL

    def _kill(self) -> None:
        for api in self._apis.values():
            _log.warning("%s did not end in time and is killed", api.name)
            api.child.kill()
