"""ParserSpec: a format as data. States, the markers that lead from one to another, how arguments are written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from octavo.front.parsers.values import JSON, Notation

#: The states that formats usually have. A format may add its own, with a role.
CONTENT, REASONING, WRAP, NAME, ARGS, BETWEEN = "content", "reasoning", "wrap", "name", "args", "between"
KEY, GAP, VALUE, AFTER = "key", "gap", "value", "after"


class Role(Enum):
    """What the text of a state is.

    WRAP: before a call's name, where only space may stand. BETWEEN: behind a call, where other text than space is
    content. AFTER: behind what may be the end of a value. DROP: nothing.
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


ROLES = {
    CONTENT: Role.CONTENT, REASONING: Role.REASONING, WRAP: Role.WRAP, NAME: Role.NAME, ARGS: Role.ARGS,
    BETWEEN: Role.BETWEEN, KEY: Role.KEY, GAP: Role.DROP, VALUE: Role.VALUE, AFTER: Role.AFTER,
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
    ``reenter``: the start marker counts in the middle of content as well. ``implicit``: a call's marker ends it.
    ``trim``: white space at its end is not told. ``label``: a word of the format that stands first in it; at the very
    front of an answer it begins reasoning without the start marker.
    """

    start: str
    end: str
    kwargs: tuple[str, ...] = ("enable_thinking", "thinking")
    default: bool = True
    reenter: bool = False
    implicit: bool = True
    trim: bool = False
    label: str = ""


@dataclass(frozen=True)
class Json:
    """Arguments behind a header, as one object in ``notation``."""

    notation: Notation = JSON


@dataclass(frozen=True)
class JsonCall:
    """An object that names the function and holds its arguments, or a list of such objects.

    ``name`` empty: the object's one key is the name and its value the arguments.
    """

    name: tuple[str, ...] = ("name", "tool_name", "function")
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id", "tool_call_id")


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
    has, is its arguments.
    """

    trim: Trim = Trim.NOTHING
    unwrap: tuple[str, ...] = ()


Style = Json | JsonCall | Python | Tags
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
            found |= {self.think.start, self.think.end}
        return found - {""}


class Wire(NamedTuple):
    """How calls are written, for grammars: ``begin`` call (``between`` call)* ``end``; {name} stands for the name.

    ``call``: the text before the arguments; ``close``: behind them. ``value``: for tags, the text before and behind a
    parameter's value, {key} for its name. ``lead``: what may stand before, {text} in it: reasoning that ends in no
    marker of its own, so that the grammar has to hold from the answer's first token.
    """

    begin: str
    call: str
    close: str
    end: str = ""
    between: str = ""
    value: tuple[str, str] | None = None
    lead: str = ""


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
