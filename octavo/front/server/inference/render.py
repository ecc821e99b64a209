"""Render: a request of OpenAI's API becomes the body for /inference/v1/generate, and nothing runs."""

from fastapi import APIRouter, Request

from octavo.errors import Unsupported
from octavo.front.intake import Prompt
from octavo.front.server.inference import sampling
from octavo.front.server.inference.schema import ERRORS_WITHOUT_ENGINE, Rendered
from octavo.front.server.openai.chat import ChatJob
from octavo.front.server.openai.completions import CompletionJob
from octavo.front.server.openai.job import Job
from octavo.front.server.openai.schema import ChatBody, CompletionBody
from octavo.front.server.routing import JSONRoute
from octavo.front.server.service import Service


def routes(service: Service) -> APIRouter:
    """The routes, over ``service``."""
    router = APIRouter(route_class=JSONRoute, tags=["tokens"])

    @router.post("/v1/chat/completions/render", responses=ERRORS_WITHOUT_ENGINE)
    async def render_chat_completion(request: Request, body: ChatBody) -> Rendered:
        """Token ids and effective sampling parameters of a chat request: a body for /inference/v1/generate."""
        (rendered,) = await _render(ChatJob(service, body, request))
        return rendered

    @router.post("/v1/completions/render", responses=ERRORS_WITHOUT_ENGINE)
    async def render_completion(request: Request, body: CompletionBody) -> list[Rendered]:
        """The same for a completion request: one body for each prompt."""
        return await _render(CompletionJob(service, body, request))

    return router


async def _render(job: Job) -> list[Rendered]:
    """What ``job`` would hand to the engine; everything is checked that the engine's intake checks.

    Raises ``BadRequest`` and ``Unsupported``.
    """
    body, engine = job.body, job.service.engine
    if body.use_beam_search:
        raise Unsupported("a beam search is many requests, which no token server takes as one", "use_beam_search")
    found = []
    prompts, params = await job.asked()
    for index, given in enumerate(prompts):
        prompt: Prompt = await engine.prepare(
            given,
            truncate=body.truncate_prompt_tokens,
            side=body.truncation_side or "left",
            add_special_tokens=body.add_special_tokens is not False,
        )
        checked = engine.intake.admit(
            prompt,
            params,
            range(params.n),
            cap=job.asked_max_tokens is None,
            priority=body.priority,
            salt=body.cache_salt,
        )
        name = job.id if len(prompts) == 1 else f"{job.id}-{index}"
        found.append(
            Rendered(
                request_id=name[:128],
                token_ids=prompt.ids,
                sampling_params=sampling.write(params, checked[0].limit - len(prompt.ids)),
                model=job.model,
                stream=bool(body.stream),
                stream_options=body.stream_options and body.stream_options.model_dump(exclude_none=True),
                cache_salt=body.cache_salt,
                priority=body.priority,
            )
        )
    return found
