"""What a finished or growing request looks like to the caller. The field names are those of vLLM."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

FinishReasonName = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True)
class Logprob:
    """The natural logarithm of one token's probability. ``rank`` is 1 for the most likely token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


#: One position: token id -> Logprob; the chosen token comes first.
PositionLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class RequestMetrics:
    """Seconds on the monotonic clock (``time.monotonic``); None until it happened."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's ``n`` answers.

    ``text`` and ``token_ids`` are the whole answer so far, or, for ``output_kind=DELTA``, what is new.
    ``stop_reason`` is the matched stop string or stop token id, None for end-of-sequence or length.
    ``marks``: with ``skip_special_tokens=False``, (offset in ``text`` in characters, id) of every added token in it,
    in order: what tells a special token from text that only looks like one.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReasonName | None = None
    stop_reason: int | str | None = None
    marks: Sequence[tuple[int, int]] = ()

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request and its answers so far.

    ``prompt_logprobs`` has one entry a prompt token; the first is None, since nothing comes before it.
    ``num_cached_tokens`` counts the prompt tokens that the prefix cache gave.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: dict | None = field(default=None, repr=False)


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam. ``tokens`` begin with the prompt's, and ``text`` is that of all of them; ``logprobs`` has an entry for
    each generated token. ``score`` is what beams are ranked by."""

    tokens: list[int]
    logprobs: list[PositionLogprobs]
    cum_logprob: float
    score: float
    text: str | None = None
    finish_reason: FinishReasonName | None = None
    stop_reason: int | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best beams of a prompt, the best first."""

    sequences: list[BeamSearchSequence]
