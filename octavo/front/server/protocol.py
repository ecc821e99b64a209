"""The HTTP protocol of a connection, httptools' where it is installed, with bounds on what is not a body, and on time.

uvicorn bounds h11's head, but not that of httptools, which would keep headers and trailers of any length in memory; and
neither ends a request that never arrives whole, or a client that never takes its answer.
"""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

#: The ASGI extension that a connection offers, where it can: ``{"write": function}`` (see ``_writer``).
DIRECT = "octavo.direct"
#: Bytes of request line, headers, trailers and what frames the chunks of a body.
MAX_HEAD = 64 << 10
#: Headers and trailers of one request.
MAX_HEADERS = 256
#: A chunk of one byte has five bytes around it; nobody needs more.
_FRAMING = 8
#: Seconds of silence in the middle of a request.
PATIENCE = 60.0
_LONG_HEAD = f"Request line and headers are over the limit of {MAX_HEAD} bytes."


class _TooMuch(Exception):
    """Stops the parser in the middle of a head."""


def best(write_timeout: float = PATIENCE) -> Any:
    """What uvicorn takes as ``http``.

    ``write_timeout``: seconds after which a client that takes nothing of what waits for it is cut off.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return plain(write_timeout)
    return bounded(HttpToolsProtocol, write_timeout)


def plain(write_timeout: float = PATIENCE) -> Any:
    """h11's protocol, which needs nothing that must be installed for it."""
    from uvicorn.protocols.http.h11_impl import H11Protocol, h11

    class Plain(_timed(H11Protocol, write_timeout)):  # type: ignore[misc]
        def waits_for_client(self) -> bool:
            return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    return Plain


def _timed(base: Any, write_timeout: float) -> Any:
    class Timed(base):
        """Closes a connection whose request stays away for ``PATIENCE`` seconds, or whose client takes nothing of its
        answer for ``write_timeout`` seconds: that one without a word, since it would not read it either."""

        _heard = 0.0
        _unsent = 0
        _reader: asyncio.TimerHandle | None = None
        _writer: asyncio.TimerHandle | None = None

        def waits_for_client(self) -> bool:
            """Whether the next move is the client's."""
            raise NotImplementedError

        def give_up(self, why: str) -> None:
            self.transport.close()

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._heard = self.loop.time()
            self._reader = self.loop.call_later(PATIENCE, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._reader, self._writer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._heard = self.loop.time()
            super().data_received(data)

        def _look(self) -> None:
            """One timer a connection, however many pieces come."""
            quiet = self.loop.time() - self._heard
            # What is not read for want of room is not the client's silence.
            if quiet >= PATIENCE and not self.flow.read_paused and self.waits_for_client():
                self.give_up(f"Nothing of the request came for {PATIENCE:.0f} seconds.")
            else:
                self._reader = self.loop.call_later(max(PATIENCE - quiet, 1.0), self._look)

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

    return Timed


def bounded(base: Any, write_timeout: float) -> Any:
    """httptools' protocol, whose heads are bounded too."""

    class Bounded(_timed(base, write_timeout)):  # type: ignore[misc]
        """Closes a connection whose request passes ``MAX_HEAD`` or ``MAX_HEADERS``. It says why with status 400, unless
        the request is being answered already."""

        _read = 0
        _body = 0
        _head = 0
        _why: str | None = None
        _whole = False

        def waits_for_client(self) -> bool:
            answering = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
            return not self._whole and not answering

        def data_received(self, data: bytes) -> None:
            self._whole = False
            self._read += len(data)
            super().data_received(data)
            if self._read - (1 + _FRAMING) * self._body > MAX_HEAD:
                self.give_up(_LONG_HEAD)

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

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self.scope["extensions"] = {DIRECT: {"write": _writer(self.cycle)}}

        def on_body(self, body: bytes) -> None:
            self._body += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._read = self._body = 0
            self._whole = True
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            # An answer that is under way must not get another in its middle.
            if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
                super().send_400_response(self._why or msg)
            else:
                self.transport.close()

        def give_up(self, why: str) -> None:
            if self._read and not self.transport.is_closing():
                self.send_400_response(why)
            else:
                self.transport.close()

    return Bounded


def _writer(cycle: Any) -> Callable[[bytes], bool]:
    """What writes a piece of a begun answer's body straight to the transport. It returns False where it did not, since
    the client is behind or gone, or the body does not go in chunks (a HEAD's does not go at all): then ASGI's ``send``
    takes the piece, and waits for the client.
    """
    flow, transport = cycle.flow, cycle.transport
    answering = weakref.ref(cycle)  # which has the scope, where this function is: neither may wait for the collector

    def write(data: bytes) -> bool:
        cycle = answering()
        if (
            cycle is None
            or flow.write_paused
            or cycle.disconnected
            or cycle.response_complete
            or not cycle.chunked_encoding
        ):
            return False
        if data:  # an empty chunk would end the body
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    return write
