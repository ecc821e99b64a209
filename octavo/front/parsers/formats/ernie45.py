"""ERNIE 4.5: JSON between tags as Hermes writes it; the answer behind the reasoning stands in tags too."""

from dataclasses import replace

from octavo.front.parsers.formats.hermes import HERMES
from octavo.front.parsers.spec import Example, Think

ERNIE45 = replace(
    HERMES,
    name="ernie45",
    think=Think("<think>", "</think>", trim=True, answers=(("<response>", "</response>"),)),
    tokens=(*HERMES.tokens, "<response>", "</response>"),
    hints=("<tool_call>", "<response>", "arguments"),
    examples=(
        Example(
            "Plan.\n</think>\n\n<response>\nOk.\n</response>\n\n"
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            reasoning="Plan.",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example("</think>\n<response>\nYes.\n</response>\n", content="Yes."),
    ),
)
