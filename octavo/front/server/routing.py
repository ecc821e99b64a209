"""JSONRoute: a route whose body must be JSON, and says so in a sentence where it is not."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from octavo.errors import BadRequest
from octavo.front.server.errors import Disconnected
from octavo.front.server.openai.schema import ErrorAnswer

#: Errors of a generating route, for the OpenAPI document.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text}
    for status, text in (
        (400, "a value is wrong"),
        (401, "no key, or a wrong one"),
        (404, "no such model"),
        (413, "the body is too large"),
        (429, "too many requests wait"),
        (500, "the engine could not finish"),
        (501, "asked for what this server does not do"),
        (503, "the engine is gone"),
    )
}


#: What a body may hold: reading a value of any kind takes far longer than its bytes suggest, and holds up the loop.
MAX_CONTAINERS = 100_000
MAX_STRINGS = 250_000
MAX_VALUES = 4_000_000
#: Lists and objects in one another; what takes values apart, or writes them again, has limits not far above.
MAX_DEPTH = 128


_TOO_DEEP = f"the body's JSON is nested too deeply: at most {MAX_DEPTH} lists and objects in one another"


def check_structure(body: bytes) -> None:
    """Raises ``BadRequest`` for JSON of too many values, at a small part of the price of reading it."""
    if _fits(body):
        return
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    strings = bare.count(b'"') // 2
    # What stands in strings is no structure; they are cut out only where they are few.
    if strings > MAX_STRINGS or not _fits(b"".join(bare.split(b'"')[::2])):
        raise BadRequest(
            f"the body's JSON has too many values: at most {MAX_CONTAINERS} lists and objects, "
            f"{MAX_STRINGS} strings and {MAX_VALUES} values in all"
        )


def _fits(text: bytes) -> bool:
    return (
        text.count(b"[") + text.count(b"{") <= MAX_CONTAINERS
        and text.count(b",") <= MAX_VALUES
        and text.count(b'"') <= 2 * MAX_STRINGS
    )


def read_json(body: bytes) -> Any:
    """The value of a body. Raises ``BadRequest``."""
    try:
        check_structure(body)
        value = msgspec.json.decode(body)
    except RecursionError:
        raise BadRequest(_TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deep(value):
        raise BadRequest(_TOO_DEEP)
    return value


def _deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


class JSONRequest(Request):
    """Reads its body with msgspec: strict JSON (no NaN, no lone surrogates, no bottomless nesting), and quickly."""

    async def json(self) -> Any:
        try:
            return read_json(await self.body())
        except BadRequest as error:  # FastAPI lets nothing else through
            raise HTTPException(400, error.message) from None


class JSONRoute(APIRoute):
    """For FastAPI: the content type is checked first, then the body is read by ``JSONRequest``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if self.body_field is not None:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if not (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))):
                    shown = f"{kind[:80]!r}" if kind else "nothing"
                    raise BadRequest(
                        f"only a body of Content-Type application/json is read here; the request says {shown}"
                    )
                coding = request.headers.get("content-encoding", "identity").strip().lower()
                if coding not in ("", "identity"):
                    raise BadRequest(f"a body of Content-Encoding {coding[:80]!r} is not read here; send it as it is")
                try:
                    body = await request.body()
                except ClientDisconnect:
                    raise Disconnected from None
                if not body:
                    raise BadRequest("the body is empty; it must be a JSON object")
            # The body that was read travels with the scope's receive, so it is handed over.
            inner = JSONRequest(request.scope, request.receive)
            if hasattr(request, "_body"):
                inner._body = request._body
            return await handler(inner)

        return handle
