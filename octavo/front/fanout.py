"""Group: a request and its ``n`` answers. Desk: everything open at one front, and who gets what of a reply."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec.structs import replace

from octavo.common import trace
from octavo.common.log import logger
from octavo.errors import (
    BadRequest,
    EngineDead,
    NotFound,
    OctavoError,
    Overloaded,
    PayloadTooLarge,
    RequestFailed,
    Unsupported,
)
from octavo.front.collect import Answer
from octavo.front.logprobs import LogprobReader
from octavo.front.tokenizers.base import Tokenizer
from octavo.outputs import FinishReasonName, PositionLogprobs, RequestMetrics, RequestOutput
from octavo.params import RequestOutputKind, SamplingParams
from octavo.wire.reply import FinishReason, Refused, RequestDelta, StepReply
from octavo.wire.result import NO_TOKEN_ALLOWED, TOO_COMPLEX

_log = logger(__name__)
#: Handles travel as int32.
HANDLES = 2**31
#: How a request may end: every one that was received ends in exactly one of these ways.
Outcome = Literal["succeeded", "failed", "aborted", "rejected"]
_REFUSALS = {error.status: error for error in (NotFound, PayloadTooLarge, Unsupported)}


@dataclass(slots=True, kw_only=True)
class Finished:
    """One answer that ended, for metrics. ``params.max_tokens`` and ``n`` are as the request asked.

    ``most_tokens``: of the request's longest answer, told with the last one to end; None with the others.
    """

    metrics: RequestMetrics
    params: SamplingParams
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    reason: FinishReasonName
    most_tokens: int | None = None


class Observer(Protocol):
    """Told at once when something happened; seconds on the monotonic clock. Must be quick and must not raise."""

    def first_token(self, seconds: float) -> None:
        """``seconds`` since the request arrived."""

    def more_tokens(self, seconds: float, count: int) -> None:
        """``count`` more tokens of an answer were told, the last one ``seconds`` after the one before them."""

    def finished(self, one: Finished) -> None: ...

    def received(self) -> None:
        """A request was handed to the engine."""

    def ended(self, outcome: Outcome) -> None:
        """A request that was received is over, all its answers with it."""


class Group:
    """A request as its caller sees it. ``error`` is set where it was refused or failed; the answers have then ended.

    ``wake`` is called after a reply that brought something, once however much it was.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        handles: Sequence[int],
        arrival: float,
    ):
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_ids = prompt_ids
        self.params = params
        self.handles = tuple(handles)
        self.answers = [Answer(index, params, tokenizer, prompt_ids) for index in range(len(handles))]
        self.metrics = RequestMetrics(arrival)
        self.cached: int | None = None
        self.error: OctavoError | None = None
        self.refused = False
        self.carrier = trace.incoming.get()
        self.wake: Callable[[], None] = _nothing
        self._unadmitted = set(handles)
        self._reader: LogprobReader | None = None
        self._prompt_logprobs: list[PositionLogprobs | None] | None = None
        if params.prompt_logprobs is not None:
            text = tokenizer if params.detokenize else None
            self._reader = LogprobReader(text, prompt_ids[:1], params.prompt_logprobs)
            self._prompt_logprobs = [None]

    @property
    def admitted(self) -> bool:
        """Whether the core has taken every answer."""
        return not self._unadmitted

    @property
    def finished(self) -> bool:
        for answer in self.answers:  # noqa: SIM110 (asked several times a token, and a generator costs more than it)
            if answer.finish_reason is None:
                return False
        return True

    @property
    def outcome(self) -> Outcome:
        """How it ended, once it has."""
        if self.refused:
            return "rejected"
        if self.error is not None:
            return "failed"
        reasons = {answer.finish_reason for answer in self.answers}
        return "failed" if "error" in reasons else "aborted" if "abort" in reasons else "succeeded"

    def admit(self, handle: int) -> None:
        self._unadmitted.discard(handle)

    def fail(self, error: OctavoError) -> None:
        """End every answer that has not ended; the consumer gets ``error``."""
        if self.error is None and not self.finished:
            self.error = error
        for answer in self.answers:
            answer.end("error")
        self.metrics.finished_time = self.metrics.finished_time or time.monotonic()

    def note(self, delta: RequestDelta) -> None:
        """What a delta says of the request as a whole."""
        if delta.cached is not None and self.cached is None:
            self.cached = delta.cached
        if delta.scheduled is not None and self.metrics.first_scheduled_time is None:
            self.metrics.first_scheduled_time = delta.scheduled
        if delta.prompt_logprobs and self._reader is not None and self._prompt_logprobs is not None:
            for piece in delta.prompt_logprobs:
                self._prompt_logprobs += self._reader.read(piece)

    def take(self) -> RequestOutput | None:
        """What the consumer is to see now; None where there is nothing."""
        if self.params.output_kind is RequestOutputKind.FINAL_ONLY and not self.finished:
            return None
        outputs = []
        for answer in self.answers:
            output = answer.take()
            if output is not None:
                outputs.append(output)
        if not outputs:
            return None
        if len(outputs) < len(self.answers) and self.params.output_kind is not RequestOutputKind.DELTA:
            outputs = [answer.peek() for answer in self.answers]
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_ids,
            outputs,
            self.finished,
            self._prompt_logprobs,
            self.metrics,
            self.cached,
        )


