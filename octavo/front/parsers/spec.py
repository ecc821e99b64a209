"""ParserSpec: a format as data. States, the markers that lead from one to another, how arguments are written."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from octavo.front.parsers.values import JSON, Notation

#: The states that formats usually have. A format may add its own, with a role.
CONTENT, REASONING, WRAP, NAME, ARGS, BETWEEN = "content", "reasoning", "wrap", "name", "args", "between"
KEY, GAP, VALUE, AFTER, ANSWER = "key", "gap", "value", "after", "answer"


class Role(Enum):
    """What the text of a state is.

    WRAP: before a call's name, where only space may stand; LABEL: any text. BETWEEN: behind a call, where other text
    than space is content. AFTER: behind what may be the end of a value. DROP: nothing.
    """

    CONTENT = 0
    REASONING = 1
    WRAP = 2
    NAME = 3
    ARGS = 4
    BETWEEN = 5
    KEY = 6
    VALUE = 7
    AFTER = 8
    DROP = 9
    LABEL = 10


ROLES = {
    CONTENT: Role.CONTENT, REASONING: Role.REASONING, WRAP: Role.WRAP, NAME: Role.NAME, ARGS: Role.ARGS,
    BETWEEN: Role.BETWEEN, KEY: Role.KEY, GAP: Role.DROP, VALUE: Role.VALUE, AFTER: Role.AFTER,
    ANSWER: Role.CONTENT,
}  # fmt: skip


class To(NamedTuple):
    """Where a marker leads. ``keep``: it is also the first text of the new state.

    Where it is matched as text: ``line``: it counts only at the start of a line; ``first``: only as the first of the
    answer's content but space.
    """

    state: str
    keep: bool = False
    line: bool = False
    first: bool = False


class Head(NamedTuple):
    """What a header says: a call of ``name``, or (``state`` given) that no call follows and where to go."""

    name: str
    id: str = ""
    state: str = ""


def plain_name(text: str) -> Head:
    return Head(text.strip().strip("\"'"))


def attribute_name(text: str) -> Head:
    """The header of a tag: name="f", with any quotes or none."""
    return plain_name(text.strip().removeprefix("name").lstrip().removeprefix("="))


class Think(NamedTuple):
    """How a format marks reasoning.

    ``kwargs``: the template's switches; any that is given decides (on where one of them is true), else ``default``.
    ``on``: words of other variables of the template that turn it on, as any other word of theirs turns it off;
    ``off``: words that turn it off whatever else is said.
    ``reenter``: the start marker counts in the middle of content as well. ``implicit``: a call's marker ends it.
    ``trim``: white space at its end is not told. ``label``: a word of the format that stands first in it; at the very
    front of an answer it begins reasoning without the start marker.

    ``starts``, ``ends``: other spellings. ``prose``: they are words that answers may hold: the start marker counts as
    the first of an answer, the end marker in reasoning. ``answers``: pairs of markers around the answer that are no
    part of it. ``inline``: reasoning is told as content, with its markers. ``force``: a variable of the template that
    makes reasoning content where no content follows, as it is where a switch turned reasoning off. ``shown``: what a
    template that knows reasoning holds (none: ``end``).
    """

    start: str
    end: str
    kwargs: tuple[str, ...] = ("enable_thinking", "thinking")
    on: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    off: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    default: bool = True
    reenter: bool = False
    implicit: bool = True
    trim: bool = False
    label: str = ""
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    prose: bool = False
    answers: tuple[tuple[str, str], ...] = ()
    inline: bool = False
    force: str = ""
    shown: str = ""

    def is_on(self, given: Mapping[str, Any]) -> bool | None:
        """What the variables of the template say; None where they say nothing."""
        if any(given.get(name) in words for name, words in self.off.items()):
            return False
        said = [bool(given[name]) for name in self.kwargs if given.get(name) is not None]
        said += [given[name] in words for name, words in self.on.items() if given.get(name) is not None]
        return any(said) if said else None

    def is_forced(self, given: Mapping[str, Any]) -> bool:
        """Whether an answer that is all reasoning is content."""
        return self.force != "" and (given.get(self.force) is True or self.is_on(given) is False)

    @property
    def markers(self) -> set[str]:
        return {self.start, self.end, *self.starts, *self.ends, *(marker for pair in self.answers for marker in pair)}


@dataclass(frozen=True)
class Json:
    """Arguments behind a header, as one object in ``notation``."""

    notation: Notation = JSON


@dataclass(frozen=True)
class JsonCall:
    """An object that names the function and holds its arguments, or a list of such objects.

    ``name`` empty: the object's one key is the name and its value the arguments. ``bare``: no marker tells such an
    object from other JSON, so that one with the name of no tool is a call only if it has arguments.
    """

    name: tuple[str, ...] = ("name", "tool_name", "function")
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id", "tool_call_id")
    bare: bool = False


@dataclass(frozen=True)
class Python:
    """Calls as Python writes them, in a list or one after another. ``known``: only of tools that were given."""

    known: bool = False


class Trim(Enum):
    """What is taken from both ends of a tag's value: nothing, one line break, all white space."""

    NOTHING = 0
    LINE = 1
    SPACE = 2


