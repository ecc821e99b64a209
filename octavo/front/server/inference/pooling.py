"""Routes of pooling models. A server of a model that generates says 501 there, and what it does instead."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.errors import Unsupported
from octavo.front.server.inference.schema import ERRORS_WITHOUT_ENGINE
from octavo.front.server.openai.schema import Body
from octavo.front.server.routing import JSONRoute
from octavo.front.server.service import Service

#: Path -> what it would answer with.
PATHS = {
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
    "/pooling": "pooled hidden states",
    "/classify": "classes",
    "/score": "scores",
    "/v1/score": "scores",
    "/rerank": "rankings",
    "/v1/rerank": "rankings",
    "/v2/rerank": "rankings",
}


class PoolingBody(Body):
    """Whatever such a route takes elsewhere."""

    model: str | None = None


def routes(service: Service) -> APIRouter:
    """The routes, over ``service``."""
    router = APIRouter(route_class=JSONRoute, tags=["pooling"])

    def add(path: str, what: str) -> None:
        async def refuse(request: Request, body: PoolingBody) -> Response:
            name = service.model(body.model)
            raise Unsupported(
                f"{path} gives {what} of a pooling model; {name!r} is a model that generates text, "
                "as /v1/chat/completions and /v1/completions do",
                "model",
            )

        router.add_api_route(
            path,
            refuse,
            methods=["POST"],
            status_code=501,
            response_class=Response,
            responses=ERRORS_WITHOUT_ENGINE,
            name="refuse" + path.replace("/", "_"),
            description=f"Gives {what} of a pooling model; for a model that generates text it is not there.",
        )

    for path, what in PATHS.items():
        add(path, what)
    return router
