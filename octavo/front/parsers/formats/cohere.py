"""Command A and R7B, and Command 4: thinking, an action that is a JSON list, and a response, each between markers."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, Think, To, Wire

_ACTION, _ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
_THINK, _THINK_END = "<|START_THINKING|>", "<|END_THINKING|>"
_RESPONSE, _RESPONSE_END = "<|START_RESPONSE|>", "<|END_RESPONSE|>"
_TEXT, _TEXT_END = "<|START_TEXT|>", "<|END_TEXT|>"

COHERE = ParserSpec(
    name="cohere_command",
    think=Think(
        _THINK, _THINK_END, kwargs=(), default=False, reenter=True,
        answers=((_RESPONSE, _RESPONSE_END), (_TEXT, _TEXT_END)),
    ),
    table={
        CONTENT: {_ACTION: WRAP},
        WRAP: {"[": To(ARGS, keep=True), "{": To(ARGS, keep=True), _ACTION_END: CONTENT},
        ARGS: {_ACTION_END: CONTENT},
        BETWEEN: {_ACTION_END: CONTENT},
    },
    # The model counts its calls from zero in every answer; a conversation needs ids of its own.
    args={ARGS: JsonCall(name=("tool_name", "name"), arguments=("parameters", "arguments"), id=())},
    tokens=(_ACTION, _ACTION_END, _THINK, _THINK_END, _RESPONSE, _RESPONSE_END, _TEXT, _TEXT_END),
    hints=(_ACTION, _ACTION_END),
    grammar=Wire(
        f"{_ACTION}[\n    ",
        '{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": ',
        "}",
        f"\n]{_ACTION_END}",
        ",\n    ",
    ),
    examples=(
        Example(
            f"{_THINK}Plan.{_THINK_END}{_ACTION}[\n    "
            '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", "days": 3}},\n    '
            f'{{"tool_call_id": "1", "tool_name": "now", "parameters": {{}}}}\n]{_ACTION_END}',
            reasoning="Plan.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(f"{_THINK}A{_THINK_END}{_RESPONSE}Hi.\n{_RESPONSE_END}", reasoning="A", content="Hi."),
        Example(f"{_TEXT}Hi.{_TEXT_END}", content="Hi."),
        Example(f"{_THINK}A{_THINK_END}Hi.", reasoning="A", content="Hi."),
    ),
)  # fmt: skip
