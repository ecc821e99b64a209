"""What an answer with tools must look like: the grammar of its calls, joined with what else the request asks for."""

import json
from collections.abc import Sequence
from typing import Any

from octavo.errors import BadRequest
from octavo.front.chat.tools import Choice
from octavo.front.parsers.base import Format, Tool
from octavo.params import StructuredOutputsParams


def constraint(
    form: Format | None,
    tools: Sequence[Tool],
    choice: Choice,
    parallel: bool,
    asked: StructuredOutputsParams | None = None,
) -> StructuredOutputsParams | None:
    """Of an answer in which ``tools`` may be called, or must be; ``asked`` holds for what is not a call. None where an
    answer may be any text. ``form``: one with a grammar where a call is forced.

    Raises ``BadRequest`` for what cannot be had together.
    """
    if form is None or choice.mode == "none" or not form.has_calls:
        return asked
    strict = any(tool.strict for tool in tools)
    if asked is not None and not choice.forced:
        return _either(form, tools, parallel, asked, strict)
    if not choice.forced and not strict:
        return None
    lark = form.tool_grammar(tools, required=choice.forced, named=choice.name, parallel=parallel)
    if lark is None and strict:
        raise _unenforced(form)
    return None if lark is None else StructuredOutputsParams(lark=lark, param="tools")


def _unenforced(form: Format) -> BadRequest:
    return BadRequest(
        f"tools are strict, which the format {form.name!r} of this model's calls cannot be held to where text may come "
        "first; possible: tool_choice 'required' or the name of a tool, or tools without strict",
        "tools",
    )


def _either(
    form: Format, tools: Sequence[Tool], parallel: bool, asked: StructuredOutputsParams, strict: bool
) -> StructuredOutputsParams:
    """Calls, or JSON as ``asked``."""
    if asked.kind not in ("json_schema", "json_object"):
        raise BadRequest(
            f"{asked.param} of kind {asked.kind} leaves no room for calls: with tools it needs tool_choice 'none', or "
            "JSON as its kind",
            asked.param,
        )
    among = form.grammar_reasons
    if among and not strict:
        return asked  # calls stand among the reasoning, and ``asked`` holds behind it
    lark = form.tool_grammar(tools, required=not among, named=None, parallel=parallel, answer="answer")
    if lark is None:
        if strict:
            raise _unenforced(form)
        return asked  # without a grammar of calls none is made
    schema: Any = {"type": "object"} if asked.kind == "json_object" else _schema(asked)
    if isinstance(schema, dict) and "x-guidance" in schema:
        raise BadRequest("the JSON schema has 'x-guidance', which cannot be enforced", asked.param)
    if not among:
        lark = "start: calls | answer\n" + lark.replace("start:", "calls:", 1)
    return StructuredOutputsParams(lark=f"{lark}answer: %json {json.dumps(schema)}\n", param=asked.param)


def _schema(asked: StructuredOutputsParams) -> Any:
    try:
        return json.loads(asked.text)
    except (ValueError, RecursionError):
        raise BadRequest(f"{asked.param} is no JSON", asked.param) from None
