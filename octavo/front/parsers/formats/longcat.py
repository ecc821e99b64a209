"""LongCat: JSON between tags of its own."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, Think, To, Wire

_CALL, _CALL_END = "<longcat_tool_call>", "</longcat_tool_call>"
_THINK, _THINK_END = "<longcat_think>", "</longcat_think>"

LONGCAT = ParserSpec(
    name="longcat",
    think=Think(_THINK, _THINK_END, default=False),
    table={
        CONTENT: {_CALL: WRAP},
        WRAP: {"{": To(ARGS, keep=True), "[": To(ARGS, keep=True), _CALL_END: CONTENT},
        ARGS: {_CALL_END: CONTENT, _CALL: WRAP},
        BETWEEN: {_CALL_END: CONTENT, "{": To(ARGS, keep=True)},
    },
    args={ARGS: JsonCall()},
    tokens=(_CALL, _CALL_END, _THINK, _THINK_END),
    hints=(_CALL, _CALL_END),
    grammar=Wire(f"{_CALL}\n", '{"name": "{name}", "arguments": ', "}", f"\n{_CALL_END}", f"\n{_CALL_END}\n{_CALL}\n"),
    examples=(
        Example(
            f"{_THINK}Hm.{_THINK_END}Ok.\n{_CALL}\n"
            '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
            f"\n{_CALL_END}\n{_CALL}\n"
            '{"name": "now", "arguments": {}}'
            f"\n{_CALL_END}",
            reasoning="Hm.",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
    ),
)
