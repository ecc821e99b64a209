"""Llama 3.1 to 4: a JSON object that names the function, often bare; several stand behind one another."""

from dataclasses import replace

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, Role, To, Wire

_TAG, _START, _END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"
_NEXT = "next"
_OBJECT = {"{": To(ARGS, keep=True)}

LLAMA3_JSON = ParserSpec(
    name="llama3_json",
    table={
        CONTENT: {_TAG: WRAP, **_OBJECT},
        WRAP: {**_OBJECT, "[": To(ARGS, keep=True)},
        ARGS: {},
        BETWEEN: {";": _NEXT, ",": _NEXT},
        _NEXT: {_TAG: WRAP, **_OBJECT},
    },
    roles={_NEXT: Role.WRAP},
    args={ARGS: JsonCall(bare=True)},
    tokens=(_TAG,),
    hints=("<|start_header_id|>", '"parameters": dictionary of argument name'),
    grammar=Wire("", '{"name": "{name}", "parameters": ', "}", "", "; "),
    examples=(
        Example(
            '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}; {"name": "now", "parameters": {}}',
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'Ok: {_TAG}{{"type": "function", "name": "other", "parameters": {{"a": {{"b": 1}}}}}} '
            '{"name": "now"}; bye',
            content="Ok:; bye",
            calls=(("other", {"a": {"b": 1}}), ("now", {})),
        ),
        Example('{"name": "Ann", "age": 3}; {"name": "now"}', content='{"name": "Ann", "age": 3}; {"name": "now"}'),
        Example(f"{_TAG}print({{}})", content=f"{_TAG}print({{}})"),
    ),
)

#: The markers stand around content.
LLAMA4_JSON = replace(
    LLAMA3_JSON,
    name="llama4_json",
    table={
        **LLAMA3_JSON.table,
        CONTENT: {**LLAMA3_JSON.table[CONTENT], _START: CONTENT, _END: CONTENT},
    },
    tokens=(_TAG, _START, _END),
    hints=("<|header_start|>", '"parameters": '),
    examples=(
        *LLAMA3_JSON.examples,
        Example(f'{_START}Ok.{_END}{{"name": "now", "parameters": {{}}}}{_END}', content="Ok.", calls=(("now", {}),)),
    ),
)
