"""Answers that are known already, read as if the engine told them now: the same code makes the same output."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.front.fanout import Desk, Group
from octavo.front.tokenizers.base import Tokenizer
from octavo.outputs import RequestOutput
from octavo.params import RequestOutputKind, SamplingParams
from octavo.wire.arrays import ints
from octavo.wire.reply import FinishReason, RequestDelta, StepReply
from octavo.wire.result import LogprobArrays


@dataclass(frozen=True, slots=True)
class Told:
    """An answer. ``finish`` STOP says that its last token is the one that stopped it, ``stop`` its id where that is no
    end-of-sequence. ``logprobs``: a row a token."""

    tokens: Sequence[int]
    finish: FinishReason
    stop: int | None = None
    logprobs: LogprobArrays | None = None


def replay(
    request_id: str,
    prompt_text: str | None,
    prompt: Sequence[int],
    params: SamplingParams,
    tokenizer: Tokenizer | None,
    answers: Sequence[Told],
) -> RequestOutput:
    """The output of a request whose answers were ``answers``. Of ``params`` only what makes text of tokens matters."""
    params = params.clone(
        n=len(answers),
        temperature=1.0,  # greedy ones may not have several answers; nothing is drawn here
        max_tokens=None,
        min_tokens=0,
        prompt_logprobs=None,
        structured_outputs=None,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    handles = range(len(answers))
    group = Group(request_id, prompt_text, list(prompt), params, tokenizer, handles, time.monotonic())
    desk = Desk()
    desk.open(group)
    desk.read(
        StepReply(
            client=0,
            handles=ints(list(handles)),
            counts=ints([len(answer.tokens) for answer in answers]),
            tokens=ints([token for answer in answers for token in answer.tokens]),
            deltas=[
                RequestDelta(handle, finish=answer.finish, stop=answer.stop, logprobs=answer.logprobs)
                for handle, answer in zip(handles, answers, strict=True)
            ],
        )
    )
    if group.error is not None:
        raise group.error
    output = group.take()
    assert output is not None, "a finished group has an output"
    return output
