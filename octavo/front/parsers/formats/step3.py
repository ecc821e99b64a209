"""Step 3: a header that says the kind of call, then tags of its own."""

from octavo.front.parsers.spec import (
    ARGS,
    BETWEEN,
    CONTENT,
    NAME,
    WRAP,
    Example,
    ParserSpec,
    Role,
    Tags,
    Think,
    Wire,
    attribute_name,
    tag_rows,
)

_BEGIN, _END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _SEP, _CALL_END = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"
_INVOKE, _INVOKE_END = "<steptml:invoke", "</steptml:invoke>"
_KIND = "kind"
_ENDS = {_INVOKE_END: BETWEEN, _CALL_END: BETWEEN, _END: CONTENT, _CALL: _KIND}

STEP3 = ParserSpec(
    name="step3",
    think=Think("<think>", "</think>"),
    table={
        CONTENT: {_BEGIN: WRAP, _CALL: _KIND},
        WRAP: {_CALL: _KIND, _END: CONTENT},
        _KIND: {_SEP: _KIND, _INVOKE: NAME, _CALL_END: BETWEEN, _END: CONTENT},
        NAME: {">": ARGS, _CALL_END: BETWEEN, _END: CONTENT},
        **tag_rows(_ENDS, key="<steptml:parameter", key_end=">", value_end="</steptml:parameter>"),
        BETWEEN: {_CALL: _KIND, _CALL_END: BETWEEN, _END: CONTENT, _INVOKE: NAME},
    },
    roles={_KIND: Role.LABEL},
    args={ARGS: Tags()},
    header=attribute_name,
    tokens=("<think>", "</think>", _BEGIN, _END, _CALL, _SEP, _CALL_END),
    hints=(_BEGIN, _CALL, "steptml:invoke"),
    grammar=Wire(
        _BEGIN,
        f'{_CALL}function{_SEP}{_INVOKE} name="{{name}}">',
        f"{_INVOKE_END}{_CALL_END}",
        _END,
        value=('<steptml:parameter name="{key}">', "</steptml:parameter>"),
    ),
    examples=(
        Example(
            f'Plan.</think>Ok.{_BEGIN}{_CALL}function{_SEP}{_INVOKE} name="get_weather">'
            '<steptml:parameter name="city">Paris</steptml:parameter>'
            f'<steptml:parameter name="days">3</steptml:parameter>{_INVOKE_END}{_CALL_END}'
            f'{_CALL}function{_SEP}{_INVOKE} name="now">{_INVOKE_END}{_CALL_END}{_END}',
            reasoning="Plan.",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'</think>{_BEGIN}\n{_CALL}function{_SEP}{_INVOKE} name="now">{_CALL_END}\n{_END}Bye.',
            content="Bye.",
            calls=(("now", {}),),
        ),
    ),
)
