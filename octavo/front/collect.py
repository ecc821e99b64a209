"""Answer: what the core told of one request, on its way to being a ``CompletionOutput``."""

from collections.abc import Sequence

from octavo.common.log import logger
from octavo.front.detokenize import Incremental, Marker, detokenizer
from octavo.front.logprobs import LogprobReader
from octavo.front.stop import Stop
from octavo.front.tokenizers.base import Tokenizer
from octavo.outputs import CompletionOutput, FinishReasonName, PositionLogprobs
from octavo.params import RequestOutputKind, SamplingParams
from octavo.wire.reply import FinishReason, RequestDelta

_log = logger(__name__)


class Answer:
    """One of a request's ``n`` answers. ``push`` is called by the reader of replies, ``take`` by the consumer.

    News that nobody took yet add up here: a slow consumer gets fewer and longer deltas, and no queue grows.
    """

    __slots__ = (
        "_detokenizer", "_ids", "_kind", "_logprobs", "_marker", "_marks", "_min_tokens", "_news", "_reader", "_stop",
        "_stop_reason", "_taken", "_text", "_whole_stop", "count", "finish_reason", "index", "told_at",
    )  # fmt: skip

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer | None, prompt: Sequence[int]):
        self.index = index
        #: Tokens told so far.
        self.count = 0
        #: Monotonic seconds of the last of them; before any is told, of the first, where the core has said so.
        self.told_at: float | None = None
        text = tokenizer if params.detokenize else None
        self._detokenizer: Incremental | None = None
        if text is not None:
            self._detokenizer = detokenizer(
                text, prompt, params.skip_special_tokens, params.spaces_between_special_tokens
            )
        self._marker: Marker | None = None
        if text is not None and self._detokenizer is not None and not params.skip_special_tokens:
            self._detokenizer = self._marker = Marker(self._detokenizer, text)
        self._stop = Stop(params.stop, params.include_stop_str_in_output) if params.stop else None
        self._whole_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._reader: LogprobReader | None = None
        if params.logprobs is not None:
            self._reader = LogprobReader(text, prompt, params.logprobs)
        elif params.logprob_token_ids:
            self._reader = LogprobReader(text, prompt, 0)
        self._kind = params.output_kind
        self._text: list[str] = []
        #: Characters that earlier outputs told.
        self._taken = 0
        self._marks: list[tuple[int, int]] = []
        self._ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        #: Why it ended; None while it goes on.
        self.finish_reason: FinishReasonName | None = None
        self._stop_reason: int | str | None = None
        self._news = False

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def push(self, ids: Sequence[int], deltas: Sequence[RequestDelta] = ()) -> bool:
        """Take news. True where the answer ended here, by a stop string, and the core must be told so."""
        assert self.finish_reason is None
        finish: RequestDelta | None = None
        for delta in deltas:
            if delta.finish is not None:
                finish = delta
                break
        kept, ended = len(ids), False
        if ids and self._detokenizer is not None:
            # The token that stopped the answer is no part of its text, as vLLM has it.
            silent = finish is not None and finish.finish == FinishReason.STOP and not self._whole_stop
            told = self._read(ids[:-1] if silent else ids)
            if self._stop is not None and self._stop.matched is not None:
                kept, ended = told, True
        if self._reader is not None:
            self._read_logprobs(self._reader, deltas, kept)
        self._ids += ids[:kept] if kept < len(ids) else ids
        self.count += kept
        if ended:
            assert self._stop is not None
            self._end("stop", self._stop.matched)
            return finish is None
        if finish is not None:
            assert finish.finish is not None
            self._flush()
            self._end(finish.finish.word, finish.stop)  # type: ignore[arg-type]
        if ids:
            self._news = True
        return False

    def _read_logprobs(self, reader: LogprobReader, deltas: Sequence[RequestDelta], count: int) -> None:
        for delta in deltas:
            if delta.logprobs is not None and count > 0:
                positions = reader.read(delta.logprobs, count)
                self._logprobs += positions
                count -= len(positions)

    def end(self, reason: FinishReasonName) -> None:
        """End it from this side: the caller aborted, or a sibling failed."""
        if self.finish_reason is None:
            try:
                self._flush()
            except Exception:  # it ends all the same
                _log.exception("the end of an answer could not be made into text")
            self._end(reason, None)

    def drop_text(self) -> None:
        """Say nothing more of what was not told: its text could not be made."""
        self._detokenizer = None

    def take(self) -> CompletionOutput | None:
        """News since the last time or the whole so far, as ``output_kind`` asks; None where there is no news."""
        delta = self._kind is RequestOutputKind.DELTA
        if not self._news or (self._kind is RequestOutputKind.FINAL_ONLY and self.finish_reason is None):
            return None
        self._news = False
        return self._output(clear=delta)

    def peek(self) -> CompletionOutput:
        """The whole so far; for a sibling's news in cumulative outputs."""
        return self._output(clear=False)

    def _output(self, clear: bool) -> CompletionOutput:
        if len(self._text) > 1:
            self._text = ["".join(self._text)]
        text = self._text[0] if self._text else ""
        output = CompletionOutput(
            self.index,
            text,
            self._ids if clear or self.finish_reason else list(self._ids),
            None if self._reader is None else self._reader.cumulative,
            None if self._reader is None else self._logprobs if clear else list(self._logprobs),
            self.finish_reason,
            self._stop_reason,
        )
        if self._marker is not None:
            output.marks = self._marked(text, clear)
        if clear:
            self._taken += len(text)
            self._text, self._ids, self._logprobs = [], [], []
        return output

    def _marked(self, text: str, clear: bool) -> list[tuple[int, int]]:
        """Marks in ``text``. That of a token whose text a stop string holds back comes with its first character."""
        assert self._marker is not None
        self._marks += self._marker.marks
        self._marker.marks = []
        end = self._taken + len(text)
        # One that has no text, at the very end, is behind it.
        count = sum(at < end for at, _ in self._marks)
        found = [(at - self._taken, token) for at, token in self._marks[:count]]
        if clear:
            del self._marks[:count]
        return found

    def _read(self, ids: Sequence[int]) -> int:
        """Text of ``ids``; how many of them the answer keeps."""
        detokenizer, stop = self._detokenizer, self._stop
        assert detokenizer is not None
        if stop is None:
            self._say(detokenizer.push(ids))
            return len(ids)
        for i, token in enumerate(ids):
            armed = self.count + i >= self._min_tokens
            self._say(stop.feed(detokenizer.push((token,)), armed))
            if stop.matched is not None:
                return i + 1
        return len(ids)

    def _say(self, text: str) -> None:
        if text:
            self._text.append(text)

    def _flush(self) -> None:
        if self._detokenizer is None:
            return
        rest = self._detokenizer.flush()
        self._say(rest if self._stop is None else self._stop.feed(rest, armed=False) + self._stop.flush())

    def _end(self, reason: FinishReasonName, stop: int | str | None) -> None:
        self.finish_reason, self._stop_reason, self._news = reason, stop, True
        self._detokenizer = None
