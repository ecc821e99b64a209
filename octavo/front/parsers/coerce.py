"""Values that a model writes as text, made what the tool's JSON schema says they are."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_ALIASES = {
    "str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string",
    "int": "integer", "long": "integer", "short": "integer", "unsigned": "integer",
    "float": "number", "double": "number", "float32": "number", "float64": "number", "decimal": "number",
    "bool": "boolean", "binary": "boolean", "dict": "object", "map": "object",
    "arr": "array", "list": "array", "sequence": "array", "tuple": "array", "none": "null",
}  # fmt: skip
_SIZED = re.compile(r"u?int\d{1,3}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?")
#: Levels of $ref, anyOf and of values that are followed.
_DEPTH = 16
#: Schemas that one is put together of.
_PARTS = 256
#: Levels of brackets of a value that is read whole.
_LEVELS = 100
_NAMES = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"))
_ALL = frozenset({"null", "integer", "number", "boolean", "object", "array", "string"})
_MISS = object()


def dumps(value: Any) -> str:
    """JSON with characters as they are; half a pair of UTF-16, which is none, as its escape."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def escaped(text: str) -> str:
    """``text`` as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def loads(text: str) -> Any:
    """The finite JSON value that ``text`` is. Raises ``ValueError``, for one nested too deep as well."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if text.count("[") + text.count("{") > _LEVELS:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
        ]
        if not level:
            return
    raise ValueError("nested too deep")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


class Schema:
    """What a schema says of a value and of what is in it; a tool's parameters are the members of its root.

    Anything that is no schema says nothing. What is asked for twice is worked out once.
    """

    __slots__ = ("_items", "_kinds", "_members", "_node", "_parts", "_root")

    def __init__(self, node: Any, root: Mapping[str, Any] | None = None):
        self._root: Mapping[str, Any] = root if root is not None else node if isinstance(node, Mapping) else {}
        self._node = node
        self._parts: list[Mapping[str, Any]] | None = None
        self._kinds: frozenset[str] | None = None
        self._items: Schema | None = None
        self._members: dict[str, Schema] = {}

    def _said(self, word: str) -> list[Any]:
        """What the schema and the parts that it is put together of say under ``word``."""
        if self._parts is None:
            self._parts = parts(self._node, self._root)
        return [part[word] for part in self._parts if word in part]

    def _all(self, schemas: list[Any]) -> "Schema":
        return NOTHING if not schemas else Schema(schemas[0] if len(schemas) == 1 else {"anyOf": schemas}, self._root)

    @property
    def kinds(self) -> frozenset[str]:
        """Types that the value may have; none where the schema does not say."""
        if self._kinds is None:
            self._kinds = types(self._node, self._root)
        return self._kinds

    @property
    def says_text(self) -> bool:
        """Whether the value is a string whatever it looks like, so that it can be told as it comes."""
        return self.kinds <= {"string"}

    @property
    def no_text(self) -> bool:
        """Whether a string is none of what the value may be."""
        return bool(self.kinds) and "string" not in self.kinds

    def member(self, key: str) -> "Schema":
        """Of an object's member ``key``."""
        if key not in self._members:
            if key not in self and not self._said("additionalProperties"):
                return NOTHING  # and nothing is kept, whatever a model writes
            found = [props[key] for props in self._said("properties") if isinstance(props, Mapping) and key in props]
            more = [extra for extra in self._said("additionalProperties") if isinstance(extra, Mapping)]
            self._members[key] = self._all(found or more)
        return self._members[key]

    @property
    def items(self) -> "Schema":
        """Of a list's elements."""
        if self._items is None:
            self._items = self._all([items for items in self._said("items") if isinstance(items, Mapping)])
        return self._items

    def value(self, text: str) -> Any:
        """``text`` as a value."""
        return coerce(text, self._node, self._root)

    def __contains__(self, key: str) -> bool:
        return any(isinstance(props, Mapping) and key in props for props in self._said("properties"))

    def __len__(self) -> int:
        return sum(len(props) for props in self._said("properties") if isinstance(props, Mapping))

    def types(self, key: str) -> frozenset[str]:
        return self.member(key).kinds

    def is_text(self, key: str) -> bool:
        return self.member(key).says_text

    def coerce(self, key: str, text: str) -> Any:
        """``text`` as a value of parameter ``key``."""
        return self.member(key).value(text)


#: Of a value of which nothing is known.
NOTHING = Schema(None)


def resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """``schema`` with a local ``$ref`` followed, a bounded number of times; empty where it is none."""
    for _ in range(_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        ref = schema.get("$ref")
        if not isinstance(ref, str):
            return schema
        target: Any = root
        if not ref.startswith("#"):
            return {}
        for part in ref[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            target = target.get(part) if isinstance(target, Mapping) else None
        schema = target
    return {}


def parts(schema: Any, root: Mapping[str, Any], depth: int = 0) -> list[Mapping[str, Any]]:
    """``schema`` and all that its anyOf, oneOf and allOf are made of, as far as they are bounded."""
    schema = resolve(schema, root)
    found = [schema]
    for word in ("anyOf", "oneOf", "allOf"):
        inner = schema.get(word)
        if isinstance(inner, (list, tuple)) and depth < _DEPTH:
            for part in inner[:64]:
                if len(found) < _PARTS:
                    found += parts(part, root, depth + 1)
    return found[:_PARTS]


def types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """JSON types that ``schema`` allows, by what it names; empty where it names none."""
    found: set[str] = set()
    for part in parts(schema, root):
        named = part.get("type")
        for name in named if isinstance(named, (list, tuple)) else [named]:
            if isinstance(name, str):
                found.add(_canonical(name))
        if named is None:
            values = part.get("enum")
            values = list(values) if isinstance(values, (list, tuple)) else []
            for value in [*values, part["const"]] if "const" in part else values:
                found.add("null" if value is None else next((n for t, n in _NAMES if isinstance(value, t)), "string"))
            if not values and "properties" in part:
                found.add("object")
    return frozenset(found & _ALL)


def _canonical(name: str) -> str:
    name = name.strip().lower()
    return "integer" if _SIZED.fullmatch(name) else _ALIASES.get(name, name)


def coerce(text: str, schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """``text`` as what ``schema`` says: the first that fits of null, integer, number, boolean, object, array, string.

    No schema: the text. One that nothing fits: the JSON value that the text is, else the text.
    """
    kinds = types(schema, root)
    if not kinds:
        return text
    bare = text.strip()
    for kind in ("null", "integer", "number", "boolean", "object", "array", "string"):
        if kind in kinds:
            found = _as(kind, bare, text)
            if found is not _MISS:
                return _inner(found, Schema(schema, root), depth) if kind in ("object", "array") else found
    try:
        return loads(bare)
    except ValueError:
        return text


def _as(kind: str, bare: str, text: str) -> Any:
    word = bare.lower()
    if kind == "null":
        return None if word in ("null", "none") else _MISS
    if kind == "integer":
        return int(bare) if _INTEGER.fullmatch(bare) else _MISS
    if kind == "number":
        return _number(bare)
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(word, _MISS)
    if kind == "string":
        return text
    try:
        value = loads(bare)
    except ValueError:
        return _MISS
    return value if isinstance(value, dict if kind == "object" else list) else _MISS


def _number(bare: str) -> Any:
    if not _NUMBER.fullmatch(bare):
        return _MISS
    value = float(bare)
    if not math.isfinite(value):
        return _MISS
    if value.is_integer():
        return int(bare) if _INTEGER.fullmatch(bare) else int(value)
    return value


def _inner(value: Any, schema: Schema, depth: int) -> Any:
    """Strings inside objects and arrays whose schema wants another type."""
    if depth >= _DEPTH:
        return value
    if isinstance(value, str):
        return coerce(value, schema._node, schema._root, depth + 1) if schema.no_text else value
    if isinstance(value, dict):
        return {key: _inner(item, schema.member(key), depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_inner(item, schema.items, depth + 1) for item in value]
    return value
