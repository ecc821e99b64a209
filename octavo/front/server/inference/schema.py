"""Bodies of the token routes, with vLLM's names."""

from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import Field

from octavo.front.server.openai.chunks import ContentLogprobs, UsageChunk
from octavo.front.server.openai.schema import (
    FIRST_ERROR,
    Answer,
    Body,
    ChatBody,
    ChatLogprobs,
    CompletionBody,
    Ids,
    NonEmpty,
    RequestName,
    StreamOptions,
    Usage,
)
from octavo.front.server.options import MAX_PROMPTS
from octavo.front.server.routing import ERRORS

#: Errors of a route that checks and computes, and gives nothing to the engine.
ERRORS_WITHOUT_ENGINE: dict[int | str, dict[str, Any]] = {
    status: ERRORS[status] for status in (400, 401, 404, 413, 501)
}
Tokens = Annotated[list[int], FIRST_ERROR, Field(min_length=1)]


class GenerateBody(Body):
    """POST /inference/v1/generate."""

    request_id: RequestName | None = None
    token_ids: Tokens
    sampling_params: dict[str, Any] = Field(
        default_factory=dict, description="SamplingParams by name; those left out have the model's defaults"
    )
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: NonEmpty | None = None
    priority: int = 0
    features: dict[str, Any] | None = Field(None, description="media; only null is taken")


class GenerateChoice(Answer):
    index: int
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: Ids | None


class GenerateAnswer(Answer):
    request_id: str
    choices: list[GenerateChoice]
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    usage: Usage


class ChoiceChunk(Struct):
    index: int
    token_ids: list[int]
    logprobs: ContentLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class GenerateChunk(Struct):
    request_id: str
    choices: list[ChoiceChunk]
    usage: UsageChunk | None = None


class Rendered(Answer):
    """A body for /inference/v1/generate that makes the answer which the rendered request asked for."""

    request_id: str
    token_ids: Ids
    sampling_params: dict[str, Any]
    model: str
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int = 0
    features: None = None
    kv_transfer_params: None = None


class Generated(Body):
    """What /inference/v1/generate answered, as far as text is made of it."""

    class Choice(Body):
        index: int = Field(0, ge=0, lt=MAX_PROMPTS)
        token_ids: Ids | None = None
        finish_reason: Literal["stop", "length", "abort", "error"] | None = "stop"
        stop_reason: int | str | None = None
        logprobs: dict[str, Any] | None = None

    request_id: RequestName | None = None
    choices: Annotated[list[Choice], FIRST_ERROR] = Field(min_length=1, max_length=MAX_PROMPTS)
    prompt_logprobs: Any = None


class DerenderChatBody(Body):
    """POST /v1/chat/completions/derender. ``chat_request``: the request that was rendered."""

    model: str | None = None
    generate_response: Generated
    chat_request: ChatBody | None = None
    prompt_tokens: int | None = Field(None, ge=0, lt=2**31)
    prompt_token_ids: Ids | None = None


class DerenderCompletionBody(Body):
    """POST /v1/completions/derender: one of ``generate_responses`` for each prompt, in their order."""

    model: str | None = None
    generate_responses: Annotated[list[Generated], FIRST_ERROR] = Field(min_length=1, max_length=MAX_PROMPTS)
    completion_request: CompletionBody | None = None
    prompt_tokens: int | Annotated[list[int], FIRST_ERROR] | None = None
