"""Formats that are reasoning alone."""

from octavo.front.parsers.spec import Example, ParserSpec, Think

DEEPSEEK_R1 = ParserSpec(
    name="deepseek_r1",
    think=Think("<think>", "</think>", implicit=False),
    tokens=("<think>", "</think>"),
    examples=(
        Example("<think>\nPlan.\n</think>\n\nOk.", reasoning="\nPlan.\n", content="Ok."),
        Example("Plan <tool_call>.</think>Ok.", reasoning="Plan <tool_call>.", content="Ok."),
        Example("Plan.", reasoning="Plan."),
    ),
)
