"""Bodies of the responses API, as far as types go; ``convert`` checks what they ask for."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from octavo.front.server.openai.extras import Extras
from octavo.front.server.openai.schema import FIRST_ERROR, Body, NonEmpty, Texts, at_most

#: As many as a conversation has messages at most.
MAX_ITEMS = 10_000
MAX_TOOLS = 1024
MAX_TOP_LOGPROBS = 20
MAX_METADATA = 16
_Key = Annotated[str, StringConstraints(max_length=64)]
_Value = Annotated[str, StringConstraints(max_length=512)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class Part(Body):
    """A part of a message, of reasoning or of a call's output."""

    type: str
    text: str | None = None
    refusal: str | None = None


Parts = Annotated[list[Part], FIRST_ERROR]


class Item(Body):
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts


class ReasoningItem(Item):
    """Of an earlier answer: its text goes back to the model where the model's template wants it."""

    type: Literal["reasoning"]
    summary: Parts = Field(default_factory=list)
    content: Parts | None = None
    encrypted_content: str | None = None


class CallItem(Item):
    type: Literal["function_call"]
    call_id: Id
    name: NonEmpty
    arguments: str
    namespace: str | None = None


class CallOutputItem(Item):
    type: Literal["function_call_output"]
    call_id: Id
    output: str | Parts


#: Tags as classes are named: errors leave such steps out of a field's path.
_TAGS = {
    "message": "MessageItem",
    "reasoning": "ReasoningItem",
    "function_call": "CallItem",
    "function_call_output": "CallOutputItem",
}


def _item_type(value: Any) -> str | None:
    if not isinstance(value, dict):
        return type(value).__name__
    kind = value.get("type", "message" if "role" in value else None)
    return _TAGS.get(kind) if isinstance(kind, str) else None


InputItem = Annotated[
    Annotated[MessageItem, Tag("MessageItem")]
    | Annotated[ReasoningItem, Tag("ReasoningItem")]
    | Annotated[CallItem, Tag("CallItem")]
    | Annotated[CallOutputItem, Tag("CallOutputItem")],
    Discriminator(
        _item_type,
        custom_error_type="item_type",
        custom_error_message="type must be one of message, reasoning, function_call, function_call_output "
        "(items of other types, and references to items, are not supported)",
    ),
]
Items = Annotated[list[InputItem], FIRST_ERROR, Field(max_length=MAX_ITEMS)]


class Reasoning(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = Field(None, description="there are none: reasoning is given whole")
    generate_summary: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None
    context: Literal["auto"] | None = None


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class Text(Body):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class FunctionTool(Body):
    """Tools of other types are refused by name."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class StreamOptions(Body):
    include_obfuscation: Literal[False] | None = None


#: All but log-probabilities add to items that never occur here, or to what is whole already.
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ResponsesBody(Extras):
    """POST /v1/responses."""

    model: str | None = Field(None, description="a name of /v1/models; without it the first")
    input: str | Items
    instructions: str | None = None
    previous_response_id: Id | None = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: Annotated[list[Include], FIRST_ERROR, Field(max_length=64)] | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    max_tool_calls: int | None = Field(None, ge=1, description="counts built-in tools, of which there are none")
    metadata: Annotated[dict[_Key, _Value], Field(max_length=MAX_METADATA), at_most(MAX_METADATA)] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = None
    top_k: int | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    stop: str | Texts | None = None
    text: Text | None = None
    tools: Annotated[list[FunctionTool], FIRST_ERROR, Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = Field(None, description="auto: leave out the oldest turns")
    service_tier: Literal["auto", "default"] | None = None
    user: Id | None = None
    safety_identifier: Id | None = None
    prompt_cache_key: Id | None = None
