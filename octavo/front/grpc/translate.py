"""Messages to SamplingParams and outputs to messages."""

from collections.abc import Sequence
from typing import Any, TypedDict, cast

import numpy as np

from octavo.errors import BadRequest, Unsupported
from octavo.front.grpc.messages import FinishInfo, GenerateResponse, PromptInfo, SequenceOutput
from octavo.front.sampling import Asked, kind, over
from octavo.front.server.openai.chunks import finite
from octavo.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from octavo.params import SamplingParams, StructuredOutputsParams

#: Tokens of an answer that sets no limit; vLLM's number.
DEFAULT_NEW_TOKENS = 20
_REASONS = {"stop": FinishInfo.STOP, "length": FinishInfo.LENGTH, "abort": FinishInfo.ABORTED}


def prompt(request: Any) -> str | list[int]:
    """Text or ids. Raises ``BadRequest``."""
    match request.WhichOneof("prompt"):
        case "text":
            return request.text
        case "token_ids":
            return list(request.token_ids.ids)
    raise BadRequest("a prompt is needed: text or token_ids", "prompt")


def params(request: Any, defaults: dict[str, Any], stream: bool) -> SamplingParams:
    """What ``request`` asks of sampling, over the model's ``defaults``. Raises ``BadRequest`` and ``Unsupported``."""
    sampling, decoding, stopping = request.sampling, request.decoding, request.stopping
    if request.kv.HasField("kv_transfer_params") and request.kv.kv_transfer_params.fields:
        raise Unsupported("kv_transfer_params: this server hands no KV cache over", "kv.kv_transfer_params")
    temperature = _decimal(request.temperature) if request.HasField("temperature") else None
    if temperature is None and not request.HasField("sampling"):
        temperature = 0.0
    return over(
        defaults,
        Asked(
            n=sampling.num_sequences or None,
            temperature=temperature,
            top_p=_decimal(sampling.top_p) or None,
            top_k=sampling.top_k or None,
            min_p=_decimal(sampling.min_p) or None,
            presence_penalty=_decimal(decoding.presence_penalty) or None,
            frequency_penalty=_decimal(decoding.frequency_penalty) or None,
            repetition_penalty=_decimal(decoding.repetition_penalty) or None,
            seed=sampling.seed if sampling.HasField("seed") else None,
            stop=list(stopping.stop_strings),
            stop_token_ids=list(stopping.stop_token_ids),
            include_stop_str_in_output=stopping.include_stop_strings,
            ignore_eos=stopping.ignore_eos,
            max_tokens=stopping.max_new_tokens or DEFAULT_NEW_TOKENS,
            min_tokens=stopping.min_new_tokens,
            **_logprobs(request.response),
            logit_bias={token: _decimal(bias) for token, bias in decoding.logit_bias.items()} or None,
            allowed_token_ids=list(decoding.allowed_token_ids) or None,
            bad_words=None,
            detokenize=bool(stopping.stop_strings) or _has_text(request.response),
            skip_special_tokens=None,
            spaces_between_special_tokens=None,
            output_kind=kind(stream),
            skip_reading_prefix_cache=request.kv.bypass_prefix_cache,
            structured_outputs=_structure(decoding),
            extra_args=None,
        ),
    )


def _has_text(response: Any) -> bool:
    return not response.HasField("output_text") or response.output_text


def _decimal(value: float) -> float:
    """0.8 as a float travels as 0.800000012: the shortest number that is it in float32."""
    return float(str(np.float32(value)))


def _structure(decoding: Any) -> StructuredOutputsParams | None:
    name = decoding.WhichOneof("structured_output")
    if name is None or (name == "json_object" and not decoding.json_object):
        return None
    value: Any = list(decoding.choice.choices) if name == "choice" else getattr(decoding, name)
    return StructuredOutputsParams(**{name: value})


