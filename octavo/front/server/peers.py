"""The API processes of one server among themselves, where there are several of them.

A stored response lives in the process that made it: its id begins with that process's number, and whoever else is asked
for it forwards the request there. What steers the engine is asked of process 0, which tells the others. They speak over
a Unix socket of each, in a directory that only this user can enter: a request goes as its ASGI scope and body, and is
heard at once; its answer comes back as ASGI messages, each a length and MessagePack.
"""

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.common.log import logger
from octavo.errors import RequestError, RequestFailed
from octavo.front.server.errors import Disconnected, respond
from octavo.front.server.sse import unless_gone

#: Seconds within which another process hears what it is asked, and answers a word that does not say how long it takes.
PATIENCE = 30.0
_LENGTH = 4
_SENT = ("method", "path", "raw_path", "query_string", "root_path", "scheme", "http_version", "client", "server")
_STORED = re.compile(r"/v1/responses/resp_([0-9a-f]{2})[0-9a-f]{32}(|/cancel|/input_items)")
_ID = re.compile(r"resp_([0-9a-f]{2})[0-9a-f]{32}")
_log = logger(__name__)


class Away(RequestError):
    """The process that a request belongs to is not there now."""

    status = 503
    type = "ServiceUnavailableError"


class Forwarded(Response):
    """What process ``number`` answers to a request, whole or as a stream. If the client leaves, it ends there too."""

    def __init__(self, peers: "Peers", number: int, body: bytes):
        super().__init__()
        self._peers, self._number, self._asked = peers, number, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(Disconnected):
            await unless_gone(receive, self._peers.relay(self._number, scope, self._asked, receive, send))


class Route(NamedTuple):
    """What the router would have left in the scope."""

    path: str


