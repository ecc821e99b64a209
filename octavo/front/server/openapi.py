"""/openapi.json: FastAPI's document of the routes, made to say what this server does: errors have our shapes, streams
have events, keys have schemes, bodies have examples.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, create_model
from starlette.responses import Response

from octavo.front.server.anthropic import told as messages
from octavo.front.server.anthropic.errors import speaks
from octavo.front.server.anthropic.schema import ErrorOut
from octavo.front.server.inference.schema import GenerateChunk
from octavo.front.server.openai import chunks
from octavo.front.server.openai.responses import answers
from octavo.front.server.openai.schema import Answer, ErrorAnswer
from octavo.front.server.routing import ERRORS

_HELLO = {"role": "user", "content": "Hello"}
_GENERATED = {"choices": [{"index": 0, "token_ids": [5, 6]}]}
#: Bodies that show a route's use.
EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [_HELLO], "max_tokens": 16},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 16},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": "Hello"},
    "/v1/messages": {"model": "", "messages": [_HELLO], "max_tokens": 16},
    "/v1/messages/count_tokens": {"model": "", "messages": [_HELLO]},
    "/inference/v1/generate": {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 16}},
    "/v1/chat/completions/render": {"messages": [_HELLO]},
    "/v1/completions/render": {"prompt": "Hello"},
    "/v1/chat/completions/derender": {"generate_response": _GENERATED},
    "/v1/completions/derender": {"generate_responses": [_GENERATED]},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [5, 6, 7]},
}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
#: Where the document shows the types of events while it is made.
_ASIDE = "/events"
#: What every route may answer with, beside what it says itself; the first only where keys are needed.
_COMMON = (401, 413, 500)
_LONG_NAME = re.compile(r"\b\w+__(\w+?)__\w+?__(\w+)\b")
_UNUSED = ("HTTPValidationError", "ValidationError")


def route(api: FastAPI, open_paths: frozenset[str] | None) -> APIRouter:
    """GET /openapi.json over the routes of ``api``; the document is made once, off the loop.

    ``open_paths``: those that need no key; None where none does.
    """
    router = APIRouter(include_in_schema=False)
    lock = asyncio.Lock()
    made: list[bytes] = []

    @router.get("/openapi.json")
    async def show_document() -> Response:
        async with lock:
            if not made:
                made.append(msgspec.json.encode(await asyncio.to_thread(build, api, open_paths)))
        return Response(made[0], media_type="application/json")

    return router


def build(api: FastAPI, open_paths: frozenset[str] | None) -> dict[str, Any]:
    """The document."""
    # Types of events are shown as answers of routes, so that FastAPI names them together with all others.
    streams = _streams()
    aside = [APIRoute(_ASIDE + path, _nothing, response_model=kind) for path, kind in streams.items()]
    document = get_openapi(
        title=api.title,
        version=api.version,
        description=api.description,
        routes=[*api.routes, *aside, APIRoute(f"{_ASIDE}/error", _nothing, response_model=ErrorAnswer)],
        servers=[{"url": api.root_path}] if api.root_path else None,
    )
    paths = document["paths"]
    shown = {path: _schema(paths.pop(_ASIDE + path)["get"]) for path in (*streams, "/error")}
    for path, verbs in paths.items():
        guarded = open_paths is not None and path not in open_paths
        error = shown["/error"] if not speaks(path) else {"$ref": "#/components/schemas/ErrorOut"}
        for verb, operation in verbs.items():
            responses = operation["responses"]
            wrong = [400] if responses.pop("422", None) else []
            for status in (*wrong, *_COMMON[0 if guarded else 1 :]):
                responses.setdefault(
                    str(status),
                    {
                        "description": ERRORS[status]["description"],
                        "content": {"application/json": {"schema": error}},
                    },
                )
            if open_paths is not None and not guarded:
                operation["security"] = []
            if path in EXAMPLES and "requestBody" in operation:
                operation["requestBody"]["content"]["application/json"]["example"] = EXAMPLES[path]
            if path in shown and verb != "delete":
                responses["200"]["description"] = "the whole answer, or with stream its events"
                responses["200"]["content"]["text/event-stream"] = {"itemSchema": _event(shown[path], path)}
    if open_paths is not None:
        document["components"]["securitySchemes"] = _SCHEMES
        document["security"] = [{name: []} for name in _SCHEMES]
    for name in _UNUSED:
        document["components"]["schemas"].pop(name, None)
    return json.loads(_LONG_NAME.sub(lambda name: name[1].title() + name[2], json.dumps(document)))


def _streams() -> dict[str, Any]:
    """Path -> what the events of its stream hold."""
    response: Any = Union[tuple(_leaves(answers.Told))]  # noqa: UP007
    return {
        "/v1/completions": _model(chunks.TextChunkUsage) | ErrorAnswer,
        "/v1/chat/completions": _model(chunks.ChatChunkIds) | ErrorAnswer,
        "/inference/v1/generate": _model(GenerateChunk) | ErrorAnswer,
        "/v1/responses": response,
        "/v1/responses/{response_id}": response,
        "/v1/messages": messages.Told | ErrorOut,
    }


def _leaves(kind: type) -> Iterator[type]:
    below: list[type] = kind.__subclasses__()
    if not below:
        yield kind
    for one in below:
        yield from _leaves(one)


def _nothing() -> None: ...


def _schema(operation: dict[str, Any]) -> dict[str, Any]:
    found = operation["responses"]["200"]["content"]["application/json"]["schema"]
    found.pop("title", None)
    return found


def _event(data: dict[str, Any], path: str) -> dict[str, Any]:
    """A server-sent event. Those of OpenAI's older streams have no names, and the last is no JSON."""
    told = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    if path.startswith(("/v1/responses", "/v1/messages")):
        return {
            "type": "object",
            "properties": {"event": {"type": "string"}, "data": told},
            "required": ["event", "data"],
        }
    return {
        "type": "object",
        "properties": {"data": {"anyOf": [told, {"const": "[DONE]"}]}},
        "required": ["data"],
    }


def _model(struct: type[msgspec.Struct]) -> type[BaseModel]:
    """A struct of the wire as a model, which the document can show."""
    kinds = get_type_hints(struct)
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        kind = _kind(kinds[field.name])
        if isinstance(field.default, str):
            kind = Literal[field.default]  # what a chunk is called never differs
        fields[field.name] = (kind, ...) if field.required else (kind | None, None)
    return create_model(struct.__name__, __base__=Answer, **fields)


def _kind(kind: Any) -> Any:
    """``kind`` with models for structs. The last of a union's structs stands for all: it has the others' fields."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _model(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list:
        return list[_kind(inner[0])]  # type: ignore[misc]
    if origin in (Union, UnionType):
        structs = [one for one in inner if isinstance(one, type) and issubclass(one, msgspec.Struct)]
        return Union[tuple(_kind(one) for one in inner if one not in structs[:-1])]  # noqa: UP007
    return kind
