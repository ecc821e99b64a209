"""Streamed chunks as msgspec structs (encoding one takes a microsecond), log-probabilities in OpenAI's shapes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from octavo.front.parsers.events import Event, Kind
from octavo.outputs import Logprob, PositionLogprobs


class Cached(Struct):
    cached_tokens: int


class Reasoned(Struct):
    reasoning_tokens: int


class UsageChunk(Struct, omit_defaults=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Cached | None = None
    completion_tokens_details: Reasoned | None = None


class TextLogprobs(Struct):
    """Of the completions API. ``text_offset`` counts characters from the start of the answer."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)


class TextChoice(Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class TextChoiceIds(TextChoice, omit_defaults=True):
    """With ``return_token_ids``."""

    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class TextChunk(Struct):
    id: str
    created: int
    model: str
    choices: list[TextChoice | TextChoiceIds]
    object: str = "text_completion"


class TextChunkUsage(TextChunk):
    usage: UsageChunk | None = None


class Top(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenTop(Top):
    top_logprobs: list[Top] = field(default_factory=list)


class ContentLogprobs(Struct):
    content: list[TokenTop]


class FunctionDelta(Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class CallDelta(Struct, omit_defaults=True):
    """``id``, ``type`` and the function's name come once, with the call's first delta."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class Delta(Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatChoiceChunk(Struct):
    index: int
    delta: Delta
    logprobs: ContentLogprobs | None = None
    finish_reason: str | None = None


class ChatChoiceEnd(ChatChoiceChunk):
    stop_reason: int | str | None = None


class ChatChoiceIds(ChatChoiceEnd, omit_defaults=True):
    """With ``return_token_ids``."""

    token_ids: list[int] | None = None


class ChatChunk(Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoiceChunk | ChatChoiceEnd | ChatChoiceIds]
    object: str = "chat.completion.chunk"


class ChatChunkUsage(ChatChunk):
    usage: UsageChunk | None = None


class ChatChunkIds(ChatChunkUsage, omit_defaults=True):
    """The first chunk, with ``return_token_ids``."""

    prompt_token_ids: list[int] | None = None


def deltas(events: Sequence[Event], alias: bool) -> list[Delta]:
    """``events`` as deltas: one, unless reasoning or content follows what a client must have read before it.

    ``alias``: reasoning is told as reasoning_content too.
    """
    found: list[Delta] = []
    delta, stage = Delta(), Kind.CALL_END
    for event in events:
        kind = event.kind
        if kind is Kind.CALL_END:
            continue
        if min(kind, Kind.CALL) < stage:
            delta = Delta()
            found.append(delta)
        stage = min(kind, Kind.CALL)
        if kind is Kind.CONTENT:
            delta.content = (delta.content or "") + event.text
        elif kind is Kind.REASONING:
            delta.reasoning = (delta.reasoning or "") + event.text
            if alias:
                delta.reasoning_content = delta.reasoning
        else:
            _call(delta, event)
    return found


def _call(delta: Delta, event: Event) -> None:
    calls = delta.tool_calls = delta.tool_calls or []
    if event.kind is Kind.CALL:
        calls.append(CallDelta(event.index, FunctionDelta(event.text, ""), event.id, "function"))
        return
    if not calls or calls[-1].index != event.index:
        calls.append(CallDelta(event.index, FunctionDelta()))
    function = calls[-1].function
    function.arguments = (function.arguments or "") + event.text


def finite(value: float) -> float:
    """JSON has no infinity: -9999 stands for it, as in vLLM."""
    return value if math.isfinite(value) else -9999.0


def token_text(token: int, logprob: Logprob, as_id: bool) -> str:
    """How a token is written in log-probabilities."""
    return f"token_id:{token}" if as_id or logprob.decoded_token is None else logprob.decoded_token


def text_logprobs(
    tokens: Sequence[int],
    positions: Sequence[PositionLogprobs | None],
    most: int,
    offset: int,
    as_ids: bool,
    text_of: Callable[[int], str],
) -> tuple[TextLogprobs, int]:
    """Log-probabilities of ``tokens`` in the completions shape, and the offset behind them.

    A position that is None (the prompt's first) has no numbers; ``text_of`` decodes its token. ``most``: alternatives
    to show.
    """
    found = TextLogprobs()
    for token, position in zip(tokens, positions, strict=True):
        chosen = position[token] if position is not None else None
        if chosen is not None:
            text = token_text(token, chosen, as_ids)
        else:
            text = f"token_id:{token}" if as_ids else text_of(token)
        found.tokens.append(text)
        found.token_logprobs.append(None if chosen is None else finite(chosen.logprob))
        found.top_logprobs.append(None if position is None else _top_by_text(position, most, as_ids))
        found.text_offset.append(offset)
        offset += len(text)
    return found, offset


def _top_by_text(position: PositionLogprobs, most: int, as_ids: bool) -> dict[str, float]:
    # The chosen token is shown even where it is not among the most likely ones.
    shown: dict[str, float] = {}
    for place, (token, logprob) in enumerate(position.items()):
        if place == 0 or (logprob.rank is not None and (most == -1 or logprob.rank <= most)):
            shown.setdefault(token_text(token, logprob, as_ids), finite(logprob.logprob))
    return shown


def chat_logprobs(
    tokens: Sequence[int], positions: Sequence[PositionLogprobs], most: int, as_ids: bool
) -> ContentLogprobs:
    """Log-probabilities of ``tokens`` in the chat shape."""
    content = []
    for token, position in zip(tokens, positions, strict=True):
        chosen = position[token]
        top = [
            _top(other, logprob, as_ids)
            for other, logprob in position.items()
            if logprob.rank is not None and (most == -1 or logprob.rank <= most)
        ]
        top.sort(key=lambda entry: -entry.logprob)
        text = token_text(token, chosen, as_ids)
        content.append(TokenTop(text, finite(chosen.logprob), _bytes(text), top))
    return ContentLogprobs(content)


def prompt_logprobs(positions: Sequence[PositionLogprobs | None] | None) -> list[dict[str, Any] | None] | None:
    """vLLM's shape: token id -> {logprob, rank, decoded_token}, a position."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            str(token): {"logprob": finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}
            for token, entry in position.items()
        }
        for position in positions
    ]


def _top(token: int, logprob: Logprob, as_id: bool) -> Top:
    text = token_text(token, logprob, as_id)
    return Top(text, finite(logprob.logprob), _bytes(text))


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8", "replace"))
