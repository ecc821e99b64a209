"""`octavo serve`: the engine in a process of its own, HTTP in this one.

Order of a start: the port is bound (a used one fails at once), the engine process starts, and while it loads the model
this process imports the server and reads the tokenizer. Order of an end: a signal stops the listening, open requests
get ``--shutdown-timeout`` seconds, what is left is aborted; a second signal ends everything at once. An engine that
dies fails the open requests, turns /health to 503 and ends the server with status 1.
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from octavo.common import log
from octavo.common.argv import hide
from octavo.config import env
from octavo.config.args import ServeArgs
from octavo.config.engine import WORKER, EngineConfig
from octavo.config.resolve import resolve
from octavo.errors import ConfigError
from octavo.launch.asked import DEFAULT_PORT, KEEP_ALIVE, bind, check_doors, check_grpc, server_options

if TYPE_CHECKING:
    import ssl

    import uvicorn

    from octavo.front.client.process import ProcessClient
    from octavo.front.grpc.server import Server as GRPCServer
    from octavo.front.server.options import Options
    from octavo.wire.hello import Ready

BACKLOG = 2048
MAX_FILES = 65536
#: Seconds that answers get to leave after their requests were aborted.
FAREWELL = 2.0
#: Seconds that /health says 503 before the server ends, so that whoever watches can see it.
MOURNING = 1.0
_log = log.logger(__name__)


def serve(args: ServeArgs, worker: str = WORKER) -> int:
    """Serve until a signal or the engine's death; the exit status. ``worker`` is built by the engine's process.

    Raises ``ConfigError`` or ``EngineDead`` with one sentence where the start fails.
    """
    begin = time.monotonic()
    for name, value in (("OCTAVO_LOG_LEVEL", args.log_level), ("OCTAVO_LOG_FORMAT", args.log_format)):
        if value is not None:
            os.environ[name] = value  # the engine's process inherits it
    log.setup()
    for sentence in env.strangers():
        _log.warning("%s", sentence)
    options = server_options(args)
    _keep_secret(args)
    _allow_connections()
    check_doors(args, options)
    listener = bind(args.host, DEFAULT_PORT if args.port is None else args.port)
    if args.grpc_port:
        check_grpc(args, options)
    config = resolve(args, worker=worker)

    from octavo.front.client.process import ProcessClient

    # Until the loop listens for signals, one ends the start in order: the engine's process and its sockets go too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    client = ProcessClient(config)
    try:
        launched = time.monotonic()
        client.launch()
        # The engine is on its way; what this process needs is imported and read beside it.
        import octavo.front.server.app  # noqa: F401
        from octavo.launch.text import format_of, front_of

        tokenizer, chat = front_of(config)
        format_of(tokenizer, chat, options)  # two parsers that do not go together are told before the model is loaded
        ready = client.start()
        house = _House(args, config, options, listener, Clock(begin, launched, time.monotonic(), ready.phases))
        with _runner() as runner:
            return runner.run(house.serve(client, tokenizer, chat, ready))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        client.close(FAREWELL)
        listener.close()


def _keep_secret(args: ServeArgs) -> None:
    """What was read is neither shown by ``ps`` nor inherited by the engine's process."""
    hide([*(args.api_key or ()), args.ssl_keyfile_password or ""])
    for name in ("OCTAVO_API_KEY", "VLLM_API_KEY", "OCTAVO_SSL_KEYFILE_PASSWORD"):
        os.environ.pop(name, None)


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Where a client on this machine finds the server."""
    host, port = listener.getsockname()[:2]
    if host in ("::", "0.0.0.0"):
        host = "127.0.0.1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


class Clock(NamedTuple):
    """Of a start, on the monotonic clock: when it began, when the engine's process was started, when that could serve.
    ``engine``: seconds of the phases that it tells of."""

    begin: float
    launched: float
    up: float
    engine: dict[str, float]

    def phases(self, now: float) -> dict[str, float]:
        """Where all seconds until ``now`` went. What the engine does not tell of is the start of its process, and
        imports: its own, or this process's, which run beside them."""
        rest = max(0.0, self.up - self.launched - sum(self.engine.values()))
        checks, server = self.launched - self.begin, now - self.up
        return {"checks": checks, "process and imports": rest, **self.engine, "server": server}


