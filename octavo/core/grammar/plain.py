"""Keywords that a grammar does not know, said in others that it does, where that is exactly the same.

What is not the same in any case stays as it is, and is refused by its name (``schema``). Sources: JSON Schema draft
2020-12, Core 10.3.2.4 (``propertyNames``) and 11 (``unevaluated...``), Validation 6.4.3 (``uniqueItems``).
"""

from typing import Any

#: Words whose schemas look at the same instance: what they evaluate is not unevaluated any more.
_IN_PLACE = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "$ref",
        "allOf",
        "anyOf",
        "contains",
        "dependencies",
        "dependentSchemas",
        "else",
        "extends",
        "if",
        "not",
        "oneOf",
        "then",
    }
)
#: Names that are listed; a schema may hold as many properties anyway.
_NAMES = 1000


def plain(value: dict[str, Any], root: Any, annotations: frozenset[str]) -> dict[str, Any]:
    """A schema that allows the same; ``root`` is the whole that local references point into."""
    value = _unevaluated(value)
    if value.get("uniqueItems") is True and value.get("maxItems") in (0, 1):
        value = _without(value, "uniqueItems")
    if "propertyNames" in value:
        value = _names(value, root, annotations)
    return value


def _without(value: dict[str, Any], *words: str) -> dict[str, Any]:
    return {word: inner for word, inner in value.items() if word not in words}


def _unevaluated(value: dict[str, Any]) -> dict[str, Any]:
    """With nothing that looks at the same instance, what is not evaluated is what is additional."""
    for word in ("unevaluatedProperties", "unevaluatedItems"):
        inner = value.get(word)
        if not isinstance(inner, (dict, bool)) or value.keys() & _IN_PLACE:
            continue
        value = _without(value, word)
        if word == "unevaluatedProperties":
            value.setdefault("additionalProperties", inner)
        else:
            value.setdefault("additionalItems" if isinstance(value.get("items"), list) else "items", inner)
    return value


def _names(value: dict[str, Any], root: Any, annotations: frozenset[str]) -> dict[str, Any]:
    """Names that are listed become properties, those of a pattern properties of that pattern; no others are allowed."""
    names = _resolved(value["propertyNames"], root)
    if not isinstance(names, dict):
        return value
    names = {word: inner for word, inner in names.items() if word not in annotations}
    kind = names.pop("type", "string")
    if kind != "string" and not (isinstance(kind, list) and "string" in kind):
        return value
    found = _without(value, "propertyNames")
    if not names:
        return found
    rest, own = value.get("additionalProperties", True), value.get("properties", {})
    if value.get("patternProperties") or not isinstance(own, dict):
        return value
    if names.keys() == {"enum"} or names.keys() == {"const"}:
        listed = names["enum"] if "enum" in names else [names["const"]]
        if not isinstance(listed, list) or len(listed) > _NAMES:
            return value
        texts = [name for name in listed if isinstance(name, str)]
        required = value.get("required", [])
        if not isinstance(required, list) or not all(name in texts for name in required):
            return value
        kept = {name: inner for name, inner in own.items() if name in texts}
        found["properties"] = kept | {name: rest for name in texts if name not in kept}
    elif own or value.get("required"):  # whether a pattern has a name is for the library to say
        return value
    elif names.keys() == {"pattern"} and isinstance(names["pattern"], str):
        found["patternProperties"] = {names["pattern"]: rest}
    elif names.keys() <= {"minLength", "maxLength"} and all(map(_count, names.values())):
        least, most = names.get("minLength", 0), names.get("maxLength", "")
        found["patternProperties"] = {f"^[\\s\\S]{{{least},{most}}}$": rest}
    else:
        return value
    found["additionalProperties"] = False
    return found


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NAMES


def _resolved(value: Any, root: Any) -> Any:
    """What a reference points to, where it is local and stands alone; a reference to a reference is left as it is."""
    if not isinstance(value, dict) or value.keys() != {"$ref"} or not str(value["$ref"]).startswith("#/"):
        return value
    found = root
    for part in str(value["$ref"])[2:].split("/"):
        if not isinstance(found, dict) or "%" in part or "~" in part or part not in found:
            return value
        found = found[part]
    return found
