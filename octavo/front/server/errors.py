"""An exception becomes OpenAI's error body: {"error": {"message", "type", "param", "code"}}, with code = status.

Anthropic's routes answer with Anthropic's body instead, whoever refuses the request.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from octavo.common.log import logger
from octavo.errors import EngineDead, OctavoError, Overloaded, RequestError, Unsupported
from octavo.front.server.anthropic import errors as anthropic

_log = logger(__name__)
_ADDRESS = re.compile(r"\s*(at )?\b0x[0-9a-fA-F]{4,}")
#: A file of this machine; only errors that octavo did not word itself can name one.
_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.@+~-]+/)+[\w.@+~-]*")
#: Steps of a validator's path that are types, not fields: "str", "list[int]", "list[TextPart]", "function-after[...]".
_TYPE_STEP = re.compile(
    r"^(str|int|float|bool|none|dict|(list|dict|tagged-union|union|function-\w+|constrained-\w+|lax-or-strict)\[.*|[A-Z]\w*)$"
)
_MAX_SHOWN = 5
#: Characters of one step of a path, which may be a key that the client made up.
_MAX_STEP = 80


class ErrorInfo(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct):
    error: ErrorInfo


class Unauthorized(RequestError):
    """The request carries no key, or a wrong one."""

    status = 401
    type = "AuthenticationError"


class Stuck(EngineDead):
    """The engine lives and makes no progress."""


class Disconnected(Exception):
    """The client went away; nobody reads an answer."""


def describe(error: BaseException) -> ErrorInfo:
    """What the client is told. Nothing of an unexpected error but that there was one: its text may hold anything."""
    match error:
        case RequestError():
            return ErrorInfo(_clean(error.message), error.type, error.param, error.status)
        case RequestValidationError():
            message, param = _validation(error.errors())
            return ErrorInfo(message, "BadRequestError", param, 400)
        case HTTPException():
            return ErrorInfo(_clean(str(error.detail)), _title(error.status_code), None, error.status_code)
        case Stuck():
            return ErrorInfo(f"the engine is stuck: {_bare(str(error))}", "ServiceUnavailableError", None, 503)
        case EngineDead():
            return ErrorInfo(f"the engine is gone: {_bare(str(error))}", "ServiceUnavailableError", None, 503)
        case OctavoError():
            return ErrorInfo(_bare(str(error)), "InternalServerError", None, 500)
    return ErrorInfo(
        "the server failed to answer this request; its log has the reason", "InternalServerError", None, 500
    )


def encode(info: ErrorInfo) -> bytes:
    """The error body as JSON."""
    return msgspec.json.encode(ErrorBody(info))


def respond(error: BaseException, path: str) -> Response:
    """The answer to a request for ``path`` that ended in ``error``."""
    info = describe(error)
    body = anthropic.encode(info) if anthropic.speaks(path) else encode(info)
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    elif isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(error, Unsupported):
        headers["x-should-retry"] = "false"  # what OpenAI's clients ask before they try a 5xx again
    elif isinstance(error, HTTPException):
        headers |= error.headers or {}
    return Response(body, info.code, headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """Every error of ``app`` is answered by ``respond``."""

    async def handle(request: Request, error: Exception) -> Response:
        return respond(error, request.scope["path"])

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    for kind in (RequestValidationError, HTTPException, OctavoError, Exception):
        app.add_exception_handler(kind, handle)
    app.add_exception_handler(Disconnected, gone)


def field_path(steps: Iterable[Any]) -> str:
    """A validator's path without "body" and the types it tried: ("body", "stop", "list[str]", 0) -> "stop.0"."""
    steps = [step for step in steps if step != "body"]
    kept = [
        str(step)[:_MAX_STEP]
        for index, step in enumerate(steps)
        if index == 0 or isinstance(step, int) or not _TYPE_STEP.match(step)
    ]
    return _clean(".".join(kept))


def _validation(errors: Iterable[Mapping[str, Any]]) -> tuple[str, str | None]:
    said: dict[str, list[str]] = {}
    for error in errors:
        message = str(error["msg"]).removeprefix("Value error, ")
        messages = said.setdefault(field_path(error["loc"]), [])
        if message not in messages:
            messages.append(message)
    # Of a union's branches the one that got deepest is the one that was meant.
    outer = _outer(said)
    said = {path: why for path, why in said.items() if path not in outer}
    lines = [f"{path}: {', or '.join(messages[:3])}" if path else messages[0] for path, messages in said.items()]
    more = f" (and {len(lines) - _MAX_SHOWN} more)" if len(lines) > _MAX_SHOWN else ""
    return _clean("; ".join(lines[:_MAX_SHOWN]) + more), next(iter(said), None) or None


def _outer(paths: Iterable[str]) -> set[str]:
    """Those of ``paths`` that others go on from, in the time that sorting takes: there may be as many as values."""
    # In this order what goes on from a path comes right behind it.
    ordered = sorted(f"{path}." for path in paths if path)
    return {path[:-1] for path, after in itertools.pairwise(ordered) if after.startswith(path)}


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase.replace(" ", "") + "Error"
    except ValueError:
        return "Error"


def _clean(text: str) -> str:
    """Without memory addresses, and without what UTF-8 cannot say."""
    return _ADDRESS.sub("", text).encode("utf-8", "replace").decode("utf-8")


def _bare(text: str) -> str:
    """As ``_clean``, and without the names of files."""
    return _PATH.sub("(a file)", _clean(text))
