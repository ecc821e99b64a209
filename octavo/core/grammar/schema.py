"""JSON schemas of all drafts, rewritten to draft 2020-12 as llguidance enforces it.

A keyword is enforced, is said in other words (``plain``), is an annotation, or is refused by its name. What the library
itself refuses (``not``, ``if``, ``uniqueItems``, ...) it names; here is what it would pass over in silence, and what
older drafts say in other words.
Words of no draft are annotations, as the specification has it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from octavo.core.grammar.base import PARAM
from octavo.core.grammar.plain import plain
from octavo.errors import BadRequest

Schema: TypeAlias = "dict[str, Any] | bool"
MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_ENUM = 10_000
#: Of lengths and counts; of numbers: what 64 bits hold.
MAX_COUNT = 1_000_000
MAX_BOUND = 2**63 - 1

#: Keywords whose value is a schema, a list of schemas, or an object of schemas.
_ONE = frozenset({"additionalProperties", "items"})
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAP = frozenset({"properties", "patternProperties", "$defs", "definitions"})
#: Words of some draft that the library does not enforce.
REFUSED = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "disallow",
        "divisibleBy",
        "else",
        "extends",
        "formatExclusiveMaximum",
        "formatExclusiveMinimum",
        "formatMaximum",
        "formatMinimum",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
        "x-guidance",
    }
)
#: Words that say nothing about what is valid, and so would only be carried along.
ANNOTATIONS = frozenset(
    {
        "$comment",
        "$dynamicAnchor",
        "$recursiveAnchor",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    }
)
#: Words that are passed on as they are, and their enforcement tested.
PLAIN = frozenset(
    {
        "$anchor",
        "$id",
        "$ref",
        "const",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "required",
        "type",
    }
)


#: Formats that are enforced. The library's dates know no leap years and its times take seconds of 60.
_MONTHS = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = f"({_YEAR}-({_MONTHS})|{_LEAP}-02-29)"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR}:[0-5][0-9](\\.[0-9]{{1,9}})?([Zz]|[+-]{_HOUR})"
OWN_FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[Tt]{_TIME}$"}
FORMATS = (*OWN_FORMATS, "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
#: Letters of escapes in strings. Not u: an escaped property name would pass as another one.
ESCAPES = 'nrbtf\\"'
#: Between the tokens of JSON: bounded, since a weak model can go on with spaces for ever.
MAX_WHITESPACE = 100
WHITESPACE = f"[ \\t\\r\\n]{{1,{MAX_WHITESPACE}}}"
#: Characters that only an escape with u could write.
_UNSAYABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")
#: A pattern's parts: an escape, the begin of a set, or a character.
_PART = re.compile(r"\\[pP]\{[^}]*\}|\\[pP].|\\.|\[\^|.|\\", re.DOTALL)
#: Numbers that bound others.
_BOUNDS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
_COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})


def parse(text: str) -> Schema:
    """Raises ``BadRequest``."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise BadRequest(f"the JSON schema nests more than {MAX_DEPTH} deep", PARAM) from None
    except ValueError as error:
        raise BadRequest(f"the JSON schema is no JSON: {error}", PARAM) from None
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def write(
    value: Schema,
    whitespace: str | None = None,
    closed: bool = False,
    layout: Mapping[str, Any] | None = None,
) -> str:
    """As text for llguidance; ``whitespace`` and ``closed`` as in ``wire.GrammarRef``, ``layout``: options instead of
    the former. Raises ``BadRequest``."""
    rewritten = Rewriter(closed).schema(value, "", 0)
    if rewritten is True:
        rewritten = {}
    if rewritten is False:
        raise BadRequest("the JSON schema is false, which nothing satisfies", PARAM)
    options: dict[str, Any] = {"json_allowed_escapes": ESCAPES, "whitespace_pattern": whitespace or WHITESPACE}
    if whitespace == "":
        options = {"json_allowed_escapes": ESCAPES, "whitespace_flexible": False}
    if layout is not None:
        options = {"json_allowed_escapes": ESCAPES, **layout}
    try:
        return json.dumps({**rewritten, "x-guidance": options}, allow_nan=False)
    except ValueError:
        raise BadRequest("the JSON schema has a number that is too large", PARAM) from None


