"""Kimi K2 to K2.7: a header that is the call's id, then JSON. The numbers of ids go on over a conversation."""

import re

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, NAME, WRAP, Example, Head, Json, ParserSpec, Think, Wire

_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_HEADER = re.compile(r"(?:functions\.)?(.*?)(:[0-9]+)?", re.DOTALL)


def _header(text: str) -> Head:
    text = text.strip()
    found = _HEADER.fullmatch(text)
    return Head(text) if found is None else Head(found[1], text if found[2] else "")


KIMI_K2 = ParserSpec(
    name="kimi_k2",
    think=Think("<think>", "</think>"),
    table={
        CONTENT: {_BEGIN: WRAP, _CALL: NAME},
        WRAP: {_CALL: NAME, _END: CONTENT},
        NAME: {_ARGUMENTS: ARGS, _CALL_END: BETWEEN, _END: CONTENT, _CALL: NAME},
        ARGS: {_CALL_END: BETWEEN, _END: CONTENT, _CALL: NAME},
        BETWEEN: {_CALL: NAME, _END: CONTENT, _CALL_END: BETWEEN},
    },
    args={ARGS: Json()},
    header=_header,
    ids="kimi",
    tokens=("<think>", "</think>", _BEGIN, _END, _CALL, _ARGUMENTS, _CALL_END),
    hints=(_BEGIN, _CALL),
    grammar=Wire(_BEGIN, f"{_CALL}functions.{{name}}:{{index}}{_ARGUMENTS}", _CALL_END, _END),
    examples=(
        Example(
            f"Need.</think>Sure.{_BEGIN}{_CALL}functions.get_weather:0{_ARGUMENTS}"
            f'{{"city": "Paris", "days": 3}}{_CALL_END}{_CALL}functions.now:1{_ARGUMENTS}{{}}{_CALL_END}{_END}',
            reasoning="Need.",
            content="Sure.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'Need.\n{_BEGIN}{_CALL}get_weather{_ARGUMENTS}{{"days": "3"}}{_CALL_END}'
            f"{_CALL}ns.now:1{_ARGUMENTS}{_END} Bye.",
            reasoning="Need.\n",
            content="Bye.",
            calls=(("get_weather", {"days": 3}), ("ns.now", {})),
        ),
    ),
)
