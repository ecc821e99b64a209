"""A ParserSpec bound to a tokenizer: which markers are ids, which are text, and one lexicon a state."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from octavo.front.parsers.spec import (
    AFTER,
    ANSWER,
    ARGS,
    BETWEEN,
    CONTENT,
    REASONING,
    Json,
    ParserSpec,
    Role,
    Style,
    Tags,
    Think,
    To,
)

RAW = "raw"
_BROKEN = "broken "


class Vocabulary(Protocol):
    """What a parser asks of a tokenizer."""

    @property
    def added_ids(self) -> Collection[int]: ...
    @property
    def special_ids(self) -> Collection[int]: ...
    def id(self, token: str) -> int | None: ...
    def token(self, token: int) -> str | None: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str: ...


class Lexicon:
    """Finds literals in a growing text: the first; of those at one place the longest."""

    __slots__ = ("_first", "_longest", "_pattern", "_prefixes")

    def __init__(self, literals: Collection[str]):
        self._first = re.compile("[" + "".join(sorted({re.escape(one[0]) for one in literals})) + "]")
        self._pattern = re.compile("|".join(re.escape(one) for one in sorted(literals, key=len, reverse=True)))
        self._prefixes = frozenset(one[:size] for one in literals for size in range(1, len(one)))
        self._longest = max(map(len, literals)) - 1

    def find(self, text: str, at: int, last: bool) -> tuple[int, str]:
        """Where the next literal from ``at`` begins, and which it is; without one, where what may be the beginning of
        one stands ("" and, at the latest, the end of the text). ``last``: nothing comes behind this text."""
        if self._first.search(text, at) is None:  # as in nearly all text
            return len(text), ""
        found = self._pattern.search(text, at)
        end = len(text) if found is None else found.start()
        if not last and (found is None or len(text) - found.start() <= self._longest):
            for size in range(min(self._longest, len(text) - at), 0, -1):
                if len(text) - size > end:
                    break
                if text[len(text) - size :] in self._prefixes:
                    return len(text) - size, ""
        return end, "" if found is None else found[0]


@dataclass(slots=True)
class State:
    """``row``: marker -> where it leads. ``lexicon`` finds those of them, and of ``marks``, that are text.

    ``marks``: what ``style`` quotes strings with. ``broken``: the state behind arguments that cannot be read.
    """

    name: str
    role: Role
    row: dict[str, To]
    style: Style | None = None
    lexicon: Lexicon | None = None
    broken: str = ""
    marks: frozenset[str] = field(default=frozenset())


class Table:
    """``calls``: whether call markup is read; without, it is text. ``added``: id -> text of every token that matters:
    the format's markers and all special tokens."""

    def __init__(self, spec: ParserSpec, vocabulary: Vocabulary, calls: bool):
        self.spec = spec
        self.ids = marker_ids(spec, vocabulary)
        names = {token: marker for marker, token in self.ids.items()}
        self.added = {token: vocabulary.token(token) or "" for token in vocabulary.special_ids} | names
        for token in part_ids(spec, vocabulary, self.ids).values():
            del self.added[token]
        self.named = frozenset(self.ids)
        rows = _rows(spec, self.named, calls)
        self.states = {name: self._state(name, row) for name, row in rows.items()}
        for name in [name for name, state in self.states.items() if state.role is Role.ARGS]:
            self._add_broken(name)
        for state in self.states.values():
            for to in state.row.values():
                assert to.state in self.states, f"{spec.name}: {state.name} leads to {to.state}, which has no row"

    def _add_broken(self, name: str) -> None:
        """The state behind arguments that cannot be read: only what leads out of the call counts."""
        state, broken = self.states[name], _BROKEN + name
        inside = (Role.ARGS, Role.KEY, Role.VALUE, Role.AFTER, Role.DROP)
        row = {marker: to for marker, to in state.row.items() if self.states[to.state].role not in inside}
        literals = [marker for marker in row if marker not in self.ids]
        self.states[broken] = State(broken, Role.DROP, row, None, Lexicon(literals) if literals else None)
        state.broken = broken

    def _state(self, name: str, row: Mapping[str, To]) -> State:
        spec = self.spec
        role = Role.CONTENT if name == RAW else spec.role(name)
        style = spec.args.get(name)
        marks = frozenset({style.notation.mark} - {""}) if isinstance(style, Json) else frozenset[str]()
        kept: dict[str, To] = {}
        closed_by_id = role is Role.VALUE and any(to.state == AFTER and one in self.ids for one, to in row.items())
        for marker, to in row.items():
            if role is Role.VALUE and to.line and marker in self.ids and not closed_by_id:
                continue  # a special token in the middle of a value whose own end is text: data
            if to.state == AFTER and marker in self.ids:
                to = to._replace(state=ARGS)  # an id needs nothing behind it to be believed
            kept[marker] = to
        literals = {marker for marker in (*kept, *marks) if marker not in self.ids}
        return State(name, role, kept, style, Lexicon(literals) if literals else None, "", marks)


