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
    way, aborts the request. ``close`` ends a request at the engine, ``close_soon`` does so from any thread.
    """

    def __init__(self, group: Group, close: Callable[[Group], None], close_soon: Callable[[Group], None]):
        self._group, self._close, self._close_soon = group, close, close_soon
        self._news = asyncio.Event()
        group.wake = self._news.set

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

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self._outputs()

    async def _outputs(self) -> AsyncIterator[RequestOutput]:
        group, news = self._group, self._news
        try:
            while True:
                news.clear()  # before the look: what comes while the consumer has an output must not be missed
                if group.error is not None:
                    raise group.error
                output = group.take()
                if output is not None:
                    yield output
                    if output.finished:
                        return
                elif group.finished:
                    return
                await news.wait()
        finally:
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
