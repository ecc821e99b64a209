"""AsyncLLM: an engine for an event loop, in a process of its own or in a thread of this one."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from octavo.config.args import EngineArgs
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.errors import BadRequest, Unsupported
from octavo.front.engine import AsyncEngine, Stream
from octavo.front.intake import Prompt, PromptType
from octavo.front.tokenizers.base import Tokenizer
from octavo.launch.text import front_of
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams


class AsyncLLM:
    """``AsyncLLM(model)``, then ``async for output in llm.generate(prompt, params)``, many at once, from one loop.

    ``options`` are those of ``LLM``. The engine runs in a process of its own, so that a step never delays the loop;
    ``inline=True`` runs it in a thread here instead. Building it blocks until the model is loaded. Close it, or use it
    as an (async) context manager.
    """

    def __init__(self, model: str | None = None, *, inline: bool = False, **options: Any):
        self._start(resolve(EngineArgs.of({"model": model, **options})), inline)

    @classmethod
    def from_config(cls, config: EngineConfig, *, inline: bool = False) -> "AsyncLLM":
        """From a resolved configuration."""
        llm = cls.__new__(cls)
        llm._start(config, inline)
        return llm

    def _start(self, config: EngineConfig, inline: bool) -> None:
        self.config = config
        core: Any
        if inline:
            from octavo.core.engine.core import EngineCore

            core = EngineCore(config)
        else:
            from octavo.front.client.process import ProcessClient

            core = ProcessClient(config)
            core.launch()
        try:
            tokenizer, chat = front_of(config)
            ready = core.start()
        except BaseException:
            core.close()
            raise
        self._engine = AsyncEngine(core, config, tokenizer, chat, ready)
        #: Requests by name; None while the core has not answered. ``_early``: those aborted before it did.
        self._streams: dict[str, Stream | None] = {}
        self._early: set[str] = set()

    @property
    def engine(self) -> AsyncEngine:
        """What the server uses: ``submit``, ``observe``, ``on_stats``, ..."""
        return self._engine

    @property
    def errored(self) -> bool:
        """Whether the engine is gone."""
        return self._engine.dead is not None

    async def generate(
        self,
        prompt: PromptType | Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: None = None,
        priority: int = 0,
        deadline: float | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs as ``sampling_params.output_kind`` asks, the last one ``finished``. Leaving early aborts the request.

        ``deadline``: ``time.monotonic()`` seconds after which it is aborted. Raises a ``RequestError`` where it is
        refused, ``RequestFailed`` where the engine could not finish it, ``EngineDead`` where the engine is gone.
        """
        if lora_request is not None:
            raise Unsupported("there are no LoRA adapters: lora_request must be None", "lora_request")
        name = request_id or uuid.uuid4().hex
        if name in self._streams:
            raise BadRequest(f"there is a request {name[:80]!r} already", "request_id")
        stream = self._streams[name] = None
        try:
            stream = await self._engine.submit(
                prompt,
                sampling_params,
                request_id=name,
                priority=priority,
                deadline=deadline,
                truncate=truncate_prompt_tokens,
            )
            if name in self._early:
                stream.abort()
            self._streams[name] = stream
            async for output in stream:
                yield output
        finally:
            del self._streams[name]
            self._early.discard(name)
            if stream is not None:
                stream.abort()

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        **template_options: Any,
    ) -> AsyncIterator[RequestOutput]:
        """As ``generate``, for a conversation. ``template_options`` are those of ``ChatTemplate.render``."""
        ids = await asyncio.to_thread(self._engine.render_chat, messages, **template_options)
        async for output in self.generate(ids, sampling_params, request_id, priority=priority, deadline=deadline):
            yield output

    async def abort(self, request_id: str) -> None:
        """End a request; who iterates over it gets a last output with reason "abort". Unknown ids are ignored."""
        if request_id in self._streams:
            stream = self._streams[request_id]
            if stream is not None:
                stream.abort()
            else:
                self._early.add(request_id)

    def get_tokenizer(self) -> Tokenizer:
        """Raises ``BadRequest`` for an engine that takes and gives ids only."""
        if self._engine.tokenizer is None:
            raise BadRequest("this engine runs without a tokenizer (skip_tokenizer_init)")
        return self._engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What ``generate`` uses where it is given none: the model's own defaults."""
        return self._engine.intake.default_params()

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        await self._engine.call("reset_prefix_cache")
        return True

    def close(self) -> None:
        """Abort what is open and end the engine. May be called twice."""
        self._engine.close()

    shutdown = close

    def __enter__(self) -> "AsyncLLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "AsyncLLM":
        self._engine.attach()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