class Peers:
    """Process ``own`` of ``count``, with its socket and the others' in ``folder``. ``words``: what they may ask of it,
    as functions, coroutines among them."""

    def __init__(self, folder: str, own: int, count: int):
        self.own, self.count = own, count
        self.words: dict[str, Callable[..., Any]] = {}
        self._folder = folder
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task] = set()

    @property
    def mark(self) -> str:
        """What names of things that this process keeps begin with, behind their kind."""
        return f"{self.own:02x}"

    def other(self, name: str | None) -> int | None:
        """The other process that keeps the response ``name``; None where it is this one, or none is known."""
        found = _ID.fullmatch(name or "")
        return None if found is None else self._known(int(found[1], 16))

    def _known(self, number: int) -> int | None:
        return number if number != self.own and number < self.count else None

    async def open(self, app: ASGIApp) -> None:
        """Listen; forwarded requests go to ``app``."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._open.add(task)
            try:
                kind, *rest = await _read(reader)
                await _write(writer, None)  # heard: whoever asks tells a long answer from a process that hangs
                await (_answer(app, reader, writer, *rest) if kind == "http" else self._say(writer, *rest))
            except (OSError, asyncio.IncompleteReadError, Disconnected):
                pass  # who asked is gone
            except Exception:
                _log.exception("what another API process asked failed")
            finally:
                self._open.discard(task)
                writer.close()

        path = self._path(self.own)
        path.unlink(missing_ok=True)  # of the process that was in this place before
        self._server = await asyncio.start_unix_server(serve, path)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()

    async def ask_all(self, word: str, *args: Any, timeout: float = PATIENCE) -> list[Any]:
        """What the others answer. One that is gone is left out: what comes in its place learns how things stand.

        Raises ``RequestFailed`` where one does not answer, or fails.
        """
        others = [number for number in range(self.count) if number != self.own]
        found = await asyncio.gather(*(self._ask(number, word, args, timeout) for number in others))
        return [answer for answers in found for answer in answers]

    async def _ask(self, number: int, word: str, args: tuple[Any, ...], timeout: float) -> list[Any]:
        try:
            async with asyncio.timeout(timeout), self._line(number, "word", word, args) as (reader, _):
                error, value = await _read(reader)
        except TimeoutError:
            raise RequestFailed(f"API process {number + 1} did not answer in time") from None
        except (OSError, asyncio.IncompleteReadError):
            return []
        if error is not None:
            raise RequestFailed(f"API process {number + 1}: {error}")
        return [value]

    async def _say(self, writer: asyncio.StreamWriter, word: str, args: list[Any]) -> None:
        failed = value = None
        try:
            value = self.words[word](*args)
            value = await value if inspect.isawaitable(value) else value
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        await _write(writer, (failed, value))

    async def relay(self, number: int, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Give ``send`` the answer of process ``number`` to a request."""
        begun = False
        try:
            async with self._line(number, "http", _said(scope), body) as (reader, _):
                more = True
                while more:
                    message = await _read(reader)
                    await send(message)
                    begun = True
                    more = message["type"] != "http.response.body" or message.get("more_body", False)
        except (OSError, asyncio.IncompleteReadError) as error:
            if (
                begun
            ):  # it cannot be taken back: the server below cuts the connection, so that nobody takes it for whole
                _log.warning("API process %d was lost in the middle of an answer", number + 1)
                return
            how = "does not answer" if isinstance(error, TimeoutError) else "is not there now; try again"
            away = Away(f"API process {number + 1}, which keeps this, {how}")
            await respond(away, scope["path"])(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _line(self, number: int, *asked: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A line to a process that has heard what it is ``asked``. Raises ``TimeoutError`` where it does not hear."""
        reader, writer = await asyncio.open_unix_connection(self._path(number))
        try:
            async with asyncio.timeout(PATIENCE):
                await _write(writer, asked)
                await _read(reader)
            yield reader, writer
        finally:
            writer.close()

    def _path(self, number: int) -> Path:
        return Path(self._folder) / f"api-{number}"


class Forward:
    """Middleware: a request for what another process keeps goes there. ``steering``: paths that are process 0's.
    ``root_path``: what a path may begin with, and the router does not look at."""

    def __init__(self, app: ASGIApp, peers: Peers, steering: frozenset[str], root_path: str = ""):
        self._app, self._peers, self._steering, self._root = app, peers, steering, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = self._number(scope) if scope["type"] == "http" else None
        if number is None:
            return await self._app(scope, receive, send)
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        return await Forwarded(self._peers, number, b"".join(parts))(scope, receive, send)

    def _number(self, scope: Scope) -> int | None:
        path = scope["path"]
        if self._root and path.startswith(f"{self._root}/"):
            path = path[len(self._root) :]
        if path in self._steering:
            if self._peers.own:
                scope["route"] = Route(path)
                return 0
        elif (found := _STORED.fullmatch(path)) and (number := self._peers._known(int(found[1], 16))) is not None:
            scope["route"] = Route("/v1/responses/{response_id}" + found[2])
            return number
        return None


def _said(scope: Scope) -> dict[str, Any]:
    """Of a scope what another process needs, and can be sent."""
    name = scope["state"]["request_id"].encode()
    headers = [(key, value) for key, value in scope["headers"] if key != b"x-request-id"]
    return {key: scope.get(key) for key in _SENT} | {"headers": [*headers, (b"x-request-id", name)]}


async def _answer(
    app: ASGIApp, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: Mapping[str, Any], body: bytes
) -> None:
    """Answer a forwarded request. Whoever forwards it sends nothing more: the end of its line is a client that left."""
    gone = asyncio.ensure_future(reader.read())
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await asyncio.wait((gone,))
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if not gone.done():
            await _write(writer, message)

    headers = [(bytes(key), bytes(value)) for key, value in said["headers"]]
    client, server = (None if said[key] is None else tuple(said[key]) for key in ("client", "server"))
    scope = {"type": "http", "asgi": {"version": "3.0"}, **said, "headers": headers, "client": client, "server": server}
    try:
        await app(scope, receive, send)
    finally:
        gone.cancel()


async def _read(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(_LENGTH), "little")
    return msgspec.msgpack.decode(await reader.readexactly(size))


async def _write(writer: asyncio.StreamWriter, value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    writer.write(len(data).to_bytes(_LENGTH, "little") + data)
    await writer.drain()
