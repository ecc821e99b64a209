"""POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.errors import RequestError
from octavo.front.parsers.events import Kind
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
from octavo.front.server.openai.news import Message, News
from octavo.front.server.openai.schema import (
    CalledFunction,
    ChatAnswer,
    ChatBody,
    ChatChoice,
    ChatLogprobs,
    ChatMessage,
    ToolCall,
)
from octavo.front.server.openai.turn import ChatTurn
from octavo.front.server.routing import ERRORS, JSONRoute
from octavo.front.server.service import Service, Work
from octavo.front.server.sse import frame
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.params import SamplingParams


def routes(service: Service) -> APIRouter:
    """The route, over ``service``."""
    router = APIRouter(route_class=JSONRoute, tags=["openai"])

    @router.post("/v1/chat/completions", response_model=ChatAnswer, responses=ERRORS)
    async def create_chat_completion(request: Request, body: ChatBody) -> Response:
        """Continue a conversation. With ``stream`` the answer is a stream of server-sent events."""
        try:
            return await ChatJob(service, body, request).respond(request)
        except RequestError as error:
            if error.param == "max_tokens" and body.max_completion_tokens is not None:
                error.param = "max_completion_tokens"
            raise

    return router


class ChatJob(Job[ChatBody]):
    """One conversation, ``n`` answers."""

    prefix = "chatcmpl"

    def __init__(self, service: Service, body: ChatBody, request: Request):
        self.turn = ChatTurn(service, body, request)
        super().__init__(service, body, request)
        self.tally = self.turn.tally
        self.role: str = body.messages[-1].role if self.turn.continues else service.options.response_role
        self._alias = service.options.reasoning_alias
        self._begun: set[int] = set()
        #: What stands before and behind the text in a chunk that holds nothing else, by answer and field.
        self._around: dict[tuple[int, str], tuple[bytes, bytes]] = {}
        self._fields = {Kind.CONTENT: "content"} | ({} if self._alias else {Kind.REASONING: "reasoning"})
        self._plain = not (body.logprobs or body.return_token_ids)

    @property
    def asked_max_tokens(self) -> int | None:
        return self.turn.asked_max_tokens

    async def prompts(self) -> Sequence[list[int]]:
        return [await self.turn.prompt()]

    def params(self) -> SamplingParams:
        return self.turn.params()

    async def asked(self) -> tuple[Sequence[list[int]], SamplingParams]:
        ids = await self.turn.prompt()
        return [ids], self.turn.constrained(self.params(), ids)

    async def start(self) -> None:
        await self.turn.start()

    def close(self) -> None:
        self.turn.close()

    # -- whole --

    async def answer(self) -> ChatAnswer:
        parts: dict[int, tuple[Message, CompletionOutput]] = {}
        async for news in self.turn:
            if news.index not in parts:
                parts[news.index] = Message(), CompletionOutput(news.index, "", [], logprobs=[])
            message, said = parts[news.index]
            message.add(news)
            said.token_ids += news.output.token_ids
            said.logprobs += news.output.logprobs or ()  # type: ignore[operator]
        assert self.turn.last is not None
        return self._answer(self.turn.last, [parts[index] for index in sorted(parts)])

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatAnswer:
        """The answer that a last output makes."""
        (output,) = outputs
        parts = []
        for choice in output.outputs:
            message = Message()
            message.add(self.turn.read(output, choice))
            parts.append((message, choice))
        return self._answer(output, parts)

    def _answer(self, output: RequestOutput, parts: Sequence[tuple[Message, CompletionOutput]]) -> ChatAnswer:
        ids, scored = self.body.return_token_ids, self.body.prompt_logprobs is not None
        choices = [
            ChatChoice(
                index=choice.index,
                message=self._message(message),
                logprobs=self._logprobs_body(choice),
                finish_reason=message.finish_reason,
                stop_reason=message.stop_reason,
                token_ids=choice.token_ids if ids else None,
            )
            for message, choice in parts
        ]
        return ChatAnswer(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=self.tally.usage(),
            system_fingerprint=self.service.fingerprint,
            prompt_logprobs=chunks.prompt_logprobs(output.prompt_logprobs) if scored else None,
            prompt_token_ids=output.prompt_token_ids if ids else None,
        )

    def _message(self, message: Message) -> ChatMessage:
        content, echo = message.content, self._echo()
        calls = [
            ToolCall(id=name_id, function=CalledFunction(name=name, arguments=arguments))
            for name_id, name, arguments in message.calls
        ]
        return ChatMessage(
            role=self.role,
            content=echo + (content or "") if echo else content,
            reasoning=message.reasoning,
            reasoning_content=message.reasoning if self._alias else None,
            tool_calls=calls or None,
        )

    # -- stream --

    @property
    def work(self) -> Work:
        return self.turn.work

    def tell(self, place: int, output: RequestOutput) -> list[Any]:
        found: list[Any] = []
        for news in self.turn.news(output):
            found += self._tell(news, self.tally.chunk() if self.continuous else None)
        return found

    def _tell(self, news: News, usage: UsageChunk | None) -> list[Any]:
        index, events = news.index, news.events
        found: list[Any] = []
        if index not in self._begun:
            self._begun.add(index)
            found.append(self._first(index, usage))
        if self._plain and usage is None and news.finish_reason is None:
            if not events:
                return found
            if len(events) == 1 and (name := self._fields.get(events[0].kind)):
                found.append(self._text(index, name, events[0].text))
                return found
        deltas = chunks.deltas(events, self._alias)
        logprobs = self._logprobs(news.output)
        if not deltas and (news.finish_reason or logprobs or self.body.return_token_ids):
            deltas = [Delta(content="")] if news.finish_reason else [Delta()]
        for place, delta in enumerate(deltas):
            # What belongs to all of the news goes with its first chunk, how the answer ended with the last.
            ids = news.output.token_ids if place == 0 else []
            told = logprobs if place == 0 else None
            finish = news.finish_reason if place == len(deltas) - 1 else None
            stop = news.output.stop_reason if finish else None
            if self.body.return_token_ids:
                shown: ChatChoiceChunk = ChatChoiceIds(index, delta, told, finish, stop, ids)
            elif finish:
                shown = ChatChoiceEnd(index, delta, told, finish, stop)
            else:
                shown = ChatChoiceChunk(index, delta, told)
            found.append(self._chunk(shown, usage))
        return found

    def _text(self, index: int, name: str, text: str) -> bytes:
        """The frame of a chunk whose delta holds only text, as field ``name``: nearly all chunks do."""
        around = self._around.get((index, name))
        if around is None:
            delta = Delta()
            setattr(delta, name, "-")
            chunk = self._chunk(ChatChoiceChunk(index, delta), None)
            field = f'"{name}":'.encode()
            before, _, behind = frame(msgspec.json.encode(chunk)).partition(field + b'"-"')
            around = self._around[index, name] = before + field, behind
        return around[0] + msgspec.json.encode(text) + around[1]

    def last(self, usage: UsageChunk) -> ChatChunkUsage:
        return ChatChunkUsage(self.id, self.created, self.model, [], usage=usage)

    def _first(self, index: int, usage: UsageChunk | None) -> ChatChunk:
        shown = ChatChoiceChunk(index, Delta(self.role, self._echo()))
        if self.body.return_token_ids and len(self._begun) == 1:
            ids = self.turn.prompt_ids
            return ChatChunkIds(self.id, self.created, self.model, [shown], usage=usage, prompt_token_ids=ids)
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
