"""What ``response_format`` and ``structured_outputs`` of a body ask for."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from octavo.common.words import nearest
from octavo.errors import BadRequest
from octavo.params import StructuredOutputsParams

TYPES = ("text", "json_object", "json_schema", "structural_tag")
_OURS = ("lark", "free", "after", "opens", "open", "budget", "param")
FIELDS = tuple(spec.name for spec in fields(StructuredOutputsParams) if spec.name not in _OURS)


def structured(
    response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None
) -> StructuredOutputsParams | None:
    """None where an answer may be any text. Raises ``BadRequest``."""
    by_format = None if response_format is None else from_response_format(response_format)
    by_name = None if not structured_outputs else from_structured_outputs(structured_outputs)
    if by_format is not None and by_name is not None:
        raise BadRequest("response_format and structured_outputs exclude one another", "structured_outputs")
    return by_format or by_name


def from_response_format(given: Mapping[str, Any], param: str = "response_format") -> StructuredOutputsParams | None:
    """OpenAI's field, or what another API has in its place, whose name is ``param``."""
    kind = given.get("type")
    if kind not in TYPES:
        raise BadRequest(f"{param}.type is {str(kind)[:40]!r}; possible: {', '.join(TYPES)}", f"{param}.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True, param=param)
    if kind == "structural_tag":
        return StructuredOutputsParams(structural_tag=dict(given), param=param)
    inner = given.get("json_schema")
    if not isinstance(inner, Mapping):
        raise BadRequest(f"{param}.json_schema must be an object with 'name' and 'schema'", f"{param}.json_schema")
    for name, type_, word in (("name", str, "text"), ("strict", bool, "true or false"), ("description", str, "text")):
        if inner.get(name) is not None and not isinstance(inner[name], type_):
            raise BadRequest(f"{param}.json_schema.{name} must be {word}", f"{param}.json_schema.{name}")
    schema = inner.get("schema")
    if not isinstance(schema, (dict, bool)):
        raise BadRequest(f"{param}.json_schema.schema must be a JSON schema", f"{param}.json_schema.schema")
    return StructuredOutputsParams(json=schema, param=param)


def from_structured_outputs(given: Mapping[str, Any]) -> StructuredOutputsParams:
    """vLLM's field."""
    for name in given:
        if name not in FIELDS:
            raise BadRequest(
                f"structured_outputs has no field {name[:40]!r}{nearest(name, FIELDS)}; possible: {', '.join(FIELDS)}",
                "structured_outputs",
            )
    return StructuredOutputsParams(**{name: value for name, value in given.items() if value is not None})
