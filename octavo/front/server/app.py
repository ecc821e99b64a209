"""build_app: an engine and options become an ASGI application."""

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Scope

from octavo import __version__
from octavo.front.metrics.prometheus import Prometheus
from octavo.front.server import docs, errors, openapi, web
from octavo.front.server.anthropic import routes as anthropic
from octavo.front.server.control import manage
from octavo.front.server.control import routes as control
from octavo.front.server.inference import derender, generate, pooling, render
from octavo.front.server.middleware import OPEN_PATHS, Auth, BodyLimit, RequestId
from octavo.front.server.openai import chat, completions, models
from octavo.front.server.openai.responses import routes as responses
from octavo.front.server.options import Options
from octavo.front.server.peers import Forward, Peers
from octavo.front.server.service import Service

if TYPE_CHECKING:
    from octavo.front.engine import AsyncEngine

_ABOUT = "OpenAI's API over an octavo engine, with vLLM's additions. Unknown fields are ignored."


def build_app(
    engine: "AsyncEngine", options: Options, metrics: Prometheus, peers: Peers | None = None
) -> tuple[ASGIApp, Service]:
    """The application, and the service behind it (what is open, whether it drains).

    The order of the layers, from outside: ids and counting, CORS, keys, body size, other processes, routes.
    """
    service = Service(engine, options, peers)
    api = FastAPI(
        title="octavo",
        version=__version__,
        description=_ABOUT,
        root_path=options.root_path,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would send clients to whatever the Host header says
    )
    errors.install(api)
    for routes in (completions, chat, models, responses, anthropic, generate, render, derender, pooling):
        api.include_router(routes.routes(service))
    api.include_router(control.routes(service, metrics))
    if options.control:
        api.include_router(manage.routes(service))
    if options.profiler is not None:
        api.include_router(manage.profile_routes(service, options.profiler))
    open_paths = OPEN_PATHS | (web.OPEN_PATHS if options.web_ui else frozenset())
    if options.docs:
        api.include_router(openapi.route(api, open_paths if options.api_keys else None))

        @api.get("/docs", include_in_schema=False)
        async def show_docs() -> HTMLResponse:
            return HTMLResponse(docs.PAGE)

    if options.web_ui:
        api.include_router(web.routes())

    def guarded(inner: ASGIApp) -> ASGIApp:
        limited = BodyLimit(inner, options.max_body_size)
        return Auth(limited, options.api_keys, open_paths) if options.api_keys else limited

    if peers is None:
        app = guarded(api)
    else:
        steering = manage.STEERING if options.control else frozenset[str]()
        app = guarded(Forward(api, peers, steering, options.root_path))
        # What was forwarded is named and counted where the client asked, and answered as if it had been asked here.
        service.forwarded = RequestId(guarded(api), lambda scope, status, seconds: None, echo=False)
    if options.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=options.allowed_origins,
            allow_credentials=options.allow_credentials,
            allow_methods=("*",),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
        )

    def seen(scope: Scope, status: int, seconds: float) -> None:
        metrics.http(_pattern(scope), scope["method"], status, seconds)
        service.log_request(scope, status, seconds)

    app = RequestId(app, seen, echo=options.request_id_headers)
    return app, service


def _pattern(scope: Scope) -> str:
    # The router leaves the route in the scope; what found none is counted together, or clients could make up series.
    route: Any = scope.get("route")
    return getattr(route, "path", "none")
