"""What every format is held to: it is fed what a real detokenizer tells, cut anywhere, and its news are checked."""

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tokenizers import AddedToken

from octavo.front.detokenize import Detokenizer, Marker
from octavo.front.parsers.base import Format, Tool
from octavo.front.parsers.coerce import dumps
from octavo.front.parsers.events import Event, Kind
from octavo.front.parsers.registry import REASONING_PARSERS, TOOL_PARSERS
from octavo.front.parsers.spec import Example, Json, JsonCall, ParserSpec, Python
from octavo.front.tokenizers.base import Specials, Tokenizer
from octavo.testing.tokenizer import byte_level_tokenizer

TOOLS = (
    Tool(
        "get_weather",
        {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    ),
    Tool("now", {"type": "object", "properties": {}}),
)
REGISTRIES = (TOOL_PARSERS, REASONING_PARSERS)


def specs() -> list[ParserSpec]:
    """Every format of the registry, once."""
    return list({id(spec): spec for registry in REGISTRIES for spec in map(registry.load, registry)}.values())


def cases() -> list[tuple[ParserSpec, Example]]:
    return [(spec, example) for spec in specs() for example in spec.examples]


@functools.cache
def tokenizer(*tokens: str) -> Tokenizer:
    """A byte-level tokenizer with ``tokens`` as special tokens."""
    backend = byte_level_tokenizer()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    return Tokenizer(backend, Specials())


@functools.cache
def _format(number: int, special: bool) -> Format:
    spec = next(spec for spec in specs() if id(spec) == number)
    return Format(spec, tokenizer(*spec.tokens) if special else tokenizer())


def format_of(spec: ParserSpec, special: bool = True) -> Format:
    """``spec`` for its family's tokenizer, or for one that has none of its tokens."""
    return _format(id(spec), special)


@dataclass
class Told:
    """What the events of an answer add up to. ``calls``: [name, arguments, id]; ``ended``: indexes that ended."""

    reasoning: str = ""
    content: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    tokens: int = 0
    truncated: bool = False

    def add(self, events: Iterable[Event]) -> None:
        """Raises AssertionError where the order of events is not what they promise."""
        for event in events:
            if event.kind is Kind.REASONING:
                self.reasoning += event.text
            elif event.kind is Kind.CONTENT:
                self.content += event.text
            elif event.kind is Kind.CALL:
                assert event.index == len(self.calls)
                assert event.text
                assert event.id
                assert event.id not in [call[2] for call in self.calls]
                self.calls.append([event.text, "", event.id])
            else:
                assert event.index == len(self.calls) - 1
                assert event.index not in self.ended
                if event.kind is Kind.CALL_END:
                    self.ended.append(event.index)
                self.calls[event.index][1] += event.text

    @property
    def facts(self) -> tuple:
        """All but ids, which are random."""
        return self.reasoning, self.content, [call[:2] for call in self.calls], self.ended, self.tokens, self.truncated

    def check(self) -> None:
        for i, (_, arguments, _) in enumerate(self.calls):
            assert is_prefix(arguments), arguments
            if i in self.ended and not self.truncated:
                assert isinstance(json.loads(arguments), dict)


#: A string, closed or not, or a bracket.
_OUTSIDE_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]', re.DOTALL)


def is_prefix(text: str) -> bool:
    """Whether ``text`` is the beginning of some JSON object: with what is open closed, it is one."""
    if not text:
        return True
    stack: list[str] = []
    for token in _OUTSIDE_STRINGS.findall(text):
        if token in "{[":
            stack.append("}" if token == "{" else "]")
        elif token in "}]" and (not stack or stack.pop() != token):
            return False
    if not text.startswith("{"):
        return False
    for more in ("", '"', '": 0', ": 0", "0", '"": 0'):
        try:
            json.loads(text.rstrip() + more + "".join(reversed(stack)))
        except ValueError:
            continue
        return True
    return False


def parse(
    form: Format, ids: Sequence[int], cuts: Iterable[int] = (), *, stopped: bool = True, vocabulary=None, **options
) -> Told:
    """Feed ``ids`` in pieces that end at ``cuts``, as an engine's outputs bring them."""
    options = {"tools": TOOLS} | options
    stream = form.open(**options)
    told = Told()
    for text, marks, piece in news(vocabulary or form._vocabulary, ids, cuts):
        told.add(stream.feed(text, marks, piece))
    told.add(stream.finish(stopped))
    assert stream.finish(stopped) == []
    assert stream.calls == len(told.calls) or not options["tools"] or options.get("calls") is False
    told.truncated = stream.truncated
    row = stream._table.states["reasoning"].row if form.has_reasoning else {"text": None}
    if all(marker in form._ids for marker in row) and not form.spec.think.label:
        told.tokens = stream.reasoning_tokens  # exact where all markers are ids
    return told


def news(vocabulary: Tokenizer, ids: Sequence[int], cuts: Iterable[int] = ()) -> list[tuple]:
    """(text, marks, ids) of each piece."""
    marker = Marker(Detokenizer(vocabulary, [], False), vocabulary)
    ends = sorted({min(cut, len(ids)) for cut in cuts} | {len(ids)})
    found, begin, length = [], 0, 0
    for end in ends:
        piece = list(ids[begin:end])
        text = marker.push(piece)
        if end == len(ids):
            text += marker.flush()
        found.append((text, [(at - length, token) for at, token in marker.marks], piece))
        marker.marks, begin, length = [], end, length + len(text)
    return found


def every(ids: Sequence[int]) -> range:
    return range(1, len(ids))


def written(spec: ParserSpec, value: str) -> str:
    """``value`` as the format writes a string: between what the example has around "Paris"."""
    style = spec.args["args"] if "args" in spec.args else next(iter(spec.args.values()))
    if isinstance(style, (JsonCall, Python)) or (isinstance(style, Json) and not style.notation.mark):
        return dumps(value)[1:-1]
    return value


def with_city(spec: ParserSpec, value: str) -> str:
    """The first example with another city."""
    return spec.examples[0].wire.replace("Paris", written(spec, value))
