"""A process that serves HTTP over an engine: the only one, or one of several."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from octavo import errors
from octavo.common import log
from octavo.config.args import ServeArgs
from octavo.config.engine import EngineConfig
from octavo.errors import ConfigError, EngineDead, OctavoError
from octavo.launch.listening import FAREWELL, server_of

if TYPE_CHECKING:
    import ssl

    from octavo.front.client.process import ProcessClient
    from octavo.front.grpc.server import Server as GRPCServer
    from octavo.front.metrics.prometheus import Prometheus
    from octavo.front.metrics.strips import Strips
    from octavo.front.server.options import Options
    from octavo.wire.hello import Ready
    from octavo.wire.stats import StepStats

#: Seconds that /health says 503 before the server ends, so that whoever watches can see it.
MOURNING = 1.0
_log = log.logger(__name__)


class Word(msgspec.Struct):
    """What an API process says to its parent: that it serves, or why it cannot, or cannot any more."""

    error: str = ""
    kind: str = ""

    @property
    def exception(self) -> OctavoError:
        return getattr(errors, self.kind, EngineDead)(self.error)


@dataclass
class Place:
    """Of one process among the ``count`` that serve an engine: its ``number``, the metrics of all, the folder of their
    sockets, and the line on which it gets connections."""

    number: int
    count: int
    strips: "Strips"
    folder: str
    line: socket.socket

    def say(self, error: OctavoError | None = None) -> None:
        """To the parent: that this process serves, or the ``error``."""
        word = Word() if error is None else Word(str(error), type(error).__name__)
        with contextlib.suppress(OSError):  # it is gone, and this process is about to be
            self.line.send(msgspec.json.encode(word))


class House:
    """A running server: engine, application, signals, and how it all ends.

    ``listener``: what it listens on, unless it has a ``place`` among several; ``host``: of that socket's address.
    ``ready`` is called once it serves. Among several it leaves what is of the engine as a whole to their parent:
    statistics, and when to end.
    """

    def __init__(
        self,
        args: ServeArgs,
        config: EngineConfig,
        options: "Options",
        host: str,
        ready: Callable[[], None],
        listener: socket.socket | None = None,
        place: Place | None = None,
    ):
        self.args = args
        self.config = config
        self.options = options
        self.host = host
        self.listener = listener
        self.place = place
        self.status = 0
        self._ready = ready
        self._grace = args.shutdown_timeout or 0.0
        self._ending: asyncio.Task | None = None

    async def serve(self, client: "ProcessClient", tokenizer, chat, ready: "Ready") -> int:
        """Until the end; the exit status."""
        from octavo.front.engine import AsyncEngine
        from octavo.front.metrics import tracing
        from octavo.front.server.app import build_app
        from octavo.front.server.peers import Peers

        place = self.place
        self.client = client
        self.engine = engine = AsyncEngine(client, self.config, tokenizer, chat, ready)
        metrics = metrics_of(self.config, ready, *(() if place is None else (place.strips, place.number + 1)))
        engine.observe(metrics)
        if place is None:
            follow(engine.on_stats, metrics, self.args)
        tracer = None
        if self.args.otlp_traces_endpoint is not None:
            tracer = tracing.Tracer(self.args.otlp_traces_endpoint, self.config.text.served_names[0])
            engine.on_end(tracer.request)
        peers = None if place is None else Peers(place.folder, place.number, place.count)
        app, self.service = build_app(engine, self.options, metrics, peers)
        context = None if self.options.tls is None else self.options.tls.context()
        self.server = server = server_of(app, self.args, self.options, context, self._listening)
        engine.on_dead(self._died)
        engine.attach()
        if place is not None:
            engine.intake.draw_apart(client.client)
        engine.teach_when_idle()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT) if place is None else (signal.SIGTERM,):
            loop.add_signal_handler(number, self._signalled, number)
        watch = None
        if context is not None and self.args.enable_ssl_refresh:
            watch = asyncio.ensure_future(self._refresh(context))
        calls = None
        try:
            if peers is not None:
                assert self.service.forwarded is not None
                await peers.open(self.service.forwarded)
                await self.service.everywhere.catch_up()
            if self.args.grpc_port and (place is None or place.number == 0):
                calls = await self._serve_grpc(self.args.grpc_port)
            await server.serve(sockets=[] if self.listener is None else [self.listener])
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.host}: {error.strerror}") from None
        finally:
            if watch is not None:
                watch.cancel()
            if calls is not None:
                if self._ending is not None:
                    await self._ending  # calls get the time that HTTP's requests get
                await calls.stop(FAREWELL)
            if peers is not None:
                peers.close()
            engine.close(FAREWELL)
            if tracer is not None:
                await asyncio.to_thread(tracer.close)
        return self.status

    async def _serve_grpc(self, port: int) -> "GRPCServer":
        from octavo.front.grpc.server import Server

        found = Server(self.service, self.options.write_timeout)
        await found.start(self.host, port, self.options.tls, bool(self.args.enable_ssl_refresh))
        return found

    def _listening(self) -> None:
        if self.place is not None:
            self.place.line.setblocking(False)
            asyncio.get_running_loop().add_reader(self.place.line, self._take_over, self.place.line)
        gc.freeze()  # what is here stays: the collector need not walk through it in the middle of everyone's stream
        self._ready()

    def _take_over(self, line: socket.socket) -> None:
        """A connection that the parent has accepted."""
        try:
            message, connections, _, _ = socket.recv_fds(line, 1, 1)
        except BlockingIOError:
            return
        if not message:
            asyncio.get_running_loop().remove_reader(line)
        for fd in connections:
            self.server.adopt(socket.socket(fileno=fd))

    async def _refresh(self, context: "ssl.SSLContext") -> None:
        from octavo.front.server.tls import REFRESH_EVERY, Refresher

        assert self.options.tls is not None
        refresher = Refresher(self.options.tls, context)
        while True:
            await asyncio.sleep(REFRESH_EVERY)
            await asyncio.to_thread(refresher.refresh)

    def _signalled(self, number: signal.Signals) -> None:
        if self._ending is not None:
            if self.place is not None:
                return  # a signal to the whole group comes twice, once from the parent: which decides
            self.client.close(0.0)
            os._exit(128 + number)
        if self.place is None:
            _log.info("%s: open requests get %g seconds to finish", number.name, self._grace)
        self._ending = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        self.service.draining = True
        self.server.should_exit = True
        if not await self.engine.drain(self._grace):
            _log.warning("%d answers were not finished in time and are aborted", self.engine.open_requests)
        self.service.end()

    def _died(self, reason: str) -> None:
        if self._ending is None:  # a signal to the whole group ends the engine too, which is no failure
            self.status = 1
        if self.place is not None:
            self.place.say(EngineDead(reason))
        asyncio.get_running_loop().call_later(MOURNING, self._end)

    def _end(self) -> None:
        self.server.should_exit = True


def metrics_of(config: EngineConfig, ready: "Ready", strips: "Strips | None" = None, own: int = 0) -> "Prometheus":
    """The metrics of this process; of several, strip 0 is their parent's."""
    from octavo.front.metrics.prometheus import Prometheus

    cache = {"block_size": ready.page, "num_gpu_blocks": ready.pages, "kv_tokens": ready.kv_tokens}
    return Prometheus(config.text.served_names[0], ready.max_model_len, cache, strips=strips, own=own)


def follow(listen: Callable[[Callable[["StepStats"], None]], None], metrics: "Prometheus", args: ServeArgs) -> None:
    """Let the engine's statistics reach the metrics and the log; ``listen`` takes who is to be told."""
    from octavo.front.metrics.periodic import Periodic

    listen(metrics.stats)
    if not args.disable_log_stats:
        listen(Periodic().stats)
