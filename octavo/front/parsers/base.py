"""Format: a parser bound to a model's tokenizer; ``choose`` finds it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from octavo.errors import ConfigError
from octavo.front.parsers.calls import Calls, Tool
from octavo.front.parsers.formats.guided import GUIDED
from octavo.front.parsers.grammar import tool_grammar
from octavo.front.parsers.registry import NONE, REASONING_PARSERS, TOOL_PARSERS
from octavo.front.parsers.spec import CONTENT, REASONING, ParserSpec, Think
from octavo.front.parsers.stream import ParserStream
from octavo.front.parsers.table import Table, Vocabulary, part_ids

__all__ = ["Format", "Tool", "choose", "guided"]
#: Tokens at a prompt's end in which markers of reasoning that are text are looked for.
_TAIL = 128


class Format:
    """A ``ParserSpec`` for one tokenizer; made once a server.

    ``assume``: where neither the prompt nor the template's switches say whether reasoning is open, the format's own
    default holds. Without, an answer then begins as content, in which a start marker that comes first opens reasoning:
    right for every model that writes its markers, and for one that does not reason.
    """

    def __init__(self, spec: ParserSpec, vocabulary: Vocabulary, assume: bool = True):
        self.spec, self.name = spec, spec.name
        self._vocabulary, self._assume = vocabulary, assume
        self._tables = {calls: Table(spec, vocabulary, calls) for calls in (False, True)}
        self._ids = self._tables[True].ids
        self._special = frozenset(vocabulary.special_ids)

    @property
    def has_reasoning(self) -> bool:
        return self.spec.think is not None

    @property
    def has_calls(self) -> bool:
        return bool(self.spec.table)

    @property
    def reasoning_end(self) -> tuple[int, ...]:
        """Ids that end reasoning; none where the format has no reasoning."""
        return self._ids_of(self.spec.think.end) if self.spec.think is not None else ()

    @property
    def reasoning_start(self) -> tuple[int, ...]:
        return self._ids_of(self.spec.think.start) if self.spec.think is not None else ()

    def _ids_of(self, marker: str) -> tuple[int, ...]:
        if marker in self._ids:
            return (self._ids[marker],)
        return tuple(self._vocabulary.encode(marker, add_special_tokens=False))

    @property
    def grammar_reasons(self) -> bool:
        """Whether reasoning is part of a ``tool_grammar``, which then holds from an answer's first token on."""
        return self.spec.grammar is not None and self.spec.grammar.says != ()

    def open(
        self,
        *,
        tools: Sequence[Tool] = (),
        prompt_ids: Sequence[int] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        reasoning: bool = True,
        calls: bool = True,
        history_calls: int = 0,
        keep_special: bool = False,
    ) -> ParserStream:
        """A parser of one answer.

        Without ``tools`` there are no calls: markup is content as the model wrote it, streamed or not. With tools and
        ``calls`` False (tool_choice none) calls are read and not told. ``reasoning`` False: reasoning is not told.
        ``history_calls``: calls in the conversation so far, for families that number them.
        """
        news = Calls(tools, self.spec.ids, history_calls, silent=not (calls and tools))
        given, think = template_kwargs or {}, self.spec.think
        begin = self.begin(prompt_ids, given)
        hold = think is not None and think.is_forced(given)
        return ParserStream(self._tables[bool(tools)], news, begin, reasoning=reasoning, keep=keep_special, hold=hold)

    def begin(self, prompt_ids: Sequence[int], template_kwargs: Mapping[str, Any]) -> str:
        """The state that an answer to this prompt begins in."""
        think = self.spec.think
        if think is None or self.spec.fused:
            return self.spec.start
        open_ = self._left_open(prompt_ids)
        if open_ is None and self._assume:
            open_ = think.is_on(template_kwargs)
            if open_ is None:
                open_ = think.default
        return REASONING if open_ else self.spec.start if self.spec.table else CONTENT

    def _left_open(self, prompt: Sequence[int]) -> bool | None:
        """Whether the prompt leaves reasoning open; None where its last turn has no marker of it."""
        think = self.spec.think
        assert think is not None
        start, end = self._ids.get(think.start), self._ids.get(think.end)
        tail = len(prompt)
        while tail > 0:
            token = prompt[tail - 1]
            if token == start:
                return True
            if token == end:
                return False
            if token in self._special:
                break
            tail -= 1
        if start is not None and end is not None:
            return None
        text = self._vocabulary.decode(prompt[max(tail, len(prompt) - _TAIL) :])
        opened, closed = text.rfind(think.start), text.rfind(think.end)
        return None if opened == closed else opened > closed

    def tool_grammar(
        self, tools: Sequence[Tool], *, required: bool, named: str | None, parallel: bool, answer: str = ""
    ) -> str | None:
        """A Lark grammar (llguidance's) of calls in the family's own notation; None where there is none."""
        ids = self._ids | part_ids(self.spec, self._vocabulary, self._ids)
        return tool_grammar(self.spec, ids, tools, required=required, named=named, parallel=parallel, answer=answer)

    @cached_property
    def forced(self) -> "Format":
        """The format in which this model can be made to call: its own where that has a grammar, else a JSON list."""
        if self.spec.grammar is not None:
            return self
        return Format(replace(GUIDED, think=self.spec.think), self._vocabulary, self._assume)


