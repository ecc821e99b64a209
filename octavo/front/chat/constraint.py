"""What an answer with tools must look like: the grammar of its calls, joined with what else the request asks for."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from octavo.errors import BadRequest
from octavo.front.chat.tools import Choice, calls_schema
from octavo.front.parsers.base import Format, Tool
from octavo.front.parsers.literals import json_term
from octavo.params import StructuredOutputsParams


class Constraint(NamedTuple):
    """``params``: of the grammar; None where an answer may be any text. ``guided``: calls are a JSON list
    (``front.chat.guided``), since the model's own notation is not known or has no grammar."""

    params: StructuredOutputsParams | None = None
    guided: bool = False


def constraint(
    form: Format | None,
    tools: Sequence[Tool],
    choice: Choice,
    parallel: bool,
    asked: StructuredOutputsParams | None = None,
) -> Constraint:
    """Of an answer in which ``tools`` may be called, or must be; ``asked`` holds for what is not a call.

    Raises ``BadRequest`` for what cannot be had together.
    """
    if choice.forced:
        lark = None
        if form is not None:
            lark = form.tool_grammar(tools, required=True, named=choice.name, parallel=parallel)
        if lark is not None:
            return Constraint(StructuredOutputsParams(lark=lark, param="tools"))
        chosen = [tool for tool in tools if choice.name in (None, tool.name)]
        calls = json_term(calls_schema(chosen, parallel and choice.name is None))
        lark = f"start: SPACE calls\ncalls: {calls}\nSPACE: /[ \\n]{{0,2}}/\n"
        return Constraint(StructuredOutputsParams(lark=lark, param="tools"), guided=True)
    if choice.mode == "none" or form is None or not form.has_calls:
        return Constraint(asked)
    if asked is not None:
        return Constraint(_either(form, tools, parallel, asked))
    if any(tool.strict for tool in tools):
        lark = form.tool_grammar(tools, required=False, named=None, parallel=parallel)
        if lark is not None:
            return Constraint(StructuredOutputsParams(lark=lark, param="tools"))
    return Constraint()


def _either(
    form: Format, tools: Sequence[Tool], parallel: bool, asked: StructuredOutputsParams
) -> StructuredOutputsParams:
    """Calls, or JSON as ``asked``."""
    if asked.kind not in ("json_schema", "json_object"):
        raise BadRequest(
            f"{asked.param} of kind {asked.kind} leaves no room for calls: with tools it needs tool_choice 'none', or "
            "JSON as its kind",
            asked.param,
        )
    lark = form.tool_grammar(tools, required=True, named=None, parallel=parallel)
    if lark is None or form.grammar_reasons:
        # Without a grammar of calls none is made; where calls stand among the reasoning, ``asked`` holds behind it.
        return asked
    schema: Any = {"type": "object"} if asked.kind == "json_object" else _schema(asked)
    if isinstance(schema, dict) and "x-guidance" in schema:
        raise BadRequest("the JSON schema has 'x-guidance', which cannot be enforced", asked.param)
    return StructuredOutputsParams(
        lark=f"start: calls | answer\nanswer: %json {json.dumps(schema)}\n" + lark.replace("start:", "calls:", 1),
        param=asked.param,
    )


def _schema(asked: StructuredOutputsParams) -> Any:
    try:
        return json.loads(asked.text)
    except (ValueError, RecursionError):
        raise BadRequest(f"{asked.param} is no JSON", asked.param) from None
