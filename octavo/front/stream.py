"""Stream: one request's outputs, as its consumer takes them."""

import asyncio
from collections.abc import AsyncIterator, Callable

from octavo.errors import RequestFailed
from octavo.front.fanout import Group
from octavo.outputs import RequestOutput


class Stream:
    """One admitted request: iterate over it once, with ``async for``.

    Yields ``RequestOutput`` as ``params.output_kind`` asks; the last one has ``finished``. Raises ``RequestFailed``
    where the engine could not finish the request, ``EngineDead`` where the engine died. Leaving the loop early, in any
    way, aborts the request. ``close`` ends a request at the engine, ``close_soon`` does so from any thread, ``stop``
    has the engine end it.
    """

    def __init__(
        self,
        group: Group,
        close: Callable[[Group], None],
        close_soon: Callable[[Group], None],
        stop: Callable[[Group], None],
    ):
        self._group, self._close, self._close_soon, self._stop = group, close, close_soon, stop
        self._news = asyncio.Event()
        self._waits = False
        self._tell: Callable[[RequestOutput], None] | None = None
        self._ready: Callable[[], bool] = bool
        self._broken: Exception | None = None
        group.wake = self._wake

    @property
    def request_id(self) -> str:
        return self._group.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        return self._group.prompt_ids

    @property
    def finished(self) -> bool:
        return self._group.finished

    def abort(self) -> None:
        """End the request now; who iterates gets a last output with reason "abort". May be called twice."""
        self._close(self._group)
        self._news.set()

    def stop(self) -> None:
        """Have the engine end the request: who iterates gets all that was made so far, tokens that nobody has been told
        of yet among them, with reason "abort"."""
        self._stop(self._group)

    def __del__(self) -> None:
        # Dropped before anybody iterated; the collector may run in any thread.
        if not self._group.finished:
            self._close_soon(self._group)

    async def final(self) -> RequestOutput:
        """The last output. For ``output_kind`` CUMULATIVE or FINAL_ONLY that is the whole answer."""
        last = None
        async for output in self:
            last = output
        assert last is not None
        return last

    def shorten(self, tell: Callable[[RequestOutput], None], ready: Callable[[], bool]) -> None:
        """From now on, while whoever iterates waits for an output and ``ready()`` is true, give it to ``tell`` instead,
        in the very call that reads the engine's reply: no task wakes for it. How the request ends, and what ``tell``
        raises, is left to the iteration."""
        self._tell, self._ready = tell, ready

    def _wake(self) -> None:
        group = self._group
        # Whoever iterates has taken all that was told before, or it is not this call's turn.
        idle = self._waits and not self._news.is_set() and group.error is None and not group.finished
        if self._tell is None or not idle or not self._ready():
            self._news.set()
            return
        try:
            output = group.take()
            if output is not None:
                self._tell(output)
        except Exception as error:
            self._broken = error
            self._news.set()

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self._outputs()

    async def _outputs(self) -> AsyncIterator[RequestOutput]:
        group, news = self._group, self._news
        try:
            while True:
                news.clear()  # before the look: what comes while the consumer has an output must not be missed
                if group.error is not None:
                    raise group.error
                if self._broken is not None:
                    raise self._broken
                output = group.take()
                if output is not None:
                    yield output
                    if output.finished:
                        return
                elif group.finished:
                    return
                self._waits = True
                await news.wait()
                self._waits = False
        finally:
            self._waits = False
            self._close(group)

    async def admitted(self, timeout: float) -> None:
        """Return once the core has taken the request. Raises what it was refused with, ``RequestFailed`` after
        ``timeout`` seconds."""
        group = self._group
        try:
            async with asyncio.timeout(timeout):
                while not group.admitted and group.error is None and not group.finished:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise RequestFailed(f"the engine core did not take the request within {timeout:.0f} seconds") from None
        self._news.set()
        if group.error is not None:
            raise group.error
