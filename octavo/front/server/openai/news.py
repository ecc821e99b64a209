"""News: what is new of an answer as events; ``Reader`` makes them of the engine's outputs, ``Message`` folds them."""

from typing import NamedTuple

from msgspec import Struct

from octavo.front.parsers.base import ParserStream
from octavo.front.parsers.events import Event, Kind
from octavo.outputs import CompletionOutput


class News(Struct, gc=False):
    """What is new of one answer. ``finish_reason`` is "tool_calls" where calls ended it."""

    index: int
    events: list[Event]
    output: CompletionOutput
    finish_reason: str | None


class Call(NamedTuple):
    """A tool call. ``arguments``: pieces of its JSON."""

    id: str
    name: str
    arguments: list[str]


class Message:
    """News of one answer put together."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[Call] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def add(self, news: News) -> None:
        for event in news.events:
            if event.kind is Kind.CONTENT:
                self._content.append(event.text)
            elif event.kind is Kind.REASONING:
                self._reasoning.append(event.text)
            elif event.kind is Kind.CALL:
                self._calls.append(Call(event.id, event.text, []))
            elif event.kind is Kind.ARGUMENTS:
                self._calls[event.index].arguments.append(event.text)
        if news.finish_reason is not None:
            self.finish_reason, self.stop_reason = news.finish_reason, news.output.stop_reason

    @property
    def reasoning(self) -> str | None:
        return "".join(self._reasoning) or None

    @property
    def content(self) -> str | None:
        """None where the answer is reasoning or calls only."""
        text = "".join(self._content)
        return text if text or not (self._reasoning or self._calls) else None

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """(id, name, arguments) of each call."""
        return [(call.id, call.name, "".join(call.arguments)) for call in self._calls]


class Reader:
    """Reads one answer by the parser of the model's format.

    ``named``: a call of a certain function was asked for, which ends an answer as any text does. Without ``parallel``
    only the first call is told.
    """

    def __init__(self, parser: ParserStream, named: bool, parallel: bool):
        self._parser = parser
        self._named = named
        self._most = None if parallel else 1
        self._told_calls = 0

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def read(self, output: CompletionOutput) -> News:
        events = self._parser.feed(output.text, output.marks, output.token_ids)
        if output.finish_reason is not None:
            events += self._parser.finish(stopped=output.finish_reason == "stop" and output.stop_reason is None)
        events = [event for event in events if self._wanted(event)]
        reason: str | None = output.finish_reason
        if reason == "stop" and self._told_calls and not self._named and not self._parser.truncated:
            reason = "tool_calls"
        return News(output.index, events, output, reason)

    def _wanted(self, event: Event) -> bool:
        if self._most is not None and event.index >= self._most:
            return False
        if event.kind is Kind.CALL:
            self._told_calls += 1
        return True