class _House:
    """A running server: engine, application, signals, and how it all ends."""

    def __init__(
        self, args: ServeArgs, config: EngineConfig, options: "Options", listener: socket.socket, clock: Clock
    ):
        self.args = args
        self.config = config
        self.options = options
        self.listener = listener
        self.clock = clock
        self.status = 0
        self._grace = args.shutdown_timeout or 0.0
        self._ending: asyncio.Task | None = None

    async def serve(self, client: "ProcessClient", tokenizer, chat, ready: "Ready") -> int:
        """Until the end; the exit status."""
        from octavo.front.engine import AsyncEngine
        from octavo.front.metrics import tracing
        from octavo.front.metrics.periodic import Periodic
        from octavo.front.metrics.prometheus import Prometheus
        from octavo.front.server.app import build_app

        self.client = client
        self.engine = engine = AsyncEngine(client, self.config, tokenizer, chat, ready)
        cache = {"block_size": ready.page, "num_gpu_blocks": ready.pages, "kv_tokens": ready.kv_tokens}
        metrics = Prometheus(self.config.text.served_names[0], ready.max_model_len, cache)
        engine.observe(metrics)
        engine.on_stats(metrics.stats)
        if not self.args.disable_log_stats:
            engine.on_stats(Periodic().stats)
        tracer = None
        if self.args.otlp_traces_endpoint is not None:
            tracer = tracing.Tracer(self.args.otlp_traces_endpoint, self.config.text.served_names[0])
            engine.on_end(tracer.request)
        app, self.service = build_app(engine, self.options, metrics)
        context = None if self.options.tls is None else self.options.tls.context()
        self.server = server = _server(
            app, self.args, self.options, context, self._grace, lambda: self._announce(ready)
        )
        engine.on_dead(self._died)
        engine.attach()
        engine.teach_when_idle()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        watch = None
        if context is not None and self.args.enable_ssl_refresh:
            watch = asyncio.ensure_future(self._refresh(context))
        calls = None
        try:
            if self.args.grpc_port:
                calls = await self._serve_grpc(self.args.grpc_port)
            await server.serve(sockets=[self.listener])
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._url()}: {error.strerror}") from None
        finally:
            if watch is not None:
                watch.cancel()
            if calls is not None:
                if self._ending is not None:
                    await self._ending  # calls get the time that HTTP's requests get
                await calls.stop(FAREWELL)
            engine.close(FAREWELL)
            if tracer is not None:
                await asyncio.to_thread(tracer.close)
        return self.status

    async def _serve_grpc(self, port: int) -> "GRPCServer":
        from octavo.front.grpc.server import Server

        found = Server(self.service, self.options.write_timeout)
        host = self.listener.getsockname()[0]
        await found.start(host, port, self.options.tls, bool(self.args.enable_ssl_refresh))
        return found

    def _announce(self, ready: "Ready") -> None:
        phases = self.clock.phases(time.monotonic())
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
        try:
            print(
                f"octavo serves {self.config.text.served_names[0]} at {self._url()} (ready in "
                f"{sum(phases.values()):.1f} s: {told}; longest request {ready.max_model_len} tokens)",
                flush=True,
            )
        except OSError as error:  # a full disk, or nobody who reads: no reason not to serve
            _log.warning("standard output cannot be written: %s", error.strerror)

    def _url(self) -> str:
        return url_of(self.listener, "http" if self.options.tls is None else "https")

    async def _refresh(self, context: "ssl.SSLContext") -> None:
        from octavo.front.server.tls import REFRESH_EVERY, Refresher

        assert self.options.tls is not None
        refresher = Refresher(self.options.tls, context)
        while True:
            await asyncio.sleep(REFRESH_EVERY)
            await asyncio.to_thread(refresher.refresh)

    def _signalled(self, number: signal.Signals) -> None:
        if self._ending is not None:
            self.client.close(0.0)
            os._exit(128 + number)
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
        asyncio.get_running_loop().call_later(MOURNING, self._end)

    def _end(self) -> None:
        self.server.should_exit = True


def _server(
    app, args: ServeArgs, options: "Options", context: "ssl.SSLContext | None", grace: float, ready
) -> "uvicorn.Server":
    import uvicorn

    from octavo.front.server import protocol

    class Server(uvicorn.Server):
        """uvicorn without its own signal handling, which would end requests in its own way."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    _quieten()
    keep_alive = KEEP_ALIVE if args.timeout_keep_alive is None else args.timeout_keep_alive
    config = uvicorn.Config(
        app,
        http=protocol.best(options.write_timeout),
        ws="none",  # no route is a websocket; what nobody serves cannot be attacked
        h11_max_incomplete_event_size=protocol.MAX_HEAD,
        ssl_context_factory=None if context is None else lambda config, default: context,
        log_config=None,
        access_log=not args.disable_access_log,
        lifespan="off",
        backlog=BACKLOG,
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=grace + FAREWELL,  # type: ignore[arg-type]
        server_header=False,
    )
    return Server(config)


def _quieten() -> None:
    """The lines of libraries go where ours go; of their own life only warnings are told."""
    for name, level in (
        ("uvicorn.error", logging.WARNING),
        ("uvicorn.access", logging.INFO),
        ("opentelemetry", logging.WARNING),
    ):
        logger = logging.getLogger(name)
        logger.setLevel(max(level, logging.getLogger("octavo").level))
        logger.handlers = logging.getLogger("octavo").handlers
        logger.propagate = False
    logging.getLogger("uvicorn.access").addFilter(log.without_query)


def _allow_connections() -> None:
    """As many open files as the system lets this process have: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
