"""Health, version, metrics, tokenize and detokenize."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from octavo import __version__
from octavo.errors import BadRequest
from octavo.front.intake import LONG_TEXT
from octavo.front.metrics.prometheus import CONTENT_TYPE, Prometheus
from octavo.front.server.openai.schema import (
    DetokenizeAnswer,
    DetokenizeBody,
    ErrorAnswer,
    TokenizeAnswer,
    TokenizeChatBody,
    TokenizeCompletionBody,
)
from octavo.front.server.openai.turn import render
from octavo.front.server.routing import ERRORS, JSONRoute
from octavo.front.server.service import Service


def routes(service: Service, metrics: Prometheus) -> APIRouter:
    """The routes, over ``service`` and ``metrics``."""
    router = APIRouter(route_class=JSONRoute, tags=["server"])
    unwell: dict[int | str, dict[str, Any]] = {
        503: {"model": ErrorAnswer, "description": "the engine is gone, or the server is about to end"}
    }

    @router.get("/health", response_class=Response, responses=unwell)
    async def health() -> Response:
        """Empty, status 200, while the engine can serve."""
        service.check_alive()
        return Response(status_code=200)

    @router.get("/ping", response_class=Response, responses=unwell)
    @router.post("/ping", response_class=Response, responses=unwell)
    async def ping() -> Response:
        """As /health."""
        return await health()

    @router.get("/version")
    async def version() -> dict[str, str]:
        """The version of octavo."""
        return {"version": __version__}

    @router.get("/load")
    async def load() -> dict[str, int]:
        """How many requests are being answered."""
        return {"server_load": await service.everywhere.load()}

    @router.get("/metrics", response_class=PlainTextResponse)
    async def scrape() -> Response:
        """Metrics in Prometheus' text format, with vLLM's names."""
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    @router.post("/tokenize", responses=ERRORS)
    async def tokenize(request: Request, body: TokenizeCompletionBody | TokenizeChatBody) -> TokenizeAnswer:
        """Token ids of a text, or of a conversation."""
        body.refuse_unsupported()
        service.model(body.model)
        if isinstance(body, TokenizeChatBody):
            tokens = await render(service, body, request)
        else:
            tokens = await service.encode(body.prompt, body.add_special_tokens)
        texts = [service.tokenizer.token(token) or "" for token in tokens] if body.return_token_strs else None
        return TokenizeAnswer(
            count=len(tokens), max_model_len=service.engine.ready.max_model_len, tokens=tokens, token_strs=texts
        )

    @router.post("/detokenize", responses=ERRORS)
    async def detokenize(body: DetokenizeBody) -> DetokenizeAnswer:
        """Text of token ids."""
        body.refuse_unsupported()
        service.model(body.model)
        return DetokenizeAnswer(prompt=await _decode(service, body.tokens))

    return router


async def _decode(service: Service, tokens: Sequence[int]) -> str:
    tokenizer = service.tokenizer
    try:
        if len(tokens) > LONG_TEXT:
            return await asyncio.to_thread(tokenizer.decode, tokens, False)
        return tokenizer.decode(tokens, False)
    except OverflowError as error:
        raise BadRequest(f"tokens holds an id that no vocabulary has: {error}", "tokens") from None
