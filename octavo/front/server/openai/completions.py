"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.errors import BadRequest
from octavo.front.server.openai import chunks
from octavo.front.server.openai.chunks import TextChoice, TextChoiceIds, TextChunk, TextChunkUsage, UsageChunk
from octavo.front.server.openai.job import Job, check
from octavo.front.server.openai.schema import (
    CompletionAnswer,
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
)
from octavo.front.server.routing import ERRORS, JSONRoute
from octavo.front.server.service import Service, Work
from octavo.front.server.sse import frame
from octavo.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from octavo.params import SamplingParams

#: OpenAI's default, where neither the request nor the model says.
DEFAULT_MAX_TOKENS = 16


def routes(service: Service) -> APIRouter:
    """The route, over ``service``."""
    router = APIRouter(route_class=JSONRoute, tags=["openai"])

    @router.post("/v1/completions", response_model=CompletionAnswer, responses=ERRORS)
    async def create_completion(request: Request, body: CompletionBody) -> Response:
        """Continue one or more prompts. With ``stream`` the answer is a stream of server-sent events."""
        return await CompletionJob(service, body, request).respond(request)

    return router


class CompletionJob(Job[CompletionBody]):
    """``k`` prompts with ``n`` answers each: choice ``j`` of prompt ``i`` has index ``i * n + j``."""

    prefix = "cmpl"

    def __init__(self, service: Service, body: CompletionBody, request: Request):
        check(body)
        super().__init__(service, body, request)
        self._work: Work | None = None
        # Characters told so far, a choice: where the next token's text_offset starts. None before the first.
        self._offsets: dict[int, int] = {}
        #: What stands before and behind the text in a chunk that holds nothing else, by choice.
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._plain = not body.return_token_ids and body.logprobs is None

    async def prompts(self) -> Sequence[str | list[int]]:
        given: Any = self.body.prompt
        found = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        most = self.service.options.max_prompts
        if len(found) > most:
            raise BadRequest(f"a request may hold at most {most} prompts (--max-prompts), got {len(found)}", "prompt")
        answers = len(found) * (self.body.n or 1)
        if answers > most:
            raise BadRequest(
                f"{len(found)} prompts with n {self.body.n} make {answers} answers; "
                f"a request may ask for at most {most} (--max-prompts)",
                "n",
            )
        return found

    def params(self) -> SamplingParams:
        body = self.body
        limit = self.asked_max_tokens
        if limit is None:
            limit = self.service.engine.config.text.generation_defaults.get("max_tokens", DEFAULT_MAX_TOKENS)
        if limit == 0 and not body.echo:
            raise BadRequest("max_tokens must be at least 1; 0 only scores the prompt, with echo", "max_tokens")
        scored = body.prompt_logprobs
        if scored is None and body.echo and (body.logprobs is not None or limit == 0):
            scored = body.logprobs or 0
        return self.service.sampling(body, max_tokens=limit, logprobs=body.logprobs, prompt_logprobs=scored)

    async def start(self) -> None:
        params = self.params()
        cap = self.asked_max_tokens is None
        self._work = await self.service.submit(self.body, self.id, await self.prompts(), params, cap)

    def close(self) -> None:
        if self._work is not None:
            self._work.close()

    @property
    def work(self) -> Work:
        assert self._work is not None, "it was not started"
        return self._work

    async def answer(self) -> CompletionAnswer:
        outputs = [await stream.final() for stream in self.work.streams]
        for place, output in enumerate(outputs):
            self.tally.count(place, output)
            output.outputs.sort(key=lambda choice: choice.index)
        return self.whole(outputs)

    def tell(self, place: int, output: RequestOutput) -> list[Any]:
        self.tally.count(place, output)
        usage = self.tally.chunk() if self.continuous else None
        found: list[Any] = []
        for choice in output.outputs:
            found += self._tell(place, output, choice, usage)
        return found

    def whole(self, outputs: Sequence[RequestOutput]) -> CompletionAnswer:
        """The answer that the prompts' last outputs make."""
        choices = []
        for place, output in enumerate(outputs):
            for choice in output.outputs:
                index, text, logprobs = self._shown(place, output, choice)
                choices.append(
                    CompletionChoice(
                        index=index,
                        text=text,
                        logprobs=None if logprobs is None else CompletionLogprobs.model_construct(**_fields(logprobs)),
                        finish_reason=choice.finish_reason,
                        stop_reason=choice.stop_reason,
                        prompt_logprobs=None
                        if self.body.prompt_logprobs is None
                        else chunks.prompt_logprobs(output.prompt_logprobs),
                        token_ids=choice.token_ids if self.body.return_token_ids else None,
                        prompt_token_ids=output.prompt_token_ids if self.body.return_token_ids else None,
                    )
                )
        return CompletionAnswer(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=self.tally.usage(),
            system_fingerprint=self.service.fingerprint,
        )

    def _tell(
        self, place: int, output: RequestOutput, choice: CompletionOutput, usage: UsageChunk | None
    ) -> list[TextChunk | bytes]:
        first = place * (self.body.n or 1) + choice.index not in self._offsets
        index, text, logprobs = self._shown(place, output, choice)
        if self._plain and usage is None and choice.finish_reason is None:
            return [self._text(index, text)] if text else []
        if not (text or logprobs or choice.finish_reason or self.body.return_token_ids):
            return []
        if self.body.return_token_ids:
            prompt = output.prompt_token_ids if first else None
            shown: TextChoice = TextChoiceIds(
                index, text, logprobs, choice.finish_reason, choice.stop_reason, choice.token_ids, prompt
            )
        else:
            shown = TextChoice(index, text, logprobs, choice.finish_reason, choice.stop_reason)
        if usage is not None:
            return [TextChunkUsage(self.id, self.created, self.model, [shown], usage=usage)]
        return [TextChunk(self.id, self.created, self.model, [shown])]

    def _text(self, index: int, text: str) -> bytes:
        """The frame of a chunk that holds only text: nearly all chunks do."""
        around = self._around.get(index)
        if around is None:
            chunk = TextChunk(self.id, self.created, self.model, [TextChoice(index, "-")])
            before, field, behind = frame(msgspec.json.encode(chunk)).partition(b'"text":')
            around = self._around[index] = before + field, behind.removeprefix(b'"-"')
        return around[0] + msgspec.json.encode(text) + around[1]

    def last(self, usage: UsageChunk) -> TextChunkUsage:
        return TextChunkUsage(self.id, self.created, self.model, [], usage=usage)

    def _shown(
        self, place: int, output: RequestOutput, choice: CompletionOutput
    ) -> tuple[int, str, chunks.TextLogprobs | None]:
        """(index, text, log-probabilities) of a choice's news; the first time, with ``echo``, the prompt before it."""
        index = place * (self.body.n or 1) + choice.index
        offset = self._offsets.get(index)
        text, tokens = choice.text, choice.token_ids
        positions: list[PositionLogprobs | None] = [*choice.logprobs] if choice.logprobs else []
        if offset is None and self.body.echo:
            text = self._prompt_text(output) + text
            tokens = [*output.prompt_token_ids, *tokens]
            positions = [*(output.prompt_logprobs or ()), *positions]
        if self.body.logprobs is None:
            self._offsets[index] = 0
            return index, text, None
        logprobs, self._offsets[index] = chunks.text_logprobs(
            tokens, positions, self.body.logprobs, offset or 0, self.as_ids, self._token_text
        )
        return index, text, logprobs

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None and self.body.truncate_prompt_tokens is None:
            return output.prompt
        return self.service.tokenizer.decode(output.prompt_token_ids, self.body.skip_special_tokens)

    def _token_text(self, token: int) -> str:
        return self.service.tokenizer.decode([token], False)


def _fields(logprobs: chunks.TextLogprobs) -> dict[str, Any]:
    return {name: getattr(logprobs, name) for name in logprobs.__struct_fields__}
