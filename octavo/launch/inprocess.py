"""The server's application without a socket: requests go in as calls, with the same checks, bodies and errors."""

import asyncio
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Scope

from octavo.common.log import logger

_log = logger(__name__)


class Said(NamedTuple):
    """An answer: body and headers (lower-case names) are as they would go out."""

    status: int
    body: bytes
    headers: dict[str, str]


async def post(app: ASGIApp, path: str, body: bytes) -> Said:
    """The answer of ``app`` to a POST of JSON. Cancelling it is a client that goes away."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, headers, pieces = 500, dict[str, str](), list[bytes]()

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()  # this client does not leave: it is cancelled
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update((name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"])
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": None,
        "server": None,
    }
    try:
        await app(scope, receive, send)
    except Exception:  # answered with a 500 by then, and raised for the log
        if not headers:
            raise
        _log.exception("a request to %s failed", path)
    return Said(status, b"".join(pieces), headers)
