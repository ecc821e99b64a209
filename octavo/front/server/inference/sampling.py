"""SamplingParams as JSON: what /inference/v1/generate reads, and what the render routes write for it."""

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, cast

import msgspec

from octavo.common.words import nearest
from octavo.errors import BadRequest
from octavo.front.sampling import Asked, kind, over
from octavo.params import SamplingParams, StructuredOutputsParams

#: Fields that are the server's own to choose.
_OURS = ("output_kind", "detokenize", "extra_args")
_STRUCTURE = tuple(spec for spec in fields(StructuredOutputsParams) if spec.name != "param")
_KNOWN: dict[str, Field] = {spec.name: spec for spec in fields(SamplingParams) if spec.name not in _OURS}


def read(given: Mapping[str, Any], defaults: Mapping[str, Any], stream: bool) -> SamplingParams:
    """The parameters that ``given`` names over ``defaults``. Without ``max_tokens`` there is no limit but the default.

    Text is made only where stop strings need it. Raises ``BadRequest`` with ``param`` "sampling_params.<name>".
    """
    said = {name: value for name, value in given.items() if name in _KNOWN and value is not None}
    for name, value in given.items():
        if name not in _KNOWN and name not in _OURS and value not in (None, False, [], {}, 0):
            raise BadRequest(f"sampling_params has no field {name[:80]!r}{nearest(name, _KNOWN)}", _path(name[:80]))
    try:
        if (structure := said.get("structured_outputs")) is not None:
            said["structured_outputs"] = _structure(structure)
        asked = dict.fromkeys(Asked.__annotations__) | {"max_tokens": defaults.get("max_tokens"), **said}
        asked |= {"output_kind": kind(stream), "detokenize": bool(said.get("stop"))}
        return over(defaults, cast(Asked, asked))
    except BadRequest as error:
        raise BadRequest(error.message, _path(error.param)) from None


def write(params: SamplingParams, max_tokens: int) -> dict[str, Any]:
    """``params`` as JSON that ``read`` takes; nothing of it depends on the reader's defaults."""
    found = {name: value for name in _KNOWN if (value := getattr(params, name)) not in (None, [])}
    if params.structured_outputs is not None:
        asked = {spec.name: (getattr(params.structured_outputs, spec.name), spec.default) for spec in _STRUCTURE}
        found["structured_outputs"] = {name: value for name, (value, default) in asked.items() if value != default}
    return msgspec.to_builtins(found | {"max_tokens": max_tokens}, str_keys=True)


def _structure(given: Any) -> StructuredOutputsParams:
    """Of a JSON object, what only a render route writes included."""
    param = "structured_outputs"
    if not isinstance(given, Mapping):
        raise BadRequest("structured_outputs must be an object", param)
    names = [spec.name for spec in _STRUCTURE]
    for name, value in given.items():
        if name not in names and value not in (None, False):
            raise BadRequest(f"structured_outputs has no field {name[:80]!r}{nearest(name, names)}", param)
    return StructuredOutputsParams(
        **{name: value for name, value in given.items() if name in names and value is not None}
    )


def place(param: str | None) -> str | None:
    """Where a field of ``Intake.admit``'s errors stands in the body."""
    return "token_ids" if param == "prompt" else _path(param) if (param or "").partition(".")[0] in _KNOWN else param


def _path(name: str | None) -> str:
    return "sampling_params" if name is None else f"sampling_params.{name}"
