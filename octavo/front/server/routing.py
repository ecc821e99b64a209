"""JSONRoute: a route whose body must be JSON, and says so in a sentence where it is not."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import BadRequest
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


class JSONRequest(Request):
    """Reads its body with msgspec: strict JSON (no NaN, no lone surrogates, no bottomless nesting), and quickly."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return msgspec.json.decode(body)
        except RecursionError:
            raise HTTPException(400, "the body's JSON is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HTTPException(400, f"the body is not valid JSON: {error}") from None


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
                if not await request.body():
                    raise BadRequest("the body is empty; it must be a JSON object")
            # The body that was read travels with the scope's receive, so it is handed over.
            inner = JSONRequest(request.scope, request.receive)
            if hasattr(request, "_body"):
                inner._body = request._body
            return await handler(inner)

        return handle
