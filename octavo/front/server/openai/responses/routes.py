"""/v1/responses."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response as HTTPResponse

from octavo.errors import BadRequest
from octavo.front.server.openai.responses.answers import Deleted, InputTokens, ItemList, Response
from octavo.front.server.openai.responses.convert import AnyItem
from octavo.front.server.openai.responses.desk import Desk, as_json
from octavo.front.server.openai.responses.schema import MessageItem, ResponsesBody
from octavo.front.server.openai.responses.store import nothing
from octavo.front.server.routing import ERRORS, JSONRoute
from octavo.front.server.service import Service
from octavo.front.server.sse import EventStream


def routes(service: Service) -> APIRouter:
    """The routes, over ``service``, and what they keep."""
    router = APIRouter(route_class=JSONRoute, tags=["openai"])
    desk = Desk(service)

    @router.post("/v1/responses", response_model=Response, responses=ERRORS)
    async def create_response(request: Request, body: ResponsesBody) -> HTTPResponse:
        """Answer input items, or go on from an earlier response. With ``stream`` the answer is a stream of events."""
        return await desk.elsewhere(request, body) or await desk.create(request, body)

    @router.post("/v1/responses/input_tokens", response_model=InputTokens, responses=ERRORS)
    async def count_input_tokens(request: Request, body: ResponsesBody) -> InputTokens | HTTPResponse:
        """How many tokens a request for a response has as a prompt."""
        return await desk.elsewhere(request, body) or InputTokens(input_tokens=await desk.count(request, body))

    @router.get("/v1/responses/{response_id}", response_model=Response, responses=ERRORS)
    async def retrieve_response(
        response_id: str,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    ) -> HTTPResponse:
        """A stored response as far as it is. With ``stream`` its events, those before it and those to come."""
        entry = desk.entry(response_id)
        if not stream:
            if starting_after is not None:
                raise BadRequest("starting_after needs stream", "starting_after")
            return as_json(entry.response)
        start = 0 if starting_after is None else starting_after + 1
        entry.told()
        return EventStream(entry.follow(start), nothing, end=b"")

    @router.post("/v1/responses/{response_id}/cancel", response_model=Response, responses=ERRORS)
    async def cancel_response(response_id: str) -> HTTPResponse:
        """End a background response that is still in work."""
        return await desk.cancel(desk.entry(response_id))

    @router.delete("/v1/responses/{response_id}", responses=ERRORS)
    async def delete_response(response_id: str) -> Deleted:
        """Forget a stored response; one that is still in work ends."""
        desk.store.remove(desk.entry(response_id))
        return Deleted(id=response_id)

    @router.get("/v1/responses/{response_id}/input_items", responses=ERRORS)
    async def list_input_items(
        response_id: str,
        after: Annotated[str | None, Query(description="id of the item before the first to list")] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> ItemList:
        """The items that a stored response was made of, those of earlier responses among them."""
        return _list(desk.entry(response_id).input.conversation(), after, limit, order)

    return router


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
