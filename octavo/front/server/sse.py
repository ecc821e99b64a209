"""Server-sent events: an ASGI response that owns its ``send``, and the watch over clients that go away."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.common.log import logger
from octavo.errors import OctavoError, RequestError
from octavo.front.server.errors import Disconnected, describe, encode, respond
from octavo.front.server.protocol import DIRECT

T = TypeVar("T")
#: Writes a frame to the connection; False where it did not, and asked with b"" whether it would (``protocol``).
Write = Callable[[bytes], bool]
DONE = b"data: [DONE]\n\n"
_log = logger(__name__)
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def frame(data: bytes) -> bytes:
    """One event."""
    return b"data: " + data + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client disconnects: then ``Disconnected`` is raised.

    The request's body must have been read.
    """
    job = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((job, gone), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise Disconnected
        return job.result()
    finally:
        for task in (job, gone):
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends the frames of ``frames`` (each one or more whole events) as they come, then ``end``.

    Once the head and the first of them are out, frames go straight to the connection where that offers it
    (``protocol.DIRECT``): the layers around the routes have nothing to do with them. A slow client holds up only
    itself: what comes meanwhile is merged at the source (``front.engine``'s streams), so that memory stays bounded. A
    client that goes away cancels ``frames``. An error becomes an event, since the status is out, but where the core
    turns the request away before its first event. ``close`` is called at the end, whatever the end is. ``shorten`` is
    told how to write frames past ``frames`` while that waits (``front.stream``): the source's own shortest way.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        close: Callable[[], None],
        end: bytes = DONE,
        shorten: Callable[[Write], None] | None = None,
    ):
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._close = close
        self._end = end
        self._shorten = shorten

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._write(scope, receive, send))
        except Disconnected:
            pass
        finally:
            self._close()

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = scope.get("extensions", {}).get(DIRECT, {}).get("write", _cannot)
        async with contextlib.aclosing(self._frames) as frames:
            try:
                first = await anext(frames, b"")
            except RequestError as error:  # turned away from the queue: nothing is out yet, so it can still be said
                return await respond(error, scope["path"])(scope, receive, send)
            except Exception as error:
                first = _told(error)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if first:
                await send({"type": "http.response.body", "body": first, "more_body": True})
            if self._shorten is not None and write is not _cannot:
                self._shorten(write)
            try:
                async for data in frames:
                    if not write(data):
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            except Exception as error:
                await send({"type": "http.response.body", "body": _told(error), "more_body": True})
            await send({"type": "http.response.body", "body": self._end, "more_body": False})
        return None


def _cannot(data: bytes) -> bool:
    """What writes where there is no connection, or one that offers nothing."""
    return False


def _told(error: Exception) -> bytes:
    """The event of a stream that failed."""
    if not isinstance(error, OctavoError):
        _log.error("a stream failed", exc_info=error)
    return frame(encode(describe(error)))
