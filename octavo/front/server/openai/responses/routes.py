"""/v1/responses."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response as HTTPResponse

from octavo.errors import BadRequest
from octavo.front.server.openai.derived import chat_body, named
from octavo.front.server.openai.responses.answers import Deleted, ItemList, Response
from octavo.front.server.openai.responses.convert import NAMES, AnyItem, Placed, chat_fields, check
from octavo.front.server.openai.responses.run import Run
from octavo.front.server.openai.responses.schema import MessageItem, ResponsesBody
from octavo.front.server.openai.responses.store import Entry, Limits, Store, Turn
from octavo.front.server.openai.turn import ChatTurn
from octavo.front.server.routing import ERRORS, JSONRoute
from octavo.front.server.service import Service
from octavo.front.server.sse import EventStream, unless_gone

#: Seconds that a cancelled response may take to end.
_CANCEL_WITHIN = 30.0
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the response, or with stream its events",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
_ITEM_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


def routes(service: Service) -> APIRouter:
    """The routes, over ``service``, and what they keep."""
    router = APIRouter(route_class=JSONRoute, tags=["openai"])
    desk = Desk(service)

    @router.post("/v1/responses", response_model=Response, responses=ERRORS | _STREAM)
    async def create_response(request: Request, body: ResponsesBody) -> HTTPResponse:
        """Answer input items, or go on from an earlier response. With ``stream`` the answer is a stream of events."""
        return await desk.create(request, body)

    @router.get("/v1/responses/{response_id}", response_model=Response, responses=ERRORS | _STREAM)
    async def retrieve_response(
        request: Request,
        response_id: str,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    ) -> HTTPResponse:
        """A stored response as far as it is. With ``stream`` its events, those before it and those to come."""
        entry = desk.entry(request, response_id)
        if not stream:
            if starting_after is not None:
                raise BadRequest("starting_after needs stream", "starting_after")
            return _json(entry.response)
        start = 0 if starting_after is None else starting_after + 1
        entry.told()
        return EventStream(entry.follow(start), _nothing, end=b"")

    @router.post("/v1/responses/{response_id}/cancel", response_model=Response, responses=ERRORS)
    async def cancel_response(request: Request, response_id: str) -> HTTPResponse:
        """End a background response that is still in work."""
        return await desk.cancel(desk.entry(request, response_id))

    @router.delete("/v1/responses/{response_id}", responses=ERRORS)
    async def delete_response(request: Request, response_id: str) -> Deleted:
        """Forget a stored response; one that is still in work ends."""
        desk.store.remove(desk.entry(request, response_id))
        return Deleted(id=response_id)

    @router.get("/v1/responses/{response_id}/input_items", responses=ERRORS)
    async def list_input_items(
        request: Request,
        response_id: str,
        after: Annotated[str | None, Query(description="id of the item before the first to list")] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> ItemList:
        """The items that a stored response was made of, those of earlier responses among them."""
        return _list(desk.entry(request, response_id).input.conversation(), after, limit, order)

    return router


class Desk:
    """Makes responses, and keeps those that are to be kept."""

    def __init__(self, service: Service):
        options = service.options
        self.service = service
        self.store = Store(
            Limits(count=options.response_store_count, size=options.response_store_size, age=options.response_store_age)
        )
        # The loop holds tasks by weak references only.
        self._tasks: set[asyncio.Task] = set()

    def entry(self, request: Request, name: str) -> Entry:
        """Raises ``NotFound``."""
        return self.store.get(name, _owner(request))

    async def create(self, request: Request, body: ResponsesBody) -> HTTPResponse:
        check(body)
        stored = self._stored(body)
        before = self._before(request, body.previous_response_id)
        items = _input(body)
        placed: list[Placed] = []
        if before is not None:
            placed += [("previous_response_id", item) for item in before.conversation()]
        placed += [
            ("input" if isinstance(body.input, str) else f"input.{index}", item) for index, item in enumerate(items)
        ]
        fields = chat_fields(body, placed)
        with named(NAMES):
            turn = ChatTurn(self.service, chat_body(fields), request)
        response = self._response(body, turn, stored)
        entry = None
        if stored:
            entry = Entry(response, _owner(request), Turn(before, items, len(await request.body())), turn.close)
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
            return EventStream(entry.follow(0), _nothing, end=b"") if body.stream else _json(response)
        if body.stream:
            return EventStream(run.frames(), turn.close, end=b"")
        return _json(await unless_gone(request.receive, run.whole()))

    async def cancel(self, entry: Entry) -> HTTPResponse:
        if not entry.response.background:
            raise BadRequest("only a background response can be cancelled", "response_id")
        if entry.ended.is_set() and not entry.cancelled:
            raise BadRequest(f"the response has ended already: it is {entry.response.status}", "response_id")
        entry.cancelled = True
        entry.stop()
        async with asyncio.timeout(_CANCEL_WITHIN):
            await entry.ended.wait()
        return _json(entry.response)

    def _spawn(self, run: Run) -> None:
        async def drain() -> None:
            async for _ in run.frames():
                pass

        task = asyncio.create_task(drain())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stored(self, body: ResponsesBody) -> bool:
        if self.store.limits.count:
            return body.store is not False
        for name in ("background", "store"):
            if getattr(body, name):
                raise BadRequest(f"{name} needs a server that keeps responses (--response-store-count)", name)
        return False

    def _before(self, request: Request, name: str | None) -> Turn | None:
        if name is None:
            return None
        entry = self.store.get(name, _owner(request), "previous_response_id")
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
            id=f"resp_{uuid.uuid4().hex}",
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
            truncation="disabled",
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


def _list(items: Sequence[AnyItem], after: str | None, limit: int, order: str) -> ItemList:
    items = items[::-1] if order == "desc" else items
    start = 0
    if after is not None:
        places = [place for place, item in enumerate(items) if item.id == after]
        if not places:
            raise BadRequest(f"after is {after[:100]!r}, which is the id of none of the items", "after")
        start = places[0] + 1
    shown = [_shown(item) for item in items[start : start + limit]]
    return ItemList(
        data=shown,
        first_id=shown[0]["id"] if shown else None,
        last_id=shown[-1]["id"] if shown else None,
        has_more=start + limit < len(items),
    )


def _shown(item: AnyItem) -> dict[str, Any]:
    """An item with what it left out."""
    found = {"status": "completed"} | item.model_dump(exclude_none=True)
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        part = {"type": kind, "text": item.content}
        found["content"] = [part | {"annotations": []} if kind == "output_text" else part]
    return found


def _owner(request: Request) -> bytes:
    # Without keys all clients are one.
    return getattr(request.state, "owner", None) or b""


def _json(response: Response) -> HTTPResponse:
    return HTTPResponse(response.model_dump_json(), media_type="application/json")


def _nothing() -> None:
    pass
