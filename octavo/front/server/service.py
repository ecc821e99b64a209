"""What the routes share: the engine, the options, and how one HTTP request becomes requests to the engine."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Scope

from octavo import __version__
from octavo.common.log import logger
from octavo.common.words import nearest
from octavo.errors import BadRequest, EngineDead, NotFound, Unsupported
from octavo.front.intake import LONG_TEXT, Side
from octavo.front.parsers.base import Format, choose, guided
from octavo.front.sampling import Asked, kind, over
from octavo.front.server import beams
from octavo.front.server.control.everywhere import Everywhere
from octavo.front.server.control.gate import Gate
from octavo.front.server.errors import Stuck
from octavo.front.server.keys import caller
from octavo.front.server.openai.schema import SamplingBody
from octavo.front.server.openai.structured import structured
from octavo.front.server.options import Options
from octavo.front.stream import Stream
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams

if TYPE_CHECKING:
    from octavo.front.beam import BeamStream
    from octavo.front.engine import AsyncEngine
    from octavo.front.server.peers import Peers
    from octavo.front.tokenizers.base import Tokenizer

_log = logger(__name__)
#: Tokens between two words of the core on an answer that is given whole. Not 0: a very long answer must not be made
#: into text at once while others wait, and one that the server's end aborts has what was said so far.
WHOLE_EVERY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What ``submit`` reads of a body, for those who have none of OpenAI's."""

    stream: bool = False
    priority: int = 0
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Side | None = None
    add_special_tokens: bool | None = None


