"""`octavo serve`: the engine in a process of its own, HTTP in this one, or in several (``launch.several``).

Order of a start: the port is bound (a used one fails at once, before a model is fetched), the engine process starts,
and while it loads the model this process imports the server and reads the tokenizer. Order of an end: a signal stops
the listening, open requests get ``--shutdown-timeout`` seconds, what is left is aborted; a second signal ends
everything at once. An engine that dies fails the open requests, turns /health to 503 and ends the server with status 1.
"""

import os
import signal
import sys
import time
from typing import NamedTuple

from octavo.common import log
from octavo.common.argv import hide
from octavo.config import env
from octavo.config.args import ServeArgs
from octavo.config.checkpoint import check_name
from octavo.config.engine import WORKER, EngineConfig
from octavo.config.resolve import resolve
from octavo.launch.asked import DEFAULT_PORT, api_servers, bind, check_doors, check_grpc, server_options
from octavo.launch.listening import FAREWELL, allow_connections, everywhere, runner, url_of

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
    allow_connections()
    check_doors(args, options)
    check_name(args.model)  # a slip of the pen is told before a port that is taken
    listener = bind(args.host, DEFAULT_PORT if args.port is None else args.port)
    if args.grpc_port:
        check_grpc(args, options)
    config = resolve(args, worker=worker)
    count, _ = api_servers(args, config)

    from octavo.front.client.process import ProcessClient

    # Until the loop listens for signals, one ends the start in order: the engine's process and its sockets go too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    client = ProcessClient(config)
    try:
        launched = time.monotonic()
        client.launch()
        url = url_of(listener, "http" if options.tls is None else "https")
        announced = Announced(config, url, everywhere(listener), begin, launched)
        if count > 1:
            from octavo.launch.several import Several

            with Several(args, config, options, listener, client, announced, count) as several, runner() as loop:
                return loop.run(several.serve())
        # The engine is on its way; what this process needs is imported and read beside it.
        import octavo.front.server.app  # noqa: F401
        from octavo.launch.house import House
        from octavo.launch.text import format_of, front_of

        tokenizer, chat = front_of(config)
        format_of(tokenizer, chat, options)  # two parsers that do not go together are told before the model is loaded
        ready = client.start()
        announced.up(ready.max_model_len, ready.phases)
        house = House(args, config, options, listener.getsockname()[0], announced.say, listener)
        with runner() as loop:
            return loop.run(house.serve(client, tokenizer, chat, ready))
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


class Announced:
    """The line that says where the server is, and where the time of its start went. ``everywhere``: on all addresses of
    the machine, of which ``url`` is one."""

    def __init__(self, config: EngineConfig, url: str, everywhere: bool, begin: float, launched: float):
        self.url = url
        self._where = "all addresses; " if everywhere else ""
        self._name = config.text.served_names[0]
        self._clock = Clock(begin, launched, launched, {})
        self._longest = 0

    def up(self, longest: int, phases: dict[str, float]) -> None:
        """The engine can serve now; its longest request has ``longest`` tokens."""
        self._longest = longest
        self._clock = self._clock._replace(up=time.monotonic(), engine=phases)

    def say(self) -> None:
        phases = self._clock.phases(time.monotonic())
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
        try:
            print(
                f"octavo serves {self._name} at {self.url} ({self._where}ready in "
                f"{sum(phases.values()):.1f} s: {told}; longest request {self._longest} tokens)",
                flush=True,
            )
        except OSError as error:  # a full disk, or nobody who reads: no reason not to serve
            _log.warning("standard output cannot be written: %s", error.strerror)
