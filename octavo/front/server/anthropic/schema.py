"""Bodies of Anthropic's messages API, as far as types go; ``convert`` checks what they ask for."""

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.front.server.openai.extras import Extras
from octavo.front.server.openai.schema import FIRST_ERROR, Answer, Body, Texts

MAX_MESSAGES = 10_000
MAX_TOOLS = 1024


class Block(Body):
    """A content block. Which types there are and what each holds, ``convert`` says."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | Annotated[list[Block], FIRST_ERROR] | None" = None
    is_error: bool | None = None


Content = str | Annotated[list[Block], FIRST_ERROR]


class MessageIn(Body):
    role: Literal["user", "assistant", "system"]
    content: Content


class Tool(Body):
    """A tool of the caller's; those that Anthropic runs are refused by name."""

    type: str | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = Field(None, description="omitted: blocks without their text")


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountBody(Extras):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: Annotated[list[MessageIn], FIRST_ERROR, Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Content | None = None
    tools: Annotated[list[Tool], FIRST_ERROR, Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class Metadata(Body):
    user_id: str | None = None


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    stop_sequences: Texts | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class TextBlock(Answer):
    type: Literal["text"] = "text"
    text: str = ""
    citations: None = None


class ThinkingBlock(Answer):
    type: Literal["thinking"] = "thinking"
    thinking: str = ""
    signature: str = ""


class ToolUseBlock(Answer):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)


BlockOut = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokensDetails(Answer):
    thinking_tokens: int


class UsageOut(Answer):
    """``input_tokens`` are those that the prefix cache did not give."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: OutputTokensDetails | None = None


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageOut(Answer):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[BlockOut] = Field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: UsageOut


class ContextManagement(Answer):
    original_input_tokens: int


class Counted(Answer):
    input_tokens: int
    context_management: ContextManagement


class ErrorDetail(Answer):
    type: str
    message: str
    details: dict[str, str] | None = None


class ErrorOut(Answer):
    type: Literal["error"] = "error"
    error: ErrorDetail
