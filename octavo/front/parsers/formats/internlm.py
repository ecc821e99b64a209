"""InternLM2 and 3: JSON for a plugin between markers; what is for the interpreter is no call."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, To, Wire

_START, _PLUGIN, _INTERPRETER, _END = "<|action_start|>", "<|plugin|>", "<|interpreter|>", "<|action_end|>"
_OPENED = f"{_START}{_PLUGIN}\n"

INTERNLM = ParserSpec(
    name="internlm",
    table={
        CONTENT: {_START: WRAP},
        WRAP: {_PLUGIN: WRAP, "{": To(ARGS, keep=True), "[": To(ARGS, keep=True), _END: CONTENT},
        ARGS: {_END: CONTENT, _START: WRAP},
        BETWEEN: {_END: CONTENT},
    },
    args={ARGS: JsonCall()},
    data=(_INTERPRETER,),
    tokens=(_START, _PLUGIN, _INTERPRETER, _END),
    hints=(_START, _PLUGIN, _END),
    grammar=Wire("", f'{_OPENED}{{"name": "{{name}}", "parameters": ', f"}}{_END}"),
    examples=(
        Example(
            f'Ok.{_OPENED}{{"name": "get_weather", "parameters": {{"city": "Paris", "days": 3}}}}{_END}'
            f'{_OPENED}{{"name": "now", "parameters": {{}}}}{_END}',
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(f"{_START}{_INTERPRETER}\nx{_END}", content=f"{_START}{_INTERPRETER}\nx{_END}"),
    ),
)
