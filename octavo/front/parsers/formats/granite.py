"""Granite 3 and its 20B of function calls: a marker, then JSON. Granite 4 writes what Hermes does."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, Think, To, Wire

_CALL, _TAG, _TAG_END = "<|tool_call|>", "<tool_call>", "</tool_call>"
_FUNCTION = "<function_call>"
_JSON = {"{": To(ARGS, keep=True), "[": To(ARGS, keep=True)}
_THINK, _RESPOND = "Here is my thought process:", "Here is my response:"

GRANITE = ParserSpec(
    name="granite",
    think=Think(
        _THINK, _RESPOND, kwargs=(), default=False, prose=True,
        starts=("Here's my thought process:",), ends=("Here's my response:",),
    ),
    table={
        CONTENT: {_CALL: WRAP, _TAG: WRAP},
        WRAP: {**_JSON, _TAG_END: CONTENT},
        ARGS: {_TAG_END: CONTENT, _TAG: WRAP, _CALL: WRAP},
        BETWEEN: {_TAG_END: CONTENT},
    },
    args={ARGS: JsonCall()},
    tokens=(_CALL,),
    hints=("<|start_of_role|>", f"{_CALL} followed by a JSON list"),
    grammar=Wire(f"{_CALL}[", '{"name": "{name}", "arguments": ', "}", "]", ", "),
    examples=(
        Example(
            f"{_THINK} Hm.\n{_RESPOND}\n\nOk.{_CALL}"
            '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "now", "arguments": {}}]',
            reasoning=" Hm.\n",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f"Here's my thought process: A. Here's my response: {_TAG} "
            f'[{{"arguments": {{}}, "name": "now"}}]{_TAG_END} Bye. {_RESPOND} x',
            reasoning=" A. ",
            content=f"Bye. {_RESPOND} x",
            calls=(("now", {}),),
        ),
    ),
)  # fmt: skip

GRANITE_20B_FC = ParserSpec(
    name="granite-20b-fc",
    table={
        CONTENT: {_FUNCTION: WRAP},
        WRAP: _JSON,
        ARGS: {_FUNCTION: WRAP},
    },
    args={ARGS: JsonCall()},
    tokens=(_FUNCTION,),
    hints=(_FUNCTION, '"arguments"'),
    grammar=Wire("", f'{_FUNCTION} {{"name": "{{name}}", "arguments": ', "}", between=" "),
    examples=(
        Example(
            f'{_FUNCTION} {{"name": "get_weather", "arguments": {{"city": "Paris", "days": 3}}}} '
            f'{_FUNCTION} {{"name": "now", "arguments": {{}}}}',
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(f"A {_FUNCTION} no", content=f"A {_FUNCTION} no"),
    ),
)
