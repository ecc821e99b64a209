"""The HTTP parser of a connection: httptools where it is installed, with bounds on what is not a body, and on time.

uvicorn bounds h11's head, but not that of httptools, which would keep headers and trailers of any length in memory; and
neither ends a request that never arrives whole, or a client that never takes its answer.
"""

import asyncio
from typing import Any

#: Bytes of request line, headers, trailers and what frames the chunks of a body.
MAX_HEAD = 64 << 10
_LONG_HEAD = f"Request line and headers are over the limit of {MAX_HEAD} bytes."
#: Headers and trailers of one request.
MAX_HEADERS = 256
#: A chunk of one byte has five bytes around it; nobody needs more.
_FRAMING = 8
#: Seconds of silence in the middle of a request.
PATIENCE = 60.0


class _TooMuch(Exception):
    """Stops the parser in the middle of a head."""


def best(write_timeout: float = PATIENCE) -> Any:
    """What uvicorn takes as ``http``: a bounded httptools protocol, or "h11".

    ``write_timeout``: seconds after which a client that takes nothing of what waits for it is cut off.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Bounded(HttpToolsProtocol):
        """Closes a connection whose request passes ``MAX_HEAD``, or stays away for ``PATIENCE`` seconds.

        It says why with status 400, unless the request is being answered already. A client that does not read is cut
        off without a word: it would not read that either.
        """

        _read = 0
        _body = 0
        _head = 0
        _why: str | None = None
        _whole = False
        _heard = 0.0
        _timer: asyncio.TimerHandle | None = None
        _writer: asyncio.TimerHandle | None = None
        _unsent = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._heard = self.loop.time()
            self._timer = self.loop.call_later(PATIENCE, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._timer, self._writer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._heard = self.loop.time()
            self._whole = False
            self._read += len(data)
            super().data_received(data)
            if self._read - (1 + _FRAMING) * self._body > MAX_HEAD:
                self._refuse(_LONG_HEAD)

        def on_message_begin(self) -> None:
            self._whole = False
            self._head = 0
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self._take(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._take(len(name) + len(value))
            if len(self.headers) >= MAX_HEADERS:
                self._why = f"A request may have at most {MAX_HEADERS} headers."
                raise _TooMuch
            super().on_header(name, value)

        def _take(self, count: int) -> None:
            self._head += count
            if self._head > MAX_HEAD:
                self._why = _LONG_HEAD
                raise _TooMuch  # the parser stops, and super().data_received answers

        def send_400_response(self, msg: str) -> None:
            # An answer that is under way must not get another in its middle.
            if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
                super().send_400_response(self._why or msg)
            else:
                self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unsent = self.transport.get_write_buffer_size()
            if self._writer is None:
                self._writer = self.loop.call_later(write_timeout, self._look_at_writing)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._writer is not None:
                self._writer.cancel()
                self._writer = None

        def _look_at_writing(self) -> None:
            self._writer = None
            left = self.transport.get_write_buffer_size()
            if left >= self._unsent:
                self.transport.abort()
            else:
                self._unsent = left
                self._writer = self.loop.call_later(write_timeout, self._look_at_writing)

        def _unsupported_upgrade_warning(self) -> None:
            pass  # there is no websocket here; the request is answered as if it had not asked for one

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
            if self._read:
                self.send_400_response(why)
            else:
                self.transport.close()

    return Bounded
