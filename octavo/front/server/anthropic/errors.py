"""Errors as Anthropic's clients read them: {"type": "error", "error": {"type", "message"}}."""

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from octavo.front.server.errors import ErrorInfo

_PATH = re.compile(r"/v1/messages(/|$)")
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


#: Fields whose refusal clients look for, to go on without them.
_DETAILS = {"thread": {"error_code": "thread_unsupported_request"}}


class Detail(msgspec.Struct, omit_defaults=True):
    type: str
    message: str
    details: dict[str, str] | None = None


class ErrorBody(msgspec.Struct):
    error: Detail
    type: str = "error"


def speaks(path: str) -> bool:
    """Whether errors of this path have Anthropic's shape."""
    return _PATH.search(path) is not None


def encode(info: "ErrorInfo") -> bytes:
    """The error body as JSON. The field that is at fault stands in front of the message, since there is no other place
    for it."""
    kind = _TYPES.get(info.code, "invalid_request_error" if info.code < 500 else "api_error")
    known = info.param is None or info.param in info.message
    message = info.message if known else f"{info.param}: {info.message}"
    return msgspec.json.encode(ErrorBody(Detail(kind, message, _DETAILS.get(info.param or ""))))
