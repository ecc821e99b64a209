"""A request's grammar as llguidance takes it: everything is written as Lark, its JSON schemas checked on the way.

Forcing is off: where only one text can follow, a mask still leaves to the model how to cut it into tokens.
"""

import json
import re
from collections.abc import Callable

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from octavo.core.grammar import schema, tags
from octavo.core.grammar.base import PARAM
from octavo.errors import BadRequest
from octavo.wire.request import GrammarRef

#: Parentheses and brackets that nest in a grammar or regex; deeper ones would break the stack of a parser.
MAX_NEST = 100
_OPTIONS = re.compile(r"^\s*%llguidance\s*(\{[^{}]*\})\s*$", re.MULTILINE)
_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_JSON = re.compile(r"%json\s*(?=[{tf])")
_LISTING = re.compile(r"^\s*(\d+ \||\^).*$", re.MULTILINE)
_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")


def llguidance(ref: GrammarRef) -> str:
    """Raises ``BadRequest``."""
    try:
        body = KINDS[ref.kind]
    except KeyError:
        raise BadRequest(f"structured outputs of kind {ref.kind!r} are not known", PARAM) from None
    return lark(body(ref))


def lark(body: str, options: dict | None = None) -> str:
    return f"%llguidance {json.dumps({**(options or {}), 'no_forcing': True})}\n{body}\n"


def json_schema(ref: GrammarRef) -> str:
    return "start: " + schema_lark(schema.parse(ref.text), ref)


def schema_lark(value: schema.Schema, ref: GrammarRef) -> str:
    """A schema as a term of a Lark rule. Raises ``BadRequest`` that names a keyword that cannot be enforced."""
    layout = None
    if ref.kind == "lark" and isinstance(value, dict):  # this program's own grammars say how JSON is laid out
        layout = value.get("x-guidance")
        value = {word: inner for word, inner in value.items() if word != "x-guidance"}
    return "%json " + schema.write(value, whitespace=ref.whitespace, closed=ref.closed, layout=layout)


def json_object(ref: GrammarRef) -> str:
    return "start: " + schema_lark({"type": "object"}, ref)


def regex_term(text: str) -> str:
    nests(text, "the regex")
    return "/" + regex_to_lark(text, "") + "/"


def regex(ref: GrammarRef) -> str:
    return "start: " + regex_term(ref.text)


def choice(ref: GrammarRef) -> str:
    # One lexeme: so many alternatives of a rule would be too many for a parser.
    return "start: CHOICE\nCHOICE: " + " | ".join(map(quoted, json.loads(ref.text)))


def quoted(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def is_gbnf(text: str) -> bool:
    """Whether a rule is written with ``::=``; Lark otherwise."""
    return _RULE.search(text) is not None


def grammar(ref: GrammarRef) -> str:
    text = ref.text
    if is_gbnf(text):
        nests(text, "the grammar")
        try:
            text = any_to_lark(text)
        except Exception as error:
            raise BadRequest(f"the grammar is no GBNF: {sentence(str(error))}", PARAM) from None
    return own_lark(text, lambda value: schema_lark(value, ref))


def own_lark(text: str, write: Callable[[schema.Schema], str]) -> str:
    """Lark with each schema in it as ``write`` writes it. Raises ``BadRequest``."""
    nests(text, "the grammar")
    text = _OPTIONS.sub(_no_options, text)
    if "%llguidance" in text:
        raise BadRequest("the grammar must not set options of %llguidance", PARAM)
    pieces, at = [], 0
    decoder = json.JSONDecoder()
    while found := _JSON.search(text, at):
        try:
            value, end = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            raise BadRequest("the grammar has a %json that is no JSON", PARAM) from None
        pieces += [text[at : found.start()], write(value)]
        at = end
    return "".join([*pieces, text[at:]])


def _no_options(found: re.Match[str]) -> str:
    try:
        options = json.loads(found[1])
    except ValueError:
        options = None
    if options not in ({}, {"no_forcing": True}):
        raise BadRequest("the grammar must not set options of %llguidance", PARAM)
    return ""


def structural_tag(ref: GrammarRef) -> str:
    return tags.write(ref, lambda value: schema_lark(value, ref), regex_term, quoted)


def nests(text: str, what: str) -> None:
    """Raises ``BadRequest`` for brackets that nest too deep, counted without regard to quotes and escapes."""
    depth = 0
    for char in re.findall(r"[()\[\]{}]", text):
        depth += 1 if char in "([{" else -1 if depth else 0
        if depth > MAX_NEST:
            raise BadRequest(f"{what} nests brackets more than {MAX_NEST} deep", PARAM)


KINDS: dict[str, Callable[[GrammarRef], str]] = {
    "json_schema": json_schema,
    "json_object": json_object,
    "regex": regex,
    "choice": choice,
    "grammar": grammar,
    "lark": lambda ref: own_lark(ref.text, lambda value: schema_lark(value, ref)),
    "structural_tag": structural_tag,
}


def sentence(text: str) -> str:
    """An error of the library as one line, without the listing of the grammar."""
    if "oneOf constraints are not supported" in text:
        return "'oneOf' can be enforced only where its schemas visibly exclude one another; 'anyOf' may do"
    line = _PLACE.sub("", " ".join(_LISTING.sub("", text).split()))
    return line if len(line) <= 400 else line[:397] + "..."
