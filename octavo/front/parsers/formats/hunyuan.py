"""Hunyuan A13B: a JSON list of calls between tags; reasoning and the answer each in a pair of tags that are text."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, Think, To, Wire

_BEGIN, _END = "<tool_calls>", "</tool_calls>"

HUNYUAN_A13B = ParserSpec(
    name="hunyuan_a13b",
    think=Think(
        "<think>", "</think>", kwargs=(), default=False, implicit=False, trim=True, answers=(("<answer>", "</answer>"),)
    ),
    table={
        CONTENT: {_BEGIN: WRAP, "助手：": To(CONTENT, first=True)},
        WRAP: {"[": To(ARGS, keep=True), "{": To(ARGS, keep=True), _END: CONTENT},
        ARGS: {_END: CONTENT},
        BETWEEN: {_END: CONTENT, _BEGIN: WRAP},
    },
    args={ARGS: JsonCall()},
    hints=(_BEGIN, "<answer>", "</answer>"),
    grammar=Wire(f"{_BEGIN}[", '{"name": "{name}", "arguments": ', "}", f"]{_END}", ", "),
    examples=(
        Example(
            f"<think>\nPlan.\n</think>\n<answer>\nOk.\n</answer>\n{_BEGIN}"
            '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "now", "arguments": {}}]'
            f"{_END}",
            reasoning="\nPlan.",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'<think>\nNo {_BEGIN}[{{"name": "now"}}]{_END} yet.\n</think>\n<answer>\n助手：{_BEGIN}'
            f'[{{"name": "now", "arguments": {{}}}}]{_END}\n</answer>',
            reasoning=f'\nNo {_BEGIN}[{{"name": "now"}}]{_END} yet.',
            calls=(("now", {}),),
        ),
        Example("<answer>\nThe tag </answer>", content="The tag"),
    ),
)