class Desk:
    """Open requests by handle. Knows no loop and no port: whoever reads replies gives them to ``read``."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Group, Answer]] = {}
        self._next = 0
        self._on_received: list[Callable[[], None]] = []
        self._on_first: list[Callable[[float], None]] = []
        self._on_more: list[Callable[[float, int], None]] = []
        self._on_finished: list[Callable[[Finished], None]] = []
        self._on_outcome: list[Callable[[Outcome], None]] = []
        self._on_end: list[Callable[[Group], None]] = []

    def __len__(self) -> int:
        return len(self._open)

    def observe(self, observer: Observer) -> None:
        self._on_received.append(observer.received)
        self._on_first.append(observer.first_token)
        self._on_more.append(observer.more_tokens)
        self._on_finished.append(observer.finished)
        self._on_outcome.append(observer.ended)

    def on_end(self, callback: Callable[[Group], None]) -> None:
        """Call ``callback`` with each request that is over; as for an observer, it must be quick and must not raise."""
        self._on_end.append(callback)

    def handles(self, count: int) -> range:
        """Handles that no open request has, one behind the other; after the last there is, from 0 again. They cost
        nothing, so ``count`` need not be checked yet; raises ``BadRequest`` where there are not so many."""
        taken = self._behind(self._next, count)
        for _ in range(2 * len(self._open) + 2):  # each round leaves an open one behind, twice round is enough
            if taken.stop > HANDLES:
                break
            if (used := self._open_one(taken)) is None:
                self._next = taken.stop
                return taken
            taken = self._behind(used + 1, count)
        raise BadRequest(f"n is {count}, more answers than there are handles left", "n")

    @staticmethod
    def _behind(first: int, count: int) -> range:
        first = first if first + count <= HANDLES else 0
        return range(first, first + count)

    def _open_one(self, handles: range) -> int | None:
        """One of ``handles`` that is open; None where none is."""
        if len(handles) < len(self._open):
            for handle in reversed(handles):
                if handle in self._open:
                    return handle
            return None
        return max((handle for handle in self._open if handle in handles), default=None)

    def open(self, group: Group) -> None:
        for handle, answer in zip(group.handles, group.answers, strict=True):
            self._open[handle] = (group, answer)

    def left(self, group: Group) -> list[int]:
        """The handles of a request that have not ended."""
        return [handle for handle in group.handles if handle in self._open]

    def close(self, group: Group, reason: FinishReasonName = "abort") -> list[int]:
        """Forget a request: the handles that the core must still abort. Answers not yet ended end with ``reason``."""
        left = self.left(group)
        now = time.monotonic()
        for handle in left:
            group.answers[group.handles.index(handle)].end(reason)
            self._forget(handle, now)
        return left

    def fail_all(self, error: EngineDead) -> None:
        """The core is gone: every open request gets ``error``."""
        for group in list({id(group): group for group, _ in self._open.values()}.values()):
            group.fail(error)
            self.close(group, "error")
            tell_all((group.wake,))

    def read(self, *replies: StepReply) -> list[int]:
        """Give replies to whom they belong: the handles that the core must end, as a stop string ended their answers.
        A request is woken once for all of them: a front that is behind its core tells fewer and longer pieces.

        Tokens of handles that are no longer open are dropped: they crossed the abort. Nothing is raised: what cannot be
        read fails the requests that it is about, each with a word to its caller, and no others.
        """
        woken: dict[int, Group] = {}
        over = [handle for reply in replies for handle in self._read(reply, woken)]
        tell_all([group.wake for group in woken.values()])
        return over

    def _read(self, reply: StepReply, woken: dict[int, Group]) -> list[int]:
        touched: dict[int, Group] = {}
        try:
            self._answers(reply, touched)
            over = self._news(reply, touched)
        except Exception:
            _log.exception("a reply of the engine could not be read")
            over = []
            for handle in _named(reply):
                if (entry := self._open.get(handle)) is not None:
                    group = touched[id(entry[0])] = entry[0]
                    group.fail(RequestFailed("the answer could not be read; the log has the reason"))
        for group in touched.values():
            if group.error is not None:
                over += self.close(group, "error")
        woken |= touched
        return over

    def _answers(self, reply: StepReply, touched: dict[int, Group]) -> None:
        for said in reply.answers:
            entry = self._open.get(said.handle)
            if entry is None:
                continue
            group = entry[0]
            touched[id(group)] = group
            if isinstance(said, Refused):
                group.refused = True
                group.fail(_refusal(said, group.params))
                del self._open[said.handle]
                self._note_end(group)
            else:
                group.admit(said.handle)

    def _news(self, reply: StepReply, touched: dict[int, Group]) -> list[int]:
        now, over = time.monotonic(), []
        deltas = _deltas(reply)
        news = _tokens(reply)
        for handle in {**news, **deltas} if deltas else news:
            if (entry := self._open.get(handle)) is None:
                continue
            group, answer = entry
            touched[id(group)] = group
            try:
                stopped = self._tell(handle, group, answer, news.get(handle, ()), deltas.get(handle, ()), now)
            except Exception:  # it must not cost the other requests of the reply what is theirs
                _log.exception("what the engine told of request %s could not be read", group.request_id)
                answer.drop_text()
                group.fail(RequestFailed("the answer could not be read; the log has the reason"))
                continue
            if stopped:
                over.append(handle)
        return over

    def _tell(
        self, handle: int, group: Group, answer: Answer, ids: Sequence[int], deltas: Sequence[RequestDelta], now: float
    ) -> bool:
        for delta in deltas:
            group.note(delta)
            if delta.first is not None:
                self._time_first(group, answer, delta.first)
            if delta.finish == FinishReason.ERROR:
                group.fail(_failure(delta.error))
        if answer.finish_reason is not None:
            self._forget(handle, now)
            return False
        if ids:
            self._time(group, answer, len(ids), now)
        stopped = answer.push(ids, deltas)
        if answer.finish_reason is not None:
            self._forget(handle, now)
        return stopped

    def _time(self, group: Group, answer: Answer, count: int, now: float) -> None:
        if answer.told_at is None:
            self._time_first(group, answer, now)
        assert answer.told_at is not None
        if self._on_more and (more := count if answer.count else count - 1):
            tell_all(self._on_more, now - answer.told_at, more)
        answer.told_at = group.metrics.last_token_time = now

    def _time_first(self, group: Group, answer: Answer, when: float) -> None:
        answer.told_at = when
        if group.metrics.first_token_time is None:
            group.metrics.first_token_time = when
            tell_all(self._on_first, when - group.metrics.arrival_time)

    def received(self) -> None:
        """A request is at the door; ``open`` and what follows, or ``turned_away``, says what became of it."""
        tell_all(self._on_received)

    def turned_away(self, outcome: Outcome) -> None:
        """One that was received and never opened."""
        tell_all(self._on_outcome, outcome)

    def _over(self, group: Group) -> bool:
        """Whether none of its answers is open."""
        return self._open.keys().isdisjoint(group.handles)

    def _note_end(self, group: Group) -> None:
        if self._over(group):
            if self._on_outcome:
                tell_all(self._on_outcome, group.outcome)
            tell_all(self._on_end, group)

    def _forget(self, handle: int, now: float) -> None:
        group, answer = self._open.pop(handle)
        if group.finished:
            group.metrics.finished_time = now
        if self._on_finished:
            last = group.finished and self._over(group)
            finished = Finished(
                metrics=group.metrics,
                params=group.params,
                prompt_tokens=len(group.prompt_ids),
                output_tokens=answer.count,
                cached_tokens=group.cached or 0,
                reason=answer.finish_reason or "abort",
                most_tokens=max(one.count for one in group.answers) if last else None,
            )
            tell_all(self._on_finished, finished)
        self._note_end(group)


def _failure(error: str | None) -> OctavoError:
    if error == NO_TOKEN_ALLOWED:
        return BadRequest(
            "no token is left that may come next: structured_outputs, allowed_token_ids and bad_words leave none"
        )
    if error is not None and error.startswith(TOO_COMPLEX):
        return BadRequest(error, "structured_outputs")
    return RequestFailed(error or "the engine could not finish this request")


def tell_all(callbacks: Iterable[Callable[..., object]], *args: object) -> None:
    """Call all; one that raises in spite of what it promised costs nobody an answer."""
    for callback in callbacks:
        try:
            callback(*args)
        except Exception:
            _log.exception("somebody who is told of requests failed")


def _named(reply: StepReply) -> list[int]:
    """Every handle that a reply speaks of."""
    return [*reply.handles.tolist(), *(one.handle for one in (*reply.answers, *reply.deltas))]


def _tokens(reply: StepReply) -> Mapping[int, Sequence[int]]:
    """Tokens of each request; one reply may name a request several times."""
    if not len(reply.handles):
        return {}
    handles, counts, tokens = reply.handles.tolist(), reply.counts.tolist(), reply.tokens.tolist()
    if counts.count(1) == len(counts) == len(set(handles)):
        return dict(zip(handles, zip(tokens), strict=True))
    news: dict[int, list[int]] = {}
    at = 0
    for handle, count in zip(handles, counts, strict=True):
        ids = tokens[at : at + count]
        at += count
        if handle in news:
            news[handle] += ids
        else:
            news[handle] = ids
    return news


def _deltas(reply: StepReply) -> dict[int, list[RequestDelta]]:
    """The same for what is said beside tokens."""
    news: dict[int, list[RequestDelta]] = {}
    for delta in reply.deltas:
        news.setdefault(delta.handle, []).append(delta)
    return news


def _refusal(said: Refused, params: SamplingParams) -> OctavoError:
    asked = params.structured_outputs
    field = (said.param or "").partition(".")[0]
    if asked is not None and field == "structured_outputs" and asked.param != field:
        said = replace(said, param=asked.param)  # as the request called it
    if said.status == Overloaded.status:
        return Overloaded(said.reason, said.param, said.retry_after)
    if said.status == 503:
        return EngineDead(said.reason)
    if said.status >= 500 and said.status != Unsupported.status:
        return RequestFailed(said.reason)
    return _REFUSALS.get(said.status, BadRequest)(said.reason, said.param)


def _nothing() -> None:
    pass