@dataclass(frozen=True)
class Tags:
    """A pair of tags a parameter: the states KEY and VALUE.

    ``unwrap``: a single parameter of such a name that the tool does not have, holding an object of parameters that it
    has, is its arguments. ``quotes``: markers around a value that are no part of it.
    """

    trim: Trim = Trim.NOTHING
    unwrap: tuple[str, ...] = ()
    quotes: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Elements:
    """Nested elements: ``mark``<key>value``mark``</key>, those of an object in it, those of a list named ``item``."""

    mark: str
    item: str = "item"


Style = Json | JsonCall | Python | Tags | Elements
Row = Mapping[str, str | To]
Table = Mapping[str, Row]


class Example(NamedTuple):
    """A format's own example. ``wire``: what a model writes. ``calls``: names and arguments (parsed)."""

    wire: str
    reasoning: str = ""
    content: str = ""
    calls: tuple[tuple[str, dict], ...] = ()
    prompt: str = ""
    stopped: bool = True


@dataclass(frozen=True, kw_only=True)
class ParserSpec:
    """``table``: state -> marker -> where it leads. A marker that is one added token of the tokenizer matches by id,
    any other as text. ``args``: how arguments are written in a state of role ARGS. ``roles``: of states of its own.

    ``header``: reads what stood in a NAME state. ``start``: the state of an answer in which no reasoning is open.
    ``fused``: reasoning and calls are one format of messages; the table holds both. ``data``: special tokens that are
    text in states that name no use for them; others that no row names are dropped.
    ``hints``: texts that a template of this format holds, all of them (one that is a special token of the tokenizer
    counts too); none: never chosen by itself. ``tokens``: markers that are special tokens of the family's tokenizers;
    tests build theirs from them. ``grammar``: the format's texts around a call, for grammars.
    ``refit``: the same format as a vocabulary spells it, by its added tokens.
    """

    name: str
    think: Think | None = None
    table: Table = field(default_factory=dict)
    args: Mapping[str, Style] = field(default_factory=dict)
    roles: Mapping[str, Role] = field(default_factory=dict)
    header: Callable[[str], Head] = plain_name
    start: str = CONTENT
    ids: str = "random"
    fused: bool = False
    data: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    grammar: "Wire | None" = None
    refit: "Callable[[Collection[str]], ParserSpec] | None" = None

    def role(self, state: str) -> Role:
        if state in self.args:
            return Role.ARGS
        return self.roles.get(state) or ROLES[state]

    def markers(self) -> set[str]:
        """Every marker of the format."""
        found = {marker for row in self.table.values() for marker in row}
        found |= set(self.data)
        found |= {style.notation.mark for style in self.args.values() if isinstance(style, Json)}
        if self.think is not None:
            found |= self.think.markers
        return found - {""}


class Wire(NamedTuple):
    """How calls are written, for grammars: ``begin`` call (``between`` call)* ``end``; {name} stands for the name.

    ``call``: the text before the arguments; ``close``: behind them. ``value``: for tags and elements, the text before
    and behind a parameter's value, {key} for its name. ``says``: of a format of messages those that are no call, with
    {text} in them: the first is reasoning, the last the answer; ``then``: between one and the next message. Reasoning
    then ends in no marker of its own, so that the grammar has to hold from the answer's first token.
    """

    begin: str
    call: str
    close: str
    end: str = ""
    between: str = ""
    value: tuple[str, str] | None = None
    says: tuple[str, ...] = ()
    then: str = ""


def tag_rows(ends: Row, key: str, key_end: str, value_end: str, value: str = "") -> dict[str, Row]:
    """The rows of a format of tag pairs. ``ends``: markers that end a call. ``key`` ... ``key_end``: around a name;
    ``value``: a tag of its own before the value; ``value_end``: behind it.

    Where a value's end is missing, the next tag ends it if it begins a line.
    """
    at_line = {marker: _line(to) for marker, to in {key: KEY, **ends}.items()}
    rows: dict[str, Row] = {
        ARGS: {key: KEY, **ends},
        KEY: {key_end: GAP if value else VALUE},
        VALUE: {**at_line, value_end: AFTER},
        AFTER: {key: KEY, **ends},
    }
    if value:
        rows[GAP] = {value: VALUE, key: KEY, **ends}
    return rows


def _line(to: str | To) -> To:
    return To(to, line=True) if isinstance(to, str) else to._replace(line=True)
