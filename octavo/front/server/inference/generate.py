"""POST /inference/v1/generate: token ids in, token ids out."""

from collections.abc import AsyncGenerator

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.errors import BadRequest, RequestError, Unsupported
from octavo.front.server.inference import sampling
from octavo.front.server.inference.schema import (
    ChoiceChunk,
    GenerateAnswer,
    GenerateBody,
    GenerateChoice,
    GenerateChunk,
)
from octavo.front.server.openai import chunks
from octavo.front.server.openai.job import Tally
from octavo.front.server.openai.schema import ChatLogprobs
from octavo.front.server.routing import ERRORS, JSONRoute
from octavo.front.server.service import Service, Terms, Work
from octavo.front.server.sse import EventStream, frame, unless_gone
from octavo.outputs import CompletionOutput

PREFIX = "generate-tokens"


def routes(service: Service) -> APIRouter:
    """The route, over ``service``."""
    router = APIRouter(route_class=JSONRoute, tags=["tokens"])

    @router.post("/inference/v1/generate", response_model=GenerateAnswer, responses=ERRORS)
    async def generate_tokens(request: Request, body: GenerateBody) -> Response:
        """Continue token ids. With ``stream`` the answer is a stream of server-sent events."""
        return await GenerateJob(service, body, request).respond(request)

    return router


class GenerateJob:
    """One prompt of ids, ``sampling_params.n`` answers."""

    def __init__(self, service: Service, body: GenerateBody, request: Request):
        body.refuse_unsupported()
        if body.features:
            raise Unsupported("features: this server takes no media here", "features")
        if body.stream_options is not None and not body.stream:
            raise BadRequest("stream_options needs stream", "stream_options")
        service.model(body.model)
        defaults = service.engine.config.text.generation_defaults
        self.params = sampling.read(body.sampling_params, defaults, bool(body.stream))
        if body.stream and self.params.prompt_logprobs is not None:
            raise BadRequest("prompt_logprobs cannot be streamed", "sampling_params.prompt_logprobs")
        self.service = service
        self.body = body
        self.id = f"{PREFIX}-{body.request_id or request.state.request_id}"
        self.capped = body.sampling_params.get("max_tokens") is None
        self._tally = Tally()

    async def respond(self, request: Request) -> Response:
        """Answers; a client that goes away meanwhile aborts its request."""
        if self.body.stream:
            work = await unless_gone(request.receive, self._submit())
            return EventStream(self._frames(work), work.close)
        answer = await unless_gone(request.receive, self._whole())
        return Response(answer.model_dump_json(), media_type="application/json")

    async def _submit(self) -> Work:
        body = self.body
        prompt = self.service.engine.intake.prompt(body.token_ids, param="token_ids")
        terms = Terms(stream=bool(body.stream), priority=body.priority, cache_salt=body.cache_salt)
        try:
            return await self.service.submit(terms, self.id, [prompt], self.params, self.capped)
        except RequestError as error:
            error.param = sampling.place(error.param)
            raise

    async def _whole(self) -> GenerateAnswer:
        work = await self._submit()
        try:
            output = await work.streams[0].final()
        finally:
            work.close()
        self._tally.count(0, output)
        choices = [
            GenerateChoice(
                index=choice.index,
                logprobs=None
                if (found := self._logprobs(choice)) is None
                else ChatLogprobs.model_validate(found, from_attributes=True),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                token_ids=choice.token_ids,
            )
            for choice in sorted(output.outputs, key=lambda choice: choice.index)
        ]
        scored = None if self.params.prompt_logprobs is None else chunks.prompt_logprobs(output.prompt_logprobs)
        return GenerateAnswer(request_id=self.id, choices=choices, prompt_logprobs=scored, usage=self._tally.usage())

    async def _frames(self, work: Work) -> AsyncGenerator[bytes]:
        options = self.body.stream_options
        continuous = bool(options and options.continuous_usage_stats)
        async for output in work.streams[0]:
            self._tally.count(0, output)
            told = [
                ChoiceChunk(
                    choice.index, choice.token_ids, self._logprobs(choice), choice.finish_reason, choice.stop_reason
                )
                for choice in output.outputs
                if choice.token_ids or choice.finish_reason
            ]
            if told:
                usage = self._tally.chunk() if continuous else None
                yield frame(msgspec.json.encode(GenerateChunk(self.id, told, usage)))
        if self.service.options.force_usage or (options and options.include_usage):
            yield frame(msgspec.json.encode(GenerateChunk(self.id, [], self._tally.chunk())))

    def _logprobs(self, choice: CompletionOutput) -> chunks.ContentLogprobs | None:
        if choice.logprobs is None:
            return None
        return chunks.chat_logprobs(choice.token_ids, choice.logprobs, self.params.logprobs or 0, True)
