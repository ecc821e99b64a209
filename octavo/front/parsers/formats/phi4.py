"""Phi-4-mini, and Firefunction: a word or a marker, then a JSON list."""

from dataclasses import replace

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, To, Wire

_WORD, _CALL, _CALL_END = "functools", "<|tool_call|>", "<|/tool_call|>"

PHI4_MINI_JSON = ParserSpec(
    name="phi4_mini_json",
    table={
        CONTENT: {_WORD: WRAP, _CALL: WRAP},
        WRAP: {"[": To(ARGS, keep=True), _CALL_END: CONTENT},
        ARGS: {_CALL_END: CONTENT},
        BETWEEN: {_CALL_END: CONTENT},
    },
    args={ARGS: JsonCall()},
    tokens=(_CALL, _CALL_END),
    hints=("functools[",),
    grammar=Wire(f"{_WORD}[", '{"name": "{name}", "arguments": ', "}", "]", ", "),
    examples=(
        Example(
            f'Ok. {_WORD}[{{"name": "get_weather", "arguments": {{"city": "Paris", "days": 3}}}}, '
            '{"name": "now", "arguments": {}}]',
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(f"import {_WORD}\n[x]", content=f"import {_WORD}\n[x]"),
    ),
)

#: With the markers of its own template instead of the word.
PHI4_MINI = replace(
    PHI4_MINI_JSON,
    name="phi4_mini",
    hints=(_CALL, _CALL_END),
    grammar=Wire(f"{_CALL}[", '{"name": "{name}", "arguments": ', "}", f"]{_CALL_END}", ", "),
    examples=(
        Example(
            f'{_CALL}[{{"name": "get_weather", "arguments": {{"city": "Paris", "days": 3}}}}, '
            f'{{"name": "now", "arguments": {{}}}}]{_CALL_END}',
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
    ),
)
