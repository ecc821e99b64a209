"""/v1/messages and /v1/messages/count_tokens."""

import uuid
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.common.log import logger
from octavo.errors import OctavoError, RequestError
from octavo.front.server.anthropic import errors
from octavo.front.server.anthropic.convert import NAMES, chat_fields
from octavo.front.server.anthropic.events import MessageEvents
from octavo.front.server.anthropic.schema import (
    ContextManagement,
    CountBody,
    Counted,
    ErrorOut,
    MessageOut,
    MessagesBody,
    OutputTokensDetails,
    UsageOut,
)
from octavo.front.server.errors import describe
from octavo.front.server.openai.derived import chat_body, named
from octavo.front.server.openai.schema import Usage
from octavo.front.server.openai.turn import ChatTurn
from octavo.front.server.routing import ERRORS, JSONRoute
from octavo.front.server.service import Service
from octavo.front.server.sse import EventStream, unless_gone

_log = logger(__name__)
_ERRORS: dict[int | str, dict[str, Any]] = {status: said | {"model": ErrorOut} for status, said in ERRORS.items()}


def routes(service: Service) -> APIRouter:
    """The routes, over ``service``."""
    router = APIRouter(route_class=JSONRoute, tags=["anthropic"])

    @router.post("/v1/messages", response_model=MessageOut, responses=_ERRORS)
    async def create_message(request: Request, body: MessagesBody) -> Response:
        """Continue a conversation. With ``stream`` the answer is a stream of events."""
        with named(NAMES):
            turn = Turn(service, chat_body(chat_fields(body)), request)
            await unless_gone(request.receive, turn.start())
        run = Run(turn, omit=body.thinking is not None and body.thinking.display == "omitted")
        if body.stream:
            return EventStream(run.told(), turn.close, end=b"")
        message = await unless_gone(request.receive, run.whole())
        return Response(message.model_dump_json(), media_type="application/json")

    @router.post("/v1/messages/count_tokens", responses=_ERRORS)
    async def count_tokens(request: Request, body: CountBody) -> Counted:
        """How many tokens a conversation has as a prompt."""
        with named(NAMES):
            turn = ChatTurn(service, chat_body(chat_fields(body)), request)
            count = len(await unless_gone(request.receive, turn.prompt()))
        return Counted(input_tokens=count, context_management=ContextManagement(original_input_tokens=count))

    return router


class Turn(ChatTurn):
    """``max_tokens`` must be given here, and clients give what the largest model could take: it is an upper bound."""

    capped = True


class Run:
    """A started turn becomes a message. ``omit``: of thinking there is no text."""

    def __init__(self, turn: ChatTurn, omit: bool):
        self._turn = turn
        empty = UsageOut(input_tokens=0, output_tokens=0)
        self._events = MessageEvents(MessageOut(id=f"msg_{uuid.uuid4().hex}", model=turn.model, usage=empty), omit)
        self._begun = False

    async def whole(self) -> MessageOut:
        """The message at its end. Raises what kept it from being made."""
        async for _ in self._frames():
            pass
        return self._events.message

    async def told(self) -> AsyncGenerator[bytes]:
        """The events; an error is one of them, unless the queue turns the request away before the first."""
        try:
            async for frames in self._frames():
                yield frames
        except RequestError as error:
            if not self._begun:
                raise
            yield _failed(error)
        except Exception as error:
            yield _failed(error)

    async def _frames(self) -> AsyncGenerator[bytes]:
        finish, stop = "abort", None
        try:
            async for news in self._turn:
                frames = [*self._begin(), *self._events.feed(news.events)]
                if news.finish_reason is not None:
                    finish, stop = news.finish_reason, news.output.stop_reason
                if frames:
                    yield b"".join(frames)
        finally:
            self._turn.close()
        if finish == "abort":
            raise self._turn.why_aborted()
        usage = _usage(self._turn.usage())
        if finish == "length" and usage.output_tokens < (self._turn.asked_max_tokens or 0):
            finish = "context"
        yield b"".join([*self._begin(), *self._events.end(finish, stop, usage)])

    def _begin(self) -> list[bytes]:
        if self._begun:
            return []
        self._begun = True
        return self._events.begin(_usage(self._turn.usage()))


def _failed(error: Exception) -> bytes:
    if not isinstance(error, OctavoError):
        _log.error("a message failed", exc_info=error)
    return b"event: error\ndata: " + errors.encode(describe(error)) + b"\n\n"


def _usage(usage: Usage) -> UsageOut:
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    reasoned = usage.completion_tokens_details
    return UsageOut(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(thinking_tokens=reasoned.reasoning_tokens) if reasoned else None,
    )
