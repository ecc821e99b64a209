"""Pure ASGI middleware: keys, body size, request ids. (Starlette's BaseHTTPMiddleware costs 45 us a chunk.)

None may change or count an answer's body: a stream's pieces pass by (``sse.EventStream``).
"""

import re
import time
import uuid
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.common import log, trace
from octavo.errors import PayloadTooLarge
from octavo.front.server.errors import Unauthorized, respond
from octavo.front.server.keys import Keys, bearer, caller
from octavo.front.server.options import NAME

#: The routes that anybody may ask; every other one, known or not, needs the key.
OPEN_PATHS = frozenset({"/health", "/ping", "/version"})
_SAFE_ID = re.compile(NAME)


class Auth:
    """Lets a request through only with a known key: as bearer token, or in the header x-api-key.

    The path is the connection's own, never one rebuilt from the Host header, and it is compared whole: whatever a
    router might make of another one, it needs the key. ``also_open``: paths that need none, beside OPEN_PATHS.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], also_open: frozenset[str] = frozenset()):
        self._app = app
        self._keys = Keys(keys)
        self._open = OPEN_PATHS | also_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in self._open or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            error = Unauthorized("a valid API key is needed, as bearer token or in the header x-api-key")
            await respond(error, scope["path"])(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _knows(self, scope: Scope) -> bool:
        tokens = bearer(_header(scope, b"authorization") or b""), (_header(scope, b"x-api-key") or b"").strip()
        owner = self._keys.owner(*tokens)
        caller.set(owner)
        return owner is not None


class BodyLimit:
    """Refuses a body over ``limit`` bytes: at once where Content-Length says so, else as soon as it is read."""

    def __init__(self, app: ASGIApp, limit: int):
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        error = PayloadTooLarge(f"the body is over the limit of {self._limit} bytes (--max-body-size)")
        length = _header(scope, b"content-length")
        if length is not None and length.isdigit() and int(length) > self._limit:
            return await respond(error, scope["path"])(scope, receive, send)
        seen, started = 0, False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise error
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            # The framework may turn our error into one of its own; the answer is ours all the same.
            if seen <= self._limit or started:
                started = True
                await send(message)

        try:
            await self._app(scope, counted, watched)
        except PayloadTooLarge:
            pass
        if seen > self._limit and not started:
            await respond(error, scope["path"])(scope, receive, send)
        return None


class RequestId:
    """``scope["state"]["request_id"]``: what the client sent as X-Request-Id where that is safe to log, else a fresh
    one; lines of the log say it. ``seen`` is told (scope, status, seconds) of each answered request. ``echo``: answer
    with the header."""

    def __init__(self, app: ASGIApp, seen: Callable[[Scope, int, float], None], echo: bool = True):
        self._app = app
        self._seen = seen
        self._echo = echo

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = (_header(scope, b"x-request-id") or b"").decode("latin-1")
        name = given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = name
        log.request_id.set(name)
        trace.incoming.set(
            {key: value.decode("latin-1") for key in trace.HEADERS if (value := _header(scope, key.encode()))}
        )
        start, status = time.monotonic(), 499

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._echo:
                    message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self._app(scope, receive, named)
        except BaseException:
            status = 500 if status == 499 else status
            raise
        finally:
            self._seen(scope, status, time.monotonic() - start)
        return None


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)