def marker_ids(spec: ParserSpec, vocabulary: Vocabulary) -> dict[str, int]:
    """Markers that are one added token of the tokenizer."""
    found = {marker: vocabulary.id(marker) for marker in spec.markers()}
    return {marker: token for marker, token in found.items() if token is not None and token in vocabulary.added_ids}


def part_ids(spec: ParserSpec, vocabulary: Vocabulary, ids: Collection[str]) -> dict[str, int]:
    """Special tokens that are a part of a marker which is text: they are read as text, and are none of our business
    alone."""
    texts = [marker for marker in spec.markers() if marker not in ids]
    special = {vocabulary.token(token) or "": token for token in vocabulary.special_ids}
    return {
        literal: token
        for literal, token in special.items()
        if literal and literal not in ids and any(literal in marker for marker in texts)
    }


def _rows(spec: ParserSpec, ids: Collection[str], calls: bool) -> dict[str, dict[str, To]]:
    """All rows: those of the format, and what follows from its reasoning."""
    rows: dict[str, dict[str, To]] = {CONTENT: {}}
    if calls or spec.fused:
        for name, row in spec.table.items():
            rows[name] = {marker: To(to) if isinstance(to, str) else to for marker, to in row.items()}
        for name, style in spec.args.items():
            if not isinstance(style, Tags):
                # What may stand behind arguments that are whole.
                rows[BETWEEN] = {**rows[CONTENT], **rows[name], **rows.get(BETWEEN, {})}
    content = rows.setdefault(CONTENT, {})
    ends = {
        marker: To(CONTENT) for name, row in rows.items() for marker, to in row.items()
        if to.state == CONTENT and name not in (CONTENT, REASONING)
    }  # fmt: skip
    starts = dict(content)
    if not spec.fused:
        for marker in ends:
            if marker in ids:
                content.setdefault(marker, To(CONTENT))  # once more, or without a beginning
    think = spec.think
    if think is not None and not spec.fused:
        begins, stops = (think.start, *think.starts), (think.end, *think.ends)
        reasoning = dict.fromkeys(stops, To(CONTENT))
        if not think.prose:
            reasoning |= dict.fromkeys(begins, To(REASONING))
            for marker in stops:
                content.setdefault(marker, To(CONTENT))
        if think.implicit:
            for marker, to in starts.items():
                if not to.keep and not to.line and not to.first:
                    reasoning.setdefault(marker, to if marker in ids else to._replace(line=True))
        rows[REASONING] = reasoning
        for marker in begins:
            content.setdefault(marker, To(REASONING, first=not think.reenter))
        if think.label:
            content.setdefault(think.label, To(REASONING, keep=True, first=True))
        if BETWEEN in rows and think.reenter:
            rows[BETWEEN].setdefault(think.start, To(REASONING))
    rows[RAW] = {marker: to for marker, to in {**ends, **content}.items() if not to.keep}
    if think is not None and think.answers and not spec.fused:
        _add_answers(rows, think)
    return rows


def _add_answers(rows: dict[str, dict[str, To]], think: Think) -> None:
    """The markers around the answer behind reasoning."""
    closing = {close: To(CONTENT) for _, close in think.answers}
    rows[ANSWER] = {**rows[CONTENT], **closing}
    for marker, _ in think.answers:
        rows[CONTENT][marker] = To(ANSWER, first=True)
        rows[REASONING].setdefault(marker, To(ANSWER))
    for name in {BETWEEN, RAW} & set(rows):
        rows[name] |= closing
