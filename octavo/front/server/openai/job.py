"""Job: one request of a generating route, answered whole or as a stream. Chat and completions fill in the shapes."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import BadRequest
from octavo.front.server.openai.chunks import Cached, UsageChunk
from octavo.front.server.openai.schema import Answer, PromptTokensDetails, SamplingBody, Usage
from octavo.front.server.service import Service, Work, merged
from octavo.front.server.sse import EventStream, frame, unless_gone
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.params import SamplingParams

B = TypeVar("B", bound=SamplingBody)


class Job(ABC, Generic[B]):
    """``prompts`` go to the engine with ``params``; outputs come back as ``whole`` makes them, or chunk by chunk."""

    prefix: str

    def __init__(self, service: Service, body: B, request: Request):
        body.refuse_unsupported()
        if body.stream_options is not None and not body.stream:
            raise BadRequest("stream_options needs stream", "stream_options")
        if body.stream and body.prompt_logprobs is not None:
            raise BadRequest("prompt_logprobs cannot be streamed", "prompt_logprobs")
        self.service = service
        self.request = request
        self.body = body
        self.model = service.model(body.model)
        self.id = f"{self.prefix}-{body.request_id or request.state.request_id}"
        self.created = service.now()
        asked = body.return_tokens_as_token_ids
        self.as_ids = service.options.tokens_as_ids if asked is None else asked
        self._prompt_tokens: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._completion_tokens = 0

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

    @abstractmethod
    def whole(self, outputs: Sequence[RequestOutput]) -> Answer:
        """The answer in one piece."""

    @abstractmethod
    def tell(self, place: int, output: RequestOutput, choice: CompletionOutput, usage: UsageChunk | None) -> list[Any]:
        """What a choice's news becomes: chunks, none where there is nothing to say yet."""

    @abstractmethod
    def last(self, usage: UsageChunk) -> Any:
        """The chunk that carries nothing but usage."""

    async def respond(self, request: Request) -> Response:
        """Answers; a client that goes away meanwhile aborts its requests."""
        if self.body.stream:
            work = await unless_gone(request.receive, self._submit())
            return EventStream(self._frames(work), work.close)
        answer = await unless_gone(request.receive, self._whole())
        return Response(answer.model_dump_json(), media_type="application/json")

    async def _submit(self) -> Work:
        params = self.params()
        cap = self.asked_max_tokens is None
        return await self.service.submit(self.body, self.id, await self.prompts(), params, cap)

    async def _whole(self) -> Answer:
        work = await self._submit()
        try:
            outputs = [await stream.final() for stream in work.streams]
        finally:
            work.close()
        for place, output in enumerate(outputs):
            self._count(place, output)
            output.outputs.sort(key=lambda choice: choice.index)
        return self.whole(outputs)

    async def _frames(self, work: Work) -> AsyncGenerator[bytes]:
        options = self.body.stream_options
        continuous = bool(options and options.continuous_usage_stats)
        async for place, output in merged(work.streams):
            self._count(place, output)
            usage = self._usage_chunk() if continuous else None
            chunks = [chunk for choice in output.outputs for chunk in self.tell(place, output, choice, usage)]
            if chunks:
                yield b"".join([frame(msgspec.json.encode(chunk)) for chunk in chunks])
        if self.service.options.force_usage or (options and options.include_usage):
            yield frame(msgspec.json.encode(self.last(self._usage_chunk())))

    def _count(self, place: int, output: RequestOutput) -> None:
        self._prompt_tokens[place] = len(output.prompt_token_ids)
        if output.num_cached_tokens is not None:
            self._cached[place] = output.num_cached_tokens
        self._completion_tokens += sum([len(choice.token_ids) for choice in output.outputs])

    def usage(self) -> Usage:
        """Tokens of the outputs seen so far."""
        prompt, completion = sum(self._prompt_tokens.values()), self._completion_tokens
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached.values())),
        )

    def _usage_chunk(self) -> UsageChunk:
        prompt, completion = sum(self._prompt_tokens.values()), self._completion_tokens
        return UsageChunk(prompt, completion, prompt + completion, Cached(sum(self._cached.values())))
