"""The HTTP parser of a connection: httptools where it is installed, with bounds on what is not a body, and on time.

uvicorn bounds h11's head, but not that of httptools, which would keep headers and trailers of any length in memory; and
neither ends a request that never arrives whole.
"""

import asyncio
from typing import Any

#: Bytes of request line, headers, trailers and what frames the chunks of a body.
MAX_HEAD = 64 << 10
#: A chunk of one byte has five bytes around it; nobody needs more.
_FRAMING = 8
#: Seconds of silence in the middle of a request.
PATIENCE = 60.0


def best() -> Any:
    """What uvicorn takes as ``http``: a bounded httptools protocol, or "h11"."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Bounded(HttpToolsProtocol):
        """Closes a connection whose request passes ``MAX_HEAD``, or stays away for ``PATIENCE`` seconds.

        It says why with status 400, unless the request is being answered already.
        """

        _read = 0
        _body = 0
        _whole = False
        _heard = 0.0
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._heard = self.loop.time()
            self._timer = self.loop.call_later(PATIENCE, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._heard = self.loop.time()
            self._whole = False
            self._read += len(data)
            super().data_received(data)
            if self._read - (1 + _FRAMING) * self._body > MAX_HEAD:
                self._refuse(f"Request line and headers are over the limit of {MAX_HEAD} bytes.")

        def on_message_begin(self) -> None:
            self._whole = False
            super().on_message_begin()

        def on_body(self, body: bytes) -> None:
            self._body += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._read = self._body = 0
            self._whole = True
            super().on_message_complete()

        def _look(self) -> None:
            """One timer a connection, however many pieces come."""
            quiet = self.loop.time() - self._heard
            # What is not read for want of room is not the client's silence.
            if not self._whole and quiet >= PATIENCE and not self.flow.read_paused:
                self._refuse(f"Nothing of the request came for {PATIENCE:.0f} seconds.")
            else:
                self._timer = self.loop.call_later(max(PATIENCE - quiet, 1.0), self._look)

        def _refuse(self, why: str) -> None:
            if self.transport.is_closing():
                return
            if self._read and (self.cycle is None or not self.cycle.response_started):
                self.send_400_response(why)
            else:
                self.transport.close()

    return Bounded
