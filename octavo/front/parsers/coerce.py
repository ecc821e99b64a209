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
    """A tool's parameters: which types each may have. Anything that is no schema says nothing."""

    __slots__ = ("_kinds", "_properties", "_root")

    def __init__(self, root: Any):
        self._root = root if isinstance(root, Mapping) else {}
        found = resolve(self._root, self._root).get("properties")
        self._properties: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        self._kinds: dict[str, frozenset[str]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._properties

    def __len__(self) -> int:
        return len(self._properties)

    def types(self, key: str) -> frozenset[str]:
        """Types that parameter ``key`` may have; none where the schema does not say."""
        if key not in self._kinds:
            self._kinds[key] = types(self._properties.get(key), self._root)
        return self._kinds[key]

    def is_text(self, key: str) -> bool:
        """Whether a value of ``key`` is a string whatever it looks like, so that it can be told as it comes."""
        return self.types(key) <= {"string"}

    def coerce(self, key: str, text: str) -> Any:
        """``text`` as a value of parameter ``key``."""
        return coerce(text, self._properties.get(key), self._root)


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


def types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """JSON types that ``schema`` allows, by what it names; empty where it names none."""
    schema = resolve(schema, root)
    found: set[str] = set()
    named = schema.get("type")
    for name in named if isinstance(named, (list, tuple)) else [named]:
        if isinstance(name, str):
            found.add(_canonical(name))
    values = schema.get("enum")
    if named is None:
        values = list(values) if isinstance(values, (list, tuple)) else []
        for value in [*values, schema["const"]] if "const" in schema else values:
            found.add("null" if value is None else next((n for t, n in _NAMES if isinstance(value, t)), "string"))
    if depth < _DEPTH:
        for word in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(word)
            if isinstance(parts, (list, tuple)):
                for part in parts[:64]:
                    found |= types(part, root, depth + 1)
    if not found and "properties" in schema:
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
                return _inner(found, schema, root, depth) if kind in ("object", "array") else found
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


def _inner(value: Any, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """Strings inside objects and arrays whose schema wants another type."""
    if depth >= _DEPTH:
        return value
    if isinstance(value, str):
        kinds = types(schema, root)
        return value if not kinds or "string" in kinds else coerce(value, schema, root, depth + 1)
    schema = resolve(schema, root)
    if isinstance(value, dict):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            return {key: _inner(item, properties.get(key), root, depth + 1) for key, item in value.items()}
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [_inner(item, schema["items"], root, depth + 1) for item in value]
    return value
