"""Options of the server. A leaf: it is read before anything heavy is imported."""

from dataclasses import dataclass, field
from typing import Any

from octavo.front.server.tls import TLS

DEFAULT_BODY_SIZE = 64 << 20
#: Prompts in one request, and answers to them: each is a request of its own to the engine.
MAX_PROMPTS = 1024
#: A request's name, as a pattern: safe to log, and to send back in a header.
NAME = "[A-Za-z0-9._-]{1,128}"


@dataclass(frozen=True, kw_only=True)
class Profiling:
    """``folder``: where traces go."""

    folder: str
    with_stack: bool = False
    record_shapes: bool = False


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked of the server, beside the engine."""

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    isolate_keys: bool = False
    tls: TLS | None = None
    write_timeout: float = 60.0
    max_prompts: int = MAX_PROMPTS
    max_body_size: int = DEFAULT_BODY_SIZE
    root_path: str = ""
    allowed_origins: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    request_timeout: float | None = None
    response_role: str = "assistant"
    trust_request_chat_template: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning_parser: str = "auto"
    tool_call_parser: str = "auto"
    reasoning_alias: bool = False
    hide_unused_tools: bool = False
    tokens_as_ids: bool = False
    force_usage: bool = False
    request_id_headers: bool = True
    log_requests: bool = False
    docs: bool = True
    control: bool = False
    profiler: Profiling | None = None
    web_ui: bool = True
    #: Responses that /v1/responses keeps (0: none), their bytes in all, and seconds until they are forgotten.
    response_store_count: int = 1024
    response_store_size: int = 256 << 20
    response_store_age: float = 24 * 3600.0
