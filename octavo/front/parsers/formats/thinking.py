"""Formats that are reasoning alone."""

from dataclasses import replace

from octavo.front.parsers.spec import Example, ParserSpec, Think

_THINK = Think("<think>", "</think>", implicit=False)

DEEPSEEK_R1 = ParserSpec(
    name="deepseek_r1",
    think=_THINK,
    tokens=("<think>", "</think>"),
    examples=(
        Example("<think>\nPlan.\n</think>\n\nOk.", reasoning="\nPlan.\n", content="Ok."),
        Example("Plan <tool_call>.</think>Ok.", reasoning="Plan <tool_call>.", content="Ok."),
        Example("Plan.", reasoning="Plan."),
    ),
)

#: DeepSeek V3 to V3.2: only where the template is told to.
DEEPSEEK_V3 = replace(
    DEEPSEEK_R1,
    name="deepseek_v3",
    think=_THINK._replace(default=False),
    examples=(DEEPSEEK_R1.examples[0], Example("Plan.", content="Plan.")),
)

HOLO2 = replace(DEEPSEEK_R1, name="holo2")
