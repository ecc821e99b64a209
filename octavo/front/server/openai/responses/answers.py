"""What the responses API answers: the response, its items, and the events of a stream."""

from typing import Any, Literal

from pydantic import Field

from octavo.front.server.openai.schema import Answer, TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(Answer):
    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[TokenLogprob] = Field(default_factory=list)


class ReasoningText(Answer):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class MessageOut(Answer):
    type: Literal["message"] = "message"
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = Field(default_factory=list)


class ReasoningOut(Answer):
    type: Literal["reasoning"] = "reasoning"
    id: str
    status: ItemStatus
    summary: list[Any] = Field(default_factory=list)
    content: list[ReasoningText] = Field(default_factory=list)
    encrypted_content: None = None


class CallOut(Answer):
    type: Literal["function_call"] = "function_call"
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str = ""


ItemOut = ReasoningOut | MessageOut | CallOut


class InputTokensDetails(Answer):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Answer):
    reasoning_tokens: int


class ResponseUsage(Answer):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Answer):
    code: str
    message: str


class IncompleteDetails(Answer):
    reason: Literal["max_output_tokens"]


class Response(Answer):
    """A response. What the request asked for is said again, with the defaults that filled it up."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[ItemOut] = Field(default_factory=list)
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None


class Deleted(Answer):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(Answer):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ItemList(Answer):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


# -- events, in the order of a stream --


class Told(Answer):
    """An event. ``sequence_number`` counts from 0 without gaps."""

    type: str
    sequence_number: int


class Lifecycle(Told):
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class ItemTold(Told):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: ItemOut


class Placed(Told):
    item_id: str
    output_index: int


class PartTold(Placed):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int = 0
    part: OutputText | ReasoningText


class TextDelta(Placed):
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob] = Field(default_factory=list)


class TextDone(Placed):
    type: Literal["response.output_text.done"] = "response.output_text.done"
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob] = Field(default_factory=list)


class ReasoningDelta(Placed):
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    content_index: int = 0
    delta: str


class ReasoningDone(Placed):
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    content_index: int = 0
    text: str


class ArgumentsDelta(Placed):
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"
    delta: str


class ArgumentsDone(Placed):
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    name: str
    arguments: str
