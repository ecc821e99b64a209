"""Desk: takes requests for responses, and hands out what was made of them."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import Request
from starlette.responses import Response as HTTPResponse

from octavo.errors import BadRequest
from octavo.front.server.keys import caller
from octavo.front.server.openai.derived import chat_body, named
from octavo.front.server.openai.responses.answers import Response
from octavo.front.server.openai.responses.convert import NAMES, AnyItem, Placed, chat_fields, check
from octavo.front.server.openai.responses.run import Run
from octavo.front.server.openai.responses.schema import MAX_ITEMS, MessageItem, ResponsesBody
from octavo.front.server.openai.responses.store import Entry, Limits, Store, Turn, nothing, weight
from octavo.front.server.openai.responses.truncate import shortened
from octavo.front.server.openai.turn import ChatTurn
from octavo.front.server.peers import Forwarded
from octavo.front.server.service import Service
from octavo.front.server.sse import EventStream, unless_gone

#: Seconds that a cancelled response may take to end.
_CANCEL_WITHIN = 30.0
_ITEM_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


class Desk:
    """Makes responses, and keeps those that are to be kept."""

    def __init__(self, service: Service):
        options = service.options
        self.service = service
        self.store = Store(
            Limits(count=options.response_store_count, size=options.response_store_size, age=options.response_store_age)
        )
        self._mark = "" if service.peers is None else service.peers.mark
        # The loop holds tasks by weak references only.
        self._tasks: set[asyncio.Task] = set()

    def entry(self, name: str) -> Entry:
        """Raises ``NotFound``."""
        return self.store.get(name, _owner())

    async def elsewhere(self, request: Request, body: ResponsesBody) -> HTTPResponse | None:
        """The answer of the process that keeps the response which ``body`` goes on from; None where it is this one."""
        peers = self.service.peers
        number = None if peers is None else peers.other(body.previous_response_id)
        if peers is None or number is None:
            return None
        return Forwarded(peers, number, await request.body())

    async def create(self, request: Request, body: ResponsesBody) -> HTTPResponse:
        check(body)
        stored = self._stored(body)
        before = self._before(body.previous_response_id)
        items = _input(body)
        placed = _placed(body, before, items)
        if body.truncation == "auto":
            placed = await unless_gone(request.receive, self._shortened(request, body, placed))
        turn = self._turn(request, body, placed)
        response = self._response(body, turn, stored)
        entry = None
        if stored:
            entry = Entry(response, _owner(), Turn(before, items, weight(items)), turn.close)
            self.store.add(entry)
        try:
            with named(NAMES):
                await unless_gone(request.receive, turn.start())
        except BaseException:
            if entry is not None:
                self.store.remove(entry)
            raise
        run = Run(turn, response, self.store, entry)
        if body.background:
            assert entry is not None
            self._spawn(run)
            return EventStream(entry.follow(0), nothing, end=b"") if body.stream else as_json(response)
        if body.stream:
            return EventStream(run.frames(), run.close, end=b"")
        try:
            return as_json(await unless_gone(request.receive, run.whole()))
        finally:
            run.close()

    async def count(self, request: Request, body: ResponsesBody) -> int:
        """Tokens of the prompt."""
        check(body)
        placed = _placed(body, self._before(body.previous_response_id), _input(body))
        turn = self._turn(request, body, placed)
        with named(NAMES):
            return len(await unless_gone(request.receive, turn.prompt()))

    def _turn(self, request: Request, body: ResponsesBody, items: Sequence[Placed]) -> ChatTurn:
        fields = chat_fields(body, items)
        with named(NAMES):
            return ChatTurn(self.service, chat_body(fields), request)

    async def _shortened(self, request: Request, body: ResponsesBody, items: Sequence[Placed]) -> Sequence[Placed]:
        room = self.service.engine.ready.max_model_len - (body.max_output_tokens or 1)

        async def fits(some: Sequence[Placed]) -> bool:
            await asyncio.sleep(0)  # a conversation is kept for longer than it fits: others go in between
            if len(some) > MAX_ITEMS:
                return False
            try:
                return len(await self._turn(request, body, some).prompt()) <= room
            except BadRequest:  # too long to be rendered, for one; what else there is the answer will say
                return False

        return await shortened(items, fits)

    async def cancel(self, entry: Entry) -> HTTPResponse:
        if not entry.response.background:
            raise BadRequest("only a background response can be cancelled", "response_id")
        if entry.ended.is_set() and not entry.cancelled:
            raise BadRequest(f"the response has ended already: it is {entry.response.status}", "response_id")
        entry.cancelled = True
        entry.stop()
        async with asyncio.timeout(_CANCEL_WITHIN):
            await entry.ended.wait()
        return as_json(entry.response)

    def _spawn(self, run: Run) -> None:
        task = asyncio.create_task(run.drain())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stored(self, body: ResponsesBody) -> bool:
        if self.store.limits.count:
            return body.store is not False
        for name in ("background", "store"):
            if getattr(body, name):
                raise BadRequest(f"{name} needs a server that keeps responses (--response-store-count)", name)
        return False

    def _before(self, name: str | None) -> Turn | None:
        if name is None:
            return None
        entry = self.store.get(name, _owner(), "previous_response_id")
        if entry.turn is None or entry.response.status not in ("completed", "incomplete"):
            raise BadRequest(
                f"the response {name!r} is {entry.response.status}; only one that is complete or incomplete can be "
                "gone on from",
                "previous_response_id",
            )
        return entry.turn

    def _response(self, body: ResponsesBody, turn: ChatTurn, stored: bool) -> Response:
        """As it is before anything is generated."""
        defaults = self.service.engine.config.text.generation_defaults
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        reasoning = body.reasoning
        choice = body.tool_choice
        return Response(
            id=f"resp_{self._mark}{uuid.uuid4().hex}",
            created_at=self.service.now(),
            status="queued" if body.background else "in_progress",
            background=bool(body.background),
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            metadata=body.metadata or {},
            model=turn.model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning={"effort": reasoning.effort if reasoning else None, "summary": None},
            safety_identifier=body.safety_identifier,
            store=stored,
            temperature=defaults.get("temperature", 1.0) if body.temperature is None else body.temperature,
            text={"format": {"type": "text"}} | text,
            tool_choice=("auto" if body.tools else "none") if choice is None else choice,
            tools=[_tool(tool.model_dump()) for tool in body.tools or ()],
            top_logprobs=body.top_logprobs or 0,
            top_p=defaults.get("top_p", 1.0) if body.top_p is None else body.top_p,
            truncation="auto" if body.truncation == "auto" else "disabled",
            user=body.user,
        )


def _tool(given: dict[str, Any]) -> dict[str, Any]:
    return given | {"strict": bool(given.get("strict"))}


def _input(body: ResponsesBody) -> Sequence[AnyItem]:
    """The request's items, each with an id."""
    items: list[AnyItem] = (
        [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else list(body.input)
    )
    if not items and body.previous_response_id is None:
        raise BadRequest("input must not be empty", "input")
    for item in items:
        if item.id is None:
            item.id = f"{_ITEM_PREFIX[item.type]}_{uuid.uuid4().hex}"
    return items


def _placed(body: ResponsesBody, before: Turn | None, items: Sequence[AnyItem]) -> Sequence[Placed]:
    """The whole conversation, each item with the field that it came in."""
    history = before.conversation() if before is not None else []
    whole = isinstance(body.input, str)
    return [
        *[("previous_response_id", item) for item in history],
        *[("input" if whole else f"input.{index}", item) for index, item in enumerate(items)],
    ]


def _owner() -> bytes:
    # Without keys all clients are one.
    return caller.get() or b""


def as_json(response: Response) -> HTTPResponse:
    return HTTPResponse(response.model_dump_json(), media_type="application/json")
