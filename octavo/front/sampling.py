"""Sampling parameters of a request over the model's defaults, whatever protocol asked."""

from collections.abc import Mapping
from typing import Any, TypedDict

from octavo.params import RequestOutputKind, SamplingParams, StructuredOutputsParams

_OF_DRAWING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    }
)


class Asked(TypedDict):
    """Every field of ``SamplingParams``, so that no protocol forgets one. None: the request does not say, or cannot.

    ``max_tokens`` is as it shall be: protocols differ in what holds where a request has none.
    """

    n: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    include_stop_str_in_output: bool | None
    ignore_eos: bool | None
    max_tokens: int | None
    min_tokens: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    logprob_token_ids: list[int] | None
    logit_bias: Mapping[Any, float] | None
    allowed_token_ids: list[int] | None
    bad_words: list[str] | None
    detokenize: bool | None
    skip_special_tokens: bool | None
    spaces_between_special_tokens: bool | None
    output_kind: RequestOutputKind
    skip_reading_prefix_cache: bool | None
    structured_outputs: StructuredOutputsParams | None
    extra_args: dict[str, Any] | None


def over(defaults: Mapping[str, Any], asked: Asked, drawn: bool = True) -> SamplingParams:
    """``asked``, else the model's ``defaults``, else those of ``SamplingParams``. ``drawn`` False: tokens are not
    drawn, so that nothing said of that holds. Raises ``BadRequest``."""
    said = {name: value for name, value in asked.items() if value is not None and (drawn or name not in _OF_DRAWING)}
    return SamplingParams(**{**(defaults if drawn else {}), **said, "max_tokens": asked["max_tokens"]})


def kind(stream: bool) -> RequestOutputKind:
    """What is told of an answer that is a stream, or whole."""
    return RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
