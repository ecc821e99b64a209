"""POST /v1/chat/completions."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.errors import BadRequest, Unsupported
from octavo.front.server.openai import chunks
from octavo.front.server.openai.chunks import (
    ChatChoiceChunk,
    ChatChoiceEnd,
    ChatChoiceIds,
    ChatChunk,
    ChatChunkIds,
    ChatChunkUsage,
    Delta,
    UsageChunk,
)
from octavo.front.server.openai.job import Job
from octavo.front.server.openai.schema import (
    ChatAnswer,
    ChatBody,
    ChatChoice,
    ChatFields,
    ChatLogprobs,
    ChatMessage,
)
from octavo.front.server.routing import ERRORS, JSONRoute
from octavo.front.server.service import Service
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.params import SamplingParams


def routes(service: Service) -> APIRouter:
    """The route, over ``service``."""
    router = APIRouter(route_class=JSONRoute, tags=["openai"])

    @router.post("/v1/chat/completions", response_model=ChatAnswer, responses=ERRORS)
    async def create_chat_completion(request: Request, body: ChatBody) -> Response:
        """Continue a conversation. With ``stream`` the answer is a stream of server-sent events."""
        return await ChatJob(service, body, request).respond(request)

    return router


async def render(service: Service, body: ChatFields, request: Request) -> list[int]:
    """The prompt that ``body.messages`` make."""
    options = service.options
    if body.add_special_tokens:
        raise Unsupported(
            "add_special_tokens is not supported for chat: the template writes them", "add_special_tokens"
        )
    if body.chat_template is not None and not options.trust_request_chat_template:
        raise BadRequest(
            "chat_template of a request needs a server started with --trust-request-chat-template", "chat_template"
        )
    more = options.chat_template_kwargs | (body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        more = {"enable_thinking": body.reasoning_effort != "none"} | more | {"reasoning_effort": body.reasoning_effort}
    continues = bool(body.continue_final_message)
    generation = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    return await service.render_chat(
        len(await request.body()),
        [message.model_dump(exclude_unset=True) for message in body.messages],
        documents=body.documents,
        add_generation_prompt=generation,
        continue_final_message=continues,
        chat_template=body.chat_template,
        chat_template_kwargs=more,
    )


class ChatJob(Job[ChatBody]):
    """One conversation, ``n`` answers."""

    prefix = "chatcmpl"

    def __init__(self, service: Service, body: ChatBody, request: Request):
        super().__init__(service, body, request)
        if body.top_logprobs is not None and not body.logprobs:
            raise BadRequest("top_logprobs needs logprobs", "top_logprobs")
        continues = body.continue_final_message or body.add_generation_prompt is False
        self.role: str = body.messages[-1].role if continues else service.options.response_role
        self._begun: set[int] = set()

    @property
    def asked_max_tokens(self) -> int | None:
        longest = self.body.max_completion_tokens
        return self.body.max_tokens if longest is None else longest

    async def prompts(self) -> Sequence[list[int]]:
        return [await render(self.service, self.body, self.request)]

    def params(self) -> SamplingParams:
        body = self.body
        asked = self.asked_max_tokens
        limit = self.service.engine.config.text.generation_defaults.get("max_tokens") if asked is None else asked
        if limit == 0:
            raise BadRequest("max_tokens must be at least 1", "max_tokens")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return self.service.sampling(body, max_tokens=limit, logprobs=logprobs, prompt_logprobs=body.prompt_logprobs)

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatAnswer:
        (output,) = outputs
        choices = [
            ChatChoice(
                index=choice.index,
                message=ChatMessage(role=self.role, content=self._echo() + choice.text),
                logprobs=self._logprobs_body(choice),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                token_ids=choice.token_ids if self.body.return_token_ids else None,
            )
            for choice in output.outputs
        ]
        scored = self.body.prompt_logprobs is not None
        return ChatAnswer(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=self.usage(),
            system_fingerprint=self.service.fingerprint,
            prompt_logprobs=chunks.prompt_logprobs(output.prompt_logprobs) if scored else None,
            prompt_token_ids=output.prompt_token_ids if self.body.return_token_ids else None,
        )

    def tell(
        self, place: int, output: RequestOutput, choice: CompletionOutput, usage: UsageChunk | None
    ) -> list[ChatChunk]:
        found = []
        if choice.index not in self._begun:
            self._begun.add(choice.index)
            found.append(self._first(choice.index, output, usage))
        logprobs = self._logprobs(choice)
        if choice.text or choice.finish_reason or logprobs or self.body.return_token_ids:
            delta = Delta(content=choice.text)
            if self.body.return_token_ids:
                shown: ChatChoiceChunk = ChatChoiceIds(
                    choice.index, delta, logprobs, choice.finish_reason, choice.stop_reason, choice.token_ids
                )
            elif choice.finish_reason:
                shown = ChatChoiceEnd(choice.index, delta, logprobs, choice.finish_reason, choice.stop_reason)
            else:
                shown = ChatChoiceChunk(choice.index, delta, logprobs)
            found.append(self._chunk(shown, usage))
        return found

    def last(self, usage: UsageChunk) -> ChatChunkUsage:
        return ChatChunkUsage(self.id, self.created, self.model, [], usage=usage)

    def _first(self, index: int, output: RequestOutput, usage: UsageChunk | None) -> ChatChunk:
        shown = ChatChoiceChunk(index, Delta(self.role, self._echo()))
        if self.body.return_token_ids and len(self._begun) == 1:
            return ChatChunkIds(
                self.id, self.created, self.model, [shown], usage=usage, prompt_token_ids=output.prompt_token_ids
            )
        return self._chunk(shown, usage)

    def _chunk(self, choice: ChatChoiceChunk, usage: UsageChunk | None) -> ChatChunk:
        if usage is None:
            return ChatChunk(self.id, self.created, self.model, [choice])
        return ChatChunkUsage(self.id, self.created, self.model, [choice], usage=usage)

    def _echo(self) -> str:
        """With ``echo``: the last message, where the answer goes on in its role."""
        last = self.body.messages[-1]
        return last.content if self.body.echo and last.role == self.role and isinstance(last.content, str) else ""

    def _logprobs(self, choice: CompletionOutput) -> chunks.ContentLogprobs | None:
        if not self.body.logprobs or not choice.token_ids:
            return None
        return chunks.chat_logprobs(choice.token_ids, choice.logprobs or (), self.body.top_logprobs or 0, self.as_ids)

    def _logprobs_body(self, choice: CompletionOutput) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        found = chunks.chat_logprobs(choice.token_ids, choice.logprobs or (), self.body.top_logprobs or 0, self.as_ids)
        return ChatLogprobs.model_validate(found, from_attributes=True)
