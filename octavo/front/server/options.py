"""Options of the server. A leaf: it is read before anything heavy is imported."""

from dataclasses import dataclass, field
from typing import Any

DEFAULT_BODY_SIZE = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked of the server, beside the engine."""

    api_keys: tuple[str, ...] = ()
    max_body_size: int = DEFAULT_BODY_SIZE
    root_path: str = ""
    allowed_origins: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    request_timeout: float | None = None
    response_role: str = "assistant"
    trust_request_chat_template: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    tokens_as_ids: bool = False
    force_usage: bool = False
    request_id_headers: bool = False
    log_requests: bool = False
    docs: bool = True
