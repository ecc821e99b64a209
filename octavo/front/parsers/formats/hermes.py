"""Hermes: JSON between <tool_call> tags. Qwen2.5 and Qwen3 write it too."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, Think, To, Wire

HERMES = ParserSpec(
    name="hermes",
    think=Think("<think>", "</think>"),
    table={
        CONTENT: {"<tool_call>": WRAP},
        WRAP: {"{": To(ARGS, keep=True), "[": To(ARGS, keep=True), "</tool_call>": CONTENT},
        ARGS: {"</tool_call>": CONTENT, "<tool_call>": WRAP},
        BETWEEN: {"</tool_call>": CONTENT, "<tool_call>": WRAP, "{": To(ARGS, keep=True)},
    },
    args={ARGS: JsonCall()},
    tokens=("<think>", "</think>", "<tool_call>", "</tool_call>"),
    hints=("<tool_call>", "arguments"),
    grammar=Wire(
        "<tool_call>\n", '{"name": "{name}", "arguments": ', "}", "\n</tool_call>", "\n</tool_call>\n<tool_call>\n"
    ),
    examples=(
        Example(
            "Plan.\n</think>\n\nOk.\n"
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            reasoning="Plan.\n",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            '<think>\n\n</think>\n\n<tool_call>{"arguments": {"city": "x"}, "name": "get_weather"}</tool_call> Bye.',
            reasoning="\n\n",
            content="Bye.",
            calls=(("get_weather", {"city": "x"}),),
        ),
    ),
)
