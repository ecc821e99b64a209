"""uvicorn as octavo runs it: without its own signals, log and limits, also for connections taken elsewhere."""

import asyncio
import contextlib
import functools
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from octavo.common import log
from octavo.config.args import ServeArgs
from octavo.launch.asked import KEEP_ALIVE

if TYPE_CHECKING:
    import ssl

    from octavo.front.server.options import Options

BACKLOG = 2048
MAX_FILES = 65536
#: Seconds that answers get to leave after their requests were aborted.
FAREWELL = 2.0


def everywhere(listener: socket.socket) -> bool:
    """Whether it listens on all addresses of this machine."""
    return listener.getsockname()[0] in ("::", "0.0.0.0")


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Where a client on this machine finds the server."""
    host, port = listener.getsockname()[:2]
    if everywhere(listener):
        host = "127.0.0.1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def runner() -> asyncio.Runner:
    """With uvloop's loop where that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def allow_connections() -> None:
    """As many open files as the system lets this process have: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def server_of(
    app, args: ServeArgs, options: "Options", context: "ssl.SSLContext | None", ready: Callable[[], None]
) -> Any:
    """uvicorn over ``app``; ``ready`` is called once it listens. Its ``adopt`` serves an accepted connection."""
    import uvicorn

    from octavo.front.server import protocol

    class Server(uvicorn.Server):
        """uvicorn without its own signal handling, which would end requests in its own way."""

        _adopting: set[asyncio.Task]

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            self._adopting = set()
            ready()

        def adopt(self, connection: socket.socket) -> None:
            """Serve a connection that was accepted elsewhere, as one of its own."""
            task = asyncio.ensure_future(self._adopt(connection))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

        async def _adopt(self, connection: socket.socket) -> None:
            connection.setblocking(False)
            protocol: Any = self.config.http_protocol_class
            make = functools.partial(
                protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            loop = asyncio.get_running_loop()
            try:
                await loop.connect_accepted_socket(make, connection, ssl=self.config.ssl)
            except OSError:  # the client has left, or its TLS is none
                connection.close()

    _quieten()
    grace = args.shutdown_timeout or 0.0
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
