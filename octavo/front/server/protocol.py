"""The HTTP parser of a connection: httptools where it is installed, with a bound on what comes before a body.

uvicorn bounds h11's head, but not that of httptools, which would keep a header of any length in memory.
"""

from typing import Any

#: Bytes of request line and headers.
MAX_HEAD = 64 << 10


def best() -> Any:
    """What uvicorn takes as ``http``: a bounded httptools protocol, or "h11"."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Bounded(HttpToolsProtocol):
        """Answers 400 and closes once the head of a request passes ``MAX_HEAD``."""

        _head = 0
        _in_body = False

        def data_received(self, data: bytes) -> None:
            if not self._in_body:
                self._head += len(data)
            super().data_received(data)
            if not self._in_body and self._head > MAX_HEAD and not self.transport.is_closing():
                self.send_400_response(f"Request line and headers are over the limit of {MAX_HEAD} bytes.")

        def on_headers_complete(self) -> None:
            self._in_body, self._head = True, 0
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_body = False
            super().on_message_complete()

    return Bounded
