"""What a request says of the trace that it belongs to, for whoever tells of it later."""

from collections.abc import Mapping
from contextvars import ContextVar

#: W3C's headers of the request that is being worked on.
HEADERS = ("traceparent", "tracestate")
incoming: ContextVar[Mapping[str, str]] = ContextVar("incoming", default={})  # noqa: B039 (nobody writes to it)
