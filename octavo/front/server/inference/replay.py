"""Token ids that were generated elsewhere, read as if the engine told them now: the same code makes the same text."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.errors import BadRequest, Unsupported
from octavo.front import replay
from octavo.front.intake import LONG_TEXT
from octavo.front.replay import Told
from octavo.front.server.inference.schema import Generated
from octavo.front.server.service import Service
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams
from octavo.wire.reply import FinishReason
from octavo.wire.result import LogprobArrays

_MARK = "token_id:"
_FINISHES = {reason.word: reason for reason in FinishReason}


async def output_of(
    service: Service, said: Generated, prompt: Sequence[int], params: SamplingParams, param: str
) -> tuple[RequestOutput, int | None]:
    """``_output_of``; of many tokens off the loop."""
    if sum(len(choice.token_ids or ()) for choice in said.choices) > LONG_TEXT:
        return await asyncio.to_thread(_output_of, service, said, prompt, params, param)
    return _output_of(service, said, prompt, params, param)


def _output_of(
    service: Service, said: Generated, prompt: Sequence[int], params: SamplingParams, param: str
) -> tuple[RequestOutput, int | None]:
    """The output of a request with ``prompt`` and ``params`` whose answers were those of ``said``; and how many
    alternatives each position has, None without log-probabilities.

    Raises ``BadRequest`` that names the field below ``param``.
    """
    choices = sorted(said.choices, key=lambda choice: choice.index)
    if [choice.index for choice in choices] != list(range(len(choices))):
        raise BadRequest("the indexes of choices must be 0, 1, 2, ...", f"{param}.choices")
    logprobs = [_logprobs(choice, f"{param}.choices.{choice.index}.logprobs") for choice in choices]
    vocab, longest = service.engine.ready.vocab, service.engine.ready.max_model_len
    for choice in choices:
        if len(choice.token_ids or ()) > longest:
            raise BadRequest(
                f"an answer of this model has at most {longest} tokens", f"{param}.choices.{choice.index}.token_ids"
            )
        if any(not 0 <= token < vocab for token in choice.token_ids or ()):
            raise BadRequest(
                f"a token id is out of the vocabulary (0 to {vocab - 1})", f"{param}.choices.{choice.index}.token_ids"
            )
        if choice.finish_reason is None:
            raise Unsupported("pieces of a stream are not read here; give whole answers", f"{param}.choices")
    strings = [choice.stop_reason for choice in choices if isinstance(choice.stop_reason, str)]
    stop = list(dict.fromkeys([*(params.stop or ()), *strings]))
    widths = [found[1] for found in logprobs if found is not None]
    width = max(widths) if widths else None
    params = params.clone(stop=stop, logprobs=width, detokenize=True)
    told = [
        Told(
            choice.token_ids or [],
            _finish(choice, service, params),
            choice.stop_reason if isinstance(choice.stop_reason, int) else None,
            None if found is None else found[0],
        )
        for choice, found in zip(choices, logprobs, strict=True)
    ]
    output = replay.replay("", None, prompt, params, service.tokenizer, told)
    for answer, choice in zip(output.outputs, choices, strict=True):
        # Without the token that stopped it, or its logprobs, the end is still what was said it was.
        answer.finish_reason, answer.stop_reason = choice.finish_reason, choice.stop_reason
    return output, width


def _finish(choice: Generated.Choice, service: Service, params: SamplingParams) -> FinishReason:
    """How the engine would have said it: STOP only where the last token is the one that stopped the answer."""
    assert choice.finish_reason is not None
    reason = _FINISHES[choice.finish_reason]
    if reason is FinishReason.STOP:
        stops = {*service.engine.intake.eos, *(params.stop_token_ids or ())}
        if isinstance(choice.stop_reason, int):
            stops.add(choice.stop_reason)
        if not choice.token_ids or choice.token_ids[-1] not in stops:
            return FinishReason.LENGTH
    return FinishReason.ABORT if reason is FinishReason.ERROR else reason


def _logprobs(choice: Generated.Choice, param: str) -> tuple[LogprobArrays, int] | None:
    """Log-probabilities as the core tells them, and how many alternatives each position has."""
    content = (choice.logprobs or {}).get("content")
    if not content:
        return None
    tokens = choice.token_ids or []
    if not isinstance(content, list) or len(content) != len(tokens):
        raise BadRequest("there must be one entry of content for each token id", param)
    tops = [_entries(entry.get("top_logprobs") or [] if isinstance(entry, dict) else None, param) for entry in content]
    width = max(map(len, tops))
    ids = np.full((len(tokens), 1 + width), -1, np.int32)
    values = np.full((len(tokens), 1 + width), -np.inf, np.float32)
    ranks = np.empty(len(tokens), np.int32)
    for place, (entry, top, token) in enumerate(zip(content, tops, tokens, strict=True)):
        ((_, value),) = _entries([entry], param)
        row = [(token, value), *top]
        ids[place, : len(row)] = [one for one, _ in row]
        values[place, : len(row)] = [one for _, one in row]
        ranks[place] = next((rank for rank, (one, _) in enumerate(top, 1) if one == token), len(top) + 1)
    return LogprobArrays(ids, values, ranks), width


def _entries(given: Any, param: str) -> list[tuple[int, float]]:
    found = []
    for entry in given if isinstance(given, list) else [None]:
        token = entry.get("token") if isinstance(entry, dict) else None
        value = entry.get("logprob") if isinstance(entry, dict) else None
        number = token.removeprefix(_MARK) if isinstance(token, str) and token.startswith(_MARK) else ""
        if not (number.isascii() and number.isdigit() and len(number) < 10 and isinstance(value, (int, float))):
            raise BadRequest(f"an entry must have a token written as {_MARK}N, and a logprob", param)
        found.append((int(number), float(value)))
    return found
