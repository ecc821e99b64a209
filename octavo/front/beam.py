"""Beam search over plain requests: each step asks for one token of every beam, with the log-probabilities of the
likeliest ones. The prefix cache makes the step of a beam cost what its newest tokens cost.

The rule is vLLM's: of the continuations of all beams those that end are set aside, the best ``beam_width`` others go
on, and of all that ended or reached the limit the best are the answer.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.errors import RequestFailed
from octavo.front.intake import Prompt
from octavo.front.replay import Told, replay
from octavo.front.tokenizers.base import Tokenizer
from octavo.outputs import PositionLogprobs, RequestOutput
from octavo.params import BeamSearchParams, RequestOutputKind, SamplingParams
from octavo.wire.reply import FinishReason
from octavo.wire.result import LogprobArrays


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """A path of tokens from the prompt on, as a chain: beams share what they have in common."""

    parent: "Beam | None" = None
    token: int = -1
    total: float = 0.0
    length: int = 0
    position: PositionLogprobs | None = None
    ended: bool = False

    def _chain(self) -> "Iterator[Beam]":
        beam = self
        while beam.parent is not None:
            yield beam
            beam = beam.parent

    @property
    def tokens(self) -> list[int]:
        return [beam.token for beam in self._chain()][::-1]

    @property
    def positions(self) -> list[PositionLogprobs]:
        """Of each token: it, then the likeliest ones."""
        found = []
        for beam in self._chain():
            assert beam.position is not None
            found.append({beam.token: beam.position[beam.token]} | beam.position)
        return found[::-1]


class Search:
    """The beams of one prompt: ``prompts`` go to the engine, ``feed`` takes what it said, until ``done``.

    ``eos``: end-of-sequence ids. ``room``: most tokens of a beam. ``vocab``: width of the logits. ``shown``:
    alternatives that are told of each position, None for none and no log-probabilities.
    """

    def __init__(self, params: BeamSearchParams, eos: Iterable[int], room: int, vocab: int, shown: int | None = None):
        self._width = params.beam_width
        self._penalty = params.length_penalty
        self._eos = frozenset(() if params.ignore_eos else eos)
        self._ends = self._eos | frozenset(params.stop_token_ids or ())
        self._shown = shown
        self._most = min(params.max_tokens, room)
        self._seen = min(2 * params.beam_width, vocab)
        self._ended: list[Beam] = []
        self.live = [Beam()]
        #: How each step asks. Its own draw does not matter, the log-probabilities do.
        self.step = SamplingParams(
            max_tokens=1,
            logprobs=shown if shown == -1 else max(self._seen, shown or 0),
            temperature=params.temperature,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def prompts(self, prompt: Prompt) -> list[Prompt]:
        """What the engine is to continue by a token: the prompt and each live beam."""
        return [Prompt(None, prompt.ids + beam.tokens, prompt.salt) for beam in self.live]

    def feed(self, positions: Sequence[PositionLogprobs]) -> None:
        """What may follow each live beam."""
        going: list[Beam] = []
        for beam, position in zip(self.live, positions, strict=True):
            for token, entry in position.items():
                if entry.rank is None or entry.rank > self._seen or entry.logprob == -math.inf:
                    continue  # drawn, and not among the likeliest; or not possible
                ended = token in self._ends
                follower = Beam(beam, token, beam.total + entry.logprob, beam.length + 1, position, ended)
                (self._ended if ended else going).append(follower)
        going.sort(key=self.score, reverse=True)
        self._ended = self._best(self._ended)
        self.live = going[: self._width]

    @property
    def done(self) -> bool:
        """No live beam can still become one of the best."""
        if not self.live or self.live[0].length >= self._most:
            return True
        if len(self._ended) < self._width:
            return False
        # Sums only fall: the most that a beam can score is its sum now, at the length that favours it.
        length = self._most if self._penalty >= 0 else self.live[0].length + 1
        hope = max(beam.total for beam in self.live) / length**self._penalty
        return self.score(self._ended[-1]) >= hope

    def score(self, beam: Beam) -> float:
        """What beams are ranked by."""
        return beam.total / max(beam.length, 1) ** self._penalty

    def best(self, count: int) -> list[Beam]:
        """The ``count`` best, the best first. Of a search that nothing cut short, only beams that have an end."""
        early = self.done and bool(self.live) and self.live[0].length < self._most
        return self._best(self._ended if early else [*self._ended, *self.live])[:count]

    def told(self, beam: Beam) -> Told:
        """A beam as an answer of the engine."""
        stop = beam.token if beam.ended and beam.token not in self._eos else None
        finish = FinishReason.STOP if beam.ended else FinishReason.LENGTH if self.done else FinishReason.ABORT
        arrays = None
        if self._shown is not None and beam.length:
            arrays = _arrays(beam.positions, self._shown)
        return Told(beam.tokens, finish, stop, arrays)

    def _best(self, beams: list[Beam]) -> list[Beam]:
        return sorted(beams, key=self.score, reverse=True)[: self._width]


class Answering(Protocol):
    """A request on its way, as ``engine.Stream`` is one."""

    async def final(self) -> RequestOutput: ...

    def abort(self) -> None: ...


class BeamStream:
    """A search as a stream of the engine: ``final`` or ``async for`` give its one output, ``abort`` ends it.

    ``submit`` hands one request to the engine. ``params``: of the outputs (n, log-probabilities, text).
    """

    finished = False

    def __init__(
        self,
        request_id: str,
        prompt: Prompt,
        search: Search,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        submit: Callable[[Prompt, SamplingParams], Awaitable[Answering]],
    ):
        self.request_id = request_id
        self.prompt_token_ids = prompt.ids
        self._prompt = prompt
        self._search = search
        self._params = params
        self._tokenizer = tokenizer
        self._submit = submit
        self._streams: list[Answering] = []
        self._aborted = False
        self._cached: int | None = None

    async def final(self) -> RequestOutput:
        search = self._search
        try:
            while not search.done and not self._aborted:
                await self._step()
        finally:
            self.abort()
        return self._output()

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        yield await self.final()

    def stop(self) -> None:
        """As ``abort``: what a search has so far is here."""
        self.abort()

    def abort(self) -> None:
        self._aborted = True
        for stream in self._streams:
            stream.abort()
        self._streams = []

    async def _step(self) -> None:
        search = self._search
        submits = [asyncio.ensure_future(self._submit(one, search.step)) for one in search.prompts(self._prompt)]
        try:
            self._streams = list(await asyncio.gather(*submits))
        except BaseException:
            for submit in submits:
                submit.cancel()
            for found in await asyncio.gather(*submits, return_exceptions=True):
                if not isinstance(found, BaseException):
                    found.abort()
            raise
        outputs = [await stream.final() for stream in self._streams]
        if self._cached is None:
            self._cached = outputs[0].num_cached_tokens
        if not self._aborted:
            search.feed([next_of(output) for output in outputs])

    def _output(self) -> RequestOutput:
        beams = self._search.best(self._params.n)
        told = [self._search.told(beam) for beam in beams]
        output = replay(self.request_id, self._prompt.text, self._prompt.ids, self._params, self._tokenizer, told)
        output.num_cached_tokens = self._cached
        for choice, beam in zip(output.outputs, beams, strict=True):
            choice.cumulative_logprob = beam.total
        self.finished = True
        return output


def next_of(output: RequestOutput) -> PositionLogprobs:
    """What may come next. Raises ``RequestFailed`` where the engine did not say."""
    (choice,) = output.outputs
    if not choice.logprobs or choice.finish_reason in ("abort", "error"):
        raise RequestFailed("a step of the beam search was not finished")
    return choice.logprobs[0]


def _arrays(positions: Sequence[PositionLogprobs], width: int) -> LogprobArrays:
    """Log-probabilities as the engine tells them: the chosen token, then the ``width`` likeliest by rank (-1: all)."""
    width = max((entry.rank or 0 for one in positions for entry in one.values()), default=0) if width < 0 else width
    ids = np.full((len(positions), 1 + width), -1, np.int32)
    values = np.full((len(positions), 1 + width), -np.inf, np.float32)
    ranks = np.zeros(len(positions), np.int32)
    for place, position in enumerate(positions):
        for column, (token, entry) in enumerate(position.items()):
            rank = entry.rank or 0
            if column == 0:
                ids[place, 0], values[place, 0], ranks[place] = token, entry.logprob, rank
            if 0 < rank <= width:
                ids[place, rank], values[place, rank] = token, entry.logprob
    return LogprobArrays(ids, values, ranks)