class Rewriter:
    def __init__(self, closed: bool):
        self._closed = closed
        self._nodes = 0
        self._root: Any = None

    def schema(self, value: Any, where: str, depth: int) -> Schema:
        """One schema, whose place is ``where`` (a JSON pointer)."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise BadRequest(f"the JSON schema has more than {MAX_NODES} subschemas", PARAM)
        if depth > MAX_DEPTH:
            raise BadRequest(f"the JSON schema nests more than {MAX_DEPTH} deep", PARAM)
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise BadRequest(f"a JSON schema must be an object, true or false{_at(where)}", PARAM)
        if not where:
            self._root = value
        value = plain(value, self._root, ANNOTATIONS)
        found: dict[str, Any] = {}
        for word, inner in value.items():
            place = f"{where}/{word[:40]}"
            if word in ANNOTATIONS:
                continue
            if word in REFUSED and not _says_nothing(word, inner):
                raise BadRequest(f"the JSON schema has {word!r}, which cannot be enforced{_at(where)}", PARAM)
            if word == "patternProperties" and isinstance(inner, dict):
                inner = {sayable(pattern): one for pattern, one in inner.items()}
            if word in _MAP:
                if not isinstance(inner, dict):
                    raise BadRequest(f"{word!r} must be an object{_at(where)}", PARAM)
                if word == "properties":
                    self._sayable(word, list(inner), where)
                found[word] = {key: self.schema(one, f"{place}/{key[:40]}", depth + 1) for key, one in inner.items()}
            elif word in _LIST or (word == "items" and isinstance(inner, list)):
                if not isinstance(inner, list) or not (inner or word == "items"):
                    raise BadRequest(f"{word!r} must be a list that is not empty{_at(where)}", PARAM)
                found[word] = [self.schema(one, f"{place}/{i}", depth + 1) for i, one in enumerate(inner)]
            elif word in _ONE:
                found[word] = self.schema(inner, place, depth + 1)
            elif word == "additionalItems":
                if isinstance(value.get("items"), list):
                    found[word] = self.schema(inner, place, depth + 1)
            elif word in PLAIN:
                self._plain(word, inner, value, where)
                found[word] = sayable(inner) if word == "pattern" and isinstance(inner, str) else inner
        self._older(found, value, where)
        if isinstance(found.get("format"), str) and found["format"] in OWN_FORMATS:
            found.setdefault("allOf", []).append({"pattern": OWN_FORMATS[found.pop("format")]})
        if self._closed and found.keys() & {"properties", "patternProperties"}:
            found.setdefault("additionalProperties", False)
        return found

    def _plain(self, word: str, inner: Any, value: dict[str, Any], where: str) -> None:
        """Raises ``BadRequest`` for a value that would not be enforced."""
        if word == "$ref" and not (isinstance(inner, str) and inner.startswith("#")):
            raise BadRequest(
                f"'$ref' must point into the schema itself, with '#', not to {str(inner)[:80]!r}{_at(where)}", PARAM
            )
        if word == "$id" and where:
            raise BadRequest(f"'$id' is supported at the root of a JSON schema only{_at(where)}", PARAM)
        if word in ("const", "enum"):
            self._sayable(word, inner, where)
        if word == "format" and inner not in FORMATS:
            raise BadRequest(
                f"'format' {str(inner)[:40]!r} cannot be enforced; possible: {', '.join(FORMATS)}{_at(where)}", PARAM
            )
        if word in _COUNTS and not (_whole(inner) and 0 <= inner <= MAX_COUNT):
            raise BadRequest(f"{word!r} must be a whole number from 0 to {MAX_COUNT}{_at(where)}", PARAM)
        if word in _BOUNDS and not (isinstance(inner, (int, float)) and abs(inner) <= MAX_BOUND):
            raise BadRequest(f"{word!r} must be a number of at most {MAX_BOUND}{_at(where)}", PARAM)
        if word == "minProperties" and _whole(inner):
            # A free property may come twice, and then counts once.
            required = value.get("required")
            if inner > 1 + (len(set(map(str, required))) if isinstance(required, list) else 0):
                raise BadRequest(
                    f"'minProperties' is enforced up to one more than there are 'required' ones{_at(where)}", PARAM
                )

    def _sayable(self, word: str, value: Any, where: str) -> None:
        """Raises ``BadRequest`` for a fixed value that is too large, or that no answer can hold."""
        if word == "enum" and isinstance(value, list) and len(value) > MAX_ENUM:
            raise BadRequest(f"'enum' may hold at most {MAX_ENUM} values, got {len(value)}{_at(where)}", PARAM)
        stack = [(value, 0)]
        while stack:
            one, depth = stack.pop()
            self._nodes += 1
            if self._nodes > MAX_NODES or depth > MAX_DEPTH:
                raise BadRequest(f"{word!r} is too large{_at(where)}", PARAM)
            if isinstance(one, str) and _UNSAYABLE.search(one):
                raise BadRequest(f"{word!r} has a control character{_at(where)}", PARAM)
            if isinstance(one, dict):
                stack += [(part, depth + 1) for pair in one.items() for part in pair]
            elif isinstance(one, list):
                stack += [(part, depth + 1) for part in one]

    @staticmethod
    def _older(found: dict[str, Any], value: dict[str, Any], where: str) -> None:
        """What older drafts write in other words."""
        if isinstance(found.get("items"), list):
            if "prefixItems" in found:
                raise BadRequest(f"'items' must be a schema where there is 'prefixItems'{_at(where)}", PARAM)
            items, rest = found.pop("items"), found.pop("additionalItems", True)
            if items:
                found["prefixItems"] = items
            found["items"] = rest
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and bound in found:  # draft 4
                found[exclusive] = found.pop(bound)
        if "id" in value and isinstance(value["id"], str) and where and "$ref" in value:
            raise BadRequest(f"'id' beside '$ref' is not supported{_at(where)}", PARAM)


def sayable(pattern: str) -> str:
    """A pattern whose sets leave out a control character that no answer can hold anyhow: where a set has all of them,
    the library also lets an escaped quote and backslash through, whether the set has these or not."""
    found: list[str] = []
    opened = ""
    for part in _PART.findall(pattern):
        if part in ("[", "[^") and not opened:
            opened = part
            found.append("[^\\x01" if part == "[^" else "[[")
        elif part == "]" and opened:
            found.append("]" if opened == "[^" else "]&&[^\\x01]]")
            opened = ""
        elif part[:2] == "\\P" and not opened:
            found.append(f"[{part}&&[^\\x01]]")
        else:
            found.append(part)
    return "".join(found)


def _whole(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)


def _says_nothing(word: str, inner: Any) -> bool:
    """Whether a keyword that cannot be enforced asks for nothing."""
    if word == "uniqueItems":
        return inner is False
    if word in ("unevaluatedProperties", "unevaluatedItems", "propertyNames"):
        return inner is True or inner == {}
    return word in ("dependentRequired", "dependentSchemas", "dependencies") and inner == {}


def _at(where: str) -> str:
    return f" (at #{where[:200]})" if where else ""
