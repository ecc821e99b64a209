"""Bodies of OpenAI's routes. Requests are checked by pydantic, here; streamed chunks are msgspec structs (``chunks``).

Unknown fields are accepted and ignored, as clients expect; a field that asks for something this server cannot do is
refused (``REFUSED``), never ignored.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    StringConstraints,
    WrapValidator,
    model_serializer,
)
from pydantic_core import CoreSchema

from octavo.errors import Unsupported
from octavo.front.server import ignored
from octavo.front.server.options import MAX_PROMPTS, NAME
from octavo.params import MAX_BIAS

NonEmpty = Annotated[str, StringConstraints(min_length=1)]
RequestName = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]


class _FirstError:
    """Annotation of a list: stop at the first wrong element, since a million errors cost more than they are worth.
    (pydantic's own FailFast cannot be hashed, so it cannot stand in a union.)"""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(source) | {"fail_fast": True}  # type: ignore[operator]


FIRST_ERROR = _FirstError()
Texts = Annotated[list[str], FIRST_ERROR]
Ids = Annotated[list[int], FIRST_ERROR]
Objects = Annotated[list[dict[str, Any]], FIRST_ERROR]


def at_most(count: int) -> BeforeValidator:
    """Annotation of an object: one of too many entries is refused before they are looked at, for the same reason."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"may hold at most {count} entries, got {len(value)}")
        return value

    return BeforeValidator(check)


Bias = Annotated[dict[str, float], at_most(MAX_BIAS)]


def _never(value: Any) -> bool:
    return value in (None, False, [], {})


def _only(*harmless: Any) -> Callable[[Any], bool]:
    return lambda value: _never(value) or value in harmless


#: Fields that ask for what this server does not do -> whether a value of it asks for nothing.
REFUSED: dict[str, Callable[[Any], bool]] = {
    "tools": lambda value: value is None,
    "tool_choice": _only("none"),
    "functions": lambda value: value is None,
    "function_call": _only("none"),
    "guided_json": _never,
    "guided_regex": _never,
    "guided_choice": _never,
    "guided_grammar": _never,
    "suffix": _only(""),
    "prompt_embeds": _never,
    "logits_processors": _never,
    "thinking_token_budget": _only(-1),
    "repetition_detection": _never,
    "kv_transfer_params": _never,
    "vllm_xargs": _never,
    "media_io_kwargs": _never,
    "mm_processor_kwargs": _never,
    "audio": _never,
    "modalities": _only(["text"]),
    "web_search_options": lambda value: value is None,  # an empty one asks for a search too
    "verbosity": _only("medium"),
    "return_prompt_text": _never,
    "return_token_offsets": _never,
    "return_assistant_tokens_mask": _never,
}


class Body(BaseModel):
    """A request's body. Types are strict: "5" is no number, since what was meant is not ours to guess."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    def refuse_unsupported(self) -> None:
        """Raises ``Unsupported`` for a field that asks for what this server does not do; logs those nobody knows."""
        for name, value in (self.model_extra or {}).items():
            if name in REFUSED and not REFUSED[name](value):
                instead = f"; structured_outputs takes it, as {name[7:]}" if name.startswith("guided_") else ""
                raise Unsupported(f"{name} is not supported by this server{instead}", name)
        ignored.tell(self.model_extra, REFUSED)


class Answer(BaseModel):
    """A response's body."""

    model_config = ConfigDict(protected_namespaces=())


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingBody(Body):
    """What chat and completions share; None means the model's default, else OpenAI's."""

    model: str | None = Field(None, description="a name of /v1/models; without it the first")
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | Texts | None = None
    stop_token_ids: Ids | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    logit_bias: Bias | None = None
    allowed_token_ids: Ids | None = None
    bad_words: Texts | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    echo: bool | None = False
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, description="keep the last so many prompt tokens; -1: what fits")
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="where truncate_prompt_tokens cuts; left, which is the default, keeps the end"
    )
    use_beam_search: bool | None = Field(False, description="the n best of best_of beams instead of draws")
    best_of: int | None = Field(None, ge=1, le=MAX_PROMPTS, description="beams of a search (n)")
    length_penalty: float | None = Field(None, description="of a search: over 0 favours long answers (1)")
    priority: int = 0
    request_id: RequestName | None = None
    cache_salt: NonEmpty | None = None
    user: str | None = None


def _prompt(value: Any, _: Any) -> Any:
    # The four shapes by hand: pydantic would try each on every element and report all that failed.
    if isinstance(value, str):
        return value
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    inner = {kind for item in value for kind in set(map(type, item))} if kinds == {list} else kinds
    if value == []:
        raise ValueError("a list of prompts must not be empty")
    if inner not in ({str}, {int}, set()) or (not kinds) or (kinds == {list} and inner == {str}):
        raise ValueError("must be text, a list of texts, a list of token ids, or a list of lists of token ids")
    return value


Prompt = Annotated[str | list[str] | list[int] | list[list[int]], WrapValidator(_prompt)]


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    prompt: Prompt
    logprobs: int | None = None


class ContentPart(Body):
    """A part of a message; which types there are, ``front.chat`` says."""

    type: str
    text: str | None = None


class Message(Body):
    """One message of a conversation: what it holds is checked by ``front.chat``, with the template at hand."""

    role: NonEmpty
    content: str | Annotated[list[str | ContentPart], FIRST_ERROR] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Objects | None = None
    tool_call_id: str | None = None


class ChatFields(Body):
    """What makes a prompt of messages."""

    messages: Annotated[list[Message], FIRST_ERROR] = Field(min_length=1)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = Field(None, description="needs --trust-request-chat-template")
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Objects | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = Field(None, description="none, auto, required, or a function's name")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class ChatBody(SamplingBody, ChatFields):
    """POST /v1/chat/completions."""

    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")
    include_reasoning: bool | None = Field(None, description="false: reasoning is read and left out")
    thinking_token_budget: int | None = Field(
        None, ge=-1, le=2**31 - 1, description="tokens of reasoning before its end is forced; -1: no bound"
    )


class PromptTokensDetails(Answer):
    cached_tokens: int


class CompletionTokensDetails(Answer):
    reasoning_tokens: int


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    token_ids: Ids | None = None
    prompt_token_ids: Ids | None = None


class CompletionAnswer(Answer):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[TokenLogprob]


class CalledFunction(Answer):
    name: str
    arguments: str


class ToolCall(Answer):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Answer):
    """What there is none of (reasoning, calls) is left out."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None

    @model_serializer(mode="wrap")
    def _bare(self, serialize: SerializerFunctionWrapHandler):  # with a type, the document would show nothing else
        optional = ("reasoning", "reasoning_content", "tool_calls")
        return {name: value for name, value in serialize(self).items() if value is not None or name not in optional}


class ChatChoice(Answer):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: Ids | None = None


class ChatAnswer(Answer):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: Ids | None = None


class ModelCard(Answer):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(Answer):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeCompletionBody(Body):
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatBody(ChatFields):
    model: str | None = None
    return_token_strs: bool | None = False


class TokenizeAnswer(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: Texts | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Ids


class DetokenizeAnswer(Answer):
    prompt: str


class ErrorDetail(Answer):
    message: str
    type: str
    param: str | None
    code: int


class ErrorAnswer(Answer):
    error: ErrorDetail