class Service:
    """The engine as the routes see it. ``open``: the requests that are being answered. ``peers``: the other processes
    that serve it, where there are any."""

    def __init__(self, engine: "AsyncEngine", options: Options, peers: "Peers | None" = None):
        self.engine = engine
        self.options = options
        self.peers = peers
        self.created = self.now()
        self.fingerprint = f"octavo-{__version__}"
        #: How the model writes reasoning and calls; None: what it writes is text. ``forced``: how it is made to call.
        self.format: Format | None = None
        self.forced: Format | None = None
        if engine.tokenizer is not None:
            template = None if engine.chat is None else engine.chat.source
            self.format = choose(engine.tokenizer, template, options.reasoning_parser, options.tool_call_parser)
            self.forced = guided(engine.tokenizer) if self.format is None else self.format.forced
        self.open: set[Work] = set()
        self.gate = Gate()
        self.draining = False
        self._ended = False
        self._arriving: set[asyncio.Future] = set()
        self.everywhere = Everywhere(self)
        #: What answers the requests that other processes forward.
        self.forwarded: ASGIApp | None = None

    @staticmethod
    def now() -> int:
        """Seconds since 1970, for ``created``."""
        return int(time.time())

    @property
    def names(self) -> tuple[str, ...]:
        return self.engine.config.text.served_names

    def model(self, name: str | None) -> str:
        """The name to answer with. Raises ``NotFound`` for a model that is not served here."""
        if not name:
            return self.names[0]
        if name not in self.names:
            raise NotFound(
                f"The model {name[:200]!r} does not exist{nearest(name[:200], self.names)}; "
                f"served: {', '.join(self.names)}",
                "model",
            )
        return name

    def sampling(
        self, body: SamplingBody, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """The sampling parameters of a request: its own values, else the model's defaults, else OpenAI's."""
        most = self.engine.config.text.max_n
        if body.n is not None and body.n > most:
            raise BadRequest(f"n is {str(body.n)[:40]}; this server allows at most {most} (--max-n)", "n")
        beams.check(body)
        return over(
            self.engine.config.text.generation_defaults,
            Asked(
                n=body.n,
                temperature=body.temperature,
                top_p=body.top_p,
                top_k=body.top_k,
                min_p=body.min_p,
                presence_penalty=body.presence_penalty,
                frequency_penalty=body.frequency_penalty,
                repetition_penalty=body.repetition_penalty,
                seed=body.seed,
                stop=body.stop,
                stop_token_ids=body.stop_token_ids,
                include_stop_str_in_output=body.include_stop_str_in_output,
                ignore_eos=body.ignore_eos,
                max_tokens=max_tokens,
                min_tokens=body.min_tokens,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                logprob_token_ids=None,
                logit_bias=body.logit_bias,
                allowed_token_ids=body.allowed_token_ids,
                bad_words=body.bad_words,
                detokenize=None,
                skip_special_tokens=body.skip_special_tokens,
                spaces_between_special_tokens=body.spaces_between_special_tokens,
                output_kind=kind(bool(body.stream)),
                skip_reading_prefix_cache=None,
                structured_outputs=structured(body.response_format, body.structured_outputs),
                extra_args=None,
            ),
            drawn=not body.use_beam_search,
        )

    def check_alive(self) -> None:
        """Raises ``EngineDead`` where nothing can be served, or soon not."""
        if self.engine.dead is not None:
            raise EngineDead(self.engine.dead)
        if self.draining:
            raise EngineDead("the server is shutting down")
        if self.engine.stalled is not None:
            raise Stuck(self.engine.stalled)

    def log_request(self, scope: Scope, status: int, seconds: float) -> None:
        """With ``--enable-log-requests``: a line that says who and how long, never what."""
        if self.options.log_requests:
            _log.info(
                "%s %s -> %d in %.3f s, id %s",
                scope["method"],
                scope["path"],
                status,
                seconds,
                scope["state"]["request_id"],
            )

    @property
    def tokenizer(self) -> "Tokenizer":
        """Raises ``Unsupported`` for an engine that takes and gives ids only."""
        if self.engine.tokenizer is None:
            raise Unsupported("this server runs without a tokenizer (--skip-tokenizer-init)")
        return self.engine.tokenizer

    async def render_chat(self, size: int, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """Prompt ids of a conversation. A long one (by its text, or by the ``size`` of the body it came in), or one by
        a template that nobody here has seen before, is rendered and tokenised off the loop."""
        render = functools.partial(self.engine.render_chat, messages, **options)
        # A stored conversation goes on with a short body.
        size = max(size, sum(len(str(message.get("content") or "")) for message in messages))
        if size > LONG_TEXT or options.get("chat_template") is not None:
            return await asyncio.to_thread(render)
        return render()

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text that the model could take; a long one is tokenised off the loop."""
        encode = self.tokenizer.encode
        self.engine.intake.check_length(text)
        if len(text) > LONG_TEXT:
            return await asyncio.to_thread(encode, text, add_special_tokens)
        return encode(text, add_special_tokens)

    def _salt(self, asked: str | None) -> str | None:
        """What a prompt's pages in the cache are marked with: with ``--isolate-keys`` the caller's key comes before
        what the request says, so that nobody can learn from an answer's speed what others have asked."""
        owner = caller.get() if self.options.isolate_keys else None
        return asked if owner is None else f"{owner.hex()}{asked or ''}"

    async def submit(
        self, body: SamplingBody | Terms, name: str, prompts: Sequence[Any], params: SamplingParams, cap: bool
    ) -> "Work":
        """The engine's streams for ``prompts``, once it has admitted all of them; if it refuses one, none goes on.

        ``cap``: ``max_tokens`` is a default, which ends at the model's length instead of being refused.
        """
        self.check_alive()
        deadline = None if self.options.request_timeout is None else time.monotonic() + self.options.request_timeout
        await self.gate.passed(self.check_alive, deadline)
        text: dict[str, Any] = {
            "truncate": body.truncate_prompt_tokens,
            "side": body.truncation_side or "left",
            "add_special_tokens": body.add_special_tokens is not False,
        }
        terms: dict[str, Any] = {"priority": body.priority, "salt": self._salt(body.cache_salt), "deadline": deadline}
        names = [name] if len(prompts) == 1 else [f"{name}-{index}" for index in range(len(prompts))]
        if isinstance(body, SamplingBody) and body.use_beam_search:
            found = [
                beams.start(self.engine, body, one, await self.engine.prepare(prompt, **text), params, cap, **terms)
                for one, prompt in zip(names, prompts, strict=True)
            ]
            self.open.add(work := Work(self, found))
            return work
        every = 1 if body.stream else WHOLE_EVERY
        submits = [
            asyncio.ensure_future(
                self.engine.submit(prompt, params, request_id=one, every=every, cap=cap, **terms, **text)
            )
            for one, prompt in zip(names, prompts, strict=True)
        ]
        arrival = asyncio.gather(*submits)
        self._arriving.add(arrival)
        try:
            work = Work(self, await arrival)
        except BaseException:
            for submit in submits:
                submit.cancel()
            for stream in await asyncio.gather(*submits, return_exceptions=True):
                if not isinstance(stream, BaseException):
                    stream.abort()
            if self._ended:
                raise EngineDead("the server is shutting down") from None
            raise
        finally:
            self._arriving.discard(arrival)
        self.open.add(work)
        return work

    @property
    def ended(self) -> bool:
        """Whether what was open has been aborted, since the server stops."""
        return self._ended

    def stop_open(self) -> None:
        """Have the engine end what runs; who asked gets all that was made so far, with reason "abort"."""
        for work in list(self.open):
            work.stop()

    def abort_open(self) -> None:
        """End what runs at once; who asked gets what was said so far, with reason "abort"."""
        for work in list(self.open):
            work.close()

    def end(self) -> None:
        """Abort what is open, and what the engine has not admitted yet; new requests are refused."""
        self.draining = self._ended = True
        for arrival in list(self._arriving):
            arrival.cancel()
        self.abort_open()


class Work:
    """Streams of one HTTP request. ``close`` aborts what has not finished; it may be called twice. ``stop`` has the
    engine end it."""

    def __init__(self, service: Service, streams: "Sequence[Stream | BeamStream]"):
        self.streams = streams
        self._service = service

    def shorten(self, tell: Callable[[int, RequestOutput], None], ready: Callable[[], bool]) -> None:
        """As ``Stream.shorten``, for all of them; ``tell`` is given the stream's number too."""
        for place, stream in enumerate(self.streams):
            if isinstance(stream, Stream):
                stream.shorten(functools.partial(tell, place), ready)

    def stop(self) -> None:
        for stream in self.streams:
            stream.stop()

    def close(self) -> None:
        self._service.open.discard(self)
        for stream in self.streams:
            stream.abort()


async def merged(streams: "Sequence[Stream | BeamStream]") -> AsyncIterator[tuple[int, RequestOutput]]:
    """(index of the stream, output) in the order of arrival."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    outputs = [aiter(stream) for stream in streams]
    waiting = {asyncio.ensure_future(_next(one)): index for index, one in enumerate(outputs)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = waiting.pop(task)
                news = task.result()
                if news is not None:
                    yield index, news
                    waiting[asyncio.ensure_future(_next(outputs[index]))] = index
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _next(outputs: AsyncIterator[RequestOutput]) -> RequestOutput | None:
    return await anext(outputs, None)