def guided(vocabulary: Vocabulary) -> Format:
    """The format in which a model can be made to call whose own notation is not known: a JSON list."""
    return Format(GUIDED, vocabulary)


def choose(
    vocabulary: Vocabulary, template: str | None, reasoning: str | None = "auto", tool: str | None = "auto"
) -> Format | None:
    """The format by the parsers' names (vLLM's), or, for "auto", by the markers in the template and the vocabulary.

    None where there is nothing to parse. Raises ``ConfigError`` for a name that is unknown, or two that do not go
    together.
    """
    thinks = _named(reasoning, REASONING_PARSERS, vocabulary)
    calls = _named(tool, TOOL_PARSERS, vocabulary)
    if calls is None and tool == "auto":
        if thinks is not None and thinks.fused:
            calls = thinks
        else:
            calls = _best(TOOL_PARSERS, template, vocabulary, calls=True)
    if thinks is None and reasoning == "auto":
        if calls is not None and (calls.fused or _shows(calls.think, template, vocabulary)):
            thinks = calls
        else:
            thinks = _best(REASONING_PARSERS, template, vocabulary, calls=False)
    if thinks is None and calls is None:
        return None
    assume = reasoning != "auto"
    if thinks is not None and calls is not None and thinks is not calls:
        if thinks.fused or calls.fused:
            raise ConfigError(
                f"--reasoning-parser {reasoning} and --tool-call-parser {tool} do not go together: "
                f"{(thinks if thinks.fused else calls).name} reads both, so name it for both or leave the other to auto"
            )
        return Format(replace(calls, think=thinks.think), vocabulary, assume)
    if calls is None:
        assert thinks is not None
        spec = thinks if thinks.fused else replace(thinks, table={}, args={}, grammar=None, start=CONTENT)
        return Format(spec, vocabulary, assume)
    return Format(calls if thinks is not None or calls.fused else replace(calls, think=None), vocabulary, assume)


def _named(name: str | None, registry: Any, vocabulary: Vocabulary) -> ParserSpec | None:
    return None if name is None or name == "auto" or name in NONE else _load(registry, name, vocabulary)


def _load(registry: Any, name: str, vocabulary: Vocabulary) -> ParserSpec:
    """The format of that name, as this vocabulary spells it."""
    spec: ParserSpec = registry.load(name)
    return spec if spec.refit is None else spec.refit([vocabulary.token(one) or "" for one in vocabulary.added_ids])


def _shows(think: Think | None, template: str | None, vocabulary: Vocabulary) -> bool:
    """Whether the model reasons in this notation: a template that knows reasoning writes its end."""
    if think is None:
        return False
    return (think.shown or think.end) in template if template is not None else vocabulary.id(think.end) is not None


def _best(registry: Any, template: str | None, vocabulary: Vocabulary, calls: bool) -> ParserSpec | None:
    """The format all of whose hints are there, that has most to show for it; the registry's order decides a tie."""
    best: tuple[int, ParserSpec] | None = None
    for name in registry:
        spec = _load(registry, name, vocabulary)
        hints = spec.hints if calls else _signs(spec.think)
        if not hints or not all(_there(hint, template, vocabulary) for hint in hints):
            continue
        if not (spec.table if calls else _shows(spec.think, template, vocabulary)):
            continue
        score = sum(map(len, hints))
        if best is None or score > best[0]:
            best = (score, spec)
    return None if best is None else best[1]


def _signs(think: Think | None) -> tuple[str, ...]:
    """What a template of such reasoning holds."""
    return () if think is None else (think.start, think.end, *(think.answers[0] if think.answers else ()))


def _there(hint: str, template: str | None, vocabulary: Vocabulary) -> bool:
    if template is not None and hint in template:
        return True
    found = vocabulary.id(hint)
    return found is not None and found in vocabulary.added_ids
