"""Run: one response in the making, answered whole, as a stream, or in the background while others look on."""

from collections.abc import AsyncGenerator, Sequence

from pydantic import TypeAdapter

from octavo.common.log import logger
from octavo.errors import OctavoError, Overloaded, RequestError
from octavo.front.parsers.events import Kind
from octavo.front.server.errors import describe
from octavo.front.server.openai import chunks
from octavo.front.server.openai.news import News
from octavo.front.server.openai.responses.answers import (
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseUsage,
)
from octavo.front.server.openai.responses.convert import AnyItem
from octavo.front.server.openai.responses.events import ResponseEvents
from octavo.front.server.openai.responses.logprobs import Picker
from octavo.front.server.openai.responses.schema import InputItem
from octavo.front.server.openai.responses.store import Entry, Store
from octavo.front.server.openai.schema import TokenLogprob, Usage
from octavo.front.server.openai.turn import ChatTurn

_log = logger(__name__)
_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[InputItem])


class Run:
    """A started turn becomes the events of a response. ``entry``: its place in ``store``, where it is kept."""

    def __init__(self, turn: ChatTurn, response: Response, store: Store, entry: Entry | None):
        self.response = response
        self._turn = turn
        self._events = ResponseEvents(response)
        self._store = store
        self._entry = entry
        self._picker = Picker() if turn.body.logprobs else None
        self._error: Exception | None = None
        self._begun = False

    async def whole(self) -> Response:
        """The response at its end. Raises what kept it from being made."""
        await self.drain()
        if self._error is not None:
            raise self._error
        return self.response

    async def drain(self) -> None:
        """Make it; nobody reads its events here."""
        async for _ in self.frames():
            pass

    async def frames(self) -> AsyncGenerator[bytes]:
        """The events, in pieces of those that came at the same time. Whoever leaves early cancels the response.

        Only a refusal before anything is told is raised (the queue may turn a request away); other errors are events.
        """
        finish, last = "abort", b""
        try:
            if self.response.background:
                yield self._keep(self._begin())
            async for news in self._turn:
                frames = [*self._begin(), *self._events.feed(news.events, self._logprobs(news))]
                finish = news.finish_reason or finish
                if frames:
                    yield self._keep(frames)
            last = self._keep([*self._begin(), *self._end(finish)])
        except RequestError as error:
            if not self._begun:
                self._forget()
                raise
            last = self._keep(self._fail(error))
        except Exception as error:
            last = self._keep([*self._begin(), *self._fail(error)])
        finally:
            self.close()
        yield last

    def _begin(self) -> list[bytes]:
        if self._begun:
            return []
        self._begun = True
        return self._events.begin()

    def _end(self, finish: str) -> list[bytes]:
        if self._entry is not None and self._entry.cancelled:
            return self._events.end("cancelled", self._usage())
        if finish == "abort":
            return self._fail(self._turn.why_aborted())
        return self._events.end(
            "incomplete" if finish == "length" else "completed", self._usage(), self._turn.service.now()
        )

    def _fail(self, error: Exception) -> list[bytes]:
        if not isinstance(error, OctavoError):
            _log.error("a response failed", exc_info=error)
        self._error = error
        code = "rate_limit_exceeded" if isinstance(error, Overloaded) else "server_error"
        told = ResponseError(code=code, message=describe(error).message)
        return self._events.end("failed", self._usage(), error=told)

    def close(self) -> None:
        """The work on it is over, whatever way it ended, and those who look on hear of it. May be called twice."""
        self._turn.close()
        if not self._events.ended:
            self._keep([*self._begin(), *self._events.end("cancelled", self._usage())])
        if self._entry is not None and not self._entry.ended.is_set():
            output = _ITEMS.validate_python([item.model_dump() for item in self.response.output])
            self._store.end(self._entry, output)

    def _forget(self) -> None:
        if self._entry is not None:
            self._store.remove(self._entry)

    def _keep(self, frames: Sequence[bytes]) -> bytes:
        if self._entry is not None:
            self._store.tell(self._entry, frames)
        return b"".join(frames)

    def _logprobs(self, news: News) -> list[TokenLogprob]:
        if self._picker is None:
            return []
        output, most = news.output, self._turn.body.top_logprobs or 0
        tops = chunks.chat_logprobs(output.token_ids, output.logprobs or (), most, as_ids=False).content
        tokens = [TokenLogprob.model_validate(top, from_attributes=True) for top in tops]
        text = "".join(event.text for event in news.events if event.kind is Kind.CONTENT)
        return self._picker.feed(tokens, text, any(event.kind is not Kind.CONTENT for event in news.events))

    def _usage(self) -> ResponseUsage:
        return usage_of(self._turn.usage())


def usage_of(usage: Usage) -> ResponseUsage:
    """Chat's usage under the names of this API."""
    cached, reasoned = usage.prompt_tokens_details, usage.completion_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=cached.cached_tokens if cached else 0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoned.reasoning_tokens if reasoned else 0),
        total_tokens=usage.total_tokens,
    )
