"""Job: one request of a generating route, answered whole or as a stream. Chat and completions fill in the shapes."""

import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import BadRequest, EngineDead
from octavo.front.server.openai.chunks import Cached, Reasoned, UsageChunk
from octavo.front.server.openai.schema import (
    Answer,
    CompletionTokensDetails,
    PromptTokensDetails,
    SamplingBody,
    Usage,
)
from octavo.front.server.service import Service, Work, merged
from octavo.front.server.sse import EventStream, Write, frame, unless_gone
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams

B = TypeVar("B", bound=SamplingBody)


def check(body: SamplingBody) -> None:
    """Raises ``RequestError`` for fields that no generating route takes together, or at all."""
    body.refuse_unsupported()
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options needs stream", "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs cannot be streamed", "prompt_logprobs")


class Tally:
    """Tokens of the outputs seen so far. ``reasoning``: tokens of each answer's reasoning, told where ``reasoned``."""

    def __init__(self, reasoned: bool = False):
        self.reasoning: dict[int, int] = {}
        self._reasoned = reasoned
        self._prompt: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._completion = 0

    def count(self, place: int, output: RequestOutput) -> None:
        """``output`` has news of the prompt number ``place``."""
        self._prompt[place] = len(output.prompt_token_ids)
        if output.num_cached_tokens is not None:
            self._cached[place] = output.num_cached_tokens
        for choice in output.outputs:
            self._completion += len(choice.token_ids)

    def chunk(self) -> UsageChunk:
        """For a stream."""
        prompt, completion = sum(self._prompt.values()), self._completion
        reasoned = Reasoned(sum(self.reasoning.values())) if self._reasoned else None
        return UsageChunk(prompt, completion, prompt + completion, Cached(sum(self._cached.values())), reasoned)

    def usage(self) -> Usage:
        """For a whole answer."""
        prompt, completion = sum(self._prompt.values()), self._completion
        reasoned = CompletionTokensDetails(reasoning_tokens=sum(self.reasoning.values())) if self._reasoned else None
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached.values())),
            completion_tokens_details=reasoned,
        )


class Job(ABC, Generic[B]):
    """``start`` hands the request to the engine; what comes back is told chunk by chunk (``tell``) or whole.

    ``prompts`` and ``params`` are what the engine is given; ``whole`` makes the answer of last outputs.
    """

    prefix: str

    def __init__(self, service: Service, body: B, request: Request):
        self.service = service
        self.request = request
        self.body = body
        self.model = service.model(body.model)
        self.id = f"{self.prefix}-{body.request_id or request.state.request_id}"
        self.created = service.now()
        asked = body.return_tokens_as_token_ids
        self.as_ids = service.options.tokens_as_ids if asked is None else asked
        self.tally = Tally()
        options = body.stream_options
        #: Whether each chunk has the usage so far.
        self.continuous = bool(options and options.continuous_usage_stats)

    @property
    def asked_max_tokens(self) -> int | None:
        """As the request says it."""
        return self.body.max_tokens

    @abstractmethod
    async def prompts(self) -> Sequence[Any]:
        """What the engine is given."""

    @abstractmethod
    def params(self) -> SamplingParams:
        """How it samples."""

    async def asked(self) -> tuple[Sequence[Any], SamplingParams]:
        """All that the engine is given."""
        return await self.prompts(), self.params()

    @abstractmethod
    async def start(self) -> None:
        """Hand the request to the engine; returns once it is admitted."""

    @abstractmethod
    def close(self) -> None:
        """Abort what has not finished. May be called twice."""

    @abstractmethod
    async def answer(self) -> Answer:
        """The answer in one piece, once it is there."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """The engine's streams, once started."""

    @abstractmethod
    def tell(self, place: int, output: RequestOutput) -> list[Any]:
        """The chunks of what is new of stream number ``place``: structs, or frames already encoded."""

    @abstractmethod
    def last(self, usage: UsageChunk) -> Any:
        """The chunk that carries nothing but usage."""

    async def respond(self, request: Request) -> Response:
        """Answers; a client that goes away meanwhile aborts its requests."""
        if self.body.stream:
            await unless_gone(request.receive, self.start())
            return EventStream(self._frames(), self.close, shorten=self._shorten)
        answer = await unless_gone(request.receive, self._whole())
        return Response(answer.model_dump_json(), media_type="application/json")

    async def _whole(self) -> Answer:
        try:
            await self.start()
            answer = await self.answer()
        finally:
            self.close()
        if self.service.ended and not self.tally.usage().completion_tokens:
            raise EngineDead("the server is shutting down")  # nobody takes an answer of nothing for one
        return answer

    async def _frames(self) -> AsyncGenerator[bytes]:
        async for place, output in merged(self.work.streams):
            if told := self._told(place, output):
                yield told
        options = self.body.stream_options
        if self.service.options.force_usage or (options and options.include_usage):
            yield frame(msgspec.json.encode(self.last(self.tally.chunk())))

    def _told(self, place: int, output: RequestOutput) -> bytes:
        return b"".join(
            [chunk if type(chunk) is bytes else frame(msgspec.json.encode(chunk)) for chunk in self.tell(place, output)]
        )

    def _shorten(self, write: Write) -> None:
        def tell(place: int, output: RequestOutput) -> None:
            write(self._told(place, output))

        self.work.shorten(tell, functools.partial(write, b""))
