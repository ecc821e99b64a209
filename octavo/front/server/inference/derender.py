"""Derender: what /inference/v1/generate answered becomes the answer of OpenAI's API."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from octavo.errors import BadRequest, Unsupported
from octavo.front.server.inference.replay import output_of
from octavo.front.server.inference.schema import (
    ERRORS_WITHOUT_ENGINE,
    DerenderChatBody,
    DerenderCompletionBody,
    Generated,
)
from octavo.front.server.openai.chat import ChatJob
from octavo.front.server.openai.completions import CompletionJob
from octavo.front.server.openai.schema import Body, ChatAnswer, ChatBody, CompletionAnswer, CompletionBody, Usage
from octavo.front.server.routing import JSONRoute
from octavo.front.server.service import Service
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams

_NOBODY: dict[str, Any] = {"messages": [{"role": "user", "content": ""}]}


def routes(service: Service) -> APIRouter:
    """The routes, over ``service``."""
    router = APIRouter(route_class=JSONRoute, tags=["tokens"])

    @router.post("/v1/chat/completions/derender", responses=ERRORS_WITHOUT_ENGINE)
    async def derender_chat_completion(request: Request, body: DerenderChatBody) -> ChatAnswer:
        """The chat answer that generated token ids make. ``chat_request`` is the request that was rendered."""
        _check(body)
        asked = body.chat_request or ChatBody.model_validate(_NOBODY)
        said = body.generate_response
        job = ChatJob(service, _whole(asked, body, said), request)
        params = job.params() if body.chat_request is not None else SamplingParams(max_tokens=None)
        output, asked.top_logprobs = await output_of(
            service, said, body.prompt_token_ids or (), params, "generate_response"
        )
        asked.logprobs = asked.top_logprobs is not None
        answer = job.whole([output])
        reasoned = answer.usage.completion_tokens_details
        answer.usage = _usage([output], [body.prompt_tokens])
        answer.usage.completion_tokens_details = reasoned
        return answer

    @router.post("/v1/completions/derender", responses=ERRORS_WITHOUT_ENGINE)
    async def derender_completion(request: Request, body: DerenderCompletionBody) -> CompletionAnswer:
        """The completion that generated token ids make: ``generate_responses`` has one entry for each prompt."""
        _check(body)
        asked = body.completion_request or CompletionBody.model_validate({"prompt": "-"})
        if asked.echo:
            raise Unsupported("echo needs the prompt, which is not here", "completion_request.echo")
        many = body.generate_responses
        sizes: Sequence[int | None]
        sizes = body.prompt_tokens if isinstance(body.prompt_tokens, list) else [body.prompt_tokens] * len(many)
        if len(sizes) != len(many) or any(size is not None and not 0 <= size < 2**31 for size in sizes):
            raise BadRequest(f"there must be one number for each of {len(many)} generate_responses", "prompt_tokens")
        job = CompletionJob(service, _whole(asked, body, many[0]), request)
        params = job.params() if body.completion_request is not None else SamplingParams(max_tokens=None)
        found = [
            await output_of(service, said, (), params, f"generate_responses.{place}") for place, said in enumerate(many)
        ]
        outputs = [output for output, _ in found]
        answers = {len(output.outputs) for output in outputs}
        if len(answers) > 1:
            raise BadRequest("all generate_responses must have as many choices", "generate_responses")
        asked.n = answers.pop()
        asked.logprobs = max((width for _, width in found if width is not None), default=None)
        answer = job.whole(outputs)
        answer.usage = _usage(outputs, sizes)
        return answer

    return router


def _check(body: Body) -> None:
    if (body.model_extra or {}).get("stream"):
        raise Unsupported("derender reads whole answers only, no stream", "stream")


def _whole(asked: Any, body: DerenderChatBody | DerenderCompletionBody, said: Generated) -> Any:
    """The request as it stands for a whole answer: what its stream or its scoring asked for is not here."""
    asked.stream, asked.stream_options, asked.prompt_logprobs = False, None, None
    asked.logprobs = None
    if isinstance(asked, ChatBody):
        asked.top_logprobs = None
    asked.model = body.model or asked.model
    if said.request_id is not None and asked.request_id is None:
        asked.request_id = said.request_id.removeprefix("generate-tokens-").removeprefix("chatcmpl-") or None
    return asked


def _usage(outputs: list[RequestOutput], prompts: Sequence[int | None]) -> Usage:
    prompt = sum(size or 0 for size in prompts)
    completion = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
