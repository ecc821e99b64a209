"""GET /v1/models. ``root`` is the first served name, never a path: answers tell nothing of this machine's files."""

from fastapi import APIRouter

from octavo.front.server.openai.schema import ModelCard, ModelList
from octavo.front.server.routing import ERRORS
from octavo.front.server.service import Service


def routes(service: Service) -> APIRouter:
    """The routes, over ``service``."""
    router = APIRouter(tags=["openai"])

    def card(name: str) -> ModelCard:
        return ModelCard(
            id=name,
            created=service.created,
            root=service.names[0],
            max_model_len=service.engine.ready.max_model_len,
        )

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """The names that requests may give as ``model``."""
        return ModelList(data=[card(name) for name in service.names])

    @router.get("/v1/models/{name:path}", responses={404: ERRORS[404]})
    async def retrieve_model(name: str) -> ModelCard:
        """One of them."""
        return card(service.model(name))

    return router
