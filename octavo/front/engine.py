"""AsyncEngine: many requests of one event loop over one engine core.

The core's replies are read in one callback of the loop: no task a request, no task a token. What a consumer has not
taken yet is merged in its ``Group``, so a slow one costs bounded memory and slows nobody.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.common.log import logger
from octavo.config.engine import EngineConfig
from octavo.errors import BadRequest, EngineDead, RequestError
from octavo.front.chat.budget import MAX_STRING, TooLong
from octavo.front.chat.template import ChatTemplate
from octavo.front.client.thread import LoopPort, ThreadClient
from octavo.front.fanout import Desk, Finished, Group, Observer, tell_all
from octavo.front.intake import LONG_TEXT, Intake, Prompt, PromptType, Side
from octavo.front.stream import Stream
from octavo.front.tokenizers.base import Tokenizer
from octavo.params import SamplingParams
from octavo.wire.hello import Ready
from octavo.wire.ports import CorePort
from octavo.wire.reply import AbortReason
from octavo.wire.stats import StepStats

_log = logger(__name__)

#: Seconds beyond a step's own limit that the core may take to answer an ``add``.
_ADMIT_GRACE = 30.0
#: Seconds after the start, and between two looks, at which a server may have time to spare.
_IDLE = 3.0
#: A core that is silent for so many times ``step_timeout``, with requests open, will not speak any more.
_GIVE_UP = 5
#: Seconds in which the core must tell the end of a request that was stopped.
_LAST_WORD = 10.0

__all__ = ["AsyncEngine", "Finished", "Observer", "Stream"]


class AsyncEngine:
    """Built once an engine core is started (``ready`` is its answer); used from one event loop at a time.

    ``core`` is a ``ProcessClient``, or an engine core in this process, which then gets a thread of its own.
    ``tokenizer`` and ``chat`` are None for an engine that takes and gives ids only.
    """

    def __init__(
        self,
        core: CorePort,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        chat: ChatTemplate | None,
        ready: Ready,
    ):
        self.config = config
        self.tokenizer = tokenizer
        self.chat = chat
        self.ready = ready
        self.intake = Intake(config, tokenizer, ready)
        #: Why the engine is gone; None while it lives.
        self.dead: str | None = None
        #: Whether the core was told to pause: its silence then says nothing.
        self.paused = False
        self._core: LoopPort = core if isinstance(core, LoopPort) else ThreadClient(core)
        self._desk = Desk()
        #: Whether the core knows the vocabulary, which only grammars need.
        self._taught = False
        self._teaching: asyncio.Future | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stats: list[Callable[[StepStats], None]] = []
        self._mourners: list[Callable[[str], None]] = []
        self._drained: asyncio.Event | None = None
        #: When the core last spoke, or was first asked.
        self._heard = time.monotonic()
        self._listener: asyncio.TimerHandle | None = None

    # -- life --

    def attach(self) -> None:
        """Read the core's replies on the running loop. ``submit`` does it too; a server does it at start, so that it
        learns of the core's death while nobody asks for anything. A closed loop may be followed by another; raises
        ``RuntimeError`` where the first one still lives."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this engine is used from another event loop already")
        self._loop = loop
        loop.add_reader(self._core.fd, self._read)
        loop.call_soon(self._read)

    @property
    def stalled(self) -> str | None:
        """A sentence where the core makes no progress: its watchdog says so, or requests are open and it is silent."""
        silence = time.monotonic() - self._heard
        if (
            self._core.stalled is None
            and self._desk
            and not self.paused
            and silence > self.config.schedule.step_timeout
        ):
            return f"it has told nothing for {silence:.0f} seconds"
        return self._core.stalled

    @property
    def open_requests(self) -> int:
        """Answers that are not finished."""
        return len(self._desk)

    async def drain(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until no request is open. True where none is."""
        self._drained = asyncio.Event()
        if self._desk and timeout > 0:
            try:
                await asyncio.wait_for(self._drained.wait(), timeout)
            except TimeoutError:
                pass
        return not self._desk

    def close(self, deadline: float = 5.0) -> None:
        """Abort what is open and stop the core within ``deadline`` seconds. May be called twice."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._core.fd)
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None
        self._loop = None
        if self.dead is None:
            self.dead = "the engine was closed"
            self._desk.fail_all(EngineDead(self.dead))
        self._core.close(deadline)

    def on_stats(self, callback: Callable[[StepStats], None]) -> None:
        """Call ``callback`` with the statistics of every step that has some."""
        self._stats.append(callback)

    def on_dead(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` once with the reason when the engine is found dead."""
        self._mourners.append(callback)

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` of first tokens, later tokens and finished answers."""
        self._desk.observe(observer)

    def on_end(self, callback: Callable[[Group], None]) -> None:
        """Call ``callback`` with each request that is over."""
        self._desk.on_end(callback)

    async def teach(self) -> None:
        """Tell the core the vocabulary, which a grammar needs; later calls do nothing."""
        if not self._taught:
            vocabulary = await asyncio.to_thread(self.intake.vocabulary)
            self._check_alive()
            self._core.teach(vocabulary)
            self._taught = True

    def teach_when_idle(self) -> None:
        """For a server: ``teach`` as soon as nobody waits, so that the first grammar delays no stream."""
        if self._loop is not None and self.tokenizer is not None and self.tokenizer.pieces is not None:
            self._loop.call_later(_IDLE, self._teach_if_idle)

    def _teach_if_idle(self) -> None:
        if self._loop is None or self.dead is not None or self._taught:
            return
        if self._desk:
            self.teach_when_idle()
        else:
            self._teaching = asyncio.ensure_future(self._teach_early())

    async def _teach_early(self) -> None:
        with contextlib.suppress(EngineDead):  # who waits for an answer learns it there
            await self.teach()

    # -- requests --

    async def submit(
        self,
        prompt: PromptType | Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        salt: str | None = None,
        deadline: float | None = None,
        every: int = 1,
        cap: bool = False,
        truncate: int | None = None,
        side: Side = "left",
        add_special_tokens: bool = True,
    ) -> Stream:
        """Hand a request to the core; returns once the core has taken it.

        ``prompt``: text, token ids, a ``TextPrompt`` or ``TokensPrompt`` dict, or a ``Prompt`` of ``self.intake``.
        ``params`` None: the model's defaults. ``deadline``: ``time.monotonic()`` seconds after which it is aborted.
        ``every``: tokens are told every so many (1 a stream, 0 only at the end, where no stop string needs them).
        ``cap``: an answer that would pass the model's length ends there, instead of an error: for a ``max_tokens`` that
        the caller did not choose. ``truncate``: keep so many prompt tokens (-1: what fits), cut on ``side``. Raises a
        ``RequestError`` where the request is refused, by the front or by the core, ``RequestFailed`` where it failed at
        once, and ``EngineDead`` where nothing can be served.
        """
        arrival = time.monotonic()
        self._desk.received()
        try:
            self._check_alive()
            self.attach()
            params = self.intake.default_params() if params is None else params
            if not isinstance(prompt, Prompt):
                prompt = await self.prepare(prompt, truncate=truncate, side=side, add_special_tokens=add_special_tokens)
            self._check_alive()
            handles = self._desk.handles(params.n)
            requests = self.intake.admit(
                prompt,
                params,
                handles,
                priority=priority,
                salt=salt,
                deadline=deadline,
                every=every,
                cap=cap,
                arrival=arrival,
            )
            if requests[0].grammar is not None:
                await self.teach()
            request_id = request_id or uuid.uuid4().hex
            group = Group(request_id, prompt.text, prompt.ids, params, self.tokenizer, handles, arrival)
        except BaseException as error:
            gone = isinstance(error, asyncio.CancelledError)
            self._desk.turned_away("aborted" if gone else "rejected" if isinstance(error, RequestError) else "failed")
            raise
        stream = Stream(group, self._close, self._close_soon, self._stop)
        if not self._desk:
            self._heard = time.monotonic()
        self._desk.open(group)
        self._listen()
        try:
            self._core.add(requests)
        except EngineDead as error:
            self._die(str(error))
            raise
        try:
            await stream.admitted(self.config.schedule.step_timeout + _ADMIT_GRACE)
        except BaseException:
            self._close(group)
            raise
        return stream

    async def prepare(
        self,
        prompt: PromptType,
        *,
        truncate: int | None = None,
        side: Side = "left",
        add_special_tokens: bool = True,
    ) -> Prompt:
        """A prompt checked and tokenised, long texts off the loop. Raises ``BadRequest``."""
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        if isinstance(text, str) and len(text) > LONG_TEXT:
            return await asyncio.to_thread(
                self.intake.prompt, prompt, truncate=truncate, side=side, add_special_tokens=add_special_tokens
            )
        return self.intake.prompt(prompt, truncate=truncate, side=side, add_special_tokens=add_special_tokens)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, truncate: int | None = None, side: Side = "left", **options: Any
    ) -> list[int]:
        """Prompt ids of a conversation, as the model's chat template writes it; not yet checked for length.

        ``options`` are those of ``ChatTemplate.render``, and ``add_special_tokens`` (False: the template writes them).
        ``truncate`` and ``side`` are those that ``submit`` will be given: what it would cut off is not tokenised first.
        Thread-safe: a server may run it off the loop. Raises ``BadRequest``, also for what the template itself refuses.
        """
        most = self.intake.max_chars if truncate is None else MAX_STRING
        text, add_special_tokens = self.render_chat_text(messages, max_chars=most, **options)
        assert self.tokenizer is not None
        return self.tokenizer.encode(self.intake.cut(text, truncate, side, "messages"), add_special_tokens)

    def render_chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_special_tokens: bool = False,
        max_chars: int | None = None,
        **options: Any,
    ) -> tuple[str, bool]:
        """The conversation as text, and whether special tokens are still to be added: never a second beginning.

        ``max_chars`` None: as many as the model's length can hold.
        """
        most = self.intake.max_chars if max_chars is None else max_chars
        if self.chat is None or self.tokenizer is None:
            raise BadRequest("chat needs a tokenizer, and this engine runs without one", "messages")
        try:
            text = self.chat.render(messages, max_chars=most, **options)
        except TooLong:
            raise BadRequest(
                f"This model's maximum context length is {self.ready.max_model_len} tokens. However, your messages "
                f"make more than {most} characters, which is more than is read here. Please shorten them.",
                "messages",
            ) from None
        bos = self.tokenizer.specials.names.get("bos_token")
        return text, add_special_tokens and not (bos and text.startswith(bos))

    async def call(self, command: str, *args: Any, timeout: float = 60.0) -> Any:
        """Run a command of ``core.engine.commands`` and return its answer. Raises ``ValueError`` for an unknown one."""
        self._check_alive()
        return await asyncio.to_thread(self._core.call, command, *args, timeout=timeout)

    # -- the core's side --

    def _check_alive(self) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)

    def _read(self) -> None:
        """Everything that the core has told since the last time."""
        if self._loop is None or self.dead is not None:
            return
        try:
            replies = self._core.poll(0.0)
            if replies:
                self._heard = time.monotonic()
            if over := self._desk.read(*replies):
                self._core.abort(over, AbortReason.STOP_STRING)
            for reply in replies:
                if reply.stats is not None:
                    tell_all(self._stats, reply.stats)
        except EngineDead as error:
            self._die(str(error))
        except Exception as error:  # who was told what is not known any more: better all learn it than one waits on
            _log.exception("what the engine told could not be read")
            self._die(f"what it told could not be read: {type(error).__name__}: {error}")
        self._note_drained()

    def _listen(self) -> None:
        """While requests are open: see that the core speaks, a few times in its time for a step."""
        if self._listener is None and self._loop is not None:
            self._listener = self._loop.call_later(self.config.schedule.step_timeout / 4, self._check_silence)

    def _check_silence(self) -> None:
        self._listener = None
        if not self._desk or self._loop is None or self.dead is not None:
            return
        if self.paused:
            self._heard = time.monotonic()
        silence, limit = time.monotonic() - self._heard, _GIVE_UP * self.config.schedule.step_timeout
        if silence > limit:
            self._die(f"it has told nothing for {silence:.0f} seconds")
        else:
            self._listen()

    def _close(self, group: Group) -> None:
        left = self._desk.close(group)
        if left and self.dead is None:
            try:
                self._core.abort(left, AbortReason.CLIENT)
            except EngineDead as error:
                self._die(str(error))
        self._note_drained()

    def _stop(self, group: Group) -> None:
        left = self._desk.left(group)
        if not left or self.dead is not None or self._loop is None:
            return
        try:
            self._core.abort(left, AbortReason.CLIENT)
        except EngineDead as error:
            self._die(str(error))
        else:
            self._loop.call_later(_LAST_WORD, self._close, group)

    def _close_soon(self, group: Group) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close, group)

    def _note_drained(self) -> None:
        if self._drained is not None and not self._desk:
            self._drained.set()

    def _die(self, reason: str) -> None:
        if self.dead is not None:
            return
        self.dead = reason
        _log.error("the engine is dead: %s", reason)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._core.fd)
        self._desk.fail_all(EngineDead(reason))
        tell_all(self._mourners, reason)
