"""`octavo bench parsers`: what a long argument costs in every format as it streams: 64 kB of one string, four
characters at a time, through the parser alone."""

import time
from collections.abc import Iterable
from typing import Any

from octavo.bench import report
from octavo.front.parsers.base import Format, Tool
from octavo.front.parsers.events import Kind
from octavo.front.parsers.registry import TOOL_PARSERS
from octavo.front.parsers.spec import ParserSpec

COLUMNS = ("workload", "seconds", "us_per_piece")
SIZE = 1 << 16
_PIECE = 4
_TEXT = "word and word, line of words. "
_TOOLS = (
    Tool("get_weather", {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
    Tool("now", {"type": "object", "properties": {}}),
)


class _Vocabulary:
    """A tokenizer of nothing but a format's special tokens."""

    def __init__(self, tokens: Iterable[str]):
        self._tokens = list(tokens)
        self.added_ids = self.special_ids = frozenset(range(len(self._tokens)))

    def id(self, token: str) -> int | None:
        return self._tokens.index(token) if token in self._tokens else None

    def token(self, token: int) -> str | None:
        return self._tokens[token]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return []

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return "".join(self._tokens[token] for token in ids)

    def marks(self, text: str) -> list[tuple[int, int]]:
        """(offset, id) of every special token in ``text``, of two at one place the longer."""
        found, at = [], 0
        while at < len(text):
            here = [token for token in self._tokens if text.startswith(token, at)]
            if here:
                longest = max(here, key=len)
                found.append((at, self._tokens.index(longest)))
                at += len(longest)
            else:
                at += 1
        return found


def parsers(repeats: int) -> list[dict[str, Any]]:
    """A record for each format of calls; ``seconds`` of processor time are the best of ``repeats``."""
    specs: dict[int, tuple[str, ParserSpec]] = {}
    for name in TOOL_PARSERS:
        spec = TOOL_PARSERS.load(name)
        specs.setdefault(id(spec), (name, spec))
    return [_record(name, spec, repeats) for name, spec in specs.values()]


def _record(name: str, spec: ParserSpec, repeats: int) -> dict[str, Any]:
    text = (_TEXT * (SIZE // len(_TEXT) + 1))[:SIZE].rstrip()
    before, after = spec.examples[0].wire.split("Paris", 1)
    vocabulary = _Vocabulary(spec.tokens)
    form = Format(spec, vocabulary)
    middle = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    seconds = []
    for _ in range(repeats):
        stream = form.open(tools=_TOOLS)
        events = stream.feed(before, vocabulary.marks(before))
        begin = time.process_time()
        for piece in middle:
            events += stream.feed(piece)
        seconds.append(time.process_time() - begin)
        events += stream.feed(after, vocabulary.marks(after)) + stream.finish(stopped=True)
        told = "".join(event.text for event in events if event.kind is Kind.ARGUMENTS)
        assert text in told, f"{name} lost the argument"
    return report.record(
        workload=f"parser {name}",
        impl="octavo",
        model="no model",
        seconds=round(min(seconds), 4),
        median_seconds=round(report.median(seconds), 4),
        us_per_piece=round(min(seconds) / len(middle) * 1e6, 2),
        size=SIZE,
    )