class _Logprobs(TypedDict):
    """Of ``Asked``: which log-probabilities there are."""

    logprobs: int | None
    prompt_logprobs: int | None
    logprob_token_ids: list[int] | None


def _logprobs(response: Any) -> _Logprobs:
    found: dict[str, Any] = {
        "logprobs": 0 if response.output_logprobs else None,
        "prompt_logprobs": 0 if response.prompt_logprobs else None,
        "logprob_token_ids": None,
    }
    for name, candidates in (
        ("prompt_logprobs", response.prompt_candidates),
        ("logprobs", response.output_candidates),
    ):
        match candidates.WhichOneof("select"):
            case "top_n":
                found[name] = candidates.top_n
            case "all":
                found[name] = -1 if candidates.all else found[name]
            case "token_ids" if name == "logprobs":
                found["logprob_token_ids"] = list(candidates.token_ids.ids)
            case "token_ids":
                raise Unsupported(
                    "candidates of a prompt are chosen by top_n or all, not by id", "response.prompt_candidates"
                )
    return cast(_Logprobs, found)


class Teller:
    """Messages of one request's outputs."""

    def __init__(self, request: Any):
        self._response = request.response
        self._text = _has_text(request.response)
        self._begun = False
        self._counts: dict[int, int] = {}

    def tell(self, output: RequestOutput, choices: Sequence[CompletionOutput]) -> Any:
        """``choices`` of ``output`` as one message; the first has the prompt too."""
        message = GenerateResponse(outputs=[self._sequence(choice) for choice in choices])
        if not self._begun:
            self._begun = True
            message.prompt_info.CopyFrom(self._prompt(output))
        return message

    def _prompt(self, output: RequestOutput) -> Any:
        asked = self._response
        found = PromptInfo(num_prompt_tokens=len(output.prompt_token_ids))
        if asked.prompt_token_ids:
            found.token_ids.extend(output.prompt_token_ids)
        _add_logprobs(
            found, output.prompt_token_ids, output.prompt_logprobs, asked.prompt_logprobs, asked.prompt_candidates
        )
        return found

    def _sequence(self, choice: CompletionOutput) -> Any:
        asked = self._response
        found = SequenceOutput(index=choice.index, num_tokens=len(choice.token_ids))
        if self._text:
            found.text = choice.text
        if asked.output_token_ids:
            found.token_ids.extend(choice.token_ids)
        _add_logprobs(found, choice.token_ids, choice.logprobs, asked.output_logprobs, asked.output_candidates)
        count = self._counts[choice.index] = self._counts.get(choice.index, 0) + len(choice.token_ids)
        if choice.finish_reason is not None:
            found.finish_info.num_output_tokens = count
            found.finish_info.finish_reason = _REASONS[choice.finish_reason]
            if isinstance(choice.stop_reason, str):
                found.finish_info.stop_string = choice.stop_reason
            elif choice.stop_reason is not None:
                found.finish_info.stop_token_id = choice.stop_reason
            elif choice.finish_reason == "stop" and choice.token_ids:
                found.finish_info.eos_token_id = choice.token_ids[-1]
        return found


def _add_logprobs(
    found: Any,
    tokens: Sequence[int],
    positions: Sequence[PositionLogprobs | None] | None,
    chosen: bool,
    candidates: Any,
) -> None:
    select = candidates.WhichOneof("select")
    if positions is None or not (chosen or select):
        return
    for token, position in zip(tokens, positions, strict=True):
        own = None if position is None else position[token]
        if chosen:
            found.logprobs.append(0.0 if own is None else finite(own.logprob))
            found.ranks.append(0 if own is None else own.rank or 0)
        if select:
            told = found.candidate_tokens.add().tokens
            for other, entry in (position or {}).items():
                if select == "token_ids" or other != token or (entry.rank or 0) <= candidates.top_n or candidates.all:
                    told.add(id=other, logprob=finite(entry.logprob), rank=entry.rank or 0)
