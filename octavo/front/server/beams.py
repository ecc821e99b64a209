"""``use_beam_search`` of OpenAI's bodies: a search where others have a stream of the engine."""

import functools
from typing import TYPE_CHECKING, Any

from octavo.errors import BadRequest, Unsupported
from octavo.front.beam import BeamStream, Search
from octavo.front.server.openai.schema import SamplingBody
from octavo.params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from octavo.front.engine import AsyncEngine

#: Fields that a search has no use for -> their value that asks for nothing.
_WITHOUT: dict[str, Any] = {
    "min_p": 0,
    "top_p": 1,
    "top_k": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "stop": [],
    "min_tokens": 0,
    "logit_bias": {},
    "allowed_token_ids": [],
    "bad_words": [],
    "prompt_logprobs": None,
}


def check(body: SamplingBody) -> None:
    """Raises ``BadRequest`` for what a search cannot be combined with, ``Unsupported`` for what needs one."""
    if not body.use_beam_search:
        for name in ("length_penalty", "best_of"):
            if getattr(body, name) not in (None, 1):
                raise Unsupported(f"{name} is not supported without use_beam_search", name)
        return
    if body.stream:
        raise BadRequest("use_beam_search cannot be streamed: which beam wins is known at the end", "stream")
    for name, nothing in _WITHOUT.items():
        value = getattr(body, name)
        if value is not None and value != nothing and not (name == "top_k" and value == -1):
            raise BadRequest(f"use_beam_search goes without {name}", name)
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise BadRequest(f"best_of must be at least n ({body.n or 1}), got {body.best_of}", "best_of")


def start(
    engine: "AsyncEngine", body: SamplingBody, name: str, prompt: Any, params: SamplingParams, cap: bool, **terms: Any
) -> BeamStream:
    """A search for the ``params.n`` best of ``best_of`` beams behind ``prompt``. ``terms`` are those of
    ``AsyncEngine.submit``. Raises ``BadRequest`` where the engine would refuse it."""
    if params.structured_outputs is not None or params.prompt_logprobs is not None:
        what = "scored prompts" if params.structured_outputs is None else "structured output or forced tools"
        raise BadRequest(f"use_beam_search goes without {what}", "use_beam_search")
    if engine.config.device.logprobs_mode.endswith("logits"):
        raise Unsupported("use_beam_search needs log-probabilities, not logits (--logprobs-mode)", "use_beam_search")
    known = {"priority": terms["priority"], "salt": terms["salt"]}
    (checked, *_) = engine.intake.admit(prompt, params, range(params.n), cap=cap, **known)
    width = params.n if body.best_of is None else body.best_of
    most = engine.config.text.max_n
    if width > most:
        raise BadRequest(f"best_of is {width}; this server allows at most {most} (--max-n)", "best_of")
    wanted = BeamSearchParams(
        beam_width=width,
        max_tokens=checked.limit - len(prompt.ids),
        ignore_eos=body.ignore_eos,
        temperature=body.temperature or 0.0,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        include_stop_str_in_output=body.include_stop_str_in_output,
        stop_token_ids=body.stop_token_ids,
    )
    search = Search(wanted, engine.intake.eos, wanted.max_tokens, engine.ready.vocab, params.logprobs)
    try:
        engine.intake.admit(prompt, search.step, range(1), **known)
    except BadRequest as error:
        if error.param != "logprobs":
            raise
        raise BadRequest(
            f"{width} beams look at the {search.step.logprobs} likeliest tokens of each step: {error.message}", "n"
        ) from None
    submit = functools.partial(engine.submit, request_id=name, **terms)
    return BeamStream(name, prompt, search, params, engine.tokenizer, submit)
